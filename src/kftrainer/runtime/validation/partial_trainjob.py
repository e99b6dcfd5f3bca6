"""Removes the invalid parts of a TrainJob, so that the rest can be validated too."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from kftrainer.api.trainjob import TrainJob
from kftrainer.kube.objects.field_errors import FieldError
from kftrainer.runtime.info import NO_TRAINER
from kftrainer.runtime.overrides import LEGACY, MODERN
from kftrainer.runtime.resources.quantities import HALVES
from kftrainer.runtime.template import RESOURCES_PATH

OVERRIDES = (f"spec.{MODERN}", f"spec.{LEGACY}")


def without_faults(job: TrainJob, errors: Sequence[FieldError]) -> TrainJob | None:
    """Return the TrainJob without the overrides or resource quantities that have errors.

    Returns None if the errors concern neither.
    """
    paths = {error.path for error in errors}
    changes: dict[str, Any] = {}
    if any(path.startswith(OVERRIDES) for path in paths) and job.spec.overrides():
        changes |= {"pod_template_overrides": None, "pod_spec_overrides": None}
    trainer = job.spec.trainer or NO_TRAINER
    sound = _sound(trainer.resources_per_node or {}, paths)
    if sound != (trainer.resources_per_node or {}):
        changes["trainer"] = trainer.model_copy(update={"resources_per_node": sound})
    if not changes:
        return None
    return job.model_copy(update={"spec": job.spec.model_copy(update=changes)})


def _sound(resources: Mapping[str, Any], faults: Collection[str]) -> dict[str, Any]:
    """Return the resources without the quantities at these paths."""
    return {
        half: {
            name: amount
            for name, amount in amounts.items()
            if f"{RESOURCES_PATH}.{half}[{name}]" not in faults
        }
        if half in HALVES and isinstance(amounts, Mapping)
        else amounts
        for half, amounts in resources.items()
    }
