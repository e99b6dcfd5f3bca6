from copy import deepcopy
from typing import Any

import pytest

from kftrainer.api.trainjob import TrainJob
from kftrainer.runtime.cluster_reader import GivenObjects
from kftrainer.runtime.errors import InvalidTrainJobError
from kftrainer.runtime.plugins.torch.torch import Torch
from kftrainer.runtime.trace import NoTrace
from tests.support.objects import Object, replicated_job, runtime
from tests.support.plans import (
    RUNTIMES,
    container_of,
    findings,
    in_namespace,
    info_of,
    job_on,
    jobs_of,
    plan,
)
from tests.support.runtimes import SHIPPED

GPU = "nvidia.com/gpu"
RANK = {
    "fieldRef": {"fieldPath": "metadata.annotations['batch.kubernetes.io/job-completion-index']"}
}
MODULES = "model.lora_attn_modules=[q_proj]"
QUANTIZED = [MODULES, "model.quantize_base=True"]
LORA_ON_NODES = "LoRA fine-tuning is not supported for multi-node training in TorchTune"
LLAMA = next(each for each in SHIPPED if each["metadata"]["name"] == "torchtune-llama3.2-1b")
KEPT = [
    "output_dir=/workspace/output",
    "tokenizer.path=/workspace/model/original/tokenizer.model",
    "checkpointer.checkpoint_dir=/workspace/model",
]


def torch(policy: Object | None = None, nodes: int | None = 1, **container: Any) -> Object:
    """A runtime whose container is like this."""
    counted = {} if nodes is None else {"numNodes": nodes}
    return runtime(jobs=[replicated_job(**container)], mlPolicy={**counted, "torch": policy or {}})


def trained(document: Object, **trainer: Any) -> Any:
    """The container that trains."""
    return container_of(plan(job_on(document, trainer=trainer), document)["JobSet"])


def processes(document: Object, **trainer: Any) -> str:
    return environment(trained(document, **trainer))["PET_NPROC_PER_NODE"]


def environment(container: Object) -> dict[str, Any]:
    return {each["name"]: each.get("value", each.get("valueFrom")) for each in container["env"]}


def pet(nodes: int = 1, processes: str = "1", master: str = "demo-node-0-0.demo") -> list[Object]:
    return [
        {"name": "PET_NNODES", "value": str(nodes)},
        {"name": "PET_NPROC_PER_NODE", "value": processes},
        {"name": "PET_NODE_RANK", "valueFrom": RANK},
        {"name": "PET_MASTER_ADDR", "value": master},
        {"name": "PET_MASTER_PORT", "value": "29500"},
    ]


def tuned(document: Object = LLAMA, args: list[str] | None = None, **trainer: Any) -> Any:
    """The container of a TrainJob that sets only the torchtune command."""
    return trained(document, command=["tune", "run"], args=args or [], **trainer)


def refused(document: Object, **trainer: Any) -> list[str]:
    """The errors and warnings of admission."""
    return [str(each) for each in findings(job_on(document, trainer=trainer), document).errors]


# torchrun


def test_torchrun_variables_are_set_on_each_node_after_all_others() -> None:
    document = torch(nodes=1, env=[{"name": "LOG_LEVEL", "value": "info"}])
    planned = trained(document, numNodes=3, env=[{"name": "EPOCHS", "value": "3"}])
    assert planned["env"] == [
        {"name": "LOG_LEVEL", "value": "info"},
        {"name": "EPOCHS", "value": "3"},
        *pet(nodes=3),
    ]


@pytest.mark.parametrize(
    ("in_runtime", "in_job", "count"), [(None, None, 1), (2, None, 2), (2, 3, 3), (None, 4, 4)]
)
def test_num_nodes_is_taken_from_the_job_or_else_the_runtime(
    in_runtime: int | None, in_job: int | None, count: int
) -> None:
    document = torch(nodes=in_runtime)
    trainer = {} if in_job is None else {"numNodes": in_job}
    planned = plan(job_on(document, trainer=trainer), document)["JobSet"]
    job = jobs_of(planned)["node"]["template"]["spec"]
    nodes = environment(container_of(planned))["PET_NNODES"]
    assert (job["parallelism"], job["completions"], nodes) == (count, count, str(count))


