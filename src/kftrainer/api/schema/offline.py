"""Applies the schemas of our CRDs offline: pruning, defaulting and validation."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

import yaml

from kftrainer.api.resources import CLUSTER_TRAINING_RUNTIMES, TRAIN_JOBS, TRAINING_RUNTIMES
from kftrainer.kube.objects.model import Document, Problem
from kftrainer.kube.schema.defaulting import Schema, defaulted
from kftrainer.kube.schema.structure import misfits, pruned

FOLDER = "crds"
KINDS = {each.kind: each for each in (TRAIN_JOBS, TRAINING_RUNTIMES, CLUSTER_TRAINING_RUNTIMES)}
# The pure-Python loader takes a second to read the CRDs.
_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@dataclass(frozen=True, slots=True)
class Stored:
    """An object with defaults, its unknown fields and its schema violations."""

    document: dict[str, Any]
    unknown: list[str]  # paths of fields that were pruned because the schema lacks them
    problems: list[Problem]


def stored(document: Document) -> Stored:
    """Return the TrainJob or runtime as the API server would store it."""
    schema = schema_of(document["kind"])
    known, unknown = pruned(document, schema)
    filled = defaulted(known, schema)
    if "status" not in known:  # its default is not stored, but added whenever the object is read
        filled.pop("status", None)
    return Stored(filled, unknown, [*misfits(filled, schema)])


def schema_problems(document: Document) -> Iterator[Problem]:
    """Yield the schema violations of the TrainJob or runtime lazily."""
    schema = schema_of(document["kind"])
    yield from misfits(defaulted(document, schema), schema)


def with_defaults(document: Document) -> dict[str, Any]:
    """Return a copy of the TrainJob or runtime with the defaults of its schema."""
    return stored(document).document


@cache
def schema_of(kind: str) -> Schema:
    """Return the schema of one of our kinds, read on first use."""
    resource = KINDS[kind]
    file = files("kftrainer.api") / FOLDER / f"{resource.plural}.{resource.group}.yaml"
    definition = yaml.load(file.read_text(), Loader=_Loader)  # noqa: S506  a safe one
    [version] = [
        each for each in definition["spec"]["versions"] if each["name"] == resource.version
    ]
    schema: Schema = version["schema"]["openAPIV3Schema"]
    return schema
