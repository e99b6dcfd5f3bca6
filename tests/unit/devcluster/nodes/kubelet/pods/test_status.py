from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from kftrainer.devcluster.nodes.kubelet.pods.states import (
    ContainerState,
    PodState,
    Running,
    Terminated,
    Waiting,
    abandoned,
    initial,
)
from kftrainer.devcluster.nodes.kubelet.pods.status import phase, pod_status
from tests.support.node_pods import container, pod

NOW = datetime(2026, 1, 1, tzinfo=UTC)
LATER = datetime(2026, 1, 2, tzinfo=UTC)
OK = ContainerState(Terminated(0, "Completed", NOW))
BAD = ContainerState(Terminated(1, "Error", NOW))
UP = ContainerState(Running(NOW), ready=True, started=True, id="x://1")
NEW = ContainerState(Waiting("ContainerCreating"))
LOOP = ContainerState(Waiting("CrashLoopBackOff"), last=BAD.end, restarts=2, id="x://1")
TWO = pod(container("a"), container("b"))
STAGED = pod(container("a"), initContainers=[container("b")])


def state(a: ContainerState, b: ContainerState, **fields: Any) -> PodState:
    return PodState({"a": a, "b": b}, NOW, **fields)


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (state(NEW, UP), "Pending"),
        (state(UP, UP), "Running"),
        (state(LOOP, UP), "Running"),
        (state(OK, UP), "Running"),
        (state(OK, OK, finished=True), "Succeeded"),
        (state(OK, BAD, finished=True), "Failed"),
        (state(OK, OK, finished=True, failed=True), "Failed"),
    ],
)
def test_phase_follows_from_the_containers(found: PodState, expected: str) -> None:
    assert phase(TWO, found) == expected


@pytest.mark.parametrize(("b", "expected"), [(UP, "Pending"), (OK, "Running"), (BAD, "Pending")])
def test_pod_is_pending_until_it_is_initialized(b: ContainerState, expected: str) -> None:
    assert phase(STAGED, state(UP, b)) == expected


def conditions(of: dict[str, Any], found: PodState, before: Any = ()) -> dict[str, Any]:
    status = pod_status(of, found, {}, host_ip="127.0.0.1", conditions=before, now=NOW)
    return {each["type"]: each for each in status["conditions"]}


def short(found: dict[str, Any]) -> dict[str, Any]:
    return {name: (each["status"], each["reason"]) for name, each in found.items()}


def test_conditions_of_a_pod_with_an_unready_container() -> None:
    found = conditions(TWO, state(UP, NEW, has_network=True))
    assert short(found) == {
        "PodReadyToStartContainers": ("True", None),
        "Initialized": ("True", None),
        "Ready": ("False", "ContainersNotReady"),
        "ContainersReady": ("False", "ContainersNotReady"),
        "PodScheduled": ("True", None),
    }
    assert found["Ready"]["message"] == "containers with unready status: [b]"


def test_conditions_of_a_finished_pod() -> None:
    assert short(conditions(TWO, state(OK, OK, finished=True))) == {
        "PodReadyToStartContainers": ("False", None),
        "Initialized": ("True", "PodCompleted"),
        "Ready": ("False", "PodCompleted"),
        "ContainersReady": ("False", "PodCompleted"),
        "PodScheduled": ("True", None),
    }


def test_incomplete_init_containers_are_listed() -> None:
    found = conditions(STAGED, state(NEW, NEW))["Initialized"]
    assert (found["reason"], found["message"]) == (
        "ContainersNotInitialized",
        "containers with incomplete status: [b]",
    )


def test_readiness_gate_delays_readiness() -> None:
    gated = pod(container("a"), container("b"), readinessGates=[{"conditionType": "x/y"}])
    found = short(conditions(gated, state(UP, UP)))
    assert (found["Ready"], found["ContainersReady"]) == (
        ("False", "ReadinessGatesNotReady"),
        ("True", None),
    )


def test_transition_time_changes_only_with_the_status() -> None:
    before = [
        {"type": "Ready", "status": "True", "lastTransitionTime": "2025-01-01T00:00:00Z"},
        {
            "type": "ContainersReady",
            "status": "False",
            "lastTransitionTime": "2025-01-01T00:00:00Z",
        },
    ]
    found = conditions(TWO, state(UP, UP), before)
    times = [found[name]["lastTransitionTime"] for name in ("Ready", "ContainersReady")]
    assert times == ["2025-01-01T00:00:00Z", "2026-01-01T00:00:00Z"]


def test_container_status_of_a_restarted_container() -> None:
    found = pod_status(
        TWO, state(LOOP, UP), {"a": "env"}, host_ip="127.0.0.1", conditions=(), now=NOW
    )
    assert found["containerStatuses"][0] == {
        "name": "a",
        "state": {"waiting": {"reason": "CrashLoopBackOff"}},
        "lastState": {
            "terminated": {
                "exitCode": 1,
                "reason": "Error",
                "finishedAt": "2026-01-01T00:00:00Z",
            }
        },
        "ready": False,
        "restartCount": 2,
        "image": "trainer",
        "imageID": "env",
        "containerID": "x://1",
        "started": False,
    }


def test_status_of_an_earlier_kubelet_is_adopted() -> None:
    running = {"startedAt": "2026-01-01T00:00:00Z"}
    statuses = [
        {"name": "a", "state": {"running": running}, "restartCount": 1, "containerID": "x://1"},
        {"name": "b", "state": {"terminated": {"exitCode": 0, "reason": "Completed"}}},
    ]
    found = initial({**TWO, "status": {"containerStatuses": statuses}})
    assert (found["a"].end, found["a"].restarts, found["b"].succeeded) == (
        Terminated(
            255,
            "Unknown",
            None,
            NOW,
            "The container ended with the kubelet of its node.",
            "x://1",
        ),
        1,
        True,
    )


def test_container_that_never_started_is_reported_as_killed() -> None:
    ends = [abandoned(each).end for each in (NEW, LOOP, replace(UP))]
    assert [None if each is None else each.code for each in ends] == [137, 1, None]
