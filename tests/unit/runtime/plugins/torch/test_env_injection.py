"""Containers besides the trainer's that get the environment of torchrun."""

from typing import Any

import pytest

from kftrainer.api.trainjob import TrainJob
from kftrainer.runtime.cluster_reader import GivenObjects
from kftrainer.runtime.errors import InvalidRuntimeError
from kftrainer.runtime.explain import Explanation
from kftrainer.runtime.validation.training_runtime import runtime_findings
from tests.support.objects import Object, replicated_job, runtime
from tests.support.plans import (
    RUNTIMES,
    container_of,
    findings,
    in_namespace,
    job_on,
    plan,
    pod_of,
)

NAMES = ["PET_NNODES", "PET_NPROC_PER_NODE", "PET_NODE_RANK", "PET_MASTER_ADDR", "PET_MASTER_PORT"]
TARGETS = "spec.mlPolicy.torch.envInjection.targets"


def injecting(*targets: tuple[str, list[str]], **node: Any) -> Object:
    """A runtime with a sidecar, an init container and a job of its own for metrics."""
    jobs = [replicated_job(**node), replicated_job("metrics", step=None)]
    pod = jobs[0]["template"]["spec"]["template"]["spec"]
    pod["containers"].append({"name": "side", "image": "s", "env": [{"name": "A", "value": "1"}]})
    pod["initContainers"] = [{"name": "pre", "image": "p"}, {"name": "side", "image": "p"}]
    listed = [{"jobName": job, "containerNames": found} for job, found in targets]
    torch = {"envInjection": {"targets": listed}}
    return runtime(jobs=jobs, mlPolicy={"numNodes": 1, "torch": torch})


def variables(container: Object) -> list[str]:
    return [each["name"] for each in container.get("env", ())]


def test_targets_get_the_environment_of_the_trainer_in_order() -> None:
    document = injecting(("node", ["side", "pre"]), ("metrics", ["metrics"]))
    job = job_on(document, trainer={"numNodes": 3, "env": [{"name": "MINE", "value": "x"}]})
    jobset = plan(job, document)["JobSet"]
    [pre, _] = pod_of(jobset)["initContainers"]
    side, metrics = container_of(jobset, "node", "side"), container_of(jobset, "metrics", "metrics")
    node = container_of(jobset)
    assert [variables(each) for each in (side, pre, metrics)] == [["A", *NAMES], NAMES, NAMES]
    assert variables(node) == ["MINE", *NAMES]
    assert side["env"][1:] == pre["env"] == metrics["env"] == node["env"][1:]
    assert "ports" not in side


def test_targets_get_the_environment_without_a_trainer_in_the_train_job() -> None:
    document = injecting(("node", ["side"]))
    assert variables(container_of(plan(job_on(document), document)["JobSet"], "node", "side")) == [
        "A",
        *NAMES,
    ]


def test_containers_come_before_init_containers() -> None:
    document = injecting(("node", ["side"]))
    jobset = plan(job_on(document), document)["JobSet"]
    assert [variables(each) for each in pod_of(jobset)["initContainers"]] == [[], []]


def test_targets_get_the_whole_environment_with_torchtune() -> None:
    document = injecting(("node", ["side"]))
    annotation = {"trainer.kubeflow.org/torchtune-model": "llama3_2/1B"}
    document["metadata"]["annotations"] = annotation
    job = job_on(document, trainer={"command": ["tune", "run"]})
    jobset = plan(job, document)["JobSet"]
    assert variables(container_of(jobset)) == NAMES[:3]
    assert variables(container_of(jobset, "node", "side")) == ["A", *NAMES]


@pytest.mark.parametrize(
    ("job", "container", "listed"),
    [("node", "absent", ["side", "absent"]), ("absent", "side", ["side"])],
)
def test_missing_target_is_an_error_of_the_runtime(
    job: str, container: str, listed: list[str]
) -> None:
    document = injecting(("metrics", ["metrics"]), (job, listed))
    text = (
        f'envInjection target podSet "{job}" container "{container}" not found in runtime template'
    )
    where = f"{TARGETS}[1].containerNames[{len(listed) - 1}]"
    message = f'{where}: Invalid value: "{container}": {text}'
    parsed = RUNTIMES.of(TrainJob.parse(job_on(document))).resource.decode(document)
    assert [*map(str, runtime_findings(RUNTIMES.framework, parsed).errors)] == [message]
    [error] = findings(job_on(document), document).errors
    assert (error.path, error.rule) == ("spec.runtimeRef", "runtime-unusable")
    assert error.detail == f"TrainingRuntime team/runtime: {message}"
    with pytest.raises(InvalidRuntimeError, match="not found in runtime template"):
        plan(job_on(document), document)


