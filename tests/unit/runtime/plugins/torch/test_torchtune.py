from collections.abc import Iterable

import pytest

from kftrainer.kube.objects.field_errors import FieldError
from kftrainer.runtime.plugins.torch.torchtune import (
    Method,
    Tuning,
    method_of,
    model_of,
    planning_errors,
    support_errors,
)

FULL, LORA, QLORA = Method.FULL, Method.LORA, Method.QLORA
LLAMA, LLAMA_70B, QWEN = "llama3_2/1B", "llama3_3/70B", "qwen2_5/1.5B"
MODULES = "model.lora_attn_modules=[q_proj,v_proj]"
RUNTIME = "torchtune-llama3.2-1b"
LORA_ON_NODES = "LoRA fine-tuning is not supported for multi-node training in TorchTune"
TEMPLATE = [
    "tune",
    "run",
    "--rdzv_endpoint=localhost:29500",
    "full_finetune_distributed",
    "--config",
    "llama3_2/1B_full",
    "dataset.data_dir=/workspace/dataset",
    "output_dir=/workspace/output",
    "tokenizer.path=/workspace/model/a=b",
    "tokenizer.merges_file=/workspace/model/merges.txt",
    "tokenizer.pathological=yes",
    "checkpointer.checkpoint_dir=/workspace/model",
]
ANNOTATION = "trainer.kubeflow.org/torchtune-model"


def tuning(method: Method = FULL, nodes: int = 1, processes: int = 1, model: str = LLAMA) -> Tuning:
    return Tuning(model, method, nodes, processes)


def as_messages(errors: Iterable[FieldError]) -> list[str]:
    return [str(error) for error in errors]


@pytest.mark.parametrize(
    ("nodes", "processes", "method", "recipe", "config"),
    [
        (1, 1, QLORA, "lora_finetune_single_device", "llama3_2/1B_qlora_single_device"),
        (1, 1, LORA, "lora_finetune_single_device", "llama3_2/1B_lora_single_device"),
        (1, 1, FULL, "full_finetune_single_device", "llama3_2/1B_full_single_device"),
        (1, 2, QLORA, "lora_finetune_distributed", "llama3_2/1B_qlora"),
        (1, 2, LORA, "lora_finetune_distributed", "llama3_2/1B_lora"),
        (1, 2, FULL, "full_finetune_distributed", "llama3_2/1B_full"),
        (1, 0, FULL, "full_finetune_distributed", "llama3_2/1B_full"),
        (2, 1, FULL, "full_finetune_distributed", "llama3_2/1B_full_multinode"),
        (2, 2, FULL, "full_finetune_distributed", "llama3_2/1B_full_multinode"),
    ],
)
def test_recipe_and_config_fit_the_method_and_the_devices(
    nodes: int, processes: int, method: Method, recipe: str, config: str
) -> None:
    this = tuning(method, nodes, processes)
    assert (this.recipe, this.config) == (recipe, config)


@pytest.mark.parametrize(
    ("args", "method"),
    [
        ([], FULL),
        (["batch_size=2"], FULL),
        ([MODULES], LORA),
        ([MODULES, "model.use_dora=True"], LORA),
        ([MODULES, "model.quantize_base=True"], QLORA),
        (["model.quantize_base=True"], QLORA),
        ([MODULES, "model.quantize_base= TRUE "], QLORA),
        ([MODULES, "model.quantize_base=True", "model.use_dora=True"], LORA),
        (["model.quantize_base=True", "model.use_dora=True"], FULL),
    ],
)
def test_arguments_select_the_recipe(args: list[str], method: Method) -> None:
    assert method_of(args) is method


@pytest.mark.parametrize(
    ("args", "method"),
    [
        ([MODULES, "model.quantize_base=False"], LORA),
        (["model.quantize_base=false"], FULL),
        (["model.quantize_base"], FULL),
        (["model.quantize_base="], FULL),
        (["model.quantize_base=True", "model.use_dora=False"], QLORA),
        (["dataset.note=model.quantize_base=True"], FULL),
    ],
)
def test_switch_that_is_not_true_is_disabled(args: list[str], method: Method) -> None:
    """Defect D29."""
    assert method_of(args) is method


