"""What is wrong with runtimes: each rule with one that offends it beside one that does not."""

from copy import deepcopy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kftrainer.api.resources import CLUSTER_TRAINING_RUNTIMES, TRAINING_RUNTIMES
from kftrainer.kube.objects.field_errors import ValidationResult
from kftrainer.runtime.validation.training_runtime import runtime_findings
from tests.support.golden import CASES
from tests.support.objects import Object, replicated_job, runtime
from tests.support.plans import RUNTIMES, job_on, plan
from tests.support.runtimes import SHIPPED

JOBS = "spec.template.spec.replicatedJobs"
POD = "template.spec.template.spec"
LABEL = "trainer.kubeflow.org/trainjob-ancestor-step"
STEPS = ("trainer", "dataset-initializer", "model-initializer")
KINDS = ("TrainingRuntime", "ClusterTrainingRuntime")


def found(document: Object) -> ValidationResult:
    kinds = {each.kind: each for each in (TRAINING_RUNTIMES, CLUSTER_TRAINING_RUNTIMES)}
    return runtime_findings(RUNTIMES.framework, kinds[document["kind"]].decode(document))


def errors(document: Object) -> list[str]:
    return [str(error) for error in found(document).errors]


def warnings(document: Object) -> list[str]:
    findings = found(document)
    assert findings.errors == []
    return findings.warnings


def job_of(step: str, **fields: Any) -> Object:
    """A job that does the step, called after it."""
    name = "node" if step == "trainer" else step
    return {**replicated_job(name, step), **fields}


def with_steps(*jobs: Object, **spec: Any) -> Object:
    """A runtime with these jobs, and one that trains if none of them does."""
    trains = any(_label(each) == "trainer" for each in jobs)
    return runtime(jobs=[*jobs, *([] if trains else [replicated_job()])], **spec)


def _label(job: Object) -> Any:
    return job["template"].get("metadata", {}).get("labels", {}).get(LABEL)


def called(job: Object, *names: str) -> Object:
    """The job with containers of these names instead."""
    job = deepcopy(job)
    pod = job["template"]["spec"]["template"]["spec"]
    pod["containers"] = [{"name": name, "image": "a"} for name in names]
    return job


def counted(job: Object, **counts: int) -> Object:
    job = deepcopy(job)
    job["template"]["spec"].update(counts)
    return job


def scheduled(job: Object, scheduler: str) -> Object:
    job = deepcopy(job)
    job["template"]["spec"]["template"]["spec"]["schedulerName"] = scheduler
    return job


def mpi(*jobs: Object, num_nodes: int | None = None, **policy: Any) -> Object:
    nodes = {} if num_nodes is None else {"numNodes": num_nodes}
    return runtime(jobs=list(jobs), mlPolicy={**nodes, "mpi": policy})


@pytest.mark.parametrize("document", SHIPPED, ids=lambda each: each["metadata"]["name"])
def test_bundled_runtimes_have_no_findings(document: Object) -> None:
    assert found(document) == ValidationResult()


# In these a step has several replicas, which Kubeflow Trainer's webhook refuses as well.
REFUSED_GOLDEN_CASES = {
    "own/jobset-initializers",
    "own/jobset-initializers-as-in-the-template",
    "own/torch-sidecar",
}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_runtimes_of_golden_cases_are_valid(case: Any) -> None:
    [document] = [each for each in case.documents if each["kind"] in KINDS]
    found_errors = errors(document)
    if case.name in REFUSED_GOLDEN_CASES:
        [error] = found_errors
        assert error.endswith("always must be 1")
    else:
        assert found_errors == []


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("replicas", [0, 2])
def test_replicas_of_a_step_other_than_one_are_rejected(
    step: str, kind: str, replicas: int
) -> None:
    """R1."""
    document = with_steps(job_of(step, replicas=replicas), kind=kind)
    assert errors(document) == [f"{JOBS}[0].replicas: Invalid value: {replicas}: always must be 1"]
    assert errors(with_steps(job_of(step, replicas=1), kind=kind)) == []


def test_invalid_replicas_are_reported_once() -> None:
    """R1."""
    document = with_steps(job_of("trainer", replicas=-1))
    assert errors(document) == [f"{JOBS}[0].replicas: Invalid value: -1: always must be 1"]


def test_job_without_a_step_can_have_replicas() -> None:
    """R1."""
    assert errors(with_steps({**replicated_job("cache", None), "replicas": 2})) == []


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("step", STEPS)
def test_step_without_its_container_is_rejected(step: str, kind: str) -> None:
    """R2."""
    name = "node" if step == "trainer" else step
    assert errors(with_steps(called(job_of(step), "a", "b"), kind=kind)) == [
        f'{JOBS}[0].{POD}.containers: Invalid value: [{{"name":"a"}},{{"name":"b"}}]: '
        f"must contain the required container for the ancestor: {step}"
    ]
    assert errors(with_steps(called(job_of(step), "a", name), kind=kind)) == []


