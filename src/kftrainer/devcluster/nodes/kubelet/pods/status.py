"""The status of a pod as a kubelet reports it, computed from its state. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from kftrainer.devcluster.nodes.kubelet.pods.states import (
    ContainerState,
    Object,
    PodState,
    Role,
    Running,
    Terminated,
    Waiting,
    roles,
)
from kftrainer.kube.objects.meta import rfc3339

PENDING, RUNNING, SUCCEEDED, FAILED = "Pending", "Running", "Succeeded", "Failed"
TERMINAL = (SUCCEEDED, FAILED)
RUNTIME = "kftrainer-process"
Conditions = Sequence[Object]


def phase(pod: Object, state: PodState) -> str:
    """Return the phase of the pod."""
    states = [(state.containers[c["name"]], role) for c, role in roles(pod)]
    if state.finished:
        main = [each for each, role in states if role is Role.MAIN]
        succeeded = not state.failed and all(each.succeeded for each in main)
        return SUCCEEDED if succeeded else FAILED
    if not _is_initialized(states) or any(
        role is Role.MAIN and isinstance(each.current, Waiting) and each.last is None
        for each, role in states
    ):
        return PENDING
    return RUNNING


def _is_initialized(states: Iterable[tuple[ContainerState, Role]]) -> bool:
    return all(
        each.succeeded if role is Role.INIT else role is Role.MAIN or _has_started(each)
        for each, role in states
    )


def _has_started(state: ContainerState) -> bool:
    return state.started or state.last is not None or state.end is not None


def pod_status(
    pod: Object,
    state: PodState,
    images: Mapping[str, str],
    *,
    host_ip: str,
    conditions: Conditions,
    now: datetime,
) -> dict[str, Any]:
    """Return the status; `conditions` are those that were reported last.

    `images` are the image IDs by container.
    """
    found = phase(pod, state)
    ips = [{"ip": state.ip}] if state.ip else []
    by_role: dict[Role, list[dict[str, Any]]] = {role: [] for role in Role}
    for container, role in roles(pod):
        own = state.containers[container["name"]]
        found_image = images.get(container["name"], "")
        by_role[role].append(container_status(container, role, own, found_image))
    init = _in_order(pod, by_role[Role.INIT] + by_role[Role.SIDECAR])
    return {
        "observedGeneration": pod["metadata"].get("generation", 0),
        "phase": found,
        "conditions": merged(pod_conditions(pod, state, found), conditions, now),
        "reason": state.reason or None,
        "message": state.message or None,
        "hostIP": host_ip,
        "hostIPs": [{"ip": host_ip}],
        "podIP": state.ip or None,
        "podIPs": ips or None,
        "startTime": rfc3339(state.started),
        **({"initContainerStatuses": init} if init else {}),
        "containerStatuses": by_role[Role.MAIN],
    }


def _in_order(pod: Object, statuses: list[dict[str, Any]]) -> list[dict[str, Any]]:
    names = [container["name"] for container, _ in roles(pod)]
    return sorted(statuses, key=lambda each: names.index(each["name"]))


def container_status(
    container: Object, role: Role, state: ContainerState, image_id: str
) -> dict[str, Any]:
    """Return the status of one container."""
    return {
        "name": container["name"],
        "state": _described(state.current),
        "lastState": {} if state.last is None else _described(state.last),
        "ready": state.succeeded if role is Role.INIT else state.ready,
        "restartCount": state.restarts,
        "image": container["image"],
        "imageID": image_id if state.id else "",
        **({"containerID": state.id} if state.id else {}),
        "started": state.started,
    }


def _described(current: Waiting | Running | Terminated) -> dict[str, Any]:
    match current:
        case Waiting(reason, message):
            return {"waiting": {"reason": reason, **({"message": message} if message else {})}}
        case Running(since):
            return {"running": {"startedAt": rfc3339(since)}}
        case Terminated():
            found = {
                "exitCode": current.code,
                "reason": current.reason,
                "message": current.message,
                "startedAt": rfc3339(current.started) if current.started else None,
                "finishedAt": rfc3339(current.finished) if current.finished else None,
                "containerID": current.id,
            }
            return {"terminated": {name: v for name, v in found.items() if v not in ("", None)}}


def pod_conditions(pod: Object, state: PodState, found: str) -> list[dict[str, Any]]:
    """Return the conditions without times."""
    states = [(c, state.containers[c["name"]], role) for c, role in roles(pod)]
    incomplete = [
        c["name"]
        for c, each, role in states
        if (role is Role.INIT and not each.succeeded)
        or (role is Role.SIDECAR and not _has_started(each))
    ]
    unready = [c["name"] for c, each, role in states if role is not Role.INIT and not each.ready]
    containers = _unless(unready, "unready", "ContainersNotReady", found)
    return [
        _condition("PodReadyToStartContainers", is_true=state.has_network),
        {
            "type": "Initialized",
            **_unless(incomplete, "incomplete", "ContainersNotInitialized", found, done=True),
        },
        {"type": "Ready", **(_unmet_gates(pod) if containers["status"] == "True" else containers)},
        {"type": "ContainersReady", **containers},
        _condition("PodScheduled", is_true=True),
    ]


def _condition(type_: str, *, is_true: bool) -> dict[str, Any]:
    return {"type": type_, "status": "True" if is_true else "False"}


def _unless(
    names: list[str], what: str, reason: str, found: str, *, done: bool = False
) -> dict[str, Any]:
    """Return a condition that is True unless there are such containers."""
    if found == SUCCEEDED:
        return {"status": "True" if done else "False", "reason": "PodCompleted"}
    if found == FAILED and not done:
        return {"status": "False", "reason": "PodFailed"}
    if not names:
        return {"status": "True"}
    message = f"containers with {what} status: [{' '.join(names)}]"
    return {"status": "False", "reason": reason, "message": message}


def _unmet_gates(pod: Object) -> dict[str, Any]:
    """Return whether the conditions that the pod's readiness depends on are True."""
    stored = (pod.get("status") or {}).get("conditions") or ()
    true = {each["type"] for each in stored if each["status"] == "True"}
    gates = [each["conditionType"] for each in pod["spec"].get("readinessGates") or ()]
    missing = [gate for gate in gates if gate not in true]
    if not missing:
        return {"status": "True"}
    message = "; ".join(
        f'the status of pod readiness gate "{gate}" is not "True"' for gate in missing
    )
    return {"status": "False", "reason": "ReadinessGatesNotReady", "message": message}


def merged(
    wanted: Sequence[dict[str, Any]], before: Conditions, now: datetime
) -> list[dict[str, Any]]:
    """Return the conditions with the times of their last transitions."""
    known = {each["type"]: each for each in before}
    return [
        {
            "reason": None,
            "message": None,
            **each,
            "lastProbeTime": None,
            "lastTransitionTime": known[each["type"]]["lastTransitionTime"]
            if each["type"] in known and known[each["type"]]["status"] == each["status"]
            else rfc3339(now),
        }
        for each in wanted
    ]
