"""Events on a real API server."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from kftrainer.devcluster.client import ApiClient
from kftrainer.devcluster.controlplane import ControlPlane
from kftrainer.devcluster.waiting import until
from kftrainer.kube.client.client import Client
from kftrainer.kube.client.credentials import load_connection
from kftrainer.kube.client.transport import HttpTransport
from kftrainer.machinery.events import recorder as recorder_module
from kftrainer.machinery.events.recorder import EventRecorder
from kftrainer.machinery.manager.clock import SystemClock
from kftrainer.machinery.manager.lifetime import Budget, running


async def config_map(api: ApiClient, namespace: str) -> dict[str, Any]:
    return await api.create(
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"namespace": namespace, "name": "thing"},
        }
    )


async def events_about(api: ApiClient, involved: dict[str, Any]) -> list[dict[str, Any]]:
    """As the SDK and kubectl look for them."""
    metadata = involved["metadata"]
    found = await api.request(
        "GET",
        f"/api/v1/namespaces/{metadata.get('namespace', 'default')}/events",
        query={"fieldSelector": f"involvedObject.uid={metadata['uid']}"},
    )
    events: list[dict[str, Any]] = found["items"]
    return events


@pytest.fixture(autouse=True)
def short_timeouts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two seconds for the last words are right for a manager, and little on a busy machine."""
    monkeypatch.setattr(recorder_module, "FLUSH_WITHIN", 30.0)


@asynccontextmanager
async def recording(control_plane: ControlPlane) -> AsyncIterator[EventRecorder]:
    """A recorder that runs during the block."""
    clock = SystemClock()
    connection = await load_connection(control_plane.kubeconfig)
    async with HttpTransport(connection, user_agent="test/1") as transport:
        client = Client(transport)
        recorder = EventRecorder(client, clock=clock, component="trainer", hostname="pod-1")
        async with running(recorder, budget=Budget(clock, 60)):
            yield recorder


async def test_a_repeated_event_is_one_with_a_count_of_two(
    control_plane: ControlPlane, api: ApiClient, namespace: str
) -> None:
    involved = await config_map(api, namespace)
    async with recording(control_plane) as recorder:
        recorder.record(involved, "Warning", "Odd", "é" * 600)
        recorder.record(involved, "Warning", "Odd", "é" * 600)

        async def counted() -> dict[str, Any] | None:
            events = await events_about(api, involved)
            return events[0] if events and events[0]["count"] == 2 else None

        event = await until(counted, within=30, what="an event with a count of two")
    assert len(await events_about(api, involved)) == 1
    assert (event["type"], event["reason"]) == ("Warning", "Odd")
    assert len(event["message"].encode()) <= 1024
    assert event["involvedObject"]["uid"] == involved["metadata"]["uid"]
    assert event["source"] == {"component": "trainer", "host": "pod-1"}
    assert event["firstTimestamp"] <= event["lastTimestamp"]
    assert recorder.dropped == 0


async def test_events_recorded_before_shutdown_are_written(
    control_plane: ControlPlane, api: ApiClient, namespace: str
) -> None:
    involved = await config_map(api, namespace)
    async with recording(control_plane) as recorder:
        for number in range(5):
            recorder.record(involved, "Normal", f"Bye{number}", "bye")
    assert len(await events_about(api, involved)) == 5


async def test_event_about_a_cluster_scoped_object_is_accepted(
    control_plane: ControlPlane, api: ApiClient, namespace: str
) -> None:
    involved = await api.get(f"/api/v1/namespaces/{namespace}")
    async with recording(control_plane) as recorder:
        recorder.record(involved, "Normal", "Seen", "seen")
    assert [event["reason"] for event in await events_about(api, involved)] == ["Seen"]
