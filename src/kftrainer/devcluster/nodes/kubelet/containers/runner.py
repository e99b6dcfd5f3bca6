"""Runs one container: starts, probes, restarts and ends it."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from signal import SIGKILL, SIGTERM, Signals

from kftrainer.devcluster.nodes.kubelet.containers import probes
from kftrainer.devcluster.nodes.kubelet.containers.hooks import Target, run_hook
from kftrainer.devcluster.nodes.kubelet.containers.restarts import (
    Backoff,
    go_duration,
    is_restarted,
)
from kftrainer.devcluster.nodes.kubelet.containers.specs import container_spec
from kftrainer.devcluster.nodes.kubelet.containers.termination_messages import termination_message
from kftrainer.devcluster.nodes.kubelet.environment import ConfigError
from kftrainer.devcluster.nodes.kubelet.images import ImageError, SelectedImage
from kftrainer.devcluster.nodes.kubelet.pods.context import NodeContext, PodFolder, Volumes
from kftrainer.devcluster.nodes.kubelet.pods.states import (
    ContainerState,
    Object,
    Role,
    Running,
    Terminated,
    Waiting,
)
from kftrainer.devcluster.nodes.kubelet.pods.status import RUNTIME
from kftrainer.devcluster.nodes.kubelet.volumes import MountError
from kftrainer.devcluster.nodes.kubelet.waiting import first_of, sleep_unless
from kftrainer.devcluster.nodes.sandbox.protocol import (
    ContainerSpec,
    ContainerStartError,
    SandboxError,
)

SHORTEST_GRACE = 2.0  # seconds between SIGTERM and SIGKILL after a preStop hook took all the time
START_ERROR, START_ERROR_CODE = "StartError", 128
NEVER = datetime(1970, 1, 1, tzinfo=UTC)  # as the kubelet reports
RUN_ERROR, CRASH_LOOP = "RunContainerError", "CrashLoopBackOff"
CONFIG_ERROR, CREATE_ERROR = "CreateContainerConfigError", "CreateContainerError"


class PodFacts:
    """What the runners of a pod share; `pod` is the latest manifest."""

    def __init__(self, node: NodeContext, pod: Object, folder: PodFolder, volumes: Volumes) -> None:
        self.node = node
        self.pod = pod
        self.folder = folder
        self.volumes = volumes
        self.ip = ""


class ContainerRunner:
    """Runs a container until it has finished for good or is terminated."""

    def __init__(
        self,
        facts: PodFacts,
        container: Object,
        role: Role,
        state: ContainerState,
        on_change: Callable[[], None],
    ) -> None:
        self.container = container
        self.role = role
        self.state = state
        self.image_id = ""
        # The attempt that was started last; None before the first one.
        self.latest = state.restarts if state.id else None
        self.started = asyncio.Event()  # the startup probe has succeeded, if there is one
        self.finished = asyncio.Event()  # `run` has returned
        self._facts = facts
        self._node = facts.node
        self._on_change = on_change
        self._stopping = asyncio.Event()
        self._kill_at = 0.0
        self._hurried = asyncio.Event()
        self._is_ending = False

    @property
    def name(self) -> str:
        """The name of the container."""
        return str(self.container["name"])

    async def run(self) -> None:
        """Start the container, and restart it as its policy requires."""
        backoff = Backoff(self._node.timing.crash)
        try:
            if self.state.end is not None:  # recorded by an earlier kubelet
                if not self._restarts(self.state.end):
                    return
                self._count_restart(self.state.end)
            while not self._stopping.is_set():
                spec = await self._wait_for_spec()
                if spec is None:
                    return
                began = self._node.clock.monotonic()
                end = await self._run_once(spec)
                self._set(current=end, ready=False, started=False)
                if self._stopping.is_set() or not self._restarts(end):
                    return
                backoff = backoff.after_run(self._node.clock.monotonic() - began)
                if not await self._back_off(backoff, end):
                    return
        finally:
            self.finished.set()

    async def terminate(self, kill_at: float) -> None:
        """Stop the container, with SIGKILL at this time, and return when it has ended."""
        self.hurry(kill_at)
        self._stopping.set()
        await self.finished.wait()

    def hurry(self, kill_at: float) -> None:
        """Set the time of SIGKILL."""
        self._kill_at = kill_at
        self._hurried.set()

    def _restarts(self, end: Terminated) -> bool:
        return is_restarted(self._facts.pod, self.container, self.role, end.code)

    def _set(self, **changes: object) -> None:
        changed = replace(self.state, **changes)  # type: ignore[arg-type]
        if changed != self.state:
            self.state = changed
            self._on_change()

    def _count_restart(self, end: Terminated) -> None:
        self._set(last=end, restarts=self.state.restarts + 1)

    def _event(self, reason: str, message: str) -> None:
        self._node.events.container(self._facts.pod, self.container, self.role, reason, message)

    def _warning(self, reason: str, message: str) -> None:
        self._node.events.warning(self._facts.pod, self.container, self.role, reason, message)

    async def _back_off(self, backoff: Backoff, end: Terminated) -> bool:
        """Wait until the next attempt may start; return False if there is none."""
        metadata = self._facts.pod["metadata"]
        name = f"{metadata['name']}_{metadata['namespace']}({metadata['uid']})"
        message = f"restarting failed container={self.name} pod={name}"
        if not backoff.delay:
            self._count_restart(end)
            if end.reason == START_ERROR:
                self._set(current=Waiting(RUN_ERROR, end.message))
            return True
        self._warning("BackOff", f"Back-off {message}")
        self._set(
            current=Waiting(CRASH_LOOP, f"back-off {go_duration(backoff.delay)} {message}"),
            last=end,
        )
        stopped = await sleep_unless(self._stopping, backoff.delay, self._node.clock)
        if stopped:
            self._set(current=end, last=None)
            return False
        self._set(restarts=self.state.restarts + 1)
        return True

    async def _wait_for_spec(self) -> ContainerSpec | None:
        """Return what to start, as soon as everything exists; None if the pod is stopped."""
        while True:
            try:
                return await self._new_spec()
            except ImageError as error:
                reason, message = error.reason, str(error)
                self._warning("Failed", f"Error: {error.reason}")
                self._warning(error.reason, message)
            except (ConfigError, MountError) as error:
                reason, message = CONFIG_ERROR, str(error)
                self._warning("Failed", f"Error: {error}")
            except _NoCommandError as error:
                reason, message = CREATE_ERROR, str(error)
                self._warning("Failed", f"Error: {error}")
            self._set(current=Waiting(reason, message))
            if await sleep_unless(self._stopping, self._node.timing.config, self._node.clock):
                return None

    async def _new_spec(self) -> ContainerSpec:
        facts = self._facts
        selected = self._node.images.select(self.container["image"])
        facts.folder.new_attempt(self.name, self.state.restarts)
        spec = await container_spec(
            self._node,
            facts.pod,
            self.container,
            selected,
            ip=facts.ip,
            attempt=self.state.restarts,
            folder=facts.folder,
            volumes=facts.volumes,
        )
        if not spec.argv:
            raise _NoCommandError("no command specified: the image has none on process nodes")
        self._pulled(selected)
        return spec

    def _pulled(self, selected: SelectedImage) -> None:
        self.image_id = selected.id
        self._event(
            "Pulled",
            f'Container image "{self.container["image"]}" is the local environment '
            f"{selected.folder}; nothing was pulled",
        )

    async def _run_once(self, spec: ContainerSpec) -> Terminated:
        """Start the container and wait for its end."""
        id_ = f"{RUNTIME}://{spec.id}"
        self.latest = self.state.restarts
        self._is_ending = False
        self._event("Created", f"Container created: {self.name}")
        try:
            await self._node.sandbox.start_container(spec)
        except ContainerStartError as error:
            self._warning("Failed", f"Error: {error}")
            self._set(id=id_)
            return self._not_started(error.code, error.reason, str(error))
        except SandboxError as error:
            self._warning("Failed", f"Error: {error}")
            self._set(id=id_)
            return self._not_started(START_ERROR_CODE, START_ERROR, str(error))
        self._event("Started", f"Container started: {self.name}")
        since = self._node.clock.now()
        self._set(current=Running(since), id=id_)
        code = await self._run_to_end(spec)
        return Terminated(
            code,
            "Completed" if code == 0 else "Error",
            self._node.clock.now(),
            since,
            termination_message(
                self._facts.folder.termination_log(self.name, self.state.restarts),
                self._facts.folder.log(self.name, self.state.restarts),
                self.container,
                code,
            ),
            id_,
        )

    def _not_started(self, code: int, reason: str, message: str) -> Terminated:
        return Terminated(code, reason, self._node.clock.now(), NEVER, message, self.state.id)

    async def _run_to_end(self, spec: ContainerSpec) -> int:
        target = Target(
            self._node.sandbox, self._node.clock, self.container, spec.id, self._facts.ip
        )
        async with asyncio.TaskGroup() as tasks:
            ended = tasks.create_task(self._node.sandbox.wait_container(spec.id))
            attending = (
                tasks.create_task(self._attend(target)),
                tasks.create_task(self._end_when_stopped(target)),
            )
            await asyncio.wait((ended,))
            for each in attending:
                each.cancel()
        return ended.result().code

    async def _end_when_stopped(self, target: Target) -> None:
        await self._stopping.wait()
        await self._end(target, f"Stopping container {self.name}")

    async def _attend(self, target: Target) -> None:
        """Run the postStart hook, and then the probes for as long as the container runs."""
        hook = (self.container.get("lifecycle") or {}).get("postStart")
        if hook and (failure := await run_hook(target, hook)):
            self._warning("FailedPostStartHook", f"PostStartHook failed: {failure}")
            await self._kill(target, {}, "FailedPostStartHook")
            return
        if not await self._start_up(target):
            return
        self._set(started=True, ready="readinessProbe" not in self.container)
        self.started.set()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._check_liveness(target))
            tasks.create_task(self._check_readiness(target))

    async def _start_up(self, target: Target) -> bool:
        """Return whether the startup probe has succeeded; if not, the container is ended."""
        probe = self.container.get("startupProbe")
        if not probe:
            return True
        verdicts: list[bool] = []

        def decide(verdict: bool) -> bool:  # noqa: FBT001
            verdicts.append(verdict)
            return False

        await probes.observe(target, "startupProbe", probe, decide, self._unhealthy)
        if not verdicts[0]:
            await self._kill(
                target, probe, f"Container {self.name} failed startup probe, will be restarted"
            )
        return verdicts[0]

    async def _check_liveness(self, target: Target) -> None:
        probe = self.container.get("livenessProbe")
        if not probe:
            return

        await probes.observe(target, "livenessProbe", probe, lambda alive: alive, self._unhealthy)
        await self._kill(
            target, probe, f"Container {self.name} failed liveness probe, will be restarted"
        )

    async def _check_readiness(self, target: Target) -> None:
        probe = self.container.get("readinessProbe")
        if not probe:
            return

        def decide(verdict: bool) -> bool:  # noqa: FBT001
            self._set(ready=verdict)
            return True

        await probes.observe(target, "readinessProbe", probe, decide, self._unhealthy)

    def _unhealthy(self, message: str) -> None:
        if not self._is_ending:
            self._warning("Unhealthy", message)

    async def _kill(self, target: Target, probe: Object, why: str) -> None:
        """End the container, which may be restarted, within the probe's or the pod's grace."""
        grace = probe.get("terminationGracePeriodSeconds")
        if grace is None:
            grace = self._facts.pod["spec"].get("terminationGracePeriodSeconds", 30)
        if not self._stopping.is_set():
            self.hurry(self._node.clock.monotonic() + grace)
        await self._end(target, why)

    async def _end(self, target: Target, why: str) -> None:
        """Run the preStop hook, send SIGTERM, and SIGKILL when the time is over.

        It is cancelled when the container has ended.
        """
        if self._is_ending:
            return
        self._is_ending = True
        self._event("Killing", why)
        self._set(ready=False)
        lifecycle = self.container.get("lifecycle") or {}
        if hook := lifecycle.get("preStop"):
            await first_of(self._pre_stop(target, hook), self._until_kill())
            self._kill_at = max(self._kill_at, self._node.clock.monotonic() + SHORTEST_GRACE)
        if self._kill_at > self._node.clock.monotonic():
            await self._signal(target, Signals[lifecycle.get("stopSignal") or SIGTERM.name])
            await self._until_kill()
        await self._signal(target, SIGKILL)

    async def _signal(self, target: Target, signum: Signals) -> None:
        with suppress(SandboxError):  # it may have ended just now
            await self._node.sandbox.signal_container(target.id, signum)

    async def _pre_stop(self, target: Target, hook: Object) -> None:
        if failure := await run_hook(target, hook):
            self._warning("FailedPreStopHook", f"PreStopHook failed: {failure}")

    async def _until_kill(self) -> None:
        """Sleep until the container must be killed; the time may change meanwhile."""
        while (left := self._kill_at - self._node.clock.monotonic()) > 0:
            self._hurried.clear()
            await sleep_unless(self._hurried, left, self._node.clock)


class _NoCommandError(Exception):
    """Neither the container nor its image has a command."""
