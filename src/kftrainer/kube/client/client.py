"""API client: the verbs of the API server on untyped manifests; lists are read in pages."""

from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from email.utils import parsedate_to_datetime
from functools import partial
from typing import Any, Literal

import orjson

from kftrainer.kube.client.errors import (
    KindNotFoundError,
    NotFoundError,
    TransportError,
    error_from_response,
)
from kftrainer.kube.client.ratelimit import Limiter
from kftrainer.kube.client.transport import (
    FIRST_FAILURE,
    JSON,
    NOTHING,
    REQUEST_TIMEOUT,
    Lane,
    Transport,
)
from kftrainer.kube.client.watch import WatchEvent, events_in
from kftrainer.kube.client.write_guard import WriteGuard
from kftrainer.kube.objects.deep_json import decode_json
from kftrainer.kube.objects.resource import Manifest, ObjectKey, Resource, key_of
from kftrainer.kube.warning_log import WarningLog

APPLY_PATCH = "application/apply-patch+yaml"  # JSON is valid YAML
MERGE_PATCH = "application/merge-patch+json"
JSON_PATCH = "application/json-patch+json"
# No other type is accepted, so a server without metadata-only responses returns an error.
PARTIAL = f"{JSON};as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
PARTIAL_LIST = f"{JSON};as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
PAGE_SIZE = 100  # objects; a page is read as a whole, and each object may have a mebibyte
# Limit of one page: decoding takes up to 20 times the memory and blocks the event loop.
MOST_PAGE_BYTES = 4 * 2**20
LIST_TIMEOUT = 120.0
WATCH_GRACE = 30.0  # seconds that the server may take to end a watch after its timeout

Propagation = Literal["Background", "Foreground", "Orphan"]
AnyResource = Resource[Any]


@dataclass(frozen=True, slots=True)
class Page:
    """A page of a list and the list's resourceVersion."""

    items: list[Manifest]
    resource_version: str


class _PageTooLargeError(Exception):
    """A page is larger than the limit for decoding."""

    def __init__(self, size: int) -> None:
        super().__init__(f"a page of {size} bytes")
        self.size = size


