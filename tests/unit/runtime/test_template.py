from copy import deepcopy

import pytest

from kftrainer.api.names import BOOKKEEPING
from kftrainer.api.trainingruntime import TrainingRuntime
from kftrainer.api.trainjob import TrainJob
from kftrainer.runtime.errors import InvalidRuntimeError, InvalidTrainJobError
from kftrainer.runtime.template import new_info, runtime_errors
from tests.support.objects import Object, replicated_job, runtime
from tests.support.plans import container_of, findings, info_of, job_on, plan

JOBS = "spec.template.spec.replicatedJobs"
POD = "template.spec.template.spec"


def plain(*jobs: Object, **spec: object) -> Object:
    return runtime(jobs=list(jobs) or None, mlPolicy={"numNodes": 1}, **spec)


def errors(document: Object) -> list[str]:
    return [str(error) for error in runtime_errors(TrainingRuntime.parse(document))]


@pytest.mark.parametrize("template", [None, {}, {"spec": None}, {"spec": {}}])
def test_runtime_without_a_template_is_rejected(template: object) -> None:
    document = runtime(template=template)
    assert errors(document) == [
        "spec.template.spec: Required value: the spec of the JobSet to create for each TrainJob"
    ]


def test_runtime_without_jobs_is_rejected() -> None:
    document = runtime(template={"spec": {"replicatedJobs": []}})
    assert errors(document) == [f"{JOBS}: Required value: at least one job that runs the training"]


def test_info_of_a_runtime_without_trainer_has_no_trainer() -> None:
    document = plain(replicated_job(step=None))
    info = info_of(job_on(document), document)
    assert (info.trainer, info.trainer_container) == (None, None)


def test_runtime_with_two_trainers_is_rejected() -> None:
    found = errors(plain(replicated_job("node"), replicated_job("other")))
    assert [each.split(": ")[:2] for each in found] == [
        [f"{JOBS}[1].template.metadata.labels", "Invalid value"]
    ]


def test_duplicate_job_names_are_rejected() -> None:
    found = errors(plain(replicated_job("node"), replicated_job("node", None)))
    assert found == [f'{JOBS}[1].name: Invalid value: "node": is also the name of job 0']


def test_trainer_without_its_container_is_rejected() -> None:
    job = replicated_job("node")
    job["template"]["spec"]["template"]["spec"]["containers"][0]["name"] = "main"
    assert errors(plain(job)) == [
        f"{JOBS}[0].{POD}.containers: Required value: a container named node that runs the training"
    ]


@pytest.mark.parametrize(
    ("broken", "path"),
    [
        ({}, f"{JOBS}[0].name"),
        ({"name": ""}, f"{JOBS}[0].name"),
        ("node", f"{JOBS}[0].name"),
        ({"name": "node"}, f"{JOBS}[0].{POD}"),
        ({"name": "node", "template": {"spec": {"template": {}}}}, f"{JOBS}[0].{POD}"),
        ({"name": "node", "template": {"spec": {"template": {"spec": []}}}}, f"{JOBS}[0].{POD}"),
        (
            {"name": "node", "template": {"spec": {"template": {"spec": {}}}}},
            f"{JOBS}[0].{POD}.containers",
        ),
        (
            {
                "name": "node",
                "template": {"spec": {"template": {"spec": {"containers": [{"image": "a"}]}}}},
            },
            f"{JOBS}[0].{POD}.containers[0].name",
        ),
    ],
)
def test_incomplete_job_is_rejected_with_the_path_of_the_error(broken: object, path: str) -> None:
    document = runtime(template={"spec": {"replicatedJobs": [broken]}})
    assert [each.split(": ")[0] for each in errors(document)] == [path]


@pytest.mark.parametrize("count", [0, -1, "2", True, 1.5])
def test_invalid_parallelism_is_rejected(count: object) -> None:
    """D23."""
    job = replicated_job("node")
    job["template"]["spec"]["parallelism"] = count
    found = errors(plain(job))
    assert [each.split(": ")[0] for each in found] == [f"{JOBS}[0].template.spec.parallelism"]


