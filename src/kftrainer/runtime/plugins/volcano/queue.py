"""Validates the Volcano queue of a runtime."""

from collections.abc import Iterator

from kftrainer.kube.objects.field_errors import FieldError, invalid
from kftrainer.runtime.info import AnyRuntime
from kftrainer.runtime.plugins.volcano.rules import VolcanoRule

QUEUE = "scheduling.volcano.sh/queue-name"
EMPTY_QUEUE = "Volcano queue name must not be empty"


def queue_errors(runtime: AnyRuntime) -> Iterator[FieldError]:
    """Yield an error if the runtime has an empty queue name."""
    template = runtime.spec.template if runtime.spec else None
    metadata = template.metadata if template else None
    if ((metadata and metadata.annotations) or {}).get(QUEUE) == "":
        where = f"spec.template.metadata.annotations[{QUEUE}]"
        yield invalid(where, "", EMPTY_QUEUE, rule=VolcanoRule.RUNTIME_VOLCANO_QUEUE)