def test_init_container_does_not_count_as_the_container_of_a_step() -> None:
    """R2."""
    job = called(job_of("model-initializer"), "a")
    pod = job["template"]["spec"]["template"]["spec"]
    pod["initContainers"] = [{"name": "model-initializer", "image": "a"}]
    [error] = errors(with_steps(job))
    assert error.endswith("must contain the required container for the ancestor: model-initializer")


def test_step_without_containers_is_reported_once() -> None:
    """R2."""
    assert errors(with_steps(called(job_of("trainer")))) == [
        f"{JOBS}[0].{POD}.containers: Invalid value: []: "
        "must contain the required container for the ancestor: trainer"
    ]


def test_error_contains_only_the_names_of_containers() -> None:
    """R2."""
    job = called(job_of("trainer"), "main")
    container = job["template"]["spec"]["template"]["spec"]["containers"][0]
    container["env"] = [{"name": "TOKEN", "value": "hunter2"}]
    assert "hunter2" not in " ".join(errors(with_steps(job)))


def test_job_without_a_step_can_have_any_containers() -> None:
    """R2."""
    assert errors(with_steps(called(replicated_job("cache", None), "a"))) == []


def test_mpi_launcher_can_have_a_container_named_launcher() -> None:
    """R2."""
    worker = called(replicated_job("node", None), "node")
    launcher = called(replicated_job("launcher"), "launcher")
    assert errors(mpi(worker, launcher)) == []
    assert plan(job_on(mpi(worker, launcher)), mpi(worker, launcher))  # as the planner has it
    [error] = errors(mpi(worker, called(launcher, "main")))
    assert error.endswith("must contain the required container for the ancestor: trainer")
    [error] = errors(runtime(jobs=[launcher]))  # torch has no launchers
    assert error.endswith("must contain the required container for the ancestor: trainer")


def test_runtime_that_cannot_be_planned_is_rejected() -> None:
    assert errors(runtime(template=None)) == [
        "spec.template.spec: Required value: the spec of the JobSet to create for each TrainJob"
    ]
    both = runtime(podGroupPolicy={"coscheduling": {}, "volcano": {}})
    assert [each.split(":")[0] for each in errors(both)] == ["spec.podGroupPolicy"]


def test_all_errors_are_reported_together() -> None:
    broken = runtime(
        jobs=[
            {"name": "empty", "template": {}},
            called(job_of("model-initializer", replicas=2), "a"),
            replicated_job(),
        ]
    )
    assert [each.split(": ")[0] for each in errors(broken)] == [
        f"{JOBS}[1].replicas",
        f"{JOBS}[1].{POD}.containers",
        f"{JOBS}[0].{POD}",
    ]


def test_invalid_quantities_are_rejected() -> None:
    limits = {"limits": {"nvidia.com/gpu": "many"}}
    [error] = errors(runtime(jobs=[replicated_job(resources=limits)]))
    assert error.startswith(
        f"{JOBS}[0].{POD}.containers[0].resources.limits[nvidia.com/gpu]: Invalid value"
    )
    limits = {"limits": {"nvidia.com/gpu": 2}}
    assert errors(runtime(jobs=[replicated_job(resources=limits)])) == []


def test_mpi_needs_workers_unless_the_launcher_is_one() -> None:
    launcher = called(replicated_job("launcher"), "node")
    assert errors(mpi(launcher)) == [
        f"{JOBS}: Required value: a job named node: the launcher is not a node"
    ]
    assert errors(mpi(launcher, runLauncherAsNode=True)) == []


def test_mpi_workers_need_the_container_that_gets_the_keys() -> None:
    launcher = called(replicated_job("launcher"), "node")
    worker = called(replicated_job("node", None), "worker")
    assert errors(mpi(worker, launcher)) == [
        f"{JOBS}[0].{POD}.containers: Required value: a container named node, which gets the keys"
    ]
    assert errors(mpi(called(worker, "node"), launcher)) == []


def test_mpi_workers_are_not_required_if_there_are_no_jobs() -> None:
    document = runtime(mlPolicy={"mpi": {}}, template={"spec": {"replicatedJobs": []}})
    assert errors(document) == [f"{JOBS}: Required value: at least one job that runs the training"]


