"""The worker of one pod: from its network and volumes to the end of its last container."""

import asyncio
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import structlog

from kftrainer.devcluster.nodes.kubelet.containers.runner import ContainerRunner, PodFacts
from kftrainer.devcluster.nodes.kubelet.network import hosts
from kftrainer.devcluster.nodes.kubelet.network.addresses import AddressesExhaustedError
from kftrainer.devcluster.nodes.kubelet.pods.context import NodeContext, PodFolder
from kftrainer.devcluster.nodes.kubelet.pods.states import (
    ContainerState,
    Object,
    PodState,
    Role,
    abandoned,
    initial,
    roles,
)
from kftrainer.devcluster.nodes.kubelet.pods.status import TERMINAL, pod_status
from kftrainer.devcluster.nodes.kubelet.pods.status_writer import StatusWriter
from kftrainer.devcluster.nodes.kubelet.volumes import MountError
from kftrainer.devcluster.nodes.kubelet.waiting import first_of, sleep_unless
from kftrainer.devcluster.nodes.sandbox.protocol import PodSandbox, SandboxError

log = structlog.get_logger(__name__)

HUB_IP = "10.244.0.1"  # of pods that use the network of the node
DEFAULT_GRACE = 30
DEADLINE_EXCEEDED = "DeadlineExceeded"
DEADLINE_MESSAGE = "Pod was active on the node longer than the specified deadline"