def test_job_without_trainer_is_distributed() -> None:
    """Defect D18."""
    document = torch(nodes=2)
    planned = container_of(plan(job_on(document), document)["JobSet"])
    assert (planned["env"], planned["ports"]) == (pet(nodes=2), [{"containerPort": 29500}])


def test_torchrun_variables_have_precedence_over_the_jobs() -> None:
    """Defect D19."""
    own = [{"name": each["name"], "value": "mine"} for each in pet()]
    assert trained(torch(), env=[*own, {"name": "A", "value": "a"}])["env"] == [
        {"name": "A", "value": "a"},
        *pet(),
    ]


def test_torchrun_variables_replace_those_of_the_template_in_place() -> None:
    """Defect D19."""
    env = [{"name": "PET_NNODES", "valueFrom": RANK}, {"name": "A", "value": "a"}]
    nodes, *others = pet()
    assert trained(torch(env=env))["env"] == [nodes, {"name": "A", "value": "a"}, *others]


def test_master_address_uses_the_job_name_and_the_subdomain_of_the_template() -> None:
    """Defect D28."""
    document = torch()
    job = replicated_job("worker")
    job["template"]["spec"]["template"]["spec"]["containers"][0]["name"] = "node"
    document["spec"]["template"]["spec"] = {
        "replicatedJobs": [job],
        "network": {"subdomain": "hosts"},
    }
    planned = container_of(plan(job_on(document), document)["JobSet"], "worker")
    assert planned["env"] == pet(master="demo-worker-0-0.hosts")


def test_other_runtimes_are_unchanged() -> None:
    document = runtime(mlPolicy={"numNodes": 2})
    job = job_on(document, trainer={"command": ["tune", "run"], "numNodes": 3})
    info = info_of(job, document)
    before = deepcopy(info.template)
    Torch().enforce_ml_policy(info, TrainJob.parse(job))
    assert (info.template, info.reserved_env, info.command) == (before, set(), ["tune", "run"])
    assert Torch().validate_train_job(info, None, TrainJob.parse(job)).errors == []


class RecordedTrace(NoTrace):
    """A tape that keeps where the last values came from."""

    def __init__(self) -> None:
        self.sources: dict[str, str] = {}

    def note(self, path: str, source: str) -> None:
        self.sources[path] = source


def sources(document: Object, *fields: str, **trainer: Any) -> list[str]:
    """From which fields these parts of the container come."""
    trace, job = RecordedTrace(), TrainJob.parse(job_on(document, trainer=trainer))
    RUNTIMES.of(job).new_objects(job, GivenObjects([in_namespace(document)]), trace)
    container = "spec.replicatedJobs[node].template.spec.template.spec.containers[node]"
    return [trace.sources[f"{container}.{field}"] for field in fields]


def test_trace_records_the_source_field_of_a_variable() -> None:
    counted = ("env[PET_NNODES]", "env[PET_NPROC_PER_NODE]")
    constant = ("env[PET_NODE_RANK]", "env[PET_MASTER_ADDR]", "env[PET_MASTER_PORT]")
    assert [
        sources(torch(), *counted, numNodes=2, numProcPerNode=3),
        sources(torch({"numProcPerNode": 3}), *counted),
        sources(torch(), *counted),
        sources(torch(), *constant, "ports[29500]"),
    ] == [
        ["spec.trainer.numNodes", "spec.trainer.numProcPerNode"],
        ["runtime spec.mlPolicy.numNodes", "runtime spec.mlPolicy.torch.numProcPerNode"],
        ["runtime spec.mlPolicy.numNodes", "mlPolicy.torch"],
        ["mlPolicy.torch"] * 4,
    ]


def test_trace_records_that_the_command_is_partly_generated() -> None:
    found = sources(LLAMA, "command", "args", command=["tune", "run"], args=["epochs=1"])
    assert found == ["spec.trainer.command (torchtune)", "spec.trainer.args"]


