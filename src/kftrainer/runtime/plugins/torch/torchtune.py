"""torchtune: selects recipe and config of a fine-tuning, and builds its command."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from kftrainer.kube.objects.field_errors import FieldError, invalid
from kftrainer.runtime.plugins.torch.rules import TorchRule

ENTRYPOINT = ["tune", "run"]  # for a TrainJob with this command, the plugin adds the rest
ANNOTATION_MODEL = "trainer.kubeflow.org/torchtune-model"
# Settings that depend on where the runtime mounts its volumes; TrainJobs cannot change them.
IMMUTABLE = (
    "output_dir",
    "tokenizer.path",
    "tokenizer.merges_file",
    "checkpointer.checkpoint_dir",
)
LLAMA_3_2_1B, LLAMA_3_2_3B = "llama3_2/1B", "llama3_2/3B"
LLAMA_3_3_70B, QWEN_2_5_1_5B = "llama3_3/70B", "qwen2_5/1.5B"
MODELS = frozenset({LLAMA_3_2_1B, LLAMA_3_2_3B, LLAMA_3_3_70B, QWEN_2_5_1_5B})
MULTI_NODE_MODELS = frozenset({LLAMA_3_3_70B})
QLORA_ON_ONE_DEVICE = frozenset({LLAMA_3_2_1B, LLAMA_3_2_3B})
PARTS_OF_A_NAME = 3  # torchtune-llama3.2-1b

_CONFIG = re.compile(r"([^/]+/[^/]+?)(?:_(?:q?[ld]ora|full|qat)(?:_\w+)?)?")
_RUNTIME_NAME = "spec.runtimeRef.name"
NUM_NODES, PROCESSES = "spec.trainer.numNodes", "spec.trainer.numProcPerNode"
RESOURCES = "spec.trainer.resourcesPerNode"
_NO_MODEL = (
    "must have a supported pretrained model, but the runtime names none: neither in the "
    f"annotation {ANNOTATION_MODEL}, nor in its name, nor with --config in its command"
)


class Method(StrEnum):
    """Fine-tuning method."""

    FULL = "full"
    LORA = "lora"
    QLORA = "qlora"


@dataclass(frozen=True, slots=True)
class Tuning:
    """A fine-tuning; `processes` per node is 0 if torchrun determines it from the devices."""

    model: str
    method: Method
    nodes: int
    processes: int

    @property
    def on_one_device(self) -> bool:
        """Whether there is only one process, so that no rendezvous is needed."""
        return self.nodes == 1 and self.processes == 1

    @property
    def recipe(self) -> str:
        """Name of the torchtune recipe."""
        kind = "full" if self.method is Method.FULL else "lora"
        return f"{kind}_finetune_{'single_device' if self.on_one_device else 'distributed'}"

    @property
    def config(self) -> str:
        """Name of the torchtune config for this model."""
        if self.on_one_device:
            return f"{self.model}_{self.method}_single_device"
        return f"{self.model}_{self.method}{'_multinode' if self.nodes > 1 else ''}"

    def command(self, endpoint: str, template: Iterable[str]) -> list[str]:
        """Return the complete command, with the template's settings in IMMUTABLE."""
        # tune starts the recipe with torchrun only if there is an argument for torchrun.
        rendezvous = [] if self.on_one_device else [f"--rdzv_endpoint={endpoint}"]
        kept = [word for word in template if _key(word) in IMMUTABLE]
        return [*ENTRYPOINT, *rendezvous, self.recipe, "--config", self.config, *kept]


def method_of(args: Sequence[str]) -> Method:
    """Return the fine-tuning method that the arguments select."""
    if _is_on("model.quantize_base", args) and not _is_on("model.use_dora", args):
        return Method.QLORA
    if any("model.lora_attn_modules" in arg for arg in args):
        return Method.LORA
    return Method.FULL


def model_of(
    runtime_name: str, annotations: Mapping[str, str] | None, template: Sequence[str]
) -> str:
    """Return the model of a runtime; empty if it cannot be determined.

    The annotation has precedence. Of the runtime's name and the template's config, the first one
    that is a known model is used: a name such as my-own-runtime only looks like one.
    """
    annotated = (annotations or {}).get(ANNOTATION_MODEL)
    if annotated:
        return annotated
    candidates = [model for model in (_named(runtime_name), _configured(template)) if model]
    return next(
        (model for model in candidates if model in MODELS), candidates[0] if candidates else ""
    )