def test_single_process_has_no_rendezvous() -> None:
    assert tuning(LORA).command("demo-node-0-0.demo:29500", []) == [
        "tune",
        "run",
        "lora_finetune_single_device",
        "--config",
        "llama3_2/1B_lora_single_device",
    ]


@pytest.mark.parametrize(("nodes", "processes"), [(1, 2), (1, 0), (2, 1)])
def test_several_processes_use_the_first_node_as_rendezvous(nodes: int, processes: int) -> None:
    command = tuning(FULL, nodes, processes).command("demo-node-0-0.demo:29500", [])
    assert command[:4] == [
        "tune",
        "run",
        "--rdzv_endpoint=demo-node-0-0.demo:29500",
        "full_finetune_distributed",
    ]


def test_only_immutable_parts_of_the_template_command_are_kept() -> None:
    assert tuning().command("host:29500", TEMPLATE)[5:] == [
        "output_dir=/workspace/output",
        "tokenizer.path=/workspace/model/a=b",
        "tokenizer.merges_file=/workspace/model/merges.txt",
        "checkpointer.checkpoint_dir=/workspace/model",
    ]


@pytest.mark.parametrize(
    ("runtime", "model"),
    [
        ("torchtune-llama3.2-1b", "llama3_2/1B"),
        ("torchtune-llama3.2-3b", "llama3_2/3B"),
        ("torchtune-llama3.3-70b", "llama3_3/70B"),
        ("torchtune-qwen2.5-1.5b", "qwen2_5/1.5B"),
        ("mine-mistral-7b", "mistral/7B"),
        ("torchtune", ""),
        ("torchtune-llama3.2", ""),
        ("torchtune-llama3.2-1b-copy", ""),
    ],
)
def test_model_is_taken_from_the_name_of_the_runtime(runtime: str, model: str) -> None:
    assert model_of(runtime, None, []) == model


def test_model_annotation_has_precedence_over_the_runtime_name() -> None:
    """Defect D29."""
    assert model_of(RUNTIME, {ANNOTATION: "llama3_3/70B"}, TEMPLATE) == "llama3_3/70B"


def test_runtime_name_has_precedence_over_its_command() -> None:
    assert model_of("torchtune-llama3.3-70b", {"other": "x"}, TEMPLATE) == "llama3_3/70B"


@pytest.mark.parametrize("name", ["copied", "my-own-runtime", "torchtune-llama3.2-1b-copy"])
def test_copied_runtime_takes_the_model_from_its_command(name: str) -> None:
    """Defect D29."""
    assert model_of(name, None, TEMPLATE) == "llama3_2/1B"


@pytest.mark.parametrize(
    ("command", "model"),
    [
        (["--config", "qwen2_5/1.5B_full"], "qwen2_5/1.5B"),
        (["--config=qwen2_5/1.5B_lora_single_device"], "qwen2_5/1.5B"),
        (["--config", "llama3_2/3B_qlora"], "llama3_2/3B"),
        (["--config", "llama3_2/3B_qdora_single_device"], "llama3_2/3B"),
        (["--config", "llama3_3/70B_full_multinode"], "llama3_3/70B"),
        (["--config", "llama3/8B_qat_full"], "llama3/8B"),
        (["--config", "llama3_2/1B"], "llama3_2/1B"),
        (["--config", "/etc/tune/custom.yaml"], ""),
        (["--config", "custom.yaml"], ""),
        (["--config"], ""),
        (["run", "config", "llama3_2/1B_full"], ""),
        ([], ""),
    ],
)
def test_a_config_is_a_model_and_a_suffix(command: list[str], model: str) -> None:
    assert model_of("copied", None, command) == model


def test_runtime_without_model_error_names_the_annotation() -> None:
    """Defect D29."""
    assert as_messages(planning_errors(tuning(model=""), "copied", [])) == [
        'spec.runtimeRef.name: Invalid value: "copied": must have a supported pretrained model, '
        "but the runtime names none: neither in the annotation "
        "trainer.kubeflow.org/torchtune-model, nor in its name, nor with --config in its command"
    ]