# Processes on each node


@pytest.mark.parametrize(
    ("value", "without", "with_devices"),
    [
        (None, "4", "auto"),
        ("auto", "4", "auto"),
        ("cpu", "4", "4"),
        ("gpu", "gpu", "gpu"),
        (7, "7", "7"),
    ],
)
@pytest.mark.parametrize("by", ["job", "runtime"])
def test_processes_are_a_number_or_are_counted(
    value: object, without: str, with_devices: str, by: str
) -> None:
    requested = {} if value is None else {"numProcPerNode": value}
    policy, trainer = (requested, {}) if by == "runtime" else ({}, requested)
    requests = {"requests": {"cpu": "3500m"}}
    bare = torch(policy, resources=requests)
    with_limits = torch(policy, resources={**requests, "limits": {GPU: "2"}})
    found = (processes(bare, **trainer), processes(with_limits, **trainer))
    assert found == (without, with_devices)


def test_processes_of_the_job_have_precedence_over_the_runtimes() -> None:
    assert processes(torch({"numProcPerNode": 2}), numProcPerNode=5) == "5"


@pytest.mark.parametrize("value", ["auto", "cpu"])
@pytest.mark.parametrize(
    ("resources", "count"),
    [
        ({}, "1"),
        ({"requests": {"cpu": "500m"}}, "1"),
        ({"requests": {"cpu": "2500m"}}, "3"),
        ({"limits": {"cpu": "3"}}, "3"),
        ({"requests": {"cpu": "0"}, "limits": {"cpu": "5"}}, "5"),
        ({"requests": {"cpu": "2"}, "limits": {"cpu": "8"}}, "2"),
    ],
)
def test_there_is_a_process_on_each_cpu_and_at_least_one(
    value: str, resources: Object, count: str
) -> None:
    assert processes(torch(resources=resources), numProcPerNode=value) == count


@pytest.mark.parametrize("device", [GPU, "amd.com/GPU", "nvidia.com/mig-1g.5gb", "habana.ai/gaudi"])
def test_torchrun_counts_the_devices_of_any_vendor(device: str) -> None:
    """Defect D26."""
    assert processes(torch(resources={"limits": {"cpu": "4", device: "2"}})) == "auto"


def test_auxiliary_device_resources_are_not_counted() -> None:
    """Defect D26."""
    resources = {"limits": {"cpu": "4", "nvidia.com/gpumem": "3000"}}
    assert processes(torch(resources=resources)) == "4"


def test_devices_of_the_runtime_count_when_the_job_requests_cpus() -> None:
    """Defect D25."""
    document = torch(resources={"limits": {GPU: "4"}})
    assert processes(document, resourcesPerNode={"requests": {"cpu": "8"}}) == "auto"


def test_devices_removed_by_the_job_do_not_count() -> None:
    """Defect D25."""
    document = torch(resources={"limits": {GPU: "4", "cpu": "3"}})
    assert processes(document, resourcesPerNode={"limits": {GPU: "0"}}) == "3"


# The port


def test_port_is_added_to_those_of_the_template() -> None:
    """Defect D17."""
    ports = [{"containerPort": 8080}, {"containerPort": 29500, "protocol": "UDP"}]
    assert trained(torch(ports=ports))["ports"] == [*ports, {"containerPort": 29500}]


@pytest.mark.parametrize("protocol", [{}, {"protocol": "TCP"}])
def test_a_port_that_is_open_keeps_its_name(protocol: Object) -> None:
    ports = [{"containerPort": 29500, "name": "rendezvous", **protocol}, {"containerPort": 8080}]
    assert trained(torch(ports=ports))["ports"] == ports


def test_plans_do_not_share_the_port() -> None:
    first, second = (trained(torch())["ports"] for _ in range(2))
    first[0]["name"] = "changed"
    assert second == [{"containerPort": 29500}]


# torchtune


