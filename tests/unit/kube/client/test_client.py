"""A client's requests in situations that the real API server cannot produce."""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager

import orjson
import pytest

from kftrainer.kube.client.client import MOST_PAGE_BYTES, Client, get_or_none
from kftrainer.kube.client.errors import (
    ApiError,
    ExpiredError,
    ForbiddenError,
    KindNotFoundError,
    TransportError,
)
from kftrainer.kube.client.transport import NOTHING, Lane, Response
from kftrainer.kube.objects.resource import Manifest, ObjectKey, Resource, unstructured

PODS: Resource[Manifest] = Resource(
    group="", version="v1", kind="Pod", plural="pods", namespaced=True, decode=unstructured
)


class FakeTransport:
    """A transport that returns the given responses and records the requests."""

    def __init__(self, *answers: tuple[int, object]) -> None:
        self._answers = list(answers)
        self.queries: list[dict[str, str]] = []
        self.lanes: list[Lane] = []
        self.accepted: list[str] = []

    async def request(  # noqa: PLR0913
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] = NOTHING,
        body: bytes | None = None,
        content_type: str = "application/json",
        accept: str = "application/json",
        timeout: float = 60.0,  # noqa: ASYNC109
        lane: Lane = "general",
    ) -> Response:
        self.queries.append(dict(query))
        self.lanes.append(lane)
        self.accepted.append(accept)
        status, answer = self._answers.pop(0)
        return Response(status, {}, answer if isinstance(answer, bytes) else orjson.dumps(answer))

    def stream(
        self, path: str, *, query: Mapping[str, str], timeout: float, lane: Lane = "watch"
    ) -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
        raise AssertionError("unexpected watch")

    async def close(self) -> None:
        pass


def page(number: int, token: str = "") -> tuple[int, object]:
    metadata = {"resourceVersion": str(number), "continue": token}
    return 200, {"metadata": metadata, "items": [{"metadata": {"name": f"pod-{number}"}}]}


async def test_only_the_first_page_has_a_resource_version() -> None:
    transport = FakeTransport(page(7, "more"), page(8))
    listed = await Client(transport).list(
        PODS, resource_version="5", label_selector="a=b", field_selector="c=d", limit=1
    )
    selected = {"labelSelector": "a=b", "fieldSelector": "c=d", "limit": "1"}
    assert transport.queries == [
        {**selected, "resourceVersion": "5", "resourceVersionMatch": "NotOlderThan"},
        {**selected, "continue": "more"},
    ]
    assert listed.resource_version == "7", "that of the first page"
    assert [item["metadata"]["name"] for item in listed.items] == ["pod-7", "pod-8"]


async def test_page_that_is_too_large_is_read_again_with_fewer_objects_before_it_is_decoded() -> (
    None
):
    # Were it decoded, it would not be valid JSON.
    too_large = (200, b"x" * (4 * MOST_PAGE_BYTES))
    transport = FakeTransport(
        page(1, "first"), too_large, page(2, "second"), page(3, "third"), page(4)
    )
    listed = await Client(transport).list(PODS, limit=100)
    assert [(each["limit"], each.get("continue")) for each in transport.queries] == [
        ("100", None),
        ("100", "first"),
        ("25", "first"),
        ("50", "second"),
        ("100", "third"),
    ]
    assert len(listed.items) == 4


async def test_single_object_of_any_size_is_decoded() -> None:
    name = "x" * MOST_PAGE_BYTES
    one = {"metadata": {"resourceVersion": "1"}, "items": [{"metadata": {"name": name}}]}
    transport = FakeTransport((200, one), (200, one))
    listed = await Client(transport).list(PODS, limit=2)
    assert len(listed.items) == 1
    assert [each["limit"] for each in transport.queries] == ["2", "1"]


async def test_list_expiring_between_pages_raises_expired() -> None:
    transport = FakeTransport(page(7, "more"), (410, {"kind": "Status", "reason": "Expired"}))
    with pytest.raises(ExpiredError):
        await Client(transport).list(PODS)


async def test_list_with_null_items_is_empty() -> None:
    listed = await Client(
        FakeTransport((200, {"metadata": {"resourceVersion": "1"}, "items": None}))
    ).list(PODS)
    assert listed.items == []


