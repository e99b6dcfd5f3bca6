"""docs/compatibility.md lists every field of the CRDs, and whether it is accepted."""

from collections import Counter
from functools import cache

import yaml

from kftrainer.cli.commands import crds
from tests.support.field_tables import Row, fields, rejects, rows
from tests.support.objects import Object


@cache
def definitions() -> dict[str, Object]:
    """Our CRDs by kind."""
    found = [yaml.load(text, Loader=yaml.CSafeLoader) for text in crds.documents()]
    return {each["spec"]["names"]["kind"]: each for each in found}


def listed() -> list[tuple[str, str, Row]]:
    """The kind and path of each field in the tables."""
    return [(kind, path, row) for row in rows() for kind in row.kinds for path in row.paths]


def test_every_field_of_the_schema_has_one_row() -> None:
    declared = [(kind, path) for kind, crd in definitions().items() for path in fields(crd)]
    assert len(declared) > 300
    found = Counter((kind, path) for kind, path, _ in listed())
    assert [each for each in declared if each not in found] == []
    assert [each for each, rows in found.items() if rows > 1] == []


def test_every_row_is_about_a_field_of_the_schema_or_is_marked_as_rejected() -> None:
    declared = {kind: fields(crd) for kind, crd in definitions().items()}
    assert {
        (kind, path) for kind, path, row in listed() if row.is_served and path not in declared[kind]
    } == set()
    assert {row.accepted for _, _, row in listed()} == {"yes", "no"}


def test_fields_are_marked_as_rejected_if_and_only_if_the_schema_rejects_them() -> None:
    declared = {kind: fields(crd) for kind, crd in definitions().items()}
    assert [
        (kind, path)
        for kind, path, row in listed()
        if path in declared[kind] and row.is_served == rejects(definitions()[kind], path)
    ] == []
