"""Workers with a fake sandbox, a fake clock and an API server that records requests."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from kftrainer.devcluster.nodes.kubelet.images import Images
from kftrainer.devcluster.nodes.kubelet.network.addresses import Addresses
from kftrainer.devcluster.nodes.kubelet.pods.context import NodeContext
from kftrainer.devcluster.nodes.kubelet.pods.events import PodEvents
from kftrainer.devcluster.nodes.kubelet.pods.worker import PodWorker
from kftrainer.devcluster.nodes.kubelet.volumes import MountError
from kftrainer.devcluster.nodes.sandbox.protocol import ContainerStartError, ExecResult, Mount
from tests.support.fake_clock import FakeClock
from tests.support.fake_sandbox import FakeSandbox
from tests.support.node_pods import NODE, container, pod

Object = dict[str, Any]


class Api:
    """Keeps the last status, and the requests that delete the pod."""

    def __init__(self) -> None:
        self.status: Object = {}
        self.deletions: list[Object] = []
        self.objects: dict[str, Object] = {}

    async def request(self, method: str, path: str, *, body: Object, **_: object) -> Object:
        if method == "DELETE":
            self.deletions.append(body)
        else:
            self.status = body["status"]
        return {}

    async def get_or_none(self, path: str) -> Object | None:
        return self.objects.get(path)


class Recorder:
    """Keeps the reasons and messages of Events."""

    def __init__(self) -> None:
        self.events: list[tuple[str, str]] = []

    def record(self, _: object, __: str, reason: str, message: str, ___: str = "") -> None:
        self.events.append((reason, message))

    def reasons(self) -> list[str]:
        return [reason for reason, _ in self.events]


class NoVolumes:
    """Fails a number of times, then has no volumes."""

    def __init__(self) -> None:
        self.failures = 0

    async def prepare(self, _: object) -> None:
        if self.failures:
            self.failures -= 1
            raise MountError("not yet")

    def mounts(self, _: object, __: object, env: Mapping[str, str]) -> list[Mount]:
        return []

    async def refresh(self, _: object) -> None:
        pass

    def remove(self) -> None:
        pass


class World:
    """A node with one worker."""

    def __init__(self, folder: Path) -> None:
        self.api, self.recorder, self.volumes = Api(), Recorder(), NoVolumes()
        self.clock, self.sandbox = FakeClock(), FakeSandbox()
        self.folder = folder
        api: Any = self.api
        self.node = NodeContext(
            name="process-0",
            host_ip="127.0.0.1",
            sandbox=self.sandbox,
            api=api,
            clock=self.clock,
            events=PodEvents(self.recorder),
            images=Images({}),
            addresses=Addresses(0),
            folder=folder,
            services=list,
            node=lambda: NODE,
            new_volumes=lambda _: self.volumes,
        )

    @asynccontextmanager
    async def worker(self, manifest: Object) -> AsyncIterator[PodWorker]:
        worker = PodWorker(self.node, manifest)
        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(worker.run())
            await self.clock.advance(0)
            yield worker
            running.cancel()

    async def settle(self, seconds: float = 0) -> None:
        """Let time pass, and threads finish that delete files."""
        await self.clock.advance(seconds)
        for _ in range(20):
            await asyncio.sleep(0.001)
            await self.clock.advance(0)

    def state(self, number: int = 0, kind: str = "containerStatuses") -> Object:
        found: Object = self.api.status[kind][number]
        return found


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def running(name: str = "node", **fields: Any) -> Object:
    return container(name, command=["train"], **fields)


def deleted(manifest: Object, grace: int = 30) -> Object:
    metadata = {
        **manifest["metadata"],
        "deletionTimestamp": "2026-01-01T00:00:00Z",
        "deletionGracePeriodSeconds": grace,
    }
    return {**manifest, "metadata": metadata}


async def test_pod_runs_and_succeeds(world: World) -> None:
    async with world.worker(pod(running(), restartPolicy="Never")):
        assert (world.api.status["phase"], world.api.status["podIP"]) == ("Running", "10.244.128.2")
        world.sandbox.end("node")
        await world.settle()
        assert world.api.status["phase"] == "Succeeded"
        assert world.state()["state"]["terminated"]["exitCode"] == 0
    assert world.sandbox.calls == ["start pod", "start node", "stop pod"]
    assert world.recorder.reasons() == ["Pulled", "Created", "Started"]


async def test_containers_have_managed_files_and_variables(world: World) -> None:
    async with world.worker(pod(running(), hostname="n", subdomain="net")):
        spec = world.sandbox.specs["node"]
    targets = [each.target for each in spec.mounts]
    assert targets == ["/etc/hosts", "/etc/hostname", "/etc/resolv.conf", "/dev/termination-log"]
    assert (spec.env["HOSTNAME"], spec.env["HOME"]) == ("n", "/root")


async def test_crashing_container_restarts_at_once_and_then_with_delays(world: World) -> None:
    async with world.worker(pod(running(), restartPolicy="Always")):
        for _ in range(2):
            world.sandbox.end("node", 1)
            await world.settle()
        assert world.state()["state"]["waiting"] == {
            "reason": "CrashLoopBackOff",
            "message": "back-off 10s restarting failed container=node pod=trainer_team(pod-uid)",
        }
        assert world.sandbox.calls.count("start node") == 2
        await world.settle(10)
        assert world.sandbox.calls.count("start node") == 3
        assert world.state()["restartCount"] == 2


async def test_container_that_cannot_start_fails_the_pod(world: World) -> None:
    world.sandbox.start_error = ContainerStartError("StartError", "exec: not found")
    async with world.worker(pod(running(), restartPolicy="Never")):
        await world.settle()
        end = world.state()["state"]["terminated"]
    assert (world.api.status["phase"], end["exitCode"], end["reason"], end["message"]) == (
        "Failed",
        128,
        "StartError",
        "exec: not found",
    )


async def test_missing_config_map_is_waited_for(world: World) -> None:
    own = running(envFrom=[{"configMapRef": {"name": "settings"}}])
    async with world.worker(pod(own)):
        assert world.state()["state"]["waiting"]["reason"] == "CreateContainerConfigError"
        path = "/api/v1/namespaces/team/configmaps/settings"
        world.api.objects[path] = {"data": {"RATE": "1"}}
        await world.settle(10)
        assert world.sandbox.specs["node"].env["RATE"] == "1"


async def test_volumes_and_network_are_tried_again(world: World) -> None:
    world.volumes.failures, world.sandbox.pod_errors = 1, 1
    async with world.worker(pod(running())):
        await world.settle(5)
        assert world.api.status["phase"] == "Running"
    assert world.recorder.events[:2] == [
        ("FailedMount", "not yet"),
        ("FailedCreatePodSandBox", "Failed to create pod sandbox: no room"),
    ]


async def test_init_containers_run_one_after_the_other(world: World) -> None:
    init = [running("one"), running("two")]
    async with world.worker(pod(running(), initContainers=init)):
        for name in ("one", "two"):
            assert world.sandbox.calls[-1] == f"start {name}"
            assert world.api.status["phase"] == "Pending"
            world.sandbox.end(name)
            await world.settle()
        assert world.sandbox.calls[-1] == "start node"


async def test_sidecar_ends_after_the_main_container(world: World) -> None:
    init = [running("side", restartPolicy="Always"), running("other", restartPolicy="Always")]
    async with world.worker(pod(running(), restartPolicy="Never", initContainers=init)):
        world.sandbox.end("node")
        await world.settle()
        assert world.api.status["phase"] == "Succeeded"
    assert world.sandbox.calls[-3:] == ["term other", "term side", "stop pod"]


async def test_main_container_waits_for_the_startup_probe_of_a_sidecar(world: World) -> None:
    probe = {"exec": {"command": ["up"]}, "periodSeconds": 1, "failureThreshold": 9}
    world.sandbox.exec_result = lambda _: ExecResult(1, "")
    side = running("side", restartPolicy="Always", startupProbe=probe)
    async with world.worker(pod(running(), initContainers=[side])):
        await world.settle(3)
        assert "start node" not in world.sandbox.calls
        world.sandbox.exec_result = lambda _: ExecResult(0, "")
        await world.settle(1)
        assert "start node" in world.sandbox.calls


async def test_deleted_pod_ends_gracefully_and_is_removed(world: World) -> None:
    manifest = pod(running())
    async with world.worker(manifest) as worker:
        worker.update(deleted(manifest))
        await world.settle()
        assert world.sandbox.calls[-2:] == ["term node", "stop pod"]
        assert world.api.status["phase"] == "Succeeded"
        assert world.api.deletions[0]["preconditions"] == {"uid": "pod-uid"}
        worker.remove()
        await world.settle()
        assert not (world.folder / "pod-uid").exists()
    assert ("Killing", "Stopping container node") in world.recorder.events


async def test_process_that_ignores_sigterm_is_killed_when_the_grace_period_ends(
    world: World,
) -> None:
    world.sandbox.ignores_sigterm = True
    manifest = pod(running())
    async with world.worker(manifest) as worker:
        worker.update(deleted(manifest))
        await world.settle(29)
        assert world.sandbox.calls[-1] == "term node"
        await world.settle(1)
        assert world.sandbox.calls[-2:] == ["kill node", "stop pod"]
        assert world.state()["state"]["terminated"]["exitCode"] == 137


async def test_second_deletion_shortens_the_grace_period(world: World) -> None:
    world.sandbox.ignores_sigterm = True
    manifest = pod(running())
    async with world.worker(manifest) as worker:
        worker.update(deleted(manifest))
        await world.settle(5)
        worker.update(deleted(manifest, grace=1))
        await world.settle(1)
        assert "kill node" in world.sandbox.calls


async def test_hook_runs_before_sigterm(world: World) -> None:
    manifest = pod(running(lifecycle={"preStop": {"exec": {"command": ["save"]}}}))
    async with world.worker(manifest) as worker:
        worker.update(deleted(manifest))
        await world.settle()
    assert world.sandbox.calls[-3:] == ["exec save", "term node", "stop pod"]


async def test_removed_pod_is_stopped_at_once(world: World) -> None:
    async with world.worker(pod(running())) as worker:
        worker.remove()
        await world.settle()
    assert world.sandbox.calls[-1] == "stop pod"
    assert world.api.deletions == []


async def test_pod_that_was_deleted_before_its_start_is_reported_as_failed(world: World) -> None:
    world.volumes.failures = 99
    manifest = pod(running())
    async with world.worker(manifest) as worker:
        worker.update(deleted(manifest))
        await world.settle()
        end = world.state()["state"]["terminated"]
    assert (world.api.status["phase"], end["reason"]) == ("Failed", "ContainerStatusUnknown")


async def test_deadline_fails_the_pod(world: World) -> None:
    async with world.worker(pod(running(), activeDeadlineSeconds=60)):
        await world.settle(59)
        assert world.api.status["phase"] == "Running"
        await world.settle(1)
        assert (world.api.status["phase"], world.api.status["reason"]) == (
            "Failed",
            "DeadlineExceeded",
        )


async def test_failing_liveness_probe_restarts_the_container(world: World) -> None:
    probe = {"exec": {"command": ["alive"]}, "periodSeconds": 1, "failureThreshold": 2}
    async with world.worker(pod(running(livenessProbe=probe), restartPolicy="Always")):
        world.sandbox.exec_result = lambda _: ExecResult(1, "stuck")
        await world.settle(2)
        assert world.sandbox.calls.count("start node") == 2
    message = "Container node failed liveness probe, will be restarted"
    assert ("Killing", message) in world.recorder.events


async def test_readiness_follows_the_probe(world: World) -> None:
    probe = {"exec": {"command": ["ready"]}, "periodSeconds": 1, "failureThreshold": 1}
    async with world.worker(pod(running(readinessProbe=probe))):
        found = []
        for code in (0, 1, 0):
            world.sandbox.exec_result = lambda _, code=code: ExecResult(code, "no")  # type: ignore[misc]
            await world.settle(1)
            found.append(world.state()["ready"])
    assert found == [True, False, True]


@pytest.mark.parametrize(("policy", "phase"), [("Never", "Failed"), ("Always", "Running")])
async def test_pod_of_an_earlier_kubelet_ends_or_restarts(
    world: World, policy: str, phase: str
) -> None:
    status = {
        "phase": "Running",
        "containerStatuses": [
            {"name": "node", "state": {"running": {}}, "containerID": "x://1", "restartCount": 0}
        ],
    }
    async with world.worker({**pod(running(), restartPolicy=policy), "status": status}):
        await world.settle()
        assert world.api.status["phase"] == phase
        found = world.state()
    end = found["state"].get("terminated") or found["lastState"]["terminated"]
    assert (end["exitCode"], end["reason"]) == (255, "Unknown")


async def test_finished_pod_of_an_earlier_kubelet_is_not_started(world: World) -> None:
    async with world.worker({**pod(running()), "status": {"phase": "Succeeded"}}):
        await world.settle()
    assert (world.sandbox.calls, world.api.status) == ([], {})


async def test_unsupported_probe_and_root_are_rejected(world: World) -> None:
    grpc = running("a", livenessProbe={"grpc": {"port": 1}})
    root = running("b", securityContext={"runAsNonRoot": True})
    async with world.worker(pod(grpc, root)):
        messages = [world.state(number)["state"]["waiting"]["message"] for number in (0, 1)]
    assert messages == [
        "livenessProbe: gRPC probes are not supported on process nodes",
        "container has runAsNonRoot and image will run as root "
        '(pod: "trainer_team(pod-uid)", container: b)',
    ]