async def test_requests_use_the_lane_of_their_client() -> None:
    transport = FakeTransport((200, {}), (200, {}))
    await Client(transport).get(PODS, ObjectKey("team", "one"))
    await Client(transport, lane="lease").get(PODS, ObjectKey("team", "one"))
    assert transport.lanes == ["general", "lease"]


async def test_a_redirect_is_an_error() -> None:
    with pytest.raises(ApiError, match="HTTP 302"):
        await Client(FakeTransport((302, b""))).get(PODS, ObjectKey("team", "one"))


async def test_response_that_is_not_valid_json_is_an_error() -> None:
    with pytest.raises(TransportError, match="GET /api/v1/namespaces/team/pods/one"):
        await Client(FakeTransport((200, b"<html>"))).get(PODS, ObjectKey("team", "one"))


async def test_of_a_partial_kind_nothing_else_than_metadata_is_accepted() -> None:
    fields = {"apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadata", "metadata": {}}
    listed = {"metadata": {"resourceVersion": "7"}, "items": [dict(fields)]}
    transport = FakeTransport((200, fields), (200, listed), (200, {}))
    client = Client(transport)
    one = await client.get(PODS.only_metadata(), ObjectKey("team", "one"))
    page = await client.list(PODS.only_metadata())
    await client.get(PODS, ObjectKey("team", "one"))
    metadata_type = "application/json;as={};g=meta.k8s.io;v=v1"
    assert transport.accepted == [
        metadata_type.format("PartialObjectMetadata"),
        metadata_type.format("PartialObjectMetadataList"),
        "application/json",
    ]
    assert [one, *page.items] == [{"apiVersion": "v1", "kind": "Pod", "metadata": {}}] * 2


KEY = ObjectKey("team", "one")
POD = {"metadata": {"name": "one", "namespace": "team"}}
WRITES: dict[str, Callable[[Client, Resource[Manifest]], Awaitable[object]]] = {
    "create": lambda client, pods: client.create(pods, POD),
    "update": lambda client, pods: client.update(pods, POD),
    "apply": lambda client, pods: client.apply(pods, POD),
    "merge_patch": lambda client, pods: client.merge_patch(pods, KEY, {}),
    "json_patch": lambda client, pods: client.json_patch(pods, KEY, []),
    "probe": lambda client, pods: client.probe(pods, KEY),
    "delete": lambda client, pods: client.delete(pods, KEY),
}


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
async def test_a_partial_kind_is_not_written_to(
    write: Callable[[Client, Resource[Manifest]], Awaitable[object]],
) -> None:
    transport = FakeTransport((200, {}))
    with pytest.raises(ValueError, match="Pod is read as metadata only"):
        await write(Client(transport), PODS.only_metadata())
    assert transport.queries == []
    await write(Client(transport), PODS)


def status(code: int, **details: str) -> tuple[int, object]:
    return code, {"kind": "Status", "code": code, "message": "no", "details": details}


async def test_get_or_none_returns_the_object_or_none() -> None:
    pod = {"kind": "Pod", "metadata": {"name": "one"}}
    client = Client(FakeTransport((200, pod), status(404, name="one", kind="pods")))
    assert await get_or_none(client, PODS, ObjectKey("team", "one")) == pod
    assert await get_or_none(client, PODS, ObjectKey("team", "one")) is None


async def test_get_or_none_raises_if_the_kind_is_not_served() -> None:
    client = Client(FakeTransport(status(404), status(404)))
    with pytest.raises(KindNotFoundError):
        await get_or_none(client, PODS, ObjectKey("team", "one"))
    key = ObjectKey("team", "one")
    assert await get_or_none(client, PODS, key, kind_may_be_missing=True) is None


async def test_get_or_none_raises_other_errors() -> None:
    client = Client(FakeTransport(status(403, name="one"), (200, b"<html>")))
    with pytest.raises(ForbiddenError):
        await get_or_none(client, PODS, ObjectKey("team", "one"), kind_may_be_missing=True)
    with pytest.raises(TransportError):
        await get_or_none(client, PODS, ObjectKey("team", "one"), kind_may_be_missing=True)