def test_runtime_without_a_trainer_is_invalid() -> None:
    document = injecting(("node", ["side"]))
    document["spec"]["template"]["spec"]["replicatedJobs"][0]["template"]["metadata"] = {}
    parsed = RUNTIMES.of(TrainJob.parse(job_on(document))).resource.decode(document)
    [error] = runtime_findings(RUNTIMES.framework, parsed).errors
    assert str(error) == (
        "spec.template.spec.replicatedJobs: Required value: a job with the label "
        "trainer.kubeflow.org/trainjob-ancestor-step: trainer, whose nodes the environment "
        "describes"
    )


@pytest.mark.parametrize(("field", "name"), [("containers", "side"), ("initContainers", "pre")])
def test_reserved_variables_are_rejected_in_overrides_of_targets(field: str, name: str) -> None:
    document = injecting(("node", ["side", "pre"]))
    env = [{"name": "PET_NNODES", "value": "9"}, {"name": "B", "value": "1"}]
    override = {"targetJobs": [{"name": "node"}], "spec": {field: [{"name": name, "env": env}]}}
    job = job_on(document, podTemplateOverrides=[override])
    assert [str(each) for each in findings(job, document).errors] == [
        f'spec.podTemplateOverrides[0].spec.{field}[0].env: Invalid value: ["PET_NNODES"]: '
        "must not have reserved envs, invalid envs configured: [PET_NNODES]"
    ]
    jobset = plan(job, document)["JobSet"]
    [found] = [each for each in pod_of(jobset)[field] if each["name"] == name]
    assert {"name": "PET_NNODES", "value": "1"} in found["env"]
    assert {"name": "B", "value": "1"} in found["env"]


def test_variables_of_other_containers_are_not_reserved() -> None:
    document = injecting(("node", ["pre"]))
    env = [{"name": "PET_NNODES", "value": "9"}]
    override = {
        "targetJobs": [{"name": "node"}],
        "spec": {"containers": [{"name": "side", "env": env}]},
    }
    job = job_on(document, podTemplateOverrides=[override])
    assert findings(job, document).errors == []


def test_explain_names_the_target() -> None:
    document = injecting(("metrics", ["metrics"]))
    job, trace = TrainJob.parse(job_on(document)), Explanation()
    RUNTIMES.of(job).new_objects(job, GivenObjects([in_namespace(document)]), trace)
    found = {
        (each.plugin, each.source) for each in trace.settings() if "[metrics].env[" in each.path
    }
    assert found == {("Torch", f"runtime {TARGETS}[0]")}


@pytest.mark.parametrize(
    ("targets", "reserved"),
    [
        ([("dataset-initializer", ["dataset-initializer"])], ["dataset"]),
        ([("model-initializer", ["model-initializer"])], ["model"]),
        ([("dataset-initializer", ["helper"]), ("node", ["side"])], []),
        (
            [
                ("dataset-initializer", ["dataset-initializer"]),
                ("model-initializer", ["helper", "model-initializer"]),
            ],
            ["dataset", "model"],
        ),
    ],
)
def test_reserved_variables_of_initializers_that_are_targets_are_rejected(
    targets: list[tuple[str, list[str]]], reserved: list[str]
) -> None:
    document = injecting(*targets)
    jobs = document["spec"]["template"]["spec"]["replicatedJobs"]
    for step in ("dataset-initializer", "model-initializer"):
        initializer = replicated_job(step, step)
        containers = initializer["template"]["spec"]["template"]["spec"]["containers"]
        containers.append({"name": "helper", "image": "h"})
        jobs.append(initializer)
    env = [{"name": "PET_NNODES", "value": "9"}, {"name": "MINE", "value": "x"}]
    assets = {field: {"storageUri": "hf://a/b", "env": env} for field in ("dataset", "model")}
    result = findings(job_on(document, initializer=assets), document)
    detail = "must not have reserved envs, invalid envs configured: [PET_NNODES]"
    assert [(e.path, e.detail, e.rule) for e in result.errors] == [
        (f"spec.initializer.{field}.env", detail, "torch-reserved-env") for field in reserved
    ]
