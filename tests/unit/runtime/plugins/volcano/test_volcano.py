from typing import Any

import pytest

from kftrainer.api.resources import PRIORITY_CLASSES, VOLCANO_POD_GROUPS
from kftrainer.runtime.cluster_reader import NO_OBJECTS
from kftrainer.runtime.plugins.gang import watches
from kftrainer.runtime.plugins.volcano.volcano import Volcano
from tests.support.objects import Object, replicated_job, runtime
from tests.support.plans import NAMESPACE, UID, findings, job_on, jobs_of, plan

QUEUE = "scheduling.volcano.sh/queue-name"
GROUP = "scheduling.k8s.io/group-name"


def job(
    name: str = "node", step: str | None = "trainer", priority: str | None = None, **extra: Any
) -> Object:
    replicated = {**replicated_job(name, step, resources={"requests": {"cpu": "2"}}), **extra}
    if priority is not None:
        replicated["template"]["spec"]["template"]["spec"]["priorityClassName"] = priority
    return replicated


def scheduled(
    *jobs: Object, queue: str | None = None, policy: Object | None = None, **spec: Any
) -> Object:
    document = runtime(
        jobs=list(jobs) or [job()],
        **{"mlPolicy": {"numNodes": 1}, "podGroupPolicy": {"volcano": policy or {}}, **spec},
    )
    if queue is not None:
        document["spec"]["template"]["metadata"] = {"annotations": {QUEUE: queue}}
    return document


def group(document: Object, *others: Object, **spec: Any) -> Any:
    return plan(job_on(document, **spec), document, *others)["PodGroup"]["spec"]


def priority_class(name: str) -> Object:
    api_version = "scheduling.k8s.io/v1"
    return {"apiVersion": api_version, "kind": "PriorityClass", "metadata": {"name": name}}


AFTER_DATA = [{"name": "data", "status": "Complete"}]


def test_pod_group_has_the_gang_size_and_the_volcano_policy() -> None:
    topology = {"mode": "soft", "highestTierAllowed": 2}
    document = scheduled(job(priority="high"), policy={"networkTopology": topology})
    owner = {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainJob",
        "name": "demo",
        "uid": UID,
        "controller": True,
        "blockOwnerDeletion": True,
    }
    replicated = job_on(document, trainer={"numNodes": 2}, annotations={QUEUE: "research"})
    assert plan(replicated, document)["PodGroup"] == {
        "apiVersion": "scheduling.volcano.sh/v1beta1",
        "kind": "PodGroup",
        "metadata": {"name": "demo", "namespace": NAMESPACE, "ownerReferences": [owner]},
        "spec": {
            "minMember": 2,
            "minResources": {"cpu": "4"},
            "queue": "research",
            "priorityClassName": "high",
            "networkTopology": topology,
        },
    }


def test_unset_fields_are_omitted() -> None:
    assert group(scheduled()) == {"minMember": 1, "minResources": {"cpu": "2"}}


def test_a_topology_has_the_defaults_of_the_runtime() -> None:
    document = scheduled(policy={"networkTopology": {}})
    assert group(document)["networkTopology"] == {"mode": "hard", "highestTierAllowed": 1}


@pytest.mark.parametrize(
    ("of_runtime", "of_job", "queue"),
    [
        ("shared", None, "shared"),
        ("shared", {QUEUE: "research"}, "research"),
        (None, {QUEUE: "research"}, "research"),
        (None, {"note": "none"}, None),
        ("shared", {QUEUE: ""}, ""),
    ],
)
def test_the_queue_is_the_jobs_or_else_the_runtimes(
    of_runtime: str | None, of_job: Object | None, queue: str | None
) -> None:
    document = scheduled(queue=of_runtime)
    assert group(document, annotations=of_job).get("queue") == queue


@pytest.mark.parametrize(
    ("jobs", "priority"),
    [
        ([job("side", None, "first"), job(), job("other", None, "last")], "first"),
        ([job("side", None, "first"), job(priority="trainer"), job("x", None, "y")], "trainer"),
        ([job("side", None, ""), job(priority=""), job("other", None, "last")], "last"),
        ([job("data", None, "early"), job(dependsOn=AFTER_DATA)], None),
        ([job(), job("late", None, "l", dependsOn=[{"name": "node", "status": "Ready"}])], "l"),
        ([job("side", None), job()], None),
    ],
)
def test_priority_is_that_of_the_trainer_or_else_the_first_of_the_gang(
    jobs: list[Object], priority: str | None
) -> None:
    """Defect D34."""
    assert group(scheduled(*jobs)).get("priorityClassName") == priority


def test_only_the_pods_of_the_gang_are_annotated() -> None:
    """Defect D32."""
    document = scheduled(job("data", None), job(dependsOn=AFTER_DATA))
    jobs = jobs_of(plan(job_on(document), document)["JobSet"])
    assert {
        name: each["template"]["spec"]["template"].get("metadata") for name, each in jobs.items()
    } == {
        "data": None,
        "node": {"annotations": {GROUP: "demo"}},
    }