@pytest.mark.parametrize("kind", KINDS)
def test_deprecated_runtime_causes_a_warning(kind: str) -> None:
    """W1."""
    document = runtime(kind=kind)
    document["metadata"]["labels"]["trainer.kubeflow.org/support"] = "deprecated"
    assert warnings(document) == [
        f'{kind} "runtime" is deprecated and will be removed in a future release of Kubeflow '
        "Trainer. See runtime deprecation policy: https://www.kubeflow.org/docs/components/trainer/"
        "operator-guides/runtime/#runtime-deprecation-policy"
    ]
    document["metadata"]["labels"]["trainer.kubeflow.org/support"] = "stable"
    assert warnings(document) == []


@pytest.mark.parametrize(
    ("step", "field"), [("dataset-initializer", "dataset"), ("model-initializer", "model")]
)
def test_initializer_without_its_label_causes_a_warning(step: str, field: str) -> None:
    """G14."""
    assert warnings(with_steps(replicated_job(step, None))) == [
        f"{JOBS}[0].template.metadata.labels: TrainJobs cannot use spec.initializer.{field} unless "
        f"the job {step} has the label {LABEL}: {step}"
    ]
    assert warnings(with_steps(replicated_job(step, step))) == []
    assert warnings(with_steps(replicated_job("cache", None))) == []


def test_initializer_with_another_name_causes_no_warning() -> None:
    """G14."""
    other = called(replicated_job("fetch", "dataset-initializer"), "dataset-initializer")
    assert warnings(with_steps(replicated_job("dataset-initializer", None), other)) == []


def test_unknown_step_causes_a_warning() -> None:
    assert warnings(with_steps(replicated_job("judge", "evaluator"))) == [
        f"{JOBS}[0].template.metadata.labels[{LABEL}]: evaluator has no effect: it must be one of "
        "trainer, dataset-initializer, model-initializer"
    ]


def test_runtime_that_jobset_would_reject_is_rejected() -> None:
    job = {**replicated_job("cache", None), "groupName": "Group"}
    [error] = errors(with_steps(job))
    assert error.startswith(
        f"{JOBS}[0].groupName: Forbidden: JobSet would reject every JobSet of the runtime: "
        "a DNS-1035 label must"
    )
    assert warnings(with_steps(job | {"groupName": "group"})) == []


@pytest.mark.parametrize("name", ["deepspeed-distributed", "mlx-distributed"])
def test_mpi_jobs_in_the_order_of_release_2_1_with_dependencies_are_rejected(name: str) -> None:
    """Release 2.1 has the launcher first; a server-side apply of it keeps our dependsOn."""
    document = deepcopy(next(each for each in SHIPPED if each["metadata"]["name"] == name))
    document["spec"]["template"]["spec"]["replicatedJobs"].reverse()
    assert errors(document) == [
        f"{JOBS}[0].dependsOn: Forbidden: JobSet would reject every JobSet of the runtime: "
        "DependsOn can't be set for the first ReplicatedJob",
        f"{JOBS}[0].dependsOn[0].name: Forbidden: JobSet would reject every JobSet of the runtime: "
        "replicatedJob: launcher cannot depend on replicatedJob: node",
    ]


def test_path_with_an_error_is_not_reported_again_for_jobset() -> None:
    document = with_steps()
    claim = {"metadata": {"name": "X" * 63}}
    document["spec"]["template"]["spec"] |= {
        "volumeClaimPolicies": [{"templates": [claim]}],
        "coordinator": {"replicatedJob": "none"},
    }
    assert [(error.path, error.rule) for error in found(document).errors] == [
        (
            "spec.template.spec.volumeClaimPolicies[0].templates[0].metadata.name",
            "runtime-names-too-long",
        ),
        ("spec.template.spec.coordinator.replicatedJob", "runtime-jobset-refuses"),
    ]


COSCHEDULING: Object = {"coscheduling": {}}
VOLCANO: Object = {"volcano": {}}


@pytest.mark.parametrize(
    ("policy", "advice"),
    [
        (COSCHEDULING, "schedulerName, unless the default scheduler has the plugin"),
        (VOLCANO, "schedulerName: volcano"),
    ],
)
def test_gang_without_a_scheduler_causes_a_warning(policy: Object, advice: str) -> None:
    [which] = policy
    assert warnings(with_steps(podGroupPolicy=policy)) == [
        f"spec.podGroupPolicy.{which}: the pods of node have no schedulerName and may not start "
        f"together: set {advice}"
    ]
    assert warnings(with_steps(scheduled(replicated_job(), "volcano"), podGroupPolicy=policy)) == []
    assert warnings(with_steps(podGroupPolicy={})) == []


