import tracemalloc
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kftrainer.api.resources import (
    COSCHEDULING_POD_GROUPS,
    LIMIT_RANGES,
    RUNTIME_CLASSES,
    VOLCANO_POD_GROUPS,
)
from kftrainer.kube.objects.resource import ObjectKey
from kftrainer.runtime.cluster_reader import GivenObjects
from kftrainer.runtime.errors import PlanningError
from kftrainer.runtime.framework.extension_points import Watch
from kftrainer.runtime.plugins.gang import (
    COMPLETE,
    Gang,
    _completed_before,
    gang_of,
    waiting_for_class,
    waiting_in_namespace,
    watches,
)
from tests.support.objects import Object, replicated_job, runtime, train_job
from tests.support.plans import NAMESPACE, info_of, job_on, plan
from tests.support.runtimes import mpi

COSCHEDULING = {"coscheduling": {"scheduleTimeoutSeconds": 60}}
Waits = Mapping[str, str]


def job(name: str, step: str | None = None, *, after: Waits | None = None, **extra: Any) -> Object:
    """A replicated job that waits for others, by name, to be Ready or Complete."""
    replicated = {**replicated_job(name, step), **extra}
    replicated["template"]["spec"]["template"]["spec"]["containers"][0]["name"] = "node"
    if after is not None:
        replicated["dependsOn"] = [
            {"name": other, "status": status} for other, status in after.items()
        ]
    return replicated


def node(**extra: Any) -> Object:
    return job("node", "trainer", **extra)


def with_resources(replicated: Object, **resources: Object) -> Object:
    replicated["template"]["spec"]["template"]["spec"]["containers"][0]["resources"] = resources
    return replicated


def on(*jobs: Object, **template: Any) -> Object:
    """A plain runtime with these jobs, whose gang CoScheduling schedules."""
    document = runtime(jobs=list(jobs), mlPolicy=None, podGroupPolicy=COSCHEDULING)
    document["spec"]["template"]["spec"] |= template
    return document


def gang(*jobs: Object, **template: Any) -> tuple[list[str], list[str]]:
    """The names of the members and of the quorum."""
    document = on(*jobs, **template)
    found: Gang = gang_of(info_of(job_on(document), document))
    return [each.name for each in found.members], [each.name for each in found.quorum]


def minimum(document: Object, *others: Object, **spec: Any) -> Any:
    planned = plan(job_on(document, **spec), document, *others)["PodGroup"]["spec"]
    return {key: planned.get(key) for key in ("minMember", "minResources")}


DATASET, MODEL = "dataset-initializer", "model-initializer"
BOTH = ["node", "side"]


def test_the_trainer_alone_is_a_gang() -> None:
    assert gang(node()) == (["node"], ["node"])


def test_jobs_that_wait_for_nothing_are_all_counted() -> None:
    assert gang(node(), job("side")) == (BOTH, BOTH)


def test_initializers_are_not_in_the_gang_that_waits_for_them() -> None:
    """Defect D32."""
    assert gang(job(DATASET), job(MODEL), node(after={DATASET: "Complete", MODEL: "Complete"})) == (
        ["node"],
        ["node"],
    )


def test_initializers_without_dependents_are_in_the_gang() -> None:
    all_jobs = [DATASET, "node"]
    assert gang(job(DATASET), node()) == (all_jobs, all_jobs)


def test_launcher_waiting_for_its_workers_is_not_counted() -> None:
    """Defect D32."""
    launcher = job("launcher", "trainer", after={"node": "Ready"})
    assert gang(job("node"), launcher) == (["node", "launcher"], ["node"])


def test_a_launcher_without_workers_is_counted() -> None:
    launcher = job("launcher", "trainer", after={"node": "Ready"})
    assert gang(job("node", replicas=0), launcher) == (["node", "launcher"], ["launcher"])


def test_a_launcher_whose_empty_workers_wait_is_not_counted() -> None:
    jobs = [
        job("first"),
        job("node", replicas=0, after={"first": "Ready"}),
        job("launcher", "trainer", after={"node": "Ready"}),
    ]
    assert gang(*jobs) == (["first", "node", "launcher"], ["first"])


def test_a_side_job_that_starts_before_the_initializers_are_over_is_on_its_own() -> None:
    assert gang(job(DATASET), job("side"), node(after={DATASET: "Complete"})) == (
        ["node"],
        ["node"],
    )


def test_a_side_job_that_waits_for_the_same_initializers_is_in_the_gang() -> None:
    after = {DATASET: "Complete"}
    assert gang(job(DATASET), node(after=after), job("side", after=after)) == (BOTH, BOTH)


