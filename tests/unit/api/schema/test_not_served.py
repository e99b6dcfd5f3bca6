"""Fields of other releases: all are declared, and those that are not served are found."""

from pathlib import Path
from typing import Any

import pytest

from kftrainer.api.schema.not_served import unserved_fields
from kftrainer.api.schema.offline import KINDS, schema_of
from kftrainer.kube.schema.defaulting import schema_of_field
from tests.support.objects import Object, runtime, train_job
from tests.support.other_releases import KUEUE_ENTRY, UNSERVED, Unserved

FIELDS = Path(__file__).parent / "fields_of_releases.txt"


def fields_of_releases() -> list[tuple[str, str]]:
    """Each field with the kind that has it."""
    found: list[tuple[str, str]] = []
    kind = ""
    for line in FIELDS.read_text().splitlines():
        if line in KINDS:
            kind = line
        elif not line.startswith("#"):
            found.append((kind, line))
    return found


def is_declared(schema: Any, path: str) -> bool:
    for step in path.split("."):
        schema = schema_of_field(schema, step.removesuffix("[]"))
        if schema is not None and step.endswith("[]"):
            schema = schema["items"]
        if schema is None:
            return False
    return True


def test_every_field_of_every_release_is_declared() -> None:
    fields = fields_of_releases()
    assert len(fields) > 90
    assert [each for each in fields if not is_declared(schema_of(each[0]), each[1])] == []


def paths(document: Object) -> list[str]:
    model = KINDS[document["kind"]].decode(document)
    return [field.path for field in unserved_fields(model.spec, "spec")]


@pytest.mark.parametrize("case", UNSERVED, ids=str)
def test_unserved_field_of_a_stored_object_is_found(case: Unserved) -> None:
    assert paths(case.document("stored")) == [case.path]


@pytest.mark.parametrize(
    "document",
    [
        train_job(),
        train_job(runtimePatches=[]),
        train_job(runtimePatches=[KUEUE_ENTRY], trainer={"resourceClaimsPerNode": []}),
        runtime(),
        runtime(mlPolicy={"mpi": {}}),
    ],
    ids=["job", "no patch", "empty patch", "torch", "mpi"],
)
def test_served_fields_and_empty_lists_are_not_reported(document: Object) -> None:
    assert paths(document) == []