def test_only_pods_of_the_gang_need_the_scheduler() -> None:
    initializer = replicated_job("model-initializer", "model-initializer")
    node = scheduled(replicated_job(), "volcano")
    node["dependsOn"] = [{"name": "model-initializer", "status": "Complete"}]
    assert warnings(with_steps(initializer, node, podGroupPolicy=VOLCANO)) == []
    side = replicated_job("side", None)
    [warning] = warnings(with_steps(side, scheduled(replicated_job(), "a"), podGroupPolicy=VOLCANO))
    assert "the pods of side have no schedulerName" in warning


def pods(document: Object, job: str = "node") -> Any:
    [found] = [
        each
        for each in plan(job_on(document), document)["JobSet"]["spec"]["replicatedJobs"]
        if each["name"] == job
    ]
    return found["template"]["spec"]["parallelism"], found["template"]["spec"]["completions"]


def test_parallelism_that_the_policy_replaces_causes_a_warning() -> None:
    document = runtime(
        jobs=[counted(replicated_job(), parallelism=7, completions=7)], mlPolicy={"numNodes": 3}
    )
    assert pods(document) == (3, 3)
    assert warnings(document) == [
        f"{JOBS}[0].template.spec.parallelism: 7 has no effect: there are 3 pods "
        "because of spec.mlPolicy.numNodes, unless the TrainJob sets numNodes",
        f"{JOBS}[0].template.spec.completions: 7 has no effect: it is always the number of pods "
        "(3)",
    ]
    agreeing = runtime(
        jobs=[counted(replicated_job(), parallelism=3, completions=3)], mlPolicy={"numNodes": 3}
    )
    assert warnings(agreeing) == []


def test_template_sets_the_number_of_pods_without_a_policy() -> None:
    document = runtime(jobs=[counted(replicated_job(), parallelism=7, completions=7)])
    del document["spec"]["mlPolicy"]
    assert pods(document) == (7, 7)
    assert warnings(document) == [
        "spec.mlPolicy: the Kubeflow SDK cannot read runtimes without it: set it to {}"
    ]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("labels", [None, {}, {"trainer.kubeflow.org/framework": ""}])
def test_runtime_without_framework_label_causes_a_warning(kind: str, labels: Object | None) -> None:
    document = runtime(kind=kind)
    document["metadata"]["labels"] = labels
    assert warnings(document) == [
        "metadata.labels: without the label trainer.kubeflow.org/framework the Kubeflow SDK does "
        "not list the runtime, and cannot list TrainJobs while one uses it"
    ]


NO_TRAINER = (
    f"{JOBS}: no job has the label {LABEL}: trainer: {{}} of TrainJobs will have no effect, and "
    "the Kubeflow SDK cannot read the runtime"
)


@pytest.mark.parametrize("kind", KINDS)
def test_runtime_without_trainer_is_accepted_with_warning(kind: str) -> None:
    unlabelled = replicated_job(step=None)
    assert warnings(runtime(jobs=[unlabelled], kind=kind)) == [NO_TRAINER.format("spec.trainer")]
    jobs = [called(replicated_job("launcher", None), "node"), unlabelled]
    assert warnings(mpi(*jobs)) == [NO_TRAINER.format("image, command and args in spec.trainer")]


def test_completions_of_other_jobs_equal_their_pods() -> None:
    document = with_steps(counted(replicated_job("cache", None), parallelism=2, completions=9))
    assert pods(document, "cache") == (2, 2)
    assert warnings(document) == [
        f"{JOBS}[0].template.spec.completions: 9 has no effect: it is always the number of pods (2)"
    ]


@pytest.mark.parametrize(
    ("num_nodes", "as_node", "count", "reported"),
    [
        (3, False, 4, 3),
        (3, True, 3, 2),
        (3, True, 2, None),
        (None, False, 4, None),
        (1, True, 1, 0),
    ],
)
def test_policy_sets_the_number_of_mpi_workers(
    num_nodes: int | None, as_node: bool, count: int, reported: int | None
) -> None:
    worker = called(replicated_job("node", None), "node")
    worker = counted(worker, parallelism=count, completions=count)
    launcher = called(replicated_job("launcher"), "node")
    document = mpi(worker, launcher, num_nodes=num_nodes, runLauncherAsNode=as_node)
    expected = count if reported is None else reported
    assert pods(document) == (expected, expected)
    path = f"{JOBS}[0].template.spec"
    hints = [
        f"{path}.parallelism: {count} has no effect: there are {reported} pods",
        f"{path}.completions: {count} has no effect: it is always the number of pods ({reported})",
    ]
    found = [each.partition(" because of spec.mlPolicy")[0] for each in warnings(document)]
    assert found == ([] if reported is None else hints)