def test_a_job_after_the_training_is_not_in_the_gang() -> None:
    assert gang(node(), job("evaluation", after={"node": "Complete"})) == (["node"], ["node"])


def test_a_trainer_is_counted_though_it_waits_for_a_job_on_its_own() -> None:
    after = {DATASET: "Complete", "cache": "Ready"}
    assert gang(job(DATASET), job("cache"), node(after=after)) == (["node"], ["node"])


def test_completed_dependency_in_a_chain_applies_to_all_later_jobs() -> None:
    jobs = [
        job("first"),
        job("second", after={"first": "Complete"}),
        job("side", after={"first": "Complete", "second": "Complete"}),
        node(after={"second": "Complete"}),
    ]
    assert gang(*jobs) == (["side", "node"], ["side", "node"])


def test_completed_dependency_applies_to_jobs_waiting_for_ready() -> None:
    jobs = [
        job("first"),
        job("workers", after={"first": "Complete"}),
        node(after={"workers": "Ready"}),
    ]
    assert gang(*jobs) == (["workers", "node"], ["workers"])


@pytest.mark.parametrize(
    ("left", "right", "members", "quorum"),
    [
        ("Complete", "Complete", ["node"], ["node"]),
        ("Ready", "Complete", ["node"], ["node"]),
        ("Ready", "Ready", ["top", "left", "right", "node"], ["top"]),
    ],
)
def test_a_diamond(left: str, right: str, members: list[str], quorum: list[str]) -> None:
    jobs = [
        job("top"),
        job("left", after={"top": "Ready"}),
        job("right", after={"top": "Ready"}),
        node(after={"left": left, "right": right}),
    ]
    assert gang(*jobs) == (members, quorum)


def test_jobs_in_order_wait_for_all_before_them() -> None:
    jobs = [job("workers"), job("side"), node()]
    order = {"startupPolicyOrder": "InOrder"}
    assert gang(*jobs, startupPolicy=order) == (["workers", "side", "node"], ["workers"])


@pytest.mark.parametrize("policy", [None, {}, {"startupPolicyOrder": "AnyOrder"}])
def test_jobs_in_any_order_wait_for_none(policy: Object | None) -> None:
    assert gang(node(), job("side"), startupPolicy=policy) == (BOTH, BOTH)


@pytest.mark.parametrize("after", [{"later": "Complete"}, {"node": "Ready"}, {"none": "Complete"}])
def test_dependency_that_jobset_rejects_is_ignored(after: Waits) -> None:
    all_jobs = ["node", "later"]
    assert gang(node(after=after), job("later")) == (all_jobs, all_jobs)


def simulated(waits: Mapping[str, Waits], ready: set[str], complete: set[str]) -> set[str]:
    """Which jobs JobSet creates, if only these become ready and complete once they are created."""
    created: set[str] = set()
    reached = {"Ready": ready, "Complete": complete}
    for name, after in waits.items():  # earlier jobs come first
        if all(other in created and other in reached[status] for other, status in after.items()):
            created.add(name)
    return created


@st.composite
def graphs(draw: st.DrawFn) -> tuple[dict[str, Waits], dict[str, int], str]:
    """Jobs with what they wait for and how many Jobs they have; one trains."""
    names = [f"job-{n}" for n in range(draw(st.integers(1, 7)))]
    status = st.sampled_from(("Ready", "Complete"))
    waits = {
        name: draw(st.dictionaries(st.sampled_from(names[:n]), status, max_size=3)) if n else {}
        for n, name in enumerate(names)
    }
    trainer = draw(st.sampled_from(names))
    replicas = {name: draw(st.sampled_from((0, 1, 1, 2))) for name in names} | {trainer: 1}
    return waits, replicas, trainer


@given(graphs())
def test_gang_contains_the_jobs_that_jobset_starts_together(
    graph: tuple[dict[str, Waits], dict[str, int], str],
) -> None:
    """Defect D32."""
    waits, replicas, trainer = graph
    jobs = [
        job(name, "trainer" if name == trainer else None, after=after, replicas=replicas[name])
        for name, after in waits.items()
    ]
    all_jobs = set(waits)
    must_end = {
        name: {
            each for each in all_jobs if name not in simulated(waits, all_jobs, all_jobs - {each})
        }
        for name in all_jobs
    }
    members = {name for name in all_jobs if must_end[name] == must_end[trainer]}
    # Whoever is not in the gang is scheduled alone, and so is over sooner or later.
    free = all_jobs - {name for name in members if replicas[name]}
    quorum = {
        name for name in simulated(waits, ready=free, complete=free) & members if replicas[name]
    }
    found_members, found_quorum = gang(*jobs)
    assert (set(found_members), set(found_quorum)) == (members, quorum)
    assert found_quorum  # an empty gang would be rejected


