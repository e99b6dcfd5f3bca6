"""Names of the admission rules of the Torch plugin."""

from enum import StrEnum


class TorchRule(StrEnum):
    """The rule that an error of the plugin belongs to; docs/admission.md describes each."""

    TORCH_RESERVED_ENV = "torch-reserved-env"
    TORCH_ENV_INJECTION = "torch-env-injection"
    TORCHTUNE_NO_MODEL = "torchtune-no-model"
    TORCHTUNE_UNKNOWN_MODEL = "torchtune-unknown-model"
    TORCHTUNE_ONE_NODE = "torchtune-one-node"
    TORCHTUNE_LORA_ONE_NODE = "torchtune-lora-one-node"
    TORCHTUNE_NO_QLORA = "torchtune-no-qlora"
    TORCHTUNE_QLORA_DEVICES = "torchtune-qlora-devices"
    TORCHTUNE_IMMUTABLE_CONFIG = "torchtune-immutable-config"