def smaller_page(limit: int, size: int) -> int:
    """Return the limit for reading a page again whose objects had `size` bytes."""
    return max(1, min(limit // 2, limit * MOST_PAGE_BYTES // size))


class Client:
    """Reads and writes objects; error responses are raised as `ApiError`.

    After a `TransportError` a write may or may not have been carried out; read the object to find
    out. With a WriteGuard, a write raises `WriteGuardError` and is not sent once the guard returns
    False.
    """

    def __init__(
        self,
        transport: Transport,
        *,
        limiter: Limiter | None = None,
        lane: Lane = "general",
        field_manager: str = "kftrainer",
        write_guard: WriteGuard | None = None,
    ) -> None:
        self._transport = transport
        self._write_guard = write_guard
        self._limiter = limiter
        self._lane = lane
        self._field_manager = field_manager
        self._warnings = WarningLog()

    async def get(self, resource: AnyResource, key: ObjectKey) -> Manifest:
        """Read the current state of one object."""
        accept = PARTIAL if resource.partial else JSON
        found = await self._send(resource, "GET", resource.object_path(key), accept=accept)
        return _typed(resource, found)

    async def list(
        self,
        resource: AnyResource,
        *,
        namespace: str | None = None,
        label_selector: str | None = None,
        field_selector: str | None = None,
        resource_version: str = "",
        limit: int = PAGE_SIZE,
    ) -> Page:
        """Return all pages as one, with the resourceVersion of the first page."""
        pages = [
            page
            async for page in self.list_pages(
                resource,
                namespace=namespace,
                label_selector=label_selector,
                field_selector=field_selector,
                resource_version=resource_version,
                limit=limit,
            )
        ]
        return Page([item for page in pages for item in page.items], pages[0].resource_version)

    async def list_pages(
        self,
        resource: AnyResource,
        *,
        namespace: str | None = None,
        label_selector: str | None = None,
        field_selector: str | None = None,
        resource_version: str = "",
        limit: int = PAGE_SIZE,
    ) -> AsyncGenerator[Page, None]:
        """Yield one page after the other; after an ExpiredError on a later page, start again.

        Callers that may stop before the last page must close the generator, for example with
        `aclosing`. A page that is too large is requested again with fewer objects before it is
        decoded.
        """
        path = resource.collection_path(namespace)
        accept = PARTIAL_LIST if resource.partial else JSON
        selectors = _selectors(label_selector, field_selector)
        query = {**selectors, **_not_older_than(resource_version)}
        most = limit
        while True:
            try:
                found = await self._send(
                    resource,
                    "GET",
                    path,
                    query={**query, "limit": str(limit)},
                    accept=accept,
                    timeout=LIST_TIMEOUT,
                    most_bytes=None if limit == 1 else MOST_PAGE_BYTES,
                )
            except _PageTooLargeError as error:
                limit = smaller_page(limit, error.size)
                continue
            limit = min(2 * limit, most)
            metadata = found["metadata"]
            items = [_typed(resource, item) for item in found["items"] or ()]
            yield Page(items, metadata["resourceVersion"])
            if not metadata.get("continue"):
                return
            # The token contains the resourceVersion, and the server rejects a request with both.
            query = {**selectors, "continue": metadata["continue"]}

    async def server_time(self) -> datetime:
        """Return the time of the API server, in seconds."""
        path = "/version"
        response = await self._transport.request("GET", path, lane=self._lane)
        try:
            return parsedate_to_datetime(response.headers["Date"])
        except (KeyError, ValueError) as broken:
            raise TransportError(f"GET {path}: the response has no valid date") from broken

    async def create(
        self,
        resource: AnyResource,
        manifest: Manifest,
        *,
        dry_run: bool = False,
        field_manager: str | None = None,
    ) -> Manifest:
        """Create the object; AlreadyExistsError if the name is taken."""
        path = _writable(resource).collection_path(manifest["metadata"].get("namespace"))
        query = self._write_options(dry_run, field_manager)
        return await self._send(resource, "POST", path, query=query, body=manifest)

    async def create_subresource(
        self, resource: AnyResource, key: ObjectKey, subresource: str, manifest: Manifest
    ) -> Manifest:
        """Create a subresource of an object, such as the `token` of a service account."""
        path = _writable(resource).object_path(key, subresource)
        query = self._write_options(dry_run=False)
        return await self._send(resource, "POST", path, query=query, body=manifest)

    async def update(
        self,
        resource: AnyResource,
        manifest: Manifest,
        *,
        subresource: str | None = None,
        dry_run: bool = False,
    ) -> Manifest:
        """Replace the object; ConflictError unless its resourceVersion is the latest."""
        path = _writable(resource).object_path(key_of(manifest), subresource)
        return await self._send(
            resource, "PUT", path, query=self._write_options(dry_run), body=manifest
        )

    async def apply(
        self,
        resource: AnyResource,
        manifest: Manifest,
        *,
        field_manager: str | None = None,
        force: bool = True,
        subresource: str | None = None,
        dry_run: bool = False,
    ) -> Manifest:
        """Server-side apply: fields that were applied before and are now omitted are removed.

        Without `force`, raises ConflictError if another manager owns a field. A deleted object is
        created again, unless the manifest has its uid.

        The field manager is this client's unless one is given. A field belongs to the manager that
        applied it.
        """
        path = _writable(resource).object_path(key_of(manifest), subresource)
        query = {
            **self._write_options(dry_run, field_manager),
            "force": "true" if force else "false",
        }
        return await self._send(
            resource, "PATCH", path, query=query, body=manifest, content_type=APPLY_PATCH
        )

    async def merge_patch(
        self,
        resource: AnyResource,
        key: ObjectKey,
        patch: Mapping[str, Any],
        *,
        subresource: str | None = None,
        dry_run: bool = False,
        field_manager: str | None = None,
    ) -> Manifest:
        """Change some fields; null removes a field, a list replaces the whole list."""
        path = _writable(resource).object_path(key, subresource)
        query = self._write_options(dry_run, field_manager)
        return await self._send(
            resource, "PATCH", path, query=query, body=patch, content_type=MERGE_PATCH
        )

    async def probe(self, resource: AnyResource, key: ObjectKey) -> Manifest:
        """Return the metadata of the object, read by a dry run of an empty patch.

        Requires the permission to patch, not to get. Admission policies apply: InvalidError if one
        of them denies the patch.
        """
        path, query = _writable(resource).object_path(key), self._write_options(dry_run=True)
        patched = await self._send(
            resource,
            "PATCH",
            path,
            query=query,
            body={},
            content_type=MERGE_PATCH,
            accept=PARTIAL,
        )
        return _typed(resource.only_metadata(), patched)

    async def json_patch(
        self,
        resource: AnyResource,
        key: ObjectKey,
        operations: Sequence[Mapping[str, Any]],
        *,
        subresource: str | None = None,
        dry_run: bool = False,
        field_manager: str | None = None,
    ) -> Manifest:
        """Apply JSON Patch operations in order; InvalidError if a `test` operation fails."""
        path = _writable(resource).object_path(key, subresource)
        query = self._write_options(dry_run, field_manager)
        return await self._send(
            resource, "PATCH", path, query=query, body=operations, content_type=JSON_PATCH
        )

    async def delete(
        self,
        resource: AnyResource,
        key: ObjectKey,
        *,
        propagation: Propagation = "Background",
        uid: str | None = None,
        resource_version: str | None = None,
        dry_run: bool = False,
    ) -> None:
        """Delete the object; ConflictError if a given uid or resourceVersion differs."""
        conditions = {**_set("uid", uid), **_set("resourceVersion", resource_version)}
        options = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "propagationPolicy": propagation,
            **({"preconditions": conditions} if conditions else {}),
            **({"dryRun": ["All"]} if dry_run else {}),
        }
        await self._send(resource, "DELETE", _writable(resource).object_path(key), body=options)

    def watch(  # noqa: PLR0913  the options of the API
        self,
        resource: AnyResource,
        *,
        namespace: str | None = None,
        label_selector: str | None = None,
        field_selector: str | None = None,
        resource_version: str = "",
        send_initial_events: bool = False,
        timeout_seconds: int,
    ) -> AbstractAsyncContextManager[AsyncIterator[WatchEvent]]:
        """Watch from a resourceVersion until the server ends it; not rate limited.

        With `send_initial_events` all existing objects are sent first, as additions, followed by a
        bookmark that marks their end.
        """
        query = {
            "watch": "true",
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(timeout_seconds),
            **_selectors(label_selector, field_selector),
            **_set("resourceVersion", resource_version),
        }
        if send_initial_events:
            query |= {"sendInitialEvents": "true", "resourceVersionMatch": "NotOlderThan"}
        return self._watch(resource, namespace, query, timeout_seconds)

    @asynccontextmanager
    async def _watch(
        self,
        resource: AnyResource,
        namespace: str | None,
        query: Mapping[str, str],
        timeout_seconds: int,
    ) -> AsyncIterator[AsyncIterator[WatchEvent]]:
        path, deadline = resource.collection_path(namespace), timeout_seconds + WATCH_GRACE
        accept = PARTIAL if resource.partial else JSON
        async with (
            self._transport.stream(path, query=query, accept=accept, timeout=deadline) as chunks,
            # Otherwise the generator stays open if the watch is left early.
            aclosing(events_in(chunks, partial(_typed, resource))) as events,
        ):
            yield events

    async def _send(  # noqa: PLR0913  the parameters of the transport
        self,
        resource: AnyResource,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] = NOTHING,
        body: object = None,
        content_type: str = JSON,
        accept: str = JSON,
        timeout: float = REQUEST_TIMEOUT,  # noqa: ASYNC109  passed to the transport
        most_bytes: int | None = None,
    ) -> dict[str, Any]:
        if self._limiter is not None:
            await self._limiter.wait()
        send = self._transport.request
        if self._write_guard is not None and method != "GET":
            send = partial(send, write_guard=self._write_guard)
        response = await send(
            method,
            path,
            query=query,
            body=None if body is None else orjson.dumps(body),
            content_type=content_type,
            accept=accept,
            timeout=timeout,
            lane=self._lane,
        )
        self._warnings.log(response.headers, path)
        if response.status >= FIRST_FAILURE:
            error = error_from_response(response.status, response.headers, response.body)
            if isinstance(error, KindNotFoundError):
                error.resource = resource
            raise error
        if most_bytes is not None and len(response.body) > most_bytes:
            raise _PageTooLargeError(len(response.body))
        try:
            content: dict[str, Any] = decode_json(response.body)
        except orjson.JSONDecodeError as broken:
            raise TransportError(f"{method} {path}: the response is not valid JSON") from broken
        return content

    def _write_options(self, dry_run: bool, field_manager: str | None = None) -> dict[str, str]:  # noqa: FBT001
        manager = {"fieldManager": field_manager or self._field_manager}
        return {**manager, "dryRun": "All"} if dry_run else manager