def test_totals_are_over_all_replicas() -> None:
    """Defect D32."""
    side = with_resources(job("side", replicas=3), requests={"cpu": "500m", "memory": "1Gi"})
    side["template"]["spec"]["parallelism"] = 2
    document = on(with_resources(node(), requests={"cpu": "2"}), side)
    assert minimum(document) == {"minMember": 7, "minResources": {"cpu": "5", "memory": "6Gi"}}


def test_limits_count_where_there_are_no_requests() -> None:
    """Defect D32."""
    document = on(with_resources(node(), limits={"nvidia.com/gpu": 8}, requests={"cpu": "1"}))
    requested = {"nvidia.com/gpu": 2}
    assert minimum(
        document, trainer={"resourcesPerNode": {"limits": requested}, "numNodes": 4}
    ) == {
        "minMember": 4,
        "minResources": {"cpu": "4", "nvidia.com/gpu": "8"},
    }


def test_totals_exclude_initializers_and_later_jobs() -> None:
    """Defect D32."""
    jobs = [
        with_resources(job(DATASET), requests={"cpu": "100"}),
        with_resources(node(after={DATASET: "Complete"}), requests={"cpu": "3"}),
        with_resources(job("late", after={"node": "Ready"}), requests={"cpu": "100"}),
    ]
    assert minimum(on(*jobs)) == {"minMember": 1, "minResources": {"cpu": "3"}}


def test_pods_without_requests_are_only_counted() -> None:
    assert minimum(on(node())) == {"minMember": 1, "minResources": None}


@pytest.mark.parametrize(
    ("amount", "total"),
    [("1.500", "4500m"), ("100m", "300m"), ("1e3", "3e3"), ("341Mi", "1023Mi"), (0.5, "1500m")],
)
def test_totals_are_canonical(amount: object, total: str) -> None:
    document = on(with_resources(node(), requests={"memory": amount}))
    assert minimum(document, trainer={"numNodes": 3})["minResources"] == {"memory": total}


def limit_range(namespace: str = NAMESPACE, **item: Any) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "LimitRange",
        "metadata": {"name": "defaults", "namespace": namespace},
        "spec": {"limits": [{"type": "Container", **item}]},
    }