def test_job_without_a_step_can_have_no_pods() -> None:
    """D23."""
    jobs = [replicated_job(), replicated_job("other", None)]
    jobs[1]["template"]["spec"]["parallelism"] = 0
    document = plain(*jobs)
    assert errors(document) == []
    pod_set = info_of(job_on(document), document).pod_set("other")
    assert pod_set is not None
    assert (pod_set.count, pod_set.job["template"]["spec"]["parallelism"]) == (0, 0)
    jobs[1]["template"]["spec"]["parallelism"] = -1
    assert errors(plain(*jobs)) == [
        f"{JOBS}[1].template.spec.parallelism: Invalid value: -1: "
        "must be a number of pods, at least 0"
    ]
    initializer = replicated_job("dataset-initializer", "dataset-initializer")
    initializer["template"]["spec"]["parallelism"] = 0
    assert len(errors(plain(initializer, replicated_job()))) == 1


def test_negative_replicas_are_rejected() -> None:
    found = errors(plain(replicated_job() | {"replicas": -1}))
    assert found == [f"{JOBS}[0].replicas: Invalid value: -1: must be a number of Jobs, at least 0"]


def test_two_policies_are_rejected() -> None:
    document = runtime(mlPolicy={"torch": {}, "mpi": {}})
    assert errors(document) == [
        'spec.mlPolicy: Invalid value: ["torch","mpi"]: Only one of the policy can be configured'
    ]
    document = runtime(podGroupPolicy={"coscheduling": {}, "volcano": {}})
    assert [each.split(": ")[0] for each in errors(document)] == ["spec.podGroupPolicy"]


def test_all_errors_of_a_runtime_are_reported_together() -> None:
    jobs: list[Object] = [{"name": "a"}, {"name": "b"}]
    with pytest.raises(InvalidRuntimeError) as raised:
        info_of(job_on(runtime()), runtime(jobs=jobs))
    assert [error.path for error in raised.value.errors] == [f"{JOBS}[{i}].{POD}" for i in (0, 1)]
    assert str(raised.value).startswith("TrainingRuntime runtime: ")


def test_pod_sets_follow_the_order_of_the_template() -> None:
    document = plain(replicated_job("a", None), replicated_job("node"), replicated_job("b", None))
    info = info_of(job_on(document), document)
    assert [(each.name, each.ancestor) for each in info.pod_sets] == [
        ("a", None),
        ("node", "trainer"),
        ("b", None),
    ]


def test_number_of_trainer_pods_is_num_nodes_of_the_runtime() -> None:
    job = replicated_job("node")
    job["template"]["spec"]["parallelism"] = 7
    document = runtime(jobs=[job], mlPolicy={"numNodes": 3})
    assert info_of(job_on(document), document).trainer.count == 3
    without_nodes = runtime(jobs=[job], mlPolicy={})
    assert info_of(job_on(without_nodes), without_nodes).trainer.count == 1


def test_template_sets_the_number_of_pods_without_a_policy() -> None:
    job = replicated_job("node")
    job["template"]["spec"]["parallelism"] = 7
    document = runtime(jobs=[job])
    del document["spec"]["mlPolicy"]
    assert info_of(job_on(document), document).trainer.count == 7


def test_parallelism_sets_the_pods_of_each_replica_of_other_jobs() -> None:
    other = replicated_job("other", None) | {"replicas": 3}
    other["template"]["spec"]["parallelism"] = 2
    document = runtime(jobs=[replicated_job(), other], mlPolicy={"numNodes": 5})
    pod_set = info_of(job_on(document), document).pod_set("other")
    assert pod_set is not None
    assert (pod_set.count, pod_set.replicas, pod_set.total) == (2, 3, 6)


