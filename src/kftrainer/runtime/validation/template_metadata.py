"""Validates the labels and annotations that a TrainJob sets on its JobSet and pods."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import islice

from kftrainer.api.trainjob import TrainJob
from kftrainer.kube.objects.field_errors import ErrorType, FieldError
from kftrainer.kube.schema.metadata import metadata_errors
from kftrainer.runtime.overrides import overrides
from kftrainer.runtime.validation.rules import Rule

LABELS, ANNOTATIONS = "labels", "annotations"
MOST_ERRORS = 100

Texts = Mapping[str, str] | None


def template_metadata_errors(job: TrainJob) -> Iterator[FieldError]:
    """Yield errors for keys and values that the API server would reject in the JobSet or pods."""
    return islice(_errors(job), MOST_ERRORS)


def _errors(job: TrainJob) -> Iterator[FieldError]:
    yield from _errors_at("spec", job.spec.labels, job.spec.annotations)
    for path, override in overrides(job):
        if said := override.metadata:
            yield from _errors_at(f"{path}.metadata", said.labels, said.annotations)


def _errors_at(path: str, labels: Texts, annotations: Texts) -> Iterator[FieldError]:
    if not (labels or annotations):
        return
    metadata = {"name": "any", LABELS: labels, ANNOTATIONS: annotations}
    for error in metadata_errors(metadata, namespaced=True):
        where, rule = f"{path}{error.path.removeprefix('metadata')}", Rule.METADATA_FOR_OBJECTS
        # The API server reports an invalid key as the value of its map.
        is_key = error.path.endswith((LABELS, ANNOTATIONS)) and error.fault is ErrorType.INVALID
        where = f"{where}[{error.value}]" if is_key else where
        yield replace(error, path=where, rule=rule)
