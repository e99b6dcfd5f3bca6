"""API client by URL path, for setting up and inspecting a control plane and its servers.

It uses the transport of `kftrainer.kube`, and reports the server's error messages unredacted.
"""

import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Self

import orjson

from kftrainer.devcluster.errors import ApiError, DevClusterError
from kftrainer.devcluster.waiting import until
from kftrainer.kube.client import errors
from kftrainer.kube.client.client import APPLY_PATCH as APPLY
from kftrainer.kube.client.credentials import ClientCertificate, Connection
from kftrainer.kube.client.discovery import RestMapper
from kftrainer.kube.client.transport import FIRST_FAILURE, JSON, NOTHING, HttpTransport, Response

FIELD_MANAGER = "kftrainer-devcluster"
REQUEST_TIMEOUT = 30.0
CRD_SERVED_WITHIN = 30.0
NOT_FOUND = 404
NOT_YET = (404, 429, 503)  # 429 and 503 occur while the storage and its watch cache are created

Object = dict[str, Any]


class UnreachableError(DevClusterError):
    """No HTTP response was received."""


def condition_is_true(obj: Mapping[str, Any], kind: str) -> bool:
    """Return whether the object has this condition with status True."""
    conditions = obj.get("status", {}).get("conditions") or []
    return any(each["type"] == kind and each["status"] == "True" for each in conditions)


class ApiClient:
    """Requests to one API server as one user; use it as an async context manager."""

    def __init__(self, url: str, tls: ssl.SSLContext | None) -> None:
        self.url = url
        self.tls = tls
        connection = Connection(url, tls, ClientCertificate())
        self._transport = HttpTransport(
            connection, user_agent=FIELD_MANAGER, honors_retry_after=False
        )
        self._mapper = RestMapper(self._transport)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._transport.close()

    async def send(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] = NOTHING,
        body: Mapping[str, Any] | None = None,
        content_type: str = JSON,
    ) -> Response:
        """Send one request and return the response, of any status."""
        with self._translated():
            return await self._transport.request(
                method,
                path,
                query=query,
                body=None if body is None else orjson.dumps(body),
                content_type=content_type,
                timeout=REQUEST_TIMEOUT,
            )

    async def fetch(self, method: str, path: str, **options: Any) -> bytes:
        """Send one request; raise ApiError for an error response."""
        response = await self.send(method, path, **options)
        if response.status >= FIRST_FAILURE:
            raise _api_error(response.status, response.body)
        return response.body

    async def request(self, method: str, path: str, **options: Any) -> Object:
        """Send one request and decode the JSON object in the response."""
        answer: Object = orjson.loads(await self.fetch(method, path, **options))
        return answer

    async def get(self, path: str) -> Object:
        """Read an object or a list."""
        return await self.request("GET", path)

    async def get_or_none(self, path: str) -> Object | None:
        """Read an object; return None if it does not exist."""
        try:
            return await self.get(path)
        except ApiError as error:
            if error.status == NOT_FOUND:
                return None
            raise

    async def create(self, manifest: Mapping[str, Any]) -> Object:
        """Create the object."""
        return await self.request("POST", await self._collection_of(manifest), body=manifest)

    async def apply(self, manifest: Mapping[str, Any]) -> Object:
        """Create or update the object by server-side apply."""
        return await self.request(
            "PATCH",
            await self.path_of(manifest),
            query={"fieldManager": FIELD_MANAGER, "force": "true"},
            body=manifest,
            content_type=APPLY,
        )

    async def delete(self, path: str) -> Object:
        """Delete an object and, in the background, its dependents."""
        return await self.request("DELETE", path, query={"propagationPolicy": "Background"})

    async def apply_crd(self, manifest: Mapping[str, Any]) -> None:
        """Apply a CustomResourceDefinition and wait until its kind is served."""
        await self.wait_served(await self.apply(manifest))

    async def wait_served(self, definition: Mapping[str, Any]) -> None:
        """Wait until the kind of a CustomResourceDefinition can be used."""
        name = definition["metadata"]["name"]
        path = f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{name}"

        async def served() -> bool:
            found = await self.get(path)
            # Requests and discovery are served a moment after the status changes.
            return (
                condition_is_true(found, "Established")
                and await self._discovers(definition)
                and await self._lists(definition)
            )

        await until(served, within=CRD_SERVED_WITHIN, what=f"the kind of CRD {name} to be served")

    async def _discovers(self, definition: Mapping[str, Any]) -> bool:
        group, versions = definition["spec"]["group"], _served_versions(definition)
        # The CRD server serves discovery of the group with all versions until the aggregator
        # registers the first of them; from then on only registered versions are listed.
        for version in versions:
            if not await self._is_registered(f"{version}.{group}"):
                return False
        found = await self.get_or_none(f"/apis/{group}") or {"versions": []}
        if not {each["version"] for each in found["versions"]} >= set(versions):
            return False
        for version in versions:
            listed = await self.get_or_none(f"/apis/{group}/{version}") or {"resources": []}
            kinds = {each["kind"] for each in listed["resources"]}
            if definition["spec"]["names"]["kind"] not in kinds:
                return False
        return True

    async def _is_registered(self, api_service: str) -> bool:
        """Return whether the aggregator has registered the version and reports it available."""
        path = f"/apis/apiregistration.k8s.io/v1/apiservices/{api_service}"
        return condition_is_true(await self.get_or_none(path) or {}, "Available")

    async def _lists(self, definition: Mapping[str, Any]) -> bool:
        """Return whether its objects can be listed; storage and watch cache may not be ready.

        The list has no limit, because a limited list would not depend on the watch cache.
        """
        group, plural = definition["spec"]["group"], definition["spec"]["names"]["plural"]
        for version in _served_versions(definition):
            try:
                await self.get(f"/apis/{group}/{version}/{plural}")
            except ApiError as error:
                if error.status not in NOT_YET:
                    raise
                return False
        return True

    async def path_of(self, manifest: Mapping[str, Any]) -> str:
        """Return the URL path of an object."""
        return f"{await self._collection_of(manifest)}/{manifest['metadata']['name']}"

    async def _collection_of(self, manifest: Mapping[str, Any]) -> str:
        api_version, kind = manifest["apiVersion"], manifest["kind"]
        group, _, version = api_version.rpartition("/")
        with self._translated():
            found = await self._mapper.find_in(group, version, kind)
        if found is None:
            raise ApiError(NOT_FOUND, "NotFound", f"{api_version} serves no kind {kind}.")
        return found.collection_path(manifest["metadata"].get("namespace", "default"))

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except errors.TransportError as error:
            raise UnreachableError(f"{self.url}: {error}") from error
        except errors.ApiError as error:
            raise ApiError(error.status, error.reason, str(error)) from error


def _served_versions(definition: Mapping[str, Any]) -> list[str]:
    return [each["name"] for each in definition["spec"]["versions"] if each["served"]]


def _api_error(status: int, answer: bytes) -> ApiError:
    try:
        found = orjson.loads(answer)
        return ApiError(status, found.get("reason", ""), found.get("message", ""))
    except (orjson.JSONDecodeError, AttributeError):
        return ApiError(status, "", answer.decode(errors="replace").strip())
