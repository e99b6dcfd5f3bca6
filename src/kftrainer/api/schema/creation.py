"""Validates new TrainJobs and runtimes by the schemas of our CRDs, as the API server does."""

from collections.abc import Callable
from typing import Any

from kftrainer.api.limits import ROOT, exceeded
from kftrainer.api.schema.cel_rules import RULES
from kftrainer.api.schema.offline import KINDS, schema_of
from kftrainer.kube.objects.field_errors import FieldError
from kftrainer.kube.objects.model import Document
from kftrainer.kube.objects.resource import Manifest
from kftrainer.kube.schema.cel import BLOCKING, rule_errors
from kftrainer.kube.schema.defaulting import Schema, defaulted
from kftrainer.kube.schema.metadata import METADATA, generated_name, metadata_errors
from kftrainer.kube.schema.structure import pruned, schema_errors, unknown_fields


def creation_errors(
    document: Document, mutate: Callable[[Manifest], Manifest] = lambda manifest: manifest
) -> list[FieldError]:
    """Return all errors with which the API server would reject the object before it is validated.

    The API server reports them in stages: unknown fields, if validation is strict; then invalid
    metadata; then violations of the schema and of its rules. `mutate` is the mutating webhook,
    which the API server calls before it checks the schema.
    """
    limit = exceeded(document)
    if limit is not None and limit.path == ROOT:
        return [limit]
    schema = schema_of(document["kind"])
    whole: Schema = {**schema, "properties": {**schema["properties"], "metadata": METADATA}}
    unknown = [*unknown_fields(document, whole)]
    metadata = {} if document.get("metadata") is None else document["metadata"]
    errors = [*schema_errors(metadata, METADATA, "metadata")]
    readable = not errors
    if readable:
        errors += metadata_errors(metadata, namespaced=KINDS[document["kind"]].namespaced)
    created = {**mutate(_as_created(document, schema))}
    errors += schema_errors({**created, "metadata": {}}, schema)
    if readable and all(error.type not in BLOCKING for error in errors):
        errors += rule_errors(created, schema, RULES)
    if limit is not None and all(error.path != limit.path for error in errors):
        errors.append(limit)
    return [*unknown, *errors]


def _as_created(document: Document, schema: Schema) -> dict[str, Any]:
    """Return the object with defaults and without status, which a create request cannot set."""
    known, _ = pruned(document, schema)
    known.pop("status", None)
    created: dict[str, Any] = defaulted(known, schema)
    metadata = created.get("metadata")
    if isinstance(metadata, dict) and not metadata.get("name") and metadata.get("generateName"):
        created["metadata"] = {**metadata, "name": generated_name(str(metadata["generateName"]))}
    return created
