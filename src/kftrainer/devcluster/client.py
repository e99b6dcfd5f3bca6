"""A small API client for setting up and inspecting a control plane.

The operator's own client is in `kftrainer.kube`; this one keeps the devcluster independent.
"""

import ssl
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

import aiohttp
import orjson

from kftrainer.devcluster.errors import ApiError, DevClusterError
from kftrainer.devcluster.waiting import until

FIELD_MANAGER = "kftrainer-devcluster"
APPLY = "application/apply-patch+yaml"
CRD_SERVED_WITHIN = 30.0
NOT_FOUND = 404
NOT_YET = (404, 429, 503)  # 429 and 503 occur while the storage and its watch cache are created
ERROR = 400

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
        self._tls = tls
        self._session: aiohttp.ClientSession | None = None
        self._resources: dict[tuple[str, str], tuple[str, bool]] = {}

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=self._tls or True),
            timeout=aiohttp.ClientTimeout(total=30),
        )
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._session is not None:
            await self._session.close()

    async def fetch(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | None = None,
        content_type: str = "application/json",
    ) -> bytes:
        """Send one request; raise ApiError for a status of 400 or more."""
        if self._session is None:
            raise RuntimeError("ApiClient must be entered with `async with` before it is used")
        data = None if body is None else orjson.dumps(body)
        headers = {"Content-Type": content_type, "Accept": "application/json"}
        try:
            async with self._session.request(
                method, self.url + path, params=query, data=data, headers=headers
            ) as response:
                answer = await response.read()
        except (aiohttp.ClientError, TimeoutError) as error:
            raise UnreachableError(
                f"{method} {self.url}{path}: {str(error) or 'timed out'}"
            ) from error
        if response.status >= ERROR:
            raise _api_error(response.status, answer)
        return answer

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

        await until(served, within=CRD_SERVED_WITHIN, what=f"the kind of CRD {name} being served")

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
        root = f"/apis/{api_version}" if "/" in api_version else f"/api/{api_version}"
        if (api_version, kind) not in self._resources:
            await self._discover(api_version, root)
        if (api_version, kind) not in self._resources:
            raise ApiError(NOT_FOUND, "NotFound", f"{api_version} serves no kind {kind}.")
        plural, namespaced = self._resources[api_version, kind]
        if not namespaced:
            return f"{root}/{plural}"
        return f"{root}/namespaces/{manifest['metadata'].get('namespace', 'default')}/{plural}"

    async def _discover(self, api_version: str, root: str) -> None:
        for resource in (await self.get(root))["resources"]:
            if "/" not in resource["name"]:
                entry = (resource["name"], resource["namespaced"])
                self._resources[api_version, resource["kind"]] = entry


def _served_versions(definition: Mapping[str, Any]) -> list[str]:
    return [each["name"] for each in definition["spec"]["versions"] if each["served"]]


def _api_error(status: int, answer: bytes) -> ApiError:
    try:
        told = orjson.loads(answer)
        return ApiError(status, told.get("reason", ""), told.get("message", ""))
    except (orjson.JSONDecodeError, AttributeError):
        return ApiError(status, "", answer.decode(errors="replace").strip())
