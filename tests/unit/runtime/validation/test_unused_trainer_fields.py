"""Runtimes in which no job has the step `trainer`; golden cases have the whole plans."""

from typing import Any

import pytest

from kftrainer.api.trainjob import TrainJob
from kftrainer.runtime.cluster_reader import GivenObjects
from kftrainer.runtime.explain import Explanation
from tests.support.objects import Object, replicated_job, runtime
from tests.support.plans import RUNTIMES, findings, in_namespace, job_on, jobs_of, plan

LABEL = "trainer.kubeflow.org/trainjob-ancestor-step: trainer"
NODE = replicated_job(step=None)
GPU = "nvidia.com/gpu"


def torch(name: str = "runtime", **container: Any) -> Object:
    return runtime(name, jobs=[replicated_job(step=None, **container)])


def warning_messages(document: Object, **trainer: Any) -> list[str]:
    return [str(error) for error in findings(job_on(document, trainer=trainer), document).errors]


def warned(document: Object, **trainer: Any) -> list[str]:
    found = findings(job_on(document, trainer=trainer), document)
    assert found.errors == []
    return found.warnings


def test_torchtune_rules_apply_without_trainer() -> None:
    assert warning_messages(torch("torchtune-gemma2-2b"), command=["tune", "run"]) == [
        'spec.runtimeRef.name: Invalid value: "torchtune-gemma2-2b": must have a supported '
        "pretrained model, invalid model configured: gemma2/2B"
    ]
    small = torch("torchtune-llama3.2-1b")
    assert warning_messages(small, command=["tune", "run"], numNodes=2) == [
        "spec.trainer.numNodes: Invalid value: 2: must be 1 for llama3_2/1B model"
    ]


def test_torchtune_rules_count_devices_of_the_job_node_without_trainer() -> None:
    args = ["model.quantize_base=True"]
    small = torch("torchtune-llama3.2-1b", resources={"limits": {GPU: "2"}})
    refused = warning_messages(small, command=["tune", "run"], args=args)
    assert [each.split(": ")[0] for each in refused] == ["spec.trainer.resourcesPerNode"]
    one: Any = {"limits": {GPU: "1"}}
    assert warning_messages(small, command=["tune", "run"], args=args, resourcesPerNode=one) == []
    below: Any = {"limits": {GPU: "-1"}}
    assert warning_messages(small, command=["tune", "run"], args=args, resourcesPerNode=below)[
        0
    ] == (f'spec.trainer.resourcesPerNode.limits[{GPU}]: Invalid value: "-1": must be at least 0')


def test_reserved_env_is_rejected_without_trainer() -> None:
    assert warning_messages(torch(), env=[{"name": "PET_NNODES", "value": "1"}]) == [
        'spec.trainer.env: Invalid value: ["PET_NNODES"]: must not have reserved envs, invalid '
        "envs configured: [PET_NNODES]"
    ]


def test_unused_trainer_fields_cause_a_warning() -> None:
    document = torch()
    assert warned(document) == []
    assert warned(document, command=["a"], numNodes=2) == [
        "spec.trainer: command, numNodes: no effect: no job of the TrainingRuntime "
        f"runtime has the label {LABEL}"
    ]


@pytest.mark.parametrize("job", ["launcher", "other"])
def test_mpi_without_trainer_and_workers_is_planned(job: str) -> None:
    alone = replicated_job(job, None)
    alone["template"]["spec"]["template"]["spec"]["containers"][0]["name"] = "node"
    document = runtime(jobs=[alone], mlPolicy={"mpi": {"runLauncherAsNode": True}})
    trainer = {"env": [{"name": "A", "value": "b"}], "numProcPerNode": 2, "image": "mine"}
    assert warned(document, **trainer) == [
        "spec.trainer: image, env: no effect: no job of the TrainingRuntime runtime "
        f"has the label {LABEL}"
    ]
    job_set = plan(job_on(document, trainer=trainer), document)["JobSet"]
    [container] = jobs_of(job_set)[job]["template"]["spec"]["template"]["spec"]["containers"]
    assert container["image"] == "trainer"


def test_override_of_a_job_is_applied_without_trainer() -> None:
    override = {"targetJobs": [{"name": "node"}], "spec": {"nodeSelector": {"a": "b"}}}
    document = torch()
    job = job_on(document, podTemplateOverrides=[override])
    assert findings(job, document).errors == []
    job_set = plan(job, document)["JobSet"]
    pod = jobs_of(job_set)["node"]["template"]["spec"]["template"]["spec"]
    assert pod["nodeSelector"] == {"a": "b"}


def test_plan_without_trainer_is_explained() -> None:
    document = torch()
    job = TrainJob.parse(job_on(document, trainer={"image": "mine"}))
    trace = Explanation()
    RUNTIMES.of(job).new_objects(job, GivenObjects([in_namespace(document)]), trace)
    settings = {each.path: each.value for each in trace.settings()}
    assert settings["spec.suspend"] is False
    assert not any(path.endswith("image") for path in settings)
