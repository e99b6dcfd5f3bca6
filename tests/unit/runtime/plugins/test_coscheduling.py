from typing import Any

import pytest

from kftrainer.api.resources import COSCHEDULING_POD_GROUPS
from kftrainer.runtime.plugins.coscheduling import CoScheduling
from kftrainer.runtime.plugins.gang import watches
from tests.support.objects import Object, replicated_job, runtime
from tests.support.plans import NAMESPACE, UID, job_on, jobs_of, plan

LABEL = "scheduling.x-k8s.io/pod-group"
REQUESTS = {"requests": {"cpu": "2", "memory": "4Gi"}}


def scheduled(*jobs: Object, **policy: Any) -> Object:
    return runtime(
        jobs=list(jobs) or [replicated_job(resources=REQUESTS)],
        mlPolicy={"numNodes": 1},
        podGroupPolicy={"coscheduling": policy},
    )


def existing(kind: str, api_version: str, **spec: Any) -> Object:
    owners = [{"controller": True, "uid": UID}]
    metadata = {"name": "demo", "namespace": NAMESPACE, "ownerReferences": owners}
    return {"apiVersion": api_version, "kind": kind, "metadata": metadata, "spec": spec}


def jobset(**spec: Any) -> Object:
    return existing("JobSet", "jobset.x-k8s.io/v1alpha2", **spec)


POD_GROUP = existing("PodGroup", "scheduling.x-k8s.io/v1alpha1")


def pod_labels(jobset: Any) -> dict[str, Any]:
    """The settings of the pods of each job."""
    return {
        name: job["template"]["spec"]["template"].get("metadata")
        for name, job in jobs_of(jobset).items()
    }


def test_the_pod_group_has_the_size_of_the_gang_and_the_timeout() -> None:
    document = scheduled(scheduleTimeoutSeconds=120)
    owner = {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainJob",
        "name": "demo",
        "uid": UID,
        "controller": True,
        "blockOwnerDeletion": True,
    }
    assert plan(job_on(document, trainer={"numNodes": 4}), document)["PodGroup"] == {
        "apiVersion": "scheduling.x-k8s.io/v1alpha1",
        "kind": "PodGroup",
        "metadata": {"name": "demo", "namespace": NAMESPACE, "ownerReferences": [owner]},
        "spec": {
            "minMember": 4,
            "minResources": {"cpu": "8", "memory": "16Gi"},
            "scheduleTimeoutSeconds": 120,
        },
    }


def test_without_a_timeout_pods_wait_for_a_minute() -> None:
    document = scheduled()
    assert plan(job_on(document), document)["PodGroup"]["spec"]["scheduleTimeoutSeconds"] == 60


def test_only_the_pods_of_the_gang_are_labelled() -> None:
    """Defect D32."""
    node = {**replicated_job(), "dependsOn": [{"name": "data", "status": "Complete"}]}
    side = {**node, **replicated_job("side", None)}
    late = {**replicated_job("late", None), "dependsOn": [{"name": "node", "status": "Ready"}]}
    document = scheduled(replicated_job("data", None), node, side, late)
    labels = {"labels": {LABEL: "demo"}}
    planned = plan(job_on(document), document)
    assert pod_labels(planned["JobSet"]) == {
        "data": None,
        "node": labels,
        "side": labels,
        "late": labels,
    }
    assert planned["PodGroup"]["spec"]["minMember"] == 2


def test_labels_of_the_template_stay() -> None:
    node = replicated_job()
    node["template"]["spec"]["template"]["metadata"] = {"labels": {"team": "vision"}}
    document = scheduled(node)
    assert pod_labels(plan(job_on(document), document)["JobSet"]) == {
        "node": {"labels": {"team": "vision", LABEL: "demo"}}
    }


@pytest.mark.parametrize("policy", [None, {}])
def test_no_pod_group_without_the_policy(policy: Object | None) -> None:
    document = runtime(mlPolicy={"numNodes": 1}, podGroupPolicy=policy)
    planned = plan(job_on(document), document)
    assert list(planned) == ["JobSet"]
    assert pod_labels(planned["JobSet"]) == {"node": None}


@pytest.mark.parametrize(
    ("suspend", "others", "kinds"),
    [
        (False, [], ["PodGroup", "JobSet"]),
        (False, [POD_GROUP], ["PodGroup", "JobSet"]),
        (False, [POD_GROUP, jobset()], []),
        (False, [POD_GROUP, jobset(suspend=False)], []),
        (False, [POD_GROUP, jobset(suspend=True)], ["PodGroup", "JobSet"]),
        (False, [jobset()], ["PodGroup"]),
        (True, [], ["PodGroup", "JobSet"]),
        (True, [POD_GROUP, jobset()], ["PodGroup", "JobSet"]),
        (True, [POD_GROUP, jobset(suspend=True)], ["PodGroup", "JobSet"]),
    ],
)
def test_pod_group_is_applied_until_its_pods_exist(
    suspend: bool, others: list[Object], kinds: list[str]
) -> None:
    """Defect D32."""
    document = scheduled()
    assert list(plan(job_on(document, suspend=suspend), document, *others)) == kinds


def test_a_pod_group_of_another_scheduler_is_not_ours() -> None:
    document = scheduled()
    other = existing("PodGroup", "scheduling.volcano.sh/v1beta1")
    assert list(plan(job_on(document), document, other, jobset())) == ["PodGroup"]


def test_it_watches_its_own_pod_groups() -> None:
    assert CoScheduling().declare_watches() == watches(COSCHEDULING_POD_GROUPS)
