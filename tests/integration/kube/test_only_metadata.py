"""Kinds that are read as metadata only, from the real API server."""

import asyncio
import base64
from collections.abc import AsyncIterator

import pytest

from kftrainer.devcluster.client import ApiClient
from kftrainer.devcluster.controlplane import ControlPlane
from kftrainer.kube.client.client import Client
from kftrainer.kube.client.errors import ForbiddenError, NotFoundError
from kftrainer.kube.client.watch import Bookmark, Deleted, Upserted, WatchEvent
from kftrainer.kube.objects.resource import Manifest, ObjectKey, Resource
from tests.integration.kube.kinds import TRAIN_JOBS, Object, resource
from tests.support.objects import train_job
from tests.support.permissions import allow
from tests.support.recording_transport import RecordingTransport, recording_transport

SECRETS = resource("Secret", "secrets")
PASSWORD = base64.b64encode(b"correct horse battery staple").decode()
DELIVERED_WITHIN = 30.0


@pytest.fixture
async def wire(control_plane: ControlPlane) -> AsyncIterator[RecordingTransport]:
    async with recording_transport(control_plane.kubeconfig) as transport:
        yield transport


def secret(namespace: str, name: str, **labels: str) -> Object:
    metadata = {"name": name, "namespace": namespace, "labels": labels}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "data": {"p": PASSWORD}}


def metadata_only(whole: Manifest) -> Object:
    return {name: whole[name] for name in ("apiVersion", "kind", "metadata")}


async def next_event(events: AsyncIterator[WatchEvent]) -> WatchEvent:
    """The next event, but for the bookmarks that come at any time."""
    while True:
        event = await anext(events)
        if not isinstance(event, Bookmark) or event.initial_events_end:
            return event


def is_recorded(wire: RecordingTransport) -> bool:
    return PASSWORD.encode() in wire.received


async def test_one_is_read_without_its_data(
    wire: RecordingTransport, api: ApiClient, namespace: str
) -> None:
    client, key = Client(wire), ObjectKey(namespace, "a")
    whole = await api.create(secret(namespace, "a", color="red"))
    assert await client.get(SECRETS.only_metadata(), key) == metadata_only(whole)
    assert not is_recorded(wire)
    await client.get(SECRETS, key)
    assert is_recorded(wire), "or this test would hear nothing"
    with pytest.raises(NotFoundError):
        await client.get(SECRETS.only_metadata(), ObjectKey(namespace, "b"))


async def test_metadata_lists_are_paged_and_contain_no_data(
    wire: RecordingTransport, api: ApiClient, namespace: str
) -> None:
    colors = {"a": "red", "b": "blue", "c": "red"}
    secrets = [await api.create(secret(namespace, name, color=c)) for name, c in colors.items()]
    partial, client = SECRETS.only_metadata(), Client(wire)
    pages = [page async for page in client.list_pages(partial, namespace=namespace, limit=1)]
    assert [page.items for page in pages] == [[metadata_only(each)] for each in secrets]
    red = await client.list(partial, namespace=namespace, label_selector="color=red")
    assert red.items == [metadata_only(secrets[0]), metadata_only(secrets[2])]
    assert int(red.resource_version) > 0
    assert not is_recorded(wire)


async def test_metadata_watch_delivers_initial_and_later_events_without_data(
    wire: RecordingTransport, api: ApiClient, namespace: str
) -> None:
    created = await api.create(secret(namespace, "a"))
    async with (
        asyncio.timeout(DELIVERED_WITHIN),
        Client(wire).watch(
            SECRETS.only_metadata(),
            namespace=namespace,
            send_initial_events=True,
            timeout_seconds=60,
        ) as events,
    ):
        assert await next_event(events) == Upserted(metadata_only(created), added=True)
        bookmark = await next_event(events)
        assert isinstance(bookmark, Bookmark)
        assert bookmark.initial_events_end
        assert int(bookmark.resource_version) >= int(created["metadata"]["resourceVersion"])
        changed = await api.apply(secret(namespace, "a", color="red"))
        assert await next_event(events) == Upserted(metadata_only(changed), added=False)
        await api.delete(await api.path_of(changed))
        is_deleted = await next_event(events)
    assert isinstance(is_deleted, Deleted)
    assert is_deleted.manifest.keys() == metadata_only(created).keys()
    assert (is_deleted.manifest["apiVersion"], is_deleted.manifest["kind"]) == ("v1", "Secret")
    assert not is_recorded(wire)


async def test_kinds_of_definitions_are_read_in_the_same_way(
    wire: RecordingTransport, api: ApiClient, namespace: str
) -> None:
    manifest = train_job("a")
    manifest["metadata"]["namespace"] = namespace
    whole = await api.create(manifest)
    partial: Resource[Manifest] = TRAIN_JOBS.only_metadata()
    client = Client(wire)
    assert (await client.list(partial, namespace=namespace)).items == [metadata_only(whole)]
    async with (
        asyncio.timeout(DELIVERED_WITHIN),
        client.watch(
            partial, namespace=namespace, send_initial_events=True, timeout_seconds=60
        ) as events,
    ):
        assert await next_event(events) == Upserted(metadata_only(whole), added=True)
        bookmark = await next_event(events)
    assert isinstance(bookmark, Bookmark)
    assert bookmark.initial_events_end
    assert b"torch-distributed" not in wire.received


async def test_probe_returns_the_metadata_changes_nothing_and_needs_no_permission_to_read(
    control_plane: ControlPlane, wire: RecordingTransport, api: ApiClient, namespace: str
) -> None:
    key, user = ObjectKey(namespace, "a"), f"prober-{namespace}"
    whole = await api.create(secret(namespace, "a", color="red"))
    assert await Client(wire).probe(SECRETS, key) == metadata_only(whole)
    assert not is_recorded(wire)
    assert await api.get(f"/api/v1/namespaces/{namespace}/secrets/a") == whole
    with pytest.raises(NotFoundError):
        await Client(wire).probe(SECRETS, ObjectKey(namespace, "b"))

    await allow(api, user, ("patch",), ("secrets",), in_=namespace)
    async with recording_transport(control_plane.kubeconfig_for(user)) as user_transport:
        assert await Client(user_transport).probe(SECRETS, key) == metadata_only(whole)
        with pytest.raises(ForbiddenError):
            await Client(user_transport).get(SECRETS.only_metadata(), key)