async def get_or_none(
    client: Client, resource: AnyResource, key: ObjectKey, *, kind_may_be_missing: bool = False
) -> Manifest | None:
    """Read the current state of one object; None if it does not exist.

    Raises KindNotFoundError if the API server does not serve the kind, unless the kind may be
    missing: then that is None, too.
    """
    try:
        return await client.get(resource, key)
    except NotFoundError as error:
        if isinstance(error, KindNotFoundError) and not kind_may_be_missing:
            raise
        return None


def _set(name: str, value: str | None) -> dict[str, str]:
    return {name: value} if value else {}


def _not_older_than(resource_version: str) -> dict[str, str]:
    # Without it, a limit would turn "at least this version" into "exactly this version".
    match = {"resourceVersionMatch": "NotOlderThan"}
    return {"resourceVersion": resource_version, **match} if resource_version else {}


def _selectors(label_selector: str | None, field_selector: str | None) -> dict[str, str]:
    return {**_set("labelSelector", label_selector), **_set("fieldSelector", field_selector)}


def _typed(resource: AnyResource, item: dict[str, Any]) -> Manifest:
    # Items of lists of built-in kinds have no kind, and metadata-only objects have another one.
    if resource.partial or "kind" not in item:
        item["apiVersion"], item["kind"] = resource.api_version, resource.kind
    return item


def _writable(resource: AnyResource) -> AnyResource:
    if resource.partial:
        raise ValueError(f"{resource.group_kind} is read as metadata only: it cannot be written")
    return resource
