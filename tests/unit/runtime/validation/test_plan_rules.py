"""Every rule about TrainJobs in the words that a person reads, and beside it what passes."""

from dataclasses import dataclass, field
from typing import Any

import pytest

from kftrainer.api.trainjob import TrainJob
from kftrainer.runtime.cluster_reader import GivenObjects
from tests.support.objects import Object, replicated_job, runtime
from tests.support.plans import RUNTIMES, in_namespace, job_on

STEPS = ("dataset-initializer", "model-initializer")
GPU = "nvidia.com/gpu"
MODULES = "model.lora_attn_modules=[q_proj,v_proj]"
QLORA = [MODULES, "model.quantize_base=True"]
QUEUE = "scheduling.volcano.sh/queue-name"
HIGH = {
    "apiVersion": "scheduling.k8s.io/v1",
    "kind": "PriorityClass",
    "metadata": {"name": "high"},
}


def fetching(*containers: str) -> Object:
    """A runtime with jobs that fetch, whose containers may be called otherwise."""
    jobs = [replicated_job(step, step) for step in STEPS]
    for job, name in zip(jobs, containers, strict=False):
        job["template"]["spec"]["template"]["spec"]["containers"][0]["name"] = name
    return runtime(jobs=[*jobs, replicated_job()])


def tuning(name: str = "torchtune-llama3.2-1b", gpus: int = 2, nodes: int = 1) -> Object:
    node = replicated_job(resources={"limits": {GPU: gpus}})
    policy = {"numNodes": nodes, "torch": {}}
    return runtime(name, kind="ClusterTrainingRuntime", jobs=[node], mlPolicy=policy)


def mpi(*jobs: str) -> Object:
    template_jobs = [replicated_job(job, "trainer" if job == jobs[0] else None) for job in jobs]
    return runtime(jobs=template_jobs, mlPolicy={"mpi": {"runLauncherAsNode": True}})


def volcano(priority: str | None = None) -> Object:
    job = replicated_job()
    if priority:
        job["template"]["spec"]["template"]["spec"]["priorityClassName"] = priority
    return runtime(jobs=[job], podGroupPolicy={"volcano": {}})


def tune(*args: str, **trainer: Any) -> Object:
    return {"trainer": {"command": ["tune", "run"], "args": list(args), **trainer}}


def overriding(target: str = "node", **spec: Any) -> Object:
    return {"podTemplateOverrides": [{"targetJobs": [{"name": target}], "spec": spec}]}


def env(*variables: str) -> Object:
    return {"trainer": {"env": [{"name": each, "value": "hunter2"} for each in variables]}}


@dataclass
class Rule:
    """What breaks a rule, and what does not."""

    runtime: Object
    broken: Object
    message: str
    kept: Object = field(default_factory=dict)
    kept_on_runtime: Object | None = None  # another runtime, if the runtime is to be fixed instead


FETCH = {step: {"storageUri": "hf://a/b"} for step in ("dataset", "model")}
REFERENCE = (
    'spec.runtimeRef: Invalid value: {"name":"runtime","apiGroup":"trainer.kubeflow.org",'
    '"kind":"TrainingRuntime"}: '
)
OVERRIDES = "spec.podTemplateOverrides[0]"
NO_SECRETS = "spec.trainer.env: Invalid value: "
MUST_NOT = "must not have reserved envs, invalid envs configured: "
MODEL_NAME = 'spec.runtimeRef.name: Invalid value: "torchtune-{}": '

