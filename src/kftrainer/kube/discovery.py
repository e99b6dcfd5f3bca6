"""Which kinds the API server serves, and where; kinds may come and go while we run."""

from collections.abc import Mapping
from typing import Any

import orjson

from kftrainer.kube.errors import NotFoundError, error_from_response
from kftrainer.kube.resource import Manifest, Resource, as_it_is
from kftrainer.kube.transport import FIRST_FAILURE, Transport

Kinds = Mapping[str, Resource[Manifest]]
CORE_VERSIONS = ("v1",)
NO_KINDS: Kinds = {}


class RestMapper:
    """Finds the resource of a kind.

    What was found once is taken for granted; what was not is looked for again each time.
    """

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._kinds: dict[tuple[str, str], Kinds] = {}  # by group and version

    async def is_served(self, resource: Resource[Any]) -> bool:
        """Whether the server knows this kind in this version."""
        known = self._kinds.get((resource.group, resource.version), NO_KINDS)
        if resource.kind not in known:
            known = await self._look(resource.group, resource.version)
        found = known.get(resource.kind)
        return found is not None and found.plural == resource.plural

    async def find(self, group: str, kind: str) -> Resource[Manifest] | None:
        """The kind in the version that the server prefers, or else in any that has it."""
        for (of_group, _), kinds in self._kinds.items():
            if of_group == group and kind in kinds:
                return kinds[kind]
        for version in await self._versions(group):
            kinds = await self._look(group, version)
            if kind in kinds:
                return kinds[kind]
        return None

    async def _versions(self, group: str) -> list[str]:
        if not group:
            return list(CORE_VERSIONS)
        told = await self._read(f"/apis/{group}")
        if told is None:
            return []
        preferred = told["preferredVersion"]["version"]
        others = (each["version"] for each in told["versions"])
        return [preferred, *(version for version in others if version != preferred)]

    async def _look(self, group: str, version: str) -> Kinds:
        told = await self._read(f"/apis/{group}/{version}" if group else f"/api/{version}")
        if told is None:
            self._kinds.pop((group, version), None)
            return NO_KINDS
        kinds = {
            each["kind"]: Resource(
                group, version, each["kind"], each["name"], each["namespaced"], as_it_is
            )
            for each in told["resources"] or ()
            if "/" not in each["name"]  # a subresource
        }
        self._kinds[group, version] = kinds
        return kinds

    async def _read(self, path: str) -> dict[str, Any] | None:
        """What the server says there; None if it knows no such group or version."""
        response = await self._transport.request("GET", path)
        if response.status < FIRST_FAILURE:
            told: dict[str, Any] = orjson.loads(response.body)
            return told
        error = error_from_response(response.status, response.headers, response.body)
        if isinstance(error, NotFoundError):
            return None
        raise error