def test_job_can_have_no_pods_and_no_completions() -> None:
    idle = counted(replicated_job("cache", None), parallelism=0, completions=0)
    assert warnings(with_steps(idle)) == []


def test_empty_volcano_queue_is_rejected() -> None:
    queue = "scheduling.volcano.sh/queue-name"
    document = with_steps(scheduled(replicated_job(), "volcano"), podGroupPolicy=VOLCANO)
    document["spec"]["template"]["metadata"] = {"annotations": {queue: ""}}
    assert errors(document) == [
        f'spec.template.metadata.annotations[{queue}]: Invalid value: "": '
        "Volcano queue name must not be empty"
    ]
    document["spec"]["template"]["metadata"] = {"annotations": {queue: "research"}}
    assert found(document) == ValidationResult()
    del document["spec"]["podGroupPolicy"]
    document["spec"]["template"]["metadata"] = {"annotations": {queue: ""}}
    assert errors(document) == []


@pytest.mark.parametrize(
    ("template", "path"),
    [
        ({"replicatedJobs": [replicated_job(), replicated_job("x" * 52, None)]}, "1].name"),
        (
            {
                "replicatedJobs": [
                    replicated_job(),
                    {**replicated_job("x" * 51, None), "replicas": 11},
                ]
            },
            "1].name",
        ),
        (
            {"coordinator": {"replicatedJob": "node"}, "network": {"subdomain": "s" * 53}},
            "network.subdomain",
        ),
        (
            {"volumeClaimPolicies": [{"templates": [{"metadata": {"name": "c" * 62}}]}]},
            "templates[0].metadata.name",
        ),
    ],
)
def test_names_that_leave_no_room_for_a_trainjob_name_are_rejected(
    template: Object, path: str
) -> None:
    document = with_steps()
    document["spec"]["template"]["spec"] |= template
    too_long = "runtime-names-too-long"
    (error,) = (each for each in found(document).errors if each.rule == too_long)
    assert error.path.startswith("spec.template.spec.")
    assert error.path.endswith(path)
    assert "leaves no room for the name of a TrainJob" in error.detail


def test_names_that_leave_room_for_one_character_are_accepted() -> None:
    document = with_steps(
        replicated_job(), {**replicated_job("x" * 51, None), "replicas": 10}, mlPolicy={}
    )
    document["spec"]["template"]["spec"]["coordinator"] = {"replicatedJob": "node"}
    document["spec"]["template"]["spec"]["network"] = {"subdomain": "s" * 52}
    assert errors(document) == []
    assert plan(job_on(document, name="a"), document)


def test_suspended_template_causes_a_warning() -> None:
    document = with_steps()
    document["spec"]["template"]["spec"]["suspend"] = True
    assert warnings(document) == [
        "spec.template.spec.suspend: has no effect: spec.suspend of each TrainJob is used"
    ]
    document["spec"]["template"]["spec"]["suspend"] = False
    assert warnings(document) == []


def test_validation_does_not_modify_the_runtime() -> None:
    limits = {"limits": {"cpu": "1000m"}}
    document = runtime(jobs=[replicated_job(resources=limits)], podGroupPolicy=VOLCANO)
    before = deepcopy(document)
    found(document)
    assert document == before


MALFORMED = st.sampled_from([None, [], {}, "", "x", 0, -1, True, [None], {"spec": None}, ["x"]])
PLACES = st.sampled_from(
    [
        ("replicatedJobs",),
        ("replicatedJobs", 0),
        ("replicatedJobs", 0, "name"),
        ("replicatedJobs", 0, "replicas"),
        ("replicatedJobs", 0, "template"),
        ("replicatedJobs", 0, "template", "metadata"),
        ("replicatedJobs", 0, "template", "metadata", "labels"),
        ("replicatedJobs", 0, "template", "spec"),
        ("replicatedJobs", 0, "template", "spec", "template"),
        ("replicatedJobs", 0, "template", "spec", "template", "spec"),
        ("replicatedJobs", 0, "template", "spec", "template", "spec", "containers"),
        ("replicatedJobs", 0, "template", "spec", "template", "spec", "containers", 0),
    ]
)


@given(PLACES, MALFORMED, st.sampled_from([{"torch": {}}, {"mpi": {}}, {}]))
def test_random_runtimes_do_not_raise(
    place: tuple[str | int, ...], malformed: object, policy: Object
) -> None:
    document = with_steps(mlPolicy=policy)
    inside: Any = document["spec"]["template"]["spec"]
    for step in place[:-1]:
        inside = inside[step]
    inside[place[-1]] = deepcopy(malformed)
    found(document)
