"""Names of the admission rules of the Volcano plugin."""

from enum import StrEnum


class VolcanoRule(StrEnum):
    """The rule that an error of the plugin belongs to; docs/admission.md describes each."""

    VOLCANO_QUEUE = "volcano-queue"
    VOLCANO_PRIORITY = "volcano-priority"
    RUNTIME_VOLCANO_QUEUE = "runtime-volcano-queue"