def runtime_class(name: str = "kata", **extra: Any) -> Object:
    head = {"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "handler": "kata"}
    return {**head, "metadata": {"name": name}, **extra}


def of_class(replicated: Object, name: str | None = "kata", **pod: Any) -> Object:
    replicated["template"]["spec"]["template"]["spec"] |= {"runtimeClassName": name, **pod}
    return replicated


def test_totals_have_the_defaults_of_the_namespace() -> None:
    """Defect D32."""
    defaults = limit_range(defaultRequest={"cpu": "250m", "memory": "1Gi"})
    foreign = limit_range("elsewhere", defaultRequest={"nvidia.com/gpu": "1"})
    document = on(with_resources(node(), limits={"cpu": "1"}))
    assert minimum(document, defaults, foreign, trainer={"numNodes": 2}) == {
        "minMember": 2,
        "minResources": {"cpu": "2", "memory": "2Gi"},
    }


OVERHEAD = {"overhead": {"podFixed": {"cpu": "250m"}}}


@pytest.mark.parametrize(
    ("pods", "others", "cpu"),
    [
        ({}, [runtime_class(**OVERHEAD)], "2500m"),
        ({"overhead": {}}, [runtime_class(**OVERHEAD)], "2500m"),
        ({"overhead": {"cpu": "1"}}, [runtime_class(**OVERHEAD)], "4"),
        ({}, [runtime_class()], "2"),
        ({}, [runtime_class(overhead=None)], "2"),
        ({}, [runtime_class("other", **OVERHEAD)], "2"),
        ({"name": None}, [runtime_class(**OVERHEAD)], "2"),
    ],
)
def test_totals_have_the_overhead_of_the_class(
    pods: Object, others: list[Object], cpu: str
) -> None:
    """Defect D32."""
    document = on(of_class(with_resources(node(), requests={"cpu": "1"}), **pods))
    assert minimum(document, *others, trainer={"numNodes": 2})["minResources"] == {"cpu": cpu}


@pytest.mark.parametrize(
    "other",
    [limit_range(default={"cpu": "much"}), runtime_class(overhead={"podFixed": {"cpu": "much"}})],
)
def test_invalid_default_quantity_is_reported(other: Object) -> None:
    with pytest.raises(PlanningError, match=r"job node .*\[cpu\]: 'much' is not a quantity"):
        minimum(on(of_class(node())), other)


def test_planning_a_gang_leaves_the_template_without_defaults() -> None:
    document = on(of_class(node()))
    others = [limit_range(default={"cpu": "1"}), runtime_class(**OVERHEAD)]
    planned = plan(job_on(document), document, *others)
    pod = planned["JobSet"]["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
    assert pod == {
        "containers": [{"name": "node", "image": "trainer"}],
        "runtimeClassName": "kata",
    }


@pytest.mark.parametrize("resource", [COSCHEDULING_POD_GROUPS, VOLCANO_POD_GROUPS])
def test_watches_cover_pod_groups_and_inputs_of_their_totals(resource: Any) -> None:
    assert watches(resource) == (
        Watch(resource),
        Watch(LIMIT_RANGES, waiting_in_namespace),
        Watch(RUNTIME_CLASSES, waiting_for_class),
    )


def stored(name: str, document: Object, namespace: str = NAMESPACE, **spec: Any) -> Object:
    """A suspended TrainJob on this runtime, in any namespace."""
    replicated = job_on(document, name, **{"suspend": True, **spec})
    return {**replicated, "metadata": {**replicated["metadata"], "namespace": namespace}}


def running(name: str, document: Object, namespace: str = NAMESPACE) -> list[Object]:
    """A TrainJob that is not suspended, and its JobSet."""
    replicated = stored(name, document, namespace, suspend=False)
    replicated["metadata"]["uid"] = f"uid-of-{name}"
    owner = {"kind": "TrainJob", "name": name, "uid": f"uid-of-{name}", "controller": True}
    metadata = {"name": name, "namespace": namespace, "ownerReferences": [owner]}
    job_set = {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "metadata": metadata}
    return [replicated, {**job_set, "spec": {}}]


def test_limit_range_event_enqueues_train_jobs_of_its_namespace_without_pods() -> None:
    plain = runtime()
    finished = {"type": "Complete", "status": "True", "reason": "AllJobsCompleted", "message": ""}
    finished["lastTransitionTime"] = "2026-01-01T00:00:00Z"
    reader = GivenObjects(
        [
            stored("waiting", plain),
            *running("running", plain),
            {**stored("done", plain), "status": {"conditions": [finished]}},
            stored("waiting", plain, "elsewhere"),
            stored("also", plain),
            stored("cannot-start", plain, suspend=False),
        ]
    )
    assert [*filter(None, waiting_in_namespace(limit_range(), reader))] == [
        ObjectKey(NAMESPACE, "waiting"),
        ObjectKey(NAMESPACE, "also"),
        ObjectKey(NAMESPACE, "cannot-start"),
    ]


def in_(document: Object, namespace: str) -> Object:
    return {**document, "metadata": {**document["metadata"], "namespace": namespace}}


def enqueued(*reader: Object) -> list[ObjectKey]:
    found = [*waiting_for_class(runtime_class(), GivenObjects(reader))]
    # Others get their turn after each runtime, whether or not it is concerned.
    assert len(found) >= sum(each["kind"].endswith("TrainingRuntime") for each in reader)
    return [each for each in found if each is not None]


def test_runtime_class_event_enqueues_train_jobs_without_pods_once() -> None:
    """Defect D33."""
    shared = runtime("shared", "ClusterTrainingRuntime", [of_class(node()), of_class(job("side"))])
    own = runtime("own", jobs=[node(), of_class(job("side"))])
    reader = [
        shared,
        in_(own, "left"),
        stored("same", shared, "left"),
        stored("same", shared, "right"),
        *running("running", shared, "left"),
        stored("local", own, "left"),
    ]
    assert enqueued(*reader) == [
        ObjectKey("left", "same"),
        ObjectKey("right", "same"),
        ObjectKey("left", "local"),
    ]


def test_runtime_of_another_namespace_is_not_matched() -> None:
    """Defect D33."""
    own = runtime("own", jobs=[of_class(node())])
    assert enqueued(in_(own, "left"), stored("local", own, "right")) == []


def test_runtime_of_the_other_kind_with_the_same_name_is_another_runtime() -> None:
    shared = runtime("both", "ClusterTrainingRuntime", [of_class(node())])
    own = in_(runtime("both"), NAMESPACE)
    assert enqueued(shared, own, stored("local", own)) == []


def test_runtime_class_event_does_not_enqueue_train_jobs_of_foreign_runtimes() -> None:
    shared = runtime("shared", "ClusterTrainingRuntime", [of_class(node())])
    foreign = stored("foreign", shared)
    foreign["spec"]["runtimeRef"]["apiGroup"] = "example.com"
    assert enqueued(shared, foreign) == []


@pytest.mark.parametrize(
    "spec",
    [
        None,
        {},
        {"template": {}},
        {"template": {"spec": {}}},
        {"template": {"spec": {"replicatedJobs": [{}, of_class(node(), "other"), node()]}}},
    ],
)
def test_runtimes_without_the_class_or_without_pods_enqueue_nothing(spec: Object | None) -> None:
    broken = {**runtime("broken", "ClusterTrainingRuntime"), "spec": spec}
    assert enqueued(broken, stored("waiting", broken), in_(train_job(suspend=True), "left")) == []


@pytest.mark.parametrize(("nodes", "members", "gpus"), [(1, 1, "2"), (2, 1, "2"), (5, 4, "8")])
def test_mpi_gang_is_its_workers_or_else_the_launcher(nodes: int, members: int, gpus: str) -> None:
    """Defect D32."""
    document = mpi("mlx")
    document["spec"]["podGroupPolicy"] = COSCHEDULING
    trainer = {"numNodes": nodes, "resourcesPerNode": {"limits": {"nvidia.com/gpu": 2}}}
    assert minimum(document, trainer=trainer) == {
        "minMember": members,
        "minResources": {"nvidia.com/gpu": gpus},
    }


states = st.sampled_from(["Ready", "Complete"])


@st.composite
def jobs_with_dependencies(draw: st.DrawFn) -> list[Object]:
    """Some jobs, each of which waits for some others; one may train."""
    replicated: list[Object] = []
    trainer = draw(st.integers(0, 6))
    for index in range(draw(st.integers(1, 6))):
        after = draw(st.dictionaries(st.sampled_from([f"j{n}" for n in range(7)]), states))
        step = "trainer" if index == trainer else None
        replicated.append(job(f"j{index}", step, after=after, replicas=draw(st.integers(0, 2))))
    return replicated


def by_sets(jobs: list[Object], *, in_order: bool) -> tuple[list[str], list[str]]:
    """The gang by the sets of jobs that are over before each starts, written down one by one."""
    waits: dict[str, dict[str, str]] = {}
    for each in jobs:
        dependencies = {other["name"]: other["status"] for other in each.get("dependsOn") or ()}
        waits[each["name"]] = {
            name: dependencies.get(name, "Ready")
            for name in waits
            if in_order or name in dependencies
        }
    over: dict[str, frozenset[str]] = {}
    for name, awaited in waits.items():
        complete = {other for other, state in awaited.items() if state == "Complete"}
        over[name] = frozenset(complete).union(*(over[other] for other in awaited))
    trains = [each["name"] for each in jobs if "metadata" in each["template"]]
    anchor = trains[0] if trains else max(over, key=lambda name: len(over[name]))
    members = [name for name in over if over[name] == over[anchor]]
    # A job with an ancestor label has one replica, whatever its spec sets.
    pods = {each["name"]: 1 if each["name"] in trains else each["replicas"] for each in jobs}
    waiting: set[str] = set()
    quorum = []
    for name in members:
        waits_for_gang = bool(waiting & waits[name].keys())
        if waits_for_gang or pods[name]:
            waiting.add(name)
        if pods[name] and not waits_for_gang:
            quorum.append(name)
    return members, quorum


@given(jobs_with_dependencies(), st.booleans())
def test_gang_is_that_of_the_definition_by_sets(jobs: list[Object], in_order: bool) -> None:
    policy = {"startupPolicy": {"startupPolicyOrder": "InOrder"}} if in_order else {}
    assert gang(*jobs, **policy) == by_sets(jobs, in_order=in_order)


def test_memory_for_a_long_chain_of_jobs_does_not_grow_with_its_square() -> None:
    chain: dict[str, dict[str, str]] = {"0": {}}
    chain |= {str(n): {str(n - 1): COMPLETE} for n in range(1, 3000)}
    tracemalloc.start()
    try:
        over = _completed_before(chain, in_order=False)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert over["2999"].bit_count() == 2999
    assert peak < 10_000_000  # as sets of names, they take hundreds of megabytes
