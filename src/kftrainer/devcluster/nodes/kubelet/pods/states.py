"""States of containers and pods, from which their status is computed. Pure."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import Enum
from typing import Any

Object = Mapping[str, Any]

CREATING = "ContainerCreating"
INITIALIZING = "PodInitializing"
UNKNOWN_CODE, KILLED_CODE = 255, 137


class Role(Enum):
    """What a container is in its pod."""

    INIT = "init"  # runs to its end before the next container starts
    SIDECAR = "sidecar"  # an init container that keeps running until the others have ended
    MAIN = "main"


@dataclass(frozen=True, slots=True)
class Waiting:
    """The container does not run yet, or not at the moment."""

    reason: str
    message: str = ""


@dataclass(frozen=True, slots=True)
class Running:
    """The container runs."""

    since: datetime


@dataclass(frozen=True, slots=True)
class Terminated:
    """The container has ended."""

    code: int
    reason: str
    finished: datetime | None
    started: datetime | None = None
    message: str = ""
    id: str = ""


@dataclass(frozen=True, slots=True)
class ContainerState:
    """The state of one container."""

    current: Waiting | Running | Terminated
    last: Terminated | None = None  # how the previous attempt ended
    restarts: int = 0
    ready: bool = False
    started: bool = False
    id: str = ""  # of the latest attempt

    @property
    def end(self) -> Terminated | None:
        """How the container ended, if it has ended."""
        return self.current if isinstance(self.current, Terminated) else None

    @property
    def succeeded(self) -> bool:
        """Whether it has ended with exit code 0."""
        return self.end is not None and self.end.code == 0


@dataclass(frozen=True, slots=True)
class PodState:
    """The state of a pod, apart from its specification."""

    containers: Mapping[str, ContainerState]
    started: datetime
    ip: str = ""  # set while the network of the pod exists or has existed
    has_network: bool = False
    finished: bool = False  # all containers have ended and none is restarted
    failed: bool = False  # whatever the containers' exit codes are
    reason: str = ""  # why the pod failed
    message: str = ""


def roles(pod: Object) -> Iterator[tuple[Object, Role]]:
    """Yield the containers in the order in which they start."""
    for container in pod["spec"].get("initContainers") or ():
        restarted = container.get("restartPolicy") == "Always"
        yield container, Role.SIDECAR if restarted else Role.INIT
    for container in pod["spec"]["containers"]:
        yield container, Role.MAIN


def initial(pod: Object) -> dict[str, ContainerState]:
    """Return the states of all containers of a pod that has not started."""
    first = INITIALIZING if pod["spec"].get("initContainers") else CREATING
    states = {c["name"]: ContainerState(Waiting(first)) for c, _ in roles(pod)}
    return {name: adopted(state, recorded(pod, name)) for name, state in states.items()}


def recorded(pod: Object, name: str) -> Object | None:
    """Return the status of a container that is stored in the API server."""
    status = pod.get("status") or {}
    known = (*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ()))
    return next((each for each in known if each["name"] == name), None)


def adopted(state: ContainerState, status: Object | None) -> ContainerState:
    """Return the state that follows from what an earlier kubelet recorded.

    Containers do not survive their kubelet: one that ran has ended in an unknown way.
    """
    if status is None:
        return state
    restarts, found = status.get("restartCount", 0), status.get("state") or {}
    last = _terminated((status.get("lastState") or {}).get("terminated"))
    id_ = status.get("containerID", "")
    if (end := _terminated(found.get("terminated"))) is not None:
        return ContainerState(end, last, restarts, id=id_)
    if "running" in found:
        began = _time(found["running"].get("startedAt"))
        lost = "The container ended with the kubelet of its node."
        end = Terminated(UNKNOWN_CODE, "Unknown", None, began, lost, id_)
        return ContainerState(end, last, restarts, id=id_)
    return replace(state, last=last, restarts=restarts, id=id_)


def _terminated(found: Object | None) -> Terminated | None:
    if not found:
        return None
    return Terminated(
        found.get("exitCode", 0),
        found.get("reason", ""),
        _time(found.get("finishedAt")),
        _time(found.get("startedAt")),
        found.get("message", ""),
        found.get("containerID", ""),
    )


def _time(text: str | None) -> datetime | None:
    return None if not text else datetime.strptime(text, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC)


def abandoned(state: ContainerState) -> ContainerState:
    """Return the state of a container that can no longer start because its pod ends."""
    if not isinstance(state.current, Waiting):
        return state
    if state.last is not None:
        return replace(state, current=state.last, ready=False, started=False)
    message = "The container could not be located when the pod was terminated"
    end = Terminated(KILLED_CODE, "ContainerStatusUnknown", None, message=message)
    return replace(state, current=end, ready=False, started=False)