def test_torchtune_has_its_command_written_and_its_arguments_kept() -> None:
    planned = tuned(args=[MODULES, "epochs=1"], resourcesPerNode={"limits": {GPU: 1}})
    assert (planned["command"], planned["args"]) == (
        [
            "tune",
            "run",
            "lora_finetune_single_device",
            "--config",
            "llama3_2/1B_lora_single_device",
            *KEPT,
        ],
        [MODULES, "epochs=1"],
    )


def test_torchtune_gets_rank_variables_and_rendezvous_arguments() -> None:
    planned = tuned()
    assert (planned["env"], planned["ports"]) == (
        pet(processes="auto")[:3],
        [{"containerPort": 29500}],
    )


def test_rendezvous_endpoint_cannot_be_set_by_the_job() -> None:
    """Defect D19."""
    own = [{"name": "PET_MASTER_ADDR", "value": "mine"}, {"name": "PET_NNODES", "value": "9"}]
    assert tuned(env=own)["env"] == pet(processes="auto")[:3]


def test_torchtune_rendezvous_is_the_first_node_in_the_subdomain_of_the_template() -> None:
    """Defect D28."""
    document = deepcopy(LLAMA)
    document["spec"]["template"]["spec"]["network"] = {"subdomain": "hosts"}
    assert tuned(document)["command"][2] == "--rdzv_endpoint=demo-node-0-0.hosts:29500"


@pytest.mark.parametrize(
    ("args", "kind", "method"),
    [
        ([], "full", "full"),
        ([MODULES], "lora", "lora"),
        ([MODULES, "model.use_dora=True"], "lora", "lora"),
        (QUANTIZED, "lora", "qlora"),
        ([*QUANTIZED, "model.use_dora=True"], "lora", "lora"),
        ([MODULES, "model.quantize_base=False"], "lora", "lora"),
    ],
)
@pytest.mark.parametrize(
    ("value", "devices", "processes"),
    [
        ("auto", 0, "one"),  # there are no CPUs to count either
        ("auto", 1, "one"),
        ("auto", 2, "several"),
        ("cpu", 0, "one"),
        ("cpu", 2, "one"),
        ("gpu", 0, "several"),  # unknown
        ("gpu", 1, "one"),
        ("gpu", 2, "several"),
        (1, 0, "one"),
        (1, 1, "one"),
        (1, 2, "one"),
        (4, 0, "several"),
        (4, 1, "several"),
        (4, 2, "several"),
    ],
)
def test_one_process_on_one_node_uses_the_single_device_recipe(
    args: list[str], kind: str, method: str, value: object, devices: int, processes: str
) -> None:
    """Defect D29."""
    resources = {"limits": {GPU: devices}}
    planned = tuned(args=args, numProcPerNode=value, resourcesPerNode=resources)["command"]
    config = f"llama3_2/1B_{method}"
    assert (
        planned
        == {
            "one": [
                "tune",
                "run",
                f"{kind}_finetune_single_device",
                "--config",
                f"{config}_single_device",
                *KEPT,
            ],
            "several": [
                "tune",
                "run",
                "--rdzv_endpoint=demo-node-0-0.demo:29500",
                f"{kind}_finetune_distributed",
                "--config",
                config,
                *KEPT,
            ],
        }[processes]
    )


@pytest.mark.parametrize("value", ["auto", "gpu", 1, 4])
@pytest.mark.parametrize("devices", [0, 1, 2])
def test_on_several_nodes_the_whole_model_is_trained(value: object, devices: int) -> None:
    resources = {"limits": {GPU: devices}}
    planned = tuned(numNodes=2, numProcPerNode=value, resourcesPerNode=resources)
    assert planned["command"] == [
        "tune",
        "run",
        "--rdzv_endpoint=demo-node-0-0.demo:29500",
        "full_finetune_distributed",
        "--config",
        "llama3_2/1B_full_multinode",
        *KEPT,
    ]


def test_several_cpus_do_not_use_the_single_device_recipe() -> None:
    """Defect D29."""
    resources = {"limits": {GPU: 1, "cpu": 4}}
    planned = tuned(numProcPerNode="cpu", resourcesPerNode=resources)
    assert planned["command"][3:6] == ["full_finetune_distributed", "--config", "llama3_2/1B_full"]