def planning_errors(
    tuning: Tuning, runtime_name: str, requested: Sequence[str]
) -> Iterator[FieldError]:
    """Yield errors that prevent building a command; `requested` are the TrainJob's own args."""
    if not tuning.model:
        yield invalid(_RUNTIME_NAME, runtime_name, _NO_MODEL, rule=TorchRule.TORCHTUNE_NO_MODEL)
    if tuning.nodes > 1 and tuning.method is not Method.FULL:
        detail = "LoRA fine-tuning is not supported for multi-node training in TorchTune"
        yield invalid(NUM_NODES, tuning.nodes, detail, rule=TorchRule.TORCHTUNE_LORA_ONE_NODE)
    for index, arg in enumerate(requested):
        if _key(arg) in IMMUTABLE:
            detail = (
                f'must not set immutable config "{_key(arg)}" in trainer args; '
                "it is managed by the runtime"
            )
            where, rule = f"spec.trainer.args[{index}]", TorchRule.TORCHTUNE_IMMUTABLE_CONFIG
            yield invalid(where, _key(arg), detail, rule=rule)


def support_errors(
    tuning: Tuning, runtime_name: str, processes: int | str, resources: Mapping[str, object]
) -> Iterator[FieldError]:
    """Yield errors for combinations that torchtune has no config for.

    `processes` and `resources` are those of a node, for messages.
    """
    model = tuning.model
    if not model:
        return
    if model not in MODELS:
        detail = f"must have a supported pretrained model, invalid model configured: {model}"
        yield invalid(_RUNTIME_NAME, runtime_name, detail, rule=TorchRule.TORCHTUNE_UNKNOWN_MODEL)
    if tuning.nodes > 1:
        if model not in MULTI_NODE_MODELS:
            detail = f"must be 1 for {model} model"
            yield invalid(NUM_NODES, tuning.nodes, detail, rule=TorchRule.TORCHTUNE_ONE_NODE)
    elif tuning.method is Method.QLORA:
        yield from _qlora_errors(tuning, runtime_name, processes, resources)


def _qlora_errors(
    tuning: Tuning, runtime_name: str, processes: int | str, resources: Mapping[str, object]
) -> Iterator[FieldError]:
    model = tuning.model
    if model == QWEN_2_5_1_5B:
        detail = f"QLoRA is not supported for {model} model"
        yield invalid(_RUNTIME_NAME, runtime_name, detail, rule=TorchRule.TORCHTUNE_NO_QLORA)
    if model in QLORA_ON_ONE_DEVICE and not tuning.on_one_device:
        if processes not in ("auto", 1):
            detail = f"must be auto or 1 for {model} model when using QLoRA"
            yield invalid(PROCESSES, processes, detail, rule=TorchRule.TORCHTUNE_QLORA_DEVICES)
        detail = f"must have gpu resource with value 1 for {model} model when using QLoRA"
        yield invalid(RESOURCES, resources, detail, rule=TorchRule.TORCHTUNE_QLORA_DEVICES)


def _key(arg: str) -> str:
    return arg.partition("=")[0]


def _is_on(switch: str, args: Iterable[str]) -> bool:
    """Whether an argument such as `model.use_dora=True` is given."""
    return any(
        switch in key and value.strip().lower() == "true"
        for key, _, value in (arg.partition("=") for arg in args)
    )


def _named(runtime_name: str) -> str:
    """Return the model in a name such as torchtune-llama3.2-1b; empty if there is none."""
    parts = runtime_name.split("-")
    if len(parts) != PARTS_OF_A_NAME:
        return ""
    return f"{parts[1].replace('.', '_')}/{parts[2].upper()}"


def _configured(template: Sequence[str]) -> str:
    """Return the model in `--config llama3_2/1B_full` or `--config=…`; empty if there is none."""
    words = [half for word in template for half in word.split("=", 1)]
    if "--config" not in words:
        return ""
    found = _CONFIG.fullmatch("".join(words[words.index("--config") + 1 :][:1]))
    return found[1] if found else ""