class PodWorker:
    """Runs a pod until it is removed from the API server."""

    def __init__(self, node: NodeContext, pod: Object) -> None:
        self.folder = PodFolder(node.folder, pod)
        self._node = node
        self._uid: str = pod["metadata"]["uid"]
        self._facts = PodFacts(node, pod, self.folder, node.new_volumes(self.folder.volumes))
        status = pod.get("status") or {}
        self._was_terminal = status.get("phase") in TERMINAL
        self._conditions = list(status.get("conditions") or ())
        began = status.get("startTime")
        self._state = PodState(
            initial(pod),
            datetime.strptime(began, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC)
            if began
            else node.clock.now(),
        )
        self._runners = {
            container["name"]: ContainerRunner(
                self._facts,
                container,
                role,
                self._state.containers[container["name"]],
                self._changed,
            )
            for container, role in roles(pod)
        }
        self._running: list[ContainerRunner] = []  # in the order in which they were started
        self._stop = asyncio.Event()  # the pod ends: it was deleted, or its deadline has passed
        self._deleted = asyncio.Event()  # it has a deletionTimestamp
        self._removed = asyncio.Event()  # it does not exist in the API server any more
        self._kill_at = 0.0
        self._writer = StatusWriter(node.api, node.clock, dict(pod), self._status)
        self.update(pod)

    @property
    def pod(self) -> Object:
        """The latest manifest of the pod."""
        return self._facts.pod

    def runner(self, container: str) -> ContainerRunner | None:
        """Return the runner of a container."""
        return self._runners.get(container)

    def update(self, pod: Object) -> None:
        """Take a changed manifest; if the pod is deleted, end its containers."""
        self._facts.pod = pod
        metadata = pod["metadata"]
        if not metadata.get("deletionTimestamp"):
            return
        grace = metadata.get("deletionGracePeriodSeconds")
        kill_at = self._node.clock.monotonic() + (DEFAULT_GRACE if grace is None else grace)
        if not self._deleted.is_set():
            self._deleted.set()
            self._end(kill_at)
        elif kill_at < self._kill_at:  # deleted again, with a shorter grace period
            self._kill_at = kill_at
            for runner in self._running:
                runner.hurry(kill_at)

    def remove(self) -> None:
        """End the pod at once, as it does not exist any more."""
        self._removed.set()

    async def run(self) -> None:
        """Run the pod; return when it does not exist any more and nothing of it is left."""
        if not self._was_terminal:
            async with asyncio.TaskGroup() as tasks:
                others = (
                    tasks.create_task(self._writer.run()),
                    tasks.create_task(self._enforce_deadline()),
                    tasks.create_task(self._refresh_volumes()),
                )
                await first_of(self._live(), self._removed.wait())
                for each in others:
                    each.cancel()
        await first_of(self._delete_when_requested(), self._removed.wait())
        await self._clean_up()
        await self.folder.remove()

    async def _clean_up(self) -> None:
        try:
            await self._node.sandbox.stop_pod(self._uid)
        except SandboxError as error:  # its processes have ended, but something of it is left
            log.warning("pod_not_stopped", uid=self._uid, error=str(error))
        self._node.addresses.release(self._uid)
        await asyncio.to_thread(self._facts.volumes.remove)

    async def _delete_when_requested(self) -> None:
        await self._deleted.wait()
        await self._writer.delete_pod()
        await self._removed.wait()  # finalizers may keep it for a while

    async def _live(self) -> None:
        """Run the pod until its last container has ended, and report that."""
        async with asyncio.TaskGroup() as tasks:
            self._changed()
            if await self._set_up() and await self._initialize(tasks):
                await self._run_main(tasks)
            await self._wind_down()
        await self._finish()

    # ── start ──

    async def _set_up(self) -> bool:
        """Create volumes and network; return False if the pod ends before that succeeds."""
        delay = self._node.timing.mount
        while not self._stop.is_set():
            try:
                await self._facts.volumes.prepare(self.pod)
                await self._create_network()
            except MountError as error:
                self._node.events.pod(self.pod, "FailedMount", str(error))
            except (SandboxError, AddressesExhaustedError) as error:
                message = f"Failed to create pod sandbox: {error}"
                self._node.events.pod(self.pod, "FailedCreatePodSandBox", message)
            else:
                return not self._stop.is_set()
            await sleep_unless(self._stop, delay, self._node.clock)
            delay = min(2 * delay, self._node.timing.mount_longest)
        return False

    async def _create_network(self) -> None:
        on_host = bool(self.pod["spec"].get("hostNetwork"))
        ip = HUB_IP if on_host else self._node.addresses.take(self._uid)
        name = hosts.hostname(self.pod)
        self.folder.write_network_files(self.pod, ip)
        await self._node.sandbox.start_pod(PodSandbox(self._uid, ip, name, on_host))
        self._facts.ip = ip
        self._state = replace(self._state, ip=ip, has_network=True)
        self._changed()

    def _start(self, runner: ContainerRunner, tasks: asyncio.TaskGroup) -> None:
        self._running.append(runner)
        tasks.create_task(runner.run(), name=f"container {runner.name}")

    async def _initialize(self, tasks: asyncio.TaskGroup) -> bool:
        """Run the init containers in order; return False if the main ones must not start."""
        for runner in self._runners.values():
            if runner.role is Role.MAIN:
                continue
            if runner.role is Role.INIT and runner.state.succeeded:
                continue  # recorded by an earlier kubelet
            self._start(runner, tasks)
            wanted = runner.started if runner.role is Role.SIDECAR else runner.finished
            await first_of(wanted.wait(), self._stop.wait())
            if self._stop.is_set():
                return False
            if runner.role is Role.INIT and not runner.state.succeeded:
                self._state = replace(self._state, failed=True)
                return False
        return not self._stop.is_set()

    async def _run_main(self, tasks: asyncio.TaskGroup) -> None:
        main = [each for each in self._runners.values() if each.role is Role.MAIN]
        for runner in main:
            self._start(runner, tasks)

        async def all_finished() -> None:
            for runner in main:
                await runner.finished.wait()

        await first_of(all_finished(), self._stop.wait())

    # ── end ──

    def _end(self, kill_at: float) -> None:
        self._kill_at = kill_at
        self._stop.set()

    async def _wind_down(self) -> None:
        """End the containers that run: the sidecars last, in reverse order."""
        if not self._stop.is_set():
            grace = self.pod["spec"].get("terminationGracePeriodSeconds", DEFAULT_GRACE)
            self._kill_at = self._node.clock.monotonic() + grace
        sidecars = [each for each in self._running if each.role is Role.SIDECAR]
        async with asyncio.TaskGroup() as tasks:
            for runner in self._running:
                if runner.role is not Role.SIDECAR:
                    tasks.create_task(runner.terminate(self._kill_at))
        for runner in reversed(sidecars):
            await runner.terminate(self._kill_at)

    async def _finish(self) -> None:
        """Delete the network and the volumes, and report the last status."""
        if self._stop.is_set():
            for runner in self._runners.values():
                runner.state = abandoned(runner.state)
        await self._clean_up()
        self._state = replace(self._state, finished=True, has_network=False)
        await self._writer.flush()

    async def _enforce_deadline(self) -> None:
        while (seconds := self.pod["spec"].get("activeDeadlineSeconds")) is None:
            await self._node.clock.sleep(self._node.timing.refresh)  # it may be set later
        age = (self._node.clock.now() - self._state.started).total_seconds()
        await self._node.clock.sleep(max(0.0, seconds - age))
        if self._stop.is_set() or self._state.finished:
            return
        self._state = replace(
            self._state, failed=True, reason=DEADLINE_EXCEEDED, message=DEADLINE_MESSAGE
        )
        self._node.events.pod(self.pod, DEADLINE_EXCEEDED, DEADLINE_MESSAGE)
        grace = self.pod["spec"].get("terminationGracePeriodSeconds", DEFAULT_GRACE)
        self._end(self._node.clock.monotonic() + grace)

    async def _refresh_volumes(self) -> None:
        while True:
            await self._node.clock.sleep(self._node.timing.refresh)
            if self._state.has_network:
                try:
                    await self._facts.volumes.refresh(self.pod)
                except MountError as error:
                    self._node.events.pod(self.pod, "FailedMount", str(error))

    # ── status ──

    def _changed(self) -> None:
        self._writer.changed()

    def _status(self) -> dict[str, Any]:
        states: dict[str, ContainerState] = {
            name: runner.state for name, runner in self._runners.items()
        }
        self._state = replace(self._state, containers=states)
        status = pod_status(
            self.pod,
            self._state,
            {name: runner.image_id for name, runner in self._runners.items()},
            host_ip=self._node.host_ip,
            conditions=self._conditions,
            now=self._node.clock.now(),
        )
        self._conditions = status["conditions"]
        return status
