"""Watches on the real API server."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from kftrainer.devcluster.waiting import until
from kftrainer.kube.client.client import Client
from kftrainer.kube.client.errors import (
    ExpiredError,
    InvalidError,
    NotFoundError,
    RequestTimeoutError,
)
from kftrainer.kube.client.transport import HttpTransport
from kftrainer.kube.client.watch import Bookmark, Deleted, Upserted, WatchEvent
from kftrainer.kube.objects.resource import ObjectKey, key_of
from tests.integration.kube.kinds import CONFIG_MAPS, TRAIN_JOBS, config_map, resource

DELIVERED_WITHIN = 30.0


async def take(events: AsyncIterator[WatchEvent], count: int) -> list[WatchEvent]:
    async with asyncio.timeout(DELIVERED_WITHIN):
        return [await anext(events) for _ in range(count)]


async def read_all(chunks: AsyncIterator[bytes]) -> bytes:
    async with asyncio.timeout(DELIVERED_WITHIN):
        return b"".join([chunk async for chunk in chunks])


async def version_now(client: Client, namespace: str) -> str:
    return (await client.list(CONFIG_MAPS, namespace=namespace)).resource_version


async def test_watch_delivers_the_events_of_an_object(client: Client, namespace: str) -> None:
    key = ObjectKey(namespace, "settings")
    since = await version_now(client, namespace)
    async with client.watch(
        CONFIG_MAPS, namespace=namespace, resource_version=since, timeout_seconds=60
    ) as events:
        created = await client.create(CONFIG_MAPS, config_map(namespace, color="red"))
        changed = await client.merge_patch(CONFIG_MAPS, key, {"data": {"color": "blue"}})
        await client.delete(CONFIG_MAPS, key)
        *upserted, deleted = await take(events, 3)
    assert upserted == [Upserted(created, added=True), Upserted(changed, added=False)]
    assert isinstance(deleted, Deleted)
    assert deleted.manifest["data"] == {"color": "blue"}
    versions = [each["metadata"]["resourceVersion"] for each in (changed, deleted.manifest)]
    assert int(versions[0]) < int(versions[1]), "that of the deletion"


async def test_watch_resumes_at_a_resource_version(client: Client, namespace: str) -> None:
    await client.create(CONFIG_MAPS, config_map(namespace, "first"))
    since = await version_now(client, namespace)
    await client.create(CONFIG_MAPS, config_map(namespace, "second"))
    async with client.watch(
        CONFIG_MAPS, namespace=namespace, resource_version=since, timeout_seconds=60
    ) as events:
        [event] = await take(events, 1)
    assert isinstance(event, Upserted)
    assert key_of(event.manifest).name == "second"


async def test_initial_events_end_with_a_bookmark_and_live_events_follow(
    client: Client, namespace: str
) -> None:
    names = {"first", "second"}
    for name in names:
        await client.create(CONFIG_MAPS, config_map(namespace, name))
    async with client.watch(
        CONFIG_MAPS, namespace=namespace, send_initial_events=True, timeout_seconds=60
    ) as events:
        *initial, bookmark = await take(events, 3)
        later = await client.create(CONFIG_MAPS, config_map(namespace, "third"))
        live = await take(events, 1)
    received = [each for each in initial if isinstance(each, Upserted) and each.added]
    assert {key_of(each.manifest).name for each in received} == names
    assert isinstance(bookmark, Bookmark)
    assert bookmark.initial_events_end
    assert int(bookmark.resource_version) > 0
    assert live == [Upserted(later, added=True)]


async def events_of_a_short_watch(client: Client, namespace: str) -> list[WatchEvent]:
    """All events up to the end of the watch, while another namespace changes."""
    elsewhere = ObjectKey("default", f"elsewhere-{namespace}")
    since = await version_now(client, namespace)
    async with client.watch(
        CONFIG_MAPS, namespace=namespace, resource_version=since, timeout_seconds=10
    ) as events:
        await client.create(CONFIG_MAPS, config_map(*elsewhere))
        async with asyncio.timeout(DELIVERED_WITHIN):
            received = [event async for event in events]
    await client.delete(CONFIG_MAPS, elsewhere)
    return received


async def test_watch_ends_after_a_bookmark(client: Client, namespace: str) -> None:
    delivered = await events_of_a_short_watch(client, namespace)
    for _ in range(2):
        # It is due two seconds before the end: a server that is held up just then leaves it out.
        delivered = delivered or await events_of_a_short_watch(client, namespace)
    assert delivered, "a bookmark before the watch ends"
    for event in delivered:
        assert isinstance(event, Bookmark)
        assert not event.initial_events_end


async def test_selectors_filter_watch_events(client: Client, namespace: str) -> None:
    since = await version_now(client, namespace)
    for name in ("plain", "marked"):
        manifest = config_map(namespace, name)
        manifest["metadata"]["labels"] = {"marked": str(name == "marked")}
        await client.create(CONFIG_MAPS, manifest)
    key = ObjectKey(namespace, "marked")
    async with client.watch(
        CONFIG_MAPS,
        namespace=namespace,
        label_selector="marked=True",
        resource_version=since,
        timeout_seconds=60,
    ) as events:
        await client.merge_patch(CONFIG_MAPS, key, {"metadata": {"labels": None}})
        received = await take(events, 2)
    assert [type(event) for event in received] == [Upserted, Deleted]


async def test_too_old_resource_version_is_expired(client: Client) -> None:
    # The server began to remember what happens to a kind when it learned of the kind.
    await client.list(TRAIN_JOBS, limit=0)  # which waits until that has been: a page would not
    async with client.watch(TRAIN_JOBS, resource_version="1", timeout_seconds=60) as events:
        with pytest.raises(ExpiredError, match="too old resource version"):
            await take(events, 1)


async def test_unserved_kind_is_an_error_at_the_start(client: Client) -> None:
    unknown = resource("Thing", "things", group="nowhere.example")
    with pytest.raises(NotFoundError, match="page not found"):
        async with client.watch(unknown, timeout_seconds=60):
            pass


async def test_invalid_watch_options_fail_at_the_start(
    transport: HttpTransport,
) -> None:
    query = {"watch": "true", "sendInitialEvents": "true"}
    with pytest.raises(InvalidError) as raised:
        async with transport.stream("/api/v1/configmaps", query=query, timeout=10):
            pass
    assert [cause.field for cause in raised.value.causes] == ["resourceVersionMatch"]


async def test_a_stream_has_a_deadline_of_its_own(transport: HttpTransport, namespace: str) -> None:
    path = CONFIG_MAPS.collection_path(namespace)

    async def passes_while_it_is_read() -> bool:
        try:
            async with transport.stream(path, query={"watch": "true"}, timeout=3) as chunks:
                with pytest.raises(RequestTimeoutError):
                    await read_all(chunks)
        except RequestTimeoutError:  # it passed before: a busy server has not even begun to answer
            return False
        return True

    await until(
        passes_while_it_is_read, within=2 * DELIVERED_WITHIN, what="the deadline while reading"
    )
