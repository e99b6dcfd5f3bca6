"""Why the manager does not run, from its Deployment and pods."""

from typing import Any

import pytest

from kftrainer.cli.cluster.manager_pods import selector_of, why_not_ready
from tests.support.objects import Object

HEAD = "the manager is not running: Deployment there/manager has 0 of 2 replicas ready: "


def deployment(ready: int = 0, replicas: int = 2, *conditions: Object) -> Object:
    return {
        "metadata": {"name": "manager", "namespace": "there"},
        "spec": {"replicas": replicas, "selector": {"matchLabels": {"a": "b", "c": "d"}}},
        "status": {"readyReplicas": ready, "conditions": [*conditions]},
    }


def pod(state: Object, name: str = "manager-1", **container: Any) -> Object:
    return {
        "metadata": {"name": name},
        "status": {"containerStatuses": [{"name": "manager", "state": state, **container}]},
    }


PULL = {"reason": "ImagePullBackOff", "message": 'Back-off pulling image "x:1"'}
CRASH = {"reason": "CrashLoopBackOff", "message": "back-off 10s"}
UNSCHEDULED = {"type": "PodScheduled", "status": "False", "message": "0/3 nodes are available"}
QUOTA = {"type": "ReplicaFailure", "status": "True", "message": "exceeded quota: pods"}
LOG = "see kubectl -n there logs manager-1"
PODS = {
    "image": (
        [pod({"waiting": PULL})],
        'pod manager-1, container manager: ImagePullBackOff: Back-off pulling image "x:1"',
    ),
    "crash": (
        [pod({"waiting": CRASH}, lastState={"terminated": {"exitCode": 3}})],
        "pod manager-1, container manager: CrashLoopBackOff: back-off 10s (exit code 3); "
        f"{LOG} --previous",
    ),
    "ended": (
        [pod({"terminated": {"exitCode": 1}})],
        f"pod manager-1, container manager: exited with code 1; {LOG}",
    ),
    "not ready": (
        [pod({"running": {}}, ready=False)],
        f"pod manager-1, container manager: is running but not ready; {LOG}",
    ),
    "not scheduled": (
        [{"metadata": {"name": "manager-1"}, "status": {"conditions": [UNSCHEDULED]}}],
        "pod manager-1 is not scheduled: 0/3 nodes are available",
    ),
    "starting": ([pod({"waiting": {"reason": "ContainerCreating"}})], "its pods are starting"),
    "no status yet": ([{"metadata": {"name": "manager-1"}}], "its pods are starting"),
    "no pods": ([], "it has no pods yet"),
    "being deleted": (
        [{**pod({"waiting": PULL}), "metadata": {"name": "x", "deletionTimestamp": "now"}}],
        "it has no pods yet",
    ),
}


@pytest.mark.parametrize(("pods", "reason"), PODS.values(), ids=PODS)
def test_manager_that_is_not_ready_has_a_reason(pods: list[Object], reason: str) -> None:
    assert why_not_ready(deployment(), pods) == HEAD + reason


def test_manager_with_a_ready_replica_runs() -> None:
    assert why_not_ready(deployment(ready=1), [pod({"waiting": PULL})]) is None


def test_manager_scaled_to_zero_does_not_run() -> None:
    assert why_not_ready(deployment(replicas=0), []) == (
        "the manager is not running: Deployment there/manager is scaled to 0 replicas"
    )


def test_manager_whose_pods_cannot_be_created_has_the_reason_of_its_deployment() -> None:
    assert why_not_ready(deployment(0, 2, QUOTA), []) == f"{HEAD}exceeded quota: pods"


def test_reasons_of_many_pods_are_few_and_on_one_line() -> None:
    message = {"reason": "ErrImagePull", "message": "not\nfound"}
    pods = [pod({"waiting": message}, name=f"manager-{n}") for n in range(5)]
    shown = why_not_ready(deployment(), pods)
    assert shown == HEAD + "; ".join(
        f"pod manager-{n}, container manager: ErrImagePull: not found" for n in range(2)
    )


def test_selector_of_pods() -> None:
    assert selector_of(deployment()) == "a=b,c=d"