def test_jobs_of_steps_have_one_replica() -> None:
    document = plain(replicated_job() | {"replicas": 4})
    info = info_of(job_on(document), document)
    assert (info.trainer.replicas, info.template["replicatedJobs"][0]["replicas"]) == (1, 1)


def test_labels_and_annotations_of_the_trainjob_take_precedence() -> None:
    document = plain()
    document["spec"]["template"]["metadata"] = {
        "labels": {"a": "runtime", "b": "runtime"},
        "annotations": {"x": "runtime"},
    }
    info = info_of(job_on(document, labels={"b": "job"}, annotations={"y": "job"}), document)
    assert info.labels == {"a": "runtime", "b": "job"}
    assert info.annotations == {"x": "runtime", "y": "job"}


def test_resources_are_merged_by_name() -> None:
    """D24."""
    resources = {"limits": {"nvidia.com/gpu": 4, "memory": "8Gi"}, "requests": {"cpu": 2}}
    document = plain(replicated_job("node", resources=resources))
    job = job_on(document, trainer={"resourcesPerNode": {"requests": {"cpu": "8000m"}}})
    assert info_of(job, document).trainer_container.resources == {
        "limits": {"nvidia.com/gpu": "4", "memory": "8Gi"},
        "requests": {"cpu": "8"},
    }


def test_resource_claims_are_kept() -> None:
    """D24."""
    node = replicated_job("node", resources={"claims": [{"name": "a"}]})
    claims = [{"name": name, "resourceClaimName": name} for name in "ab"]
    node["template"]["spec"]["template"]["spec"]["resourceClaims"] = claims
    document = plain(node)
    job = job_on(document, trainer={"resourcesPerNode": {"claims": [{"name": "b"}]}})
    container = info_of(job, document).trainer_container
    assert container.resources["claims"] == [{"name": "a"}, {"name": "b"}]


def test_resources_apply_to_runtimes_without_a_policy() -> None:
    """D24."""
    document = plain()
    del document["spec"]["mlPolicy"]
    job = job_on(document, trainer={"resourcesPerNode": {"limits": {"cpu": 1}}})
    assert info_of(job, document).trainer_container.resources == {"limits": {"cpu": "1"}}


def test_quantities_are_in_canonical_form() -> None:
    resources = {"requests": {"cpu": "1500m", "memory": "1024Mi"}, "limits": {"cpu": 2.0}}
    job = replicated_job("node", resources=resources)
    pod = job["template"]["spec"]["template"]["spec"]
    pod["volumes"] = [{"name": "shm", "emptyDir": {"sizeLimit": "1024Mi"}}]
    pod["overhead"] = {"cpu": "1000m"}
    document = plain(job)
    spec = info_of(job_on(document), document).trainer.spec
    assert spec["containers"][0]["resources"] == {
        "requests": {"cpu": "1500m", "memory": "1Gi"},
        "limits": {"cpu": "2"},
    }
    assert spec["volumes"][0]["emptyDir"] == {"sizeLimit": "1Gi"}
    assert spec["overhead"] == {"cpu": "1"}


def test_invalid_quantity_of_the_runtime_is_reported_with_its_path() -> None:
    document = plain(replicated_job("node", resources={"limits": {"cpu": "many"}}))
    with pytest.raises(InvalidRuntimeError) as raised:
        info_of(job_on(document), document)
    path = f"{JOBS}[0].{POD}.containers[0].resources.limits[cpu]"
    assert [error.path for error in raised.value.errors] == [path]


def test_invalid_quantity_of_the_trainjob_is_reported_with_its_path() -> None:
    document = plain()
    job = job_on(document, trainer={"resourcesPerNode": {"requests": {"memory": "8GiB"}}})
    with pytest.raises(InvalidTrainJobError) as raised:
        info_of(job, document)
    path = "spec.trainer.resourcesPerNode.requests[memory]"
    assert [error.path for error in raised.value.errors] == [path]
    assert str(raised.value).startswith("TrainJob team/demo: ")