RULES = {
    "J1": Rule(
        runtime(),
        {"initializer": {"dataset": FETCH["dataset"]}},
        f"{REFERENCE}must have dataset-initializer job when trainJob is configured with input "
        "datasetConfig",
        kept_on_runtime=fetching(),
    ),
    "J2": Rule(
        fetching("other"),
        {"initializer": {"dataset": FETCH["dataset"]}},
        f"{REFERENCE}must have container with name - dataset-initializer in the "
        "dataset-initializer job",
        kept_on_runtime=fetching(),
    ),
    "J3": Rule(
        runtime(),
        {"initializer": {"model": FETCH["model"]}},
        f"{REFERENCE}must have model-initializer job when trainJob is configured with input "
        "modelConfig",
        kept_on_runtime=fetching(),
    ),
    "J4": Rule(
        fetching(STEPS[0], "other"),
        {"initializer": {"model": FETCH["model"]}},
        f"{REFERENCE}must have container with name - model-initializer in the model-initializer "
        "job",
        kept_on_runtime=fetching(),
    ),
    "J8": Rule(
        runtime(),
        overriding("nod", serviceAccountName="me"),
        f'{OVERRIDES}.targetJobs[0].name: Invalid value: "nod": '
        "must not have targetJob that doesn't exist in the runtime job template",
        overriding(serviceAccountName="me"),
    ),
    "J9": Rule(
        runtime(),
        overriding(initContainers=[{"name": "node"}]),
        f'{OVERRIDES}.spec.initContainers[0].name: Invalid value: "node": '
        "must not have initContainer that doesn't exist in the runtime job node",
    ),
    "J10": Rule(
        runtime(),
        overriding(containers=[{"name": "nod"}]),
        f'{OVERRIDES}.spec.containers[0].name: Invalid value: "nod": '
        "must not have container that doesn't exist in the runtime job node",
        overriding(containers=[{"name": "node", "volumeMounts": []}], serviceAccountName="me"),
    ),
    "J11": Rule(
        runtime(),
        overriding(containers=[{"name": "node", "env": [{"name": "A", "value": "hunter2"}]}]),
        f'{OVERRIDES}.spec.containers[0].env: Invalid value: ["A"]: '
        "must not have envs for the dataset-initializer, model-initializer, node containers",
        env("A"),
    ),
    "T2": Rule(
        runtime(),
        env("PET_NNODES", "A", "PET_MASTER_ADDR"),
        f'{NO_SECRETS}["PET_MASTER_ADDR","PET_NNODES"]: {MUST_NOT}[PET_MASTER_ADDR PET_NNODES]',
        env("PET_OTHER"),
    ),
    "TT1": Rule(
        tuning("torchtune-gemma-2b"),
        tune(),
        f"{MODEL_NAME.format('gemma-2b')}must have a supported pretrained model, invalid model "
        "configured: gemma/2B",
        kept_on_runtime=tuning(),
    ),
    "TT2": Rule(
        tuning(),
        tune(numNodes=2),
        "spec.trainer.numNodes: Invalid value: 2: must be 1 for llama3_2/1B model",
        tune(numNodes=1),
    ),
    "TT2 by the runtime (G18)": Rule(
        tuning(nodes=2),
        tune(),
        "spec.trainer.numNodes: Invalid value: 2: must be 1 for llama3_2/1B model: the runtime "
        "sets it in spec.mlPolicy.numNodes, unless the TrainJob sets spec.trainer.numNodes",
        tune(numNodes=1),
    ),
    "TT3": Rule(
        tuning("torchtune-qwen2.5-1.5b"),
        tune(*QLORA, numProcPerNode=1),
        f"{MODEL_NAME.format('qwen2.5-1.5b')}QLoRA is not supported for qwen2_5/1.5B model",
        tune(MODULES, numProcPerNode=1),
    ),
    "TT4": Rule(
        tuning(gpus=4),
        tune(*QLORA, numProcPerNode=4),
        "spec.trainer.numProcPerNode: Invalid value: 4: "
        "must be auto or 1 for llama3_2/1B model when using QLoRA",
        tune(*QLORA, numProcPerNode=1),
    ),
    "TT5": Rule(
        tuning(gpus=2),
        tune(*QLORA),
        'spec.trainer.resourcesPerNode: Invalid value: {"limits":{"nvidia.com/gpu":"2"}}: '
        "must have gpu resource with value 1 for llama3_2/1B model when using QLoRA: the runtime "
        "sets it in the resources of the container node, unless the TrainJob sets "
        "spec.trainer.resourcesPerNode",
        tune(*QLORA, resourcesPerNode={"limits": {GPU: 1}}),
    ),
    "TT6": Rule(
        tuning("torchtune-llama3.3-70b"),
        tune(MODULES, numNodes=2),
        "spec.trainer.numNodes: Invalid value: 2: "
        "LoRA fine-tuning is not supported for multi-node training in TorchTune",
        tune(numNodes=2),
    ),
    "TT7": Rule(
        tuning(),
        tune("epochs=1", "output_dir=s3://user:hunter2@there"),
        'spec.trainer.args[1]: Invalid value: "output_dir": must not set immutable config '
        '"output_dir" in trainer args; it is managed by the runtime',
        tune("epochs=1"),
    ),
    "M1": Rule(
        mpi("launcher", "node"),
        {"trainer": {"numProcPerNode": "auto"}},
        'spec.trainer.numProcPerNode: Invalid value: "auto": '
        "must have an int value for MPI TrainJob",
        {"trainer": {"numProcPerNode": 2}},
    ),
    "M2": Rule(
        mpi("launcher"),
        {"trainer": {"numNodes": 2}},
        "spec.trainer.numNodes: Invalid value: 2: must have 1 when MPI trainingRuntime with "
        "enabled runLauncherAsNode does not have either launcher and node",
        {"trainer": {"numNodes": 1}},
    ),
    "M3": Rule(
        mpi("launcher", "node"),
        env("OMPI_MCA_plm_rsh_args"),
        f'{NO_SECRETS}["OMPI_MCA_plm_rsh_args"]: {MUST_NOT}[OMPI_MCA_plm_rsh_args]',
        env("OMPI_MCA_other"),
    ),
    "M3 in overrides (G16)": Rule(
        mpi("launcher", "node"),
        overriding(
            "launcher",
            containers=[{"name": "launcher", "env": [{"name": "OMPI_MCA_plm_rsh_args"}]}],
        ),
        f'{OVERRIDES}.spec.containers[0].env: Invalid value: ["OMPI_MCA_plm_rsh_args"]: '
        f"{MUST_NOT}[OMPI_MCA_plm_rsh_args]",
        overriding("launcher", containers=[{"name": "launcher", "env": [{"name": "A"}]}]),
    ),
    "V1": Rule(
        volcano(),
        {"annotations": {QUEUE: ""}},
        f'spec.annotations[{QUEUE}]: Invalid value: "": Volcano queue name must not be empty',
        {"annotations": {QUEUE: "research"}},
    ),
    "V2": Rule(
        volcano("low"),
        {},
        f'{REFERENCE}PriorityClass "low" doesn\'t exist: PriorityClass.scheduling.k8s.io "low" '
        "not found",
        kept_on_runtime=volcano("high"),
    ),
}


def error_messages(job: Object, on: Object) -> list[str]:
    existing = GivenObjects([in_namespace(on), HIGH])
    return [str(error) for error in RUNTIMES.validate(None, TrainJob.parse(job), existing).errors]


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_violated_rule_is_the_only_error(rule: Rule) -> None:
    errors = error_messages(job_on(rule.runtime, **rule.broken), rule.runtime)
    assert rule.message in errors
    # Where QLoRA has too many devices, two fields could be changed, and both are reported.
    assert len(errors) == (2 if rule is RULES["TT4"] else 1)
    assert "hunter2" not in "".join(errors)


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_valid_trainjob_has_no_errors(rule: Rule) -> None:
    on = rule.kept_on_runtime or rule.runtime
    spec = rule.broken if rule.kept_on_runtime else rule.kept
    assert error_messages(job_on(on, **spec), on) == []