def test_model_is_taken_from_the_annotation_of_the_runtime() -> None:
    """Defect D29."""
    document = deepcopy(LLAMA)
    document["metadata"]["annotations"] = {"trainer.kubeflow.org/torchtune-model": "qwen2_5/1.5B"}
    assert "qwen2_5/1.5B_full" in tuned(document)["command"]


def test_arguments_of_the_runtime_are_used_unless_the_job_has_its_own() -> None:
    command = ["tune", "run"]
    document = torch(args=[MODULES], command=[*command, "--config", "llama3_2/1B_full"])
    assert [
        trained(document, command=command)["command"][-1],
        trained(document, command=command, args=["epochs=1"])["command"][-1],
    ] == ["llama3_2/1B_lora_single_device", "llama3_2/1B_full_single_device"]


@pytest.mark.parametrize("command", [["tune", "run", "my_recipe"], ["tune"], ["torchrun"]])
def test_any_other_command_is_the_jobs_own(command: list[str]) -> None:
    planned = trained(LLAMA, command=command)
    assert (planned["command"], planned["env"]) == (command, pet(processes="auto"))


def test_without_a_command_the_templates_stays() -> None:
    document = deepcopy(LLAMA)
    assert (
        trained(document)["command"]
        == container_of({"spec": document["spec"]["template"]["spec"]})["command"]
    )


def test_planning_changes_neither_the_runtime_nor_the_job() -> None:
    job = job_on(LLAMA, trainer={"command": ["tune", "run"], "args": [MODULES]})
    before = deepcopy((job, LLAMA))
    plan(job, LLAMA)
    assert (job, LLAMA) == before


@pytest.mark.parametrize(
    ("trainer", "paths"),
    [
        ({"numNodes": 2, "args": [MODULES]}, ["spec.trainer.numNodes"]),
        ({"numNodes": 2, "args": QUANTIZED}, ["spec.trainer.numNodes"]),
        ({"args": ["epochs=1", "output_dir=/mine"]}, ["spec.trainer.args[1]"]),
    ],
)
def test_unsupported_torchtune_configuration_is_not_planned(
    trainer: Object, paths: list[str]
) -> None:
    """Defect D29."""
    job = job_on(LLAMA, trainer={"command": ["tune", "run"], **trainer})
    with pytest.raises(InvalidTrainJobError, match=r"^TrainJob team/demo: ") as caught:
        plan(job, LLAMA)
    assert [error.path for error in caught.value.errors] == paths


def test_lora_is_not_dropped_on_several_nodes_of_the_runtime() -> None:
    """Defect D29."""
    document = deepcopy(LLAMA)
    document["spec"]["mlPolicy"]["numNodes"] = 2
    job = job_on(document, trainer={"command": ["tune", "run"], "args": [MODULES]})
    with pytest.raises(InvalidTrainJobError, match=LORA_ON_NODES):
        plan(job, document)


def test_runtime_without_model_is_not_planned() -> None:
    """Defect D29."""
    document = torch()
    job = job_on(document, trainer={"command": ["tune", "run"]})
    with pytest.raises(InvalidTrainJobError, match=r"spec\.runtimeRef\.name: .* names none"):
        plan(job, document)


# Admission


def test_valid_job_is_admitted() -> None:
    document = torch()
    assert refused(document, env=[{"name": "A", "value": "a"}], numProcPerNode="gpu") == []
    assert findings(job_on(document), document).errors == []


def test_torchrun_variables_are_always_rejected() -> None:
    """Defect D19."""
    names = ["PET_NODE_RANK", "A", "PET_MASTER_ADDR", "PET_NNODES", "PET_NPROC_PER_NODE"]
    env = [{"name": name, "value": "x"} for name in [*names, "PET_MASTER_PORT"]]
    [error] = findings(job_on(torch(), trainer={"env": env}), torch()).errors
    assert (error.path, error.value, error.detail) == (
        "spec.trainer.env",
        sorted({*names, "PET_MASTER_PORT"} - {"A"}),  # and no values, which may be secrets
        "must not have reserved envs, invalid envs configured: [PET_MASTER_ADDR PET_MASTER_PORT "
        "PET_NNODES PET_NODE_RANK PET_NPROC_PER_NODE]",
    )