@pytest.mark.parametrize("method", [LORA, QLORA])
def test_lora_on_several_nodes_is_rejected(method: Method) -> None:
    """Defect D29."""
    found = planning_errors(tuning(method, 2, model=LLAMA_70B), RUNTIME, [MODULES])
    assert as_messages(found) == [f"spec.trainer.numNodes: Invalid value: 2: {LORA_ON_NODES}"]


def test_valid_job_can_be_planned() -> None:
    assert as_messages(planning_errors(tuning(FULL, 2), RUNTIME, ["batch_size=2"])) == []
    assert as_messages(planning_errors(tuning(QLORA, 1), RUNTIME, [MODULES])) == []


@pytest.mark.parametrize(
    "key",
    ["output_dir", "tokenizer.path", "tokenizer.merges_file", "checkpointer.checkpoint_dir"],
)
def test_jobs_cannot_change_volume_paths_of_the_runtime(key: str) -> None:
    """Defect D29."""
    overrides_given = ["epochs=1", f"{key}=/mine=yours", f"{key}.not=1"]
    assert as_messages(planning_errors(tuning(), RUNTIME, overrides_given)) == [
        f'spec.trainer.args[1]: Invalid value: "{key}": must not set immutable config '
        f'"{key}" in trainer args; it is managed by the runtime'
    ]


def unsupported(this: Tuning, processes: int | str = "auto") -> list[str]:
    return as_messages(
        support_errors(this, RUNTIME, processes, {"limits": {"nvidia.com/gpu": "2"}})
    )


def test_a_model_without_configs_is_refused() -> None:
    assert unsupported(tuning(model="mistral/7B")) == [
        f'spec.runtimeRef.name: Invalid value: "{RUNTIME}": must have a supported pretrained '
        "model, invalid model configured: mistral/7B"
    ]


def test_missing_model_is_the_only_error() -> None:
    assert unsupported(tuning(QLORA, 2, model="")) == []


@pytest.mark.parametrize("model", [LLAMA, "llama3_2/3B", QWEN])
def test_most_models_train_on_one_node(model: str) -> None:
    assert unsupported(tuning(FULL, 2, model=model)) == [
        f"spec.trainer.numNodes: Invalid value: 2: must be 1 for {model} model"
    ]
    assert unsupported(tuning(FULL, 1, 4, model=model)) == []


def test_the_large_model_trains_on_several_nodes() -> None:
    assert unsupported(tuning(FULL, 2, 8, model=LLAMA_70B)) == []


@pytest.mark.parametrize("processes", [1, 4])
def test_qwen_has_no_qlora(processes: int) -> None:
    assert unsupported(tuning(QLORA, 1, processes, model=QWEN)) == [
        f'spec.runtimeRef.name: Invalid value: "{RUNTIME}": QLoRA is not supported for '
        "qwen2_5/1.5B model"
    ]


@pytest.mark.parametrize("model", [LLAMA, "llama3_2/3B"])
def test_small_llamas_have_qlora_on_one_device_only(model: str) -> None:
    assert unsupported(tuning(QLORA, 1, 1, model=model)) == []
    assert unsupported(tuning(QLORA, 1, 2, model=model), 2) == [
        "spec.trainer.numProcPerNode: Invalid value: 2: must be auto or 1 for "
        f"{model} model when using QLoRA",
        'spec.trainer.resourcesPerNode: Invalid value: {"limits":{"nvidia.com/gpu":"2"}}: must '
        f"have gpu resource with value 1 for {model} model when using QLoRA",
    ]


@pytest.mark.parametrize("model", [LLAMA, QWEN])
def test_rules_of_qlora_are_not_for_lora(model: str) -> None:
    assert unsupported(tuning(LORA, 1, 2, model=model)) == []


def test_the_large_model_has_qlora_on_several_devices() -> None:
    assert unsupported(tuning(QLORA, 1, 8, model=LLAMA_70B)) == []


@pytest.mark.parametrize("model", [LLAMA, QWEN])
def test_qlora_on_several_nodes_is_reported_once(model: str) -> None:
    assert unsupported(tuning(QLORA, 2, 2, model=model)) == [
        f"spec.trainer.numNodes: Invalid value: 2: must be 1 for {model} model"
    ]