@pytest.mark.parametrize("policy", [None, {}])
def test_no_pod_group_without_the_policy(policy: Object | None) -> None:
    document = scheduled(job(priority="none"), queue="", podGroupPolicy=policy)
    planned = plan(job_on(document), document)
    assert list(planned) == ["JobSet"]
    assert "metadata" not in jobs_of(planned["JobSet"])["node"]["template"]["spec"]["template"]
    assert findings(job_on(document), document, priority_class("high")).errors == []


def existing(kind: str, api_version: str, **spec: Any) -> Object:
    owners = [{"controller": True, "uid": UID}]
    metadata = {"name": "demo", "namespace": NAMESPACE, "ownerReferences": owners}
    return {"apiVersion": api_version, "kind": kind, "metadata": metadata, "spec": spec}


def jobset(**spec: Any) -> Object:
    return existing("JobSet", "jobset.x-k8s.io/v1alpha2", **spec)


@pytest.mark.parametrize(
    ("suspend", "running", "kinds"),
    [
        (False, jobset(), []),
        (False, jobset(suspend=True), ["PodGroup", "JobSet"]),
        (True, jobset(), ["PodGroup", "JobSet"]),
    ],
)
def test_pod_group_is_applied_until_its_pods_exist(
    suspend: bool, running: Object, kinds: list[str]
) -> None:
    """Defect D32."""
    document, applied = scheduled(), existing("PodGroup", "scheduling.volcano.sh/v1beta1")
    assert list(plan(job_on(document, suspend=suspend), document, applied, running)) == kinds


def error_messages(document: Object, *others: Object, **spec: Any) -> list[str]:
    return [str(error) for error in findings(job_on(document, **spec), document, *others).errors]


QUEUE_ERROR = f'spec.annotations[{QUEUE}]: Invalid value: "": Volcano queue name must not be empty'
QUEUE_ERROR_OF_RUNTIME = (
    'spec.runtimeRef: Invalid value: {"name":"runtime","apiGroup":"trainer.kubeflow.org",'
    '"kind":"TrainingRuntime"}: Volcano queue name must not be empty: it is empty in '
    f"spec.template.metadata.annotations[{QUEUE}] of TrainingRuntime runtime; "
    f"set it there or in spec.annotations[{QUEUE}]"
)


@pytest.mark.parametrize(
    ("of_runtime", "of_job", "errors"),
    [
        (None, {QUEUE: ""}, [QUEUE_ERROR]),
        ("shared", {QUEUE: ""}, [QUEUE_ERROR]),
        ("", None, [QUEUE_ERROR_OF_RUNTIME]),
        ("", {"other": ""}, [QUEUE_ERROR_OF_RUNTIME]),
        ("", {QUEUE: "research"}, []),
        (None, None, []),
    ],
)
def test_an_empty_queue_is_refused(
    of_runtime: str | None, of_job: Object | None, errors: list[str]
) -> None:
    assert error_messages(scheduled(queue=of_runtime), annotations=of_job) == errors


def missing(name: str) -> str:
    reference = '{"name":"runtime","apiGroup":"trainer.kubeflow.org","kind":"TrainingRuntime"}'
    return (
        f'spec.runtimeRef: Invalid value: {reference}: PriorityClass "{name}" doesn\'t exist: '
        f'PriorityClass.scheduling.k8s.io "{name}" not found'
    )


@pytest.mark.parametrize(
    ("priorities", "absent"),
    [
        (["high"], []),
        (["none"], ["none"]),
        (["high", "none"], ["none"]),
        (["none", "none"], ["none"]),
        (["low", "none"], ["low", "none"]),
        (["system-node-critical", "none"], ["none"]),
        (["system-cluster-critical", "high"], []),
        (["", None], []),
    ],
)
def test_every_priority_class_of_the_gang_must_exist(
    priorities: list[str | None], absent: list[str]
) -> None:
    """Defect D34."""
    first, *rest = priorities
    sides = [job(f"side-{n}", None, priority) for n, priority in enumerate(rest)]
    document = scheduled(job(priority=first), *sides)
    assert error_messages(document, priority_class("high")) == [missing(name) for name in absent]


def test_missing_priority_classes_outside_the_gang_are_reported() -> None:
    """Defect D34."""
    document = scheduled(job("data", None, "none"), job(dependsOn=AFTER_DATA))
    (error,) = error_messages(document, priority_class("high"))
    assert error == missing("none")


def test_g12_priority_classes_that_cannot_be_read_are_not_missed() -> None:
    assert error_messages(scheduled(job(priority="none"))) == []


def test_it_watches_its_own_pod_groups_and_priority_classes() -> None:
    *gang, priorities = Volcano().declare_watches()
    assert gang == [*watches(VOLCANO_POD_GROUPS)]
    assert priorities.resource is PRIORITY_CLASSES
    assert priorities.map_func is not None
    assert [*priorities.map_func(priority_class("high"), NO_OBJECTS)] == []