def test_torchtune_is_validated_without_nodes_and_processes() -> None:
    """Defect D21."""
    assert refused(LLAMA, command=["tune", "run"]) == []
    assert refused(torch(), command=["tune", "run"]) == [
        'spec.runtimeRef.name: Invalid value: "runtime": must have a supported pretrained model, '
        "but the runtime names none: neither in the annotation "
        "trainer.kubeflow.org/torchtune-model, nor in its name, nor with --config in its command"
    ]


def test_num_nodes_of_the_runtime_is_validated_at_admission() -> None:
    """Defect D21."""
    document = deepcopy(LLAMA)
    document["spec"]["mlPolicy"]["numNodes"] = 2
    whose = (
        "the runtime sets it in spec.mlPolicy.numNodes, "
        "unless the TrainJob sets spec.trainer.numNodes"
    )
    assert refused(document, command=["tune", "run"], args=[MODULES]) == [
        f"spec.trainer.numNodes: Invalid value: 2: {LORA_ON_NODES}: {whose}",
        f"spec.trainer.numNodes: Invalid value: 2: must be 1 for llama3_2/1B model: {whose}",
    ]
    own = refused(document, command=["tune", "run"], args=[MODULES], numNodes=2)
    assert [error for error in own if whose in error] == []


def test_immutable_settings_are_refused_at_admission() -> None:
    [error] = refused(LLAMA, command=["tune", "run"], args=["tokenizer.path=/mine"])
    assert error.startswith("spec.trainer.args[0]: ")


def test_qlora_on_several_devices_error_names_the_devices() -> None:
    errors = refused(LLAMA, command=["tune", "run"], args=QUANTIZED, numProcPerNode=2)
    assert errors[0] == (
        "spec.trainer.numProcPerNode: Invalid value: 2: must be auto or 1 for llama3_2/1B "
        "model when using QLoRA"
    )
    assert refused(LLAMA, command=["tune", "run"], args=QUANTIZED) == [
        'spec.trainer.resourcesPerNode: Invalid value: {"limits":{"nvidia.com/gpu":"2"}}: must '
        "have gpu resource with value 1 for llama3_2/1B model when using QLoRA: the runtime sets "
        "it in the resources of the container node, unless the TrainJob sets "
        "spec.trainer.resourcesPerNode",
    ]


@pytest.mark.parametrize(
    ("resources", "is_of_runtime"),
    [
        ({"limits": {"memory": "1Gi"}}, True),
        ({"limits": {"nvidia.com/gpu": 4}}, False),
        ({"requests": {"nvidia.com/gpu": "four"}}, False),  # which is refused by itself
    ],
)
def test_devices_are_those_of_the_runtime_unless_the_trainjob_requests_some(
    resources: Object, is_of_runtime: bool
) -> None:
    errors = refused(LLAMA, command=["tune", "run"], args=QUANTIZED, resourcesPerNode=resources)
    (error,) = (each for each in errors if "must have gpu resource" in each)
    assert ("the runtime sets it" in error) == is_of_runtime


def test_error_about_processes_of_the_runtime_names_the_runtime() -> None:
    document = deepcopy(LLAMA)
    document["spec"]["mlPolicy"]["torch"]["numProcPerNode"] = 2
    errors = refused(document, command=["tune", "run"], args=QUANTIZED)
    assert errors[0].endswith(
        "model when using QLoRA: the runtime sets it in spec.mlPolicy.torch.numProcPerNode, "
        "unless the TrainJob sets spec.trainer.numProcPerNode"
    )


def test_rules_of_torchtune_are_for_torchtune() -> None:
    assert refused(LLAMA, command=["torchrun"], args=["output_dir=/mine"], numNodes=2) == []
