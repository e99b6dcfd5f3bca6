"""API discovery: which kinds the API server serves; this may change at any time."""

from collections.abc import Mapping
from typing import Any

import orjson

from kftrainer.kube.client.errors import NotFoundError, TransportError, error_from_response
from kftrainer.kube.client.transport import FIRST_FAILURE, Transport
from kftrainer.kube.objects.resource import Manifest, Resource, unstructured

Kinds = Mapping[str, Resource[Manifest]]
CORE_VERSIONS = ("v1",)
NO_KINDS: Kinds = {}


class RestMapper:
    """Finds the resource of a kind.

    Kinds that were found are cached; kinds that were not found are looked up again each time.
    """

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._kinds: dict[tuple[str, str], Kinds] = {}  # by group and version
        self._chosen: dict[tuple[str, str], str] = {}  # versions, by group and kind

    async def is_served(self, resource: Resource[Any]) -> bool:
        """Return whether the server serves this kind in this version."""
        found = await self.find_in(resource.group, resource.version, resource.kind)
        return found is not None and found.plural == resource.plural

    async def find(self, group: str, kind: str) -> Resource[Manifest] | None:
        """Return the kind in the server's preferred version, or else in any version that has it."""
        chosen = self._chosen.get((group, kind), "")
        if found := self._kinds.get((group, chosen), NO_KINDS).get(kind):
            return found
        for version in await self._versions(group):
            if found := await self.find_in(group, version, kind):
                self._chosen[group, kind] = version
                return found
        return None

    async def find_in(self, group: str, version: str, kind: str) -> Resource[Manifest] | None:
        """Return the kind in this version, or None."""
        known = self._kinds.get((group, version), NO_KINDS)
        if kind not in known:
            known = await self._discover(group, version)
        return known.get(kind)

    async def _versions(self, group: str) -> list[str]:
        if not group:
            return list(CORE_VERSIONS)
        found = await self._read(f"/apis/{group}")
        if found is None:
            return []
        preferred = found["preferredVersion"]["version"]
        others = (each["version"] for each in found["versions"])
        return [preferred, *(version for version in others if version != preferred)]

    async def _discover(self, group: str, version: str) -> Kinds:
        found = await self._read(f"/apis/{group}/{version}" if group else f"/api/{version}")
        if found is None:
            self._kinds.pop((group, version), None)
            return NO_KINDS
        kinds = {
            each["kind"]: Resource(
                group, version, each["kind"], each["name"], each["namespaced"], unstructured
            )
            for each in found["resources"] or ()
            if "/" not in each["name"]  # a subresource
        }
        self._kinds[group, version] = kinds
        return kinds

    async def _read(self, path: str) -> dict[str, Any] | None:
        """Return the discovery document; None if the group or version does not exist."""
        response = await self._transport.request("GET", path)
        if response.status < FIRST_FAILURE:
            try:
                found: dict[str, Any] = orjson.loads(response.body)
            except orjson.JSONDecodeError as broken:
                raise TransportError(f"GET {path}: the response is not valid JSON") from broken
            return found
        error = error_from_response(response.status, response.headers, response.body)
        if isinstance(error, NotFoundError):
            return None
        raise error
