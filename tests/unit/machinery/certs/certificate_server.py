"""An API server with one Secret and one configuration, and a client that can die at any call."""

from collections.abc import Generator, Mapping
from typing import Any, cast

from kftrainer.kube.client.client import Client
from kftrainer.kube.client.errors import AlreadyExistsError, ApiError, ConflictError, NotFoundError
from kftrainer.kube.objects.resource import Manifest, ObjectKey, Resource
from kftrainer.machinery.certs.ca_bundle import ManagedConfiguration
from kftrainer.machinery.certs.rotation import SECRETS, content_of, new_secret, with_content
from tests.support.fake_clock import FakeClock

SECRET = ObjectKey("ours", "hooks-cert")
SERVICE = ObjectKey("ours", "hooks")
CONFIGURATION = ManagedConfiguration("our-hooks", SERVICE)


def webhook(name: str, service: ObjectKey = SERVICE, **client_config: Any) -> dict[str, Any]:
    """A webhook as it stands in a configuration."""
    fields = {"service": {"namespace": service.namespace, "name": service.name}, **client_config}
    return {"name": name, "clientConfig": fields}


def configuration(*webhooks: Mapping[str, Any]) -> dict[str, Any]:
    """A configuration with these webhooks."""
    return {
        "apiVersion": CONFIGURATION.resource.api_version,
        "kind": CONFIGURATION.resource.kind,
        "metadata": {"name": CONFIGURATION.name},
        "webhooks": list(webhooks),
    }


class Step:
    """Yield once, so that the driver of the coroutines decides which continues."""

    def __await__(self) -> Generator[None, None, None]:
        yield


class Server:
    """The objects, and the time of each bundle."""

    def __init__(self, clock: FakeClock) -> None:
        self._clock = clock
        self._version = 0
        self.objects: dict[ObjectKey, Manifest] = {}
        self.bundles_seen: list[tuple[float, list[bytes]]] = []  # the bundles, and from when on
        self.refusals: dict[str, ApiError] = {}  # by method and kind
        self.writes: list[str] = []

    def put(self, manifest: Manifest) -> Manifest:
        """Take it as it is."""
        metadata = manifest["metadata"]
        self._version += 1
        stored = {**manifest, "metadata": {**metadata, "resourceVersion": str(self._version)}}
        self.objects[_key(manifest)] = stored
        if manifest["kind"] == CONFIGURATION.resource.kind:
            self.bundles_seen.append((self._clock.monotonic(), CONFIGURATION.bundles(manifest)))
        return stored

    def fill_secret(self, content: Mapping[str, bytes]) -> None:
        """Let the Secret hold this, and nothing else."""
        self.put(with_content(new_secret(SECRET), content))

    @property
    def content(self) -> Mapping[str, bytes]:
        """What is in the Secret."""
        return content_of(self.objects.get(SECRET, {}))

    @property
    def bundles(self) -> list[bytes]:
        """The current bundles."""
        return CONFIGURATION.bundles(self.objects.get(CONFIGURATION.key, {}))

    def bundles_at(self, lag: float) -> list[bytes]:
        """The bundles of a client that receives changes with a delay of `lag`."""
        moment = self._clock.monotonic() - lag
        return [bundles for at, bundles in self.bundles_seen if at <= moment or at == 0][-1]

    def client(self) -> Client:
        """A client that gives way before each request."""
        return cast("Client", _Client(self))

    def refuse(self, method: str, resource: Resource[Manifest]) -> None:
        refusal = self.refusals.get(f"{method} {resource.kind}")
        if refusal is not None:
            raise refusal


class _Client:
    def __init__(self, server: Server) -> None:
        self._server = server

    async def get(self, resource: Resource[Manifest], key: ObjectKey) -> Manifest:
        await Step()
        self._server.refuse("get", resource)
        if key not in self._server.objects:
            raise NotFoundError(404, "NotFound", f"{key} is not there")
        return self._server.objects[key]

    async def create(self, resource: Resource[Manifest], manifest: Manifest) -> Manifest:
        await Step()
        self._server.refuse("create", resource)
        if _key(manifest) in self._server.objects:
            raise AlreadyExistsError(409, "AlreadyExists", "it is there")
        self._server.writes.append(f"create {resource.kind}")
        return self._server.put(manifest)

    async def update(self, resource: Resource[Manifest], manifest: Manifest) -> Manifest:
        await Step()
        self._server.refuse("update", resource)
        existing = self._server.objects.get(_key(manifest))
        if existing is None:
            raise NotFoundError(404, "NotFound", f"{_key(manifest)} is not there")
        if existing["metadata"]["resourceVersion"] != manifest["metadata"]["resourceVersion"]:
            raise ConflictError(409, "Conflict", "it has changed")
        self._server.writes.append(f"update {resource.kind}")
        return self._server.put(manifest)


def _key(manifest: Manifest) -> ObjectKey:
    namespace = SECRET.namespace if manifest["kind"] == SECRETS.kind else ""
    return ObjectKey(namespace, manifest["metadata"]["name"])