def test_template_does_not_modify_its_input() -> None:
    document = plain(replicated_job("node", resources={"limits": {"cpu": "1000m"}}))
    job = job_on(document, trainer={"resourcesPerNode": {"limits": {"cpu": "2000m"}}})
    before = deepcopy((document, job))
    parsed_job, parsed_runtime = TrainJob.parse(job), TrainingRuntime.parse(document)
    info = new_info(parsed_job, parsed_runtime)
    info.trainer_container.set_env({"name": "A", "value": "1"}, "test")
    info.trainer.set_pod_label("a", "b", "test")
    assert (document, job) == before


@pytest.mark.parametrize(
    ("container", "pod", "path"),
    [
        ({"resources": {"limits": {"cpu": -1}}}, {}, "containers[0].resources.limits[cpu]"),
        (
            {"env": [{"name": "A", "valueFrom": {"resourceFieldRef": {"divisor": "x"}}}]},
            {},
            "containers[0].env[0].valueFrom.resourceFieldRef.divisor",
        ),
        ({}, {"resources": {"requests": {"memory": "x"}}}, "resources.requests[memory]"),
        ({}, {"overhead": {"cpu": "x"}}, "overhead[cpu]"),
        (
            {},
            {
                "volumes": [
                    {
                        "ephemeral": {
                            "volumeClaimTemplate": {
                                "spec": {"resources": {"requests": {"storage": "lots"}}}
                            }
                        }
                    }
                ]
            },
            "volumes[0].ephemeral.volumeClaimTemplate.spec.resources.requests[storage]",
        ),
        (
            {},
            {"volumes": [{"downwardAPI": {"items": [{"resourceFieldRef": {"divisor": "x"}}]}}]},
            "volumes[0].downwardAPI.items[0].resourceFieldRef.divisor",
        ),
    ],
)
def test_invalid_quantity_is_reported_in_every_field(
    container: Object, pod: Object, path: str
) -> None:
    job = replicated_job("node", **container)
    job["template"]["spec"]["template"]["spec"] |= pod
    document = plain(job)
    with pytest.raises(InvalidRuntimeError) as raised:
        info_of(job_on(document), document)
    assert [error.path for error in raised.value.errors] == [f"{JOBS}[0].{POD}.{path}"]


@pytest.mark.parametrize("name", ["No_De", "0node", "a.b", "x" * 64, "node-"])
def test_job_name_that_jobset_rejects_is_an_error_of_the_runtime(name: str) -> None:
    """D45."""
    job = replicated_job("node") | {"name": name}
    found = errors(plain(job))
    assert [each.split(": ")[0] for each in found] == [f"{JOBS}[0].name"]


def test_subdomain_must_be_a_dns_label() -> None:
    """D45."""
    document = plain()
    document["spec"]["template"]["spec"]["network"] = {"subdomain": "Bad_Sub"}
    assert [each.split(": ")[0] for each in errors(document)] == [
        "spec.template.spec.network.subdomain"
    ]


@pytest.mark.parametrize("field", ["command", "args"])
def test_empty_list_means_the_value_of_the_runtime(field: str) -> None:
    document = runtime(jobs=[replicated_job("node", command=["python"], args=["--epochs=3"])])
    planned = {
        str(given): container_of(plan(job_on(document, trainer=given), document)["JobSet"])[field]
        for given in ({}, {field: []}, {field: ["own"]})
    }
    words = {"command": ["python"], "args": ["--epochs=3"]}[field]
    assert [*planned.values()] == [words, words, ["own"]]


@pytest.mark.parametrize("key", BOOKKEEPING)
def test_bookkeeping_of_the_controller_cannot_be_set(key: str) -> None:
    document = runtime()
    job = job_on(document, annotations={key: "x", "team": "a"})
    [error] = findings(job, document).errors
    assert str(error) == f"spec.annotations[{key}]: Forbidden: is set by the controller"
    assert plan(job, document)["JobSet"]["metadata"]["annotations"] == {"team": "a"}
