from collections.abc import Mapping
from typing import Annotated, Literal

import pytest
from pydantic import Field

from kftrainer.kube.objects.model import (
    InvalidDocumentError,
    KubeModel,
    Opaque,
    OpaqueList,
    Problem,
)


class Part(KubeModel):
    size: Annotated[int | None, Field(ge=1)] = None
    colour: Literal["red", "blue"] | None = None


class Whole(KubeModel):
    some_name: str
    parts: list[Part] | None = None
    labels: Mapping[str, str] | None = None
    template: Opaque | None = None
    items: OpaqueList | None = None
    on: bool = False


def test_model_round_trips_with_unknown_fields() -> None:
    document = {
        "someName": "x",
        "some_name": "not the field",
        "parts": [{"size": 2, "extra": {"deep": [1, None]}}, {}],
        "template": {"any": {"thing": [1, 2.5, "3"]}},
        "labels": None,
        "unknown": True,
    }
    assert Whole.parse(document).dump() == document


def test_unset_fields_have_defaults_and_are_not_dumped() -> None:
    whole = Whole.parse({"someName": "x"})
    assert whole.on is False
    assert whole.dump() == {"someName": "x"}


def test_every_error_has_its_path_in_the_document() -> None:
    document = {
        "parts": [{"size": 0}, {"size": "1"}, {"colour": "green"}, 7],
        "labels": {"a": 1},
        "template": [],
        "items": {},
        "on": "yes",
    }
    with pytest.raises(InvalidDocumentError) as raised:
        Whole.parse(document)
    assert raised.value.problems == (
        Problem("someName", "is required"),
        Problem("parts[0].size", "must be at least 1"),
        Problem("parts[1].size", "must be an integer"),
        Problem("parts[2].colour", "must be one of 'red', 'blue'"),
        Problem("parts[3]", "must be an object"),
        Problem("labels.a", "must be a string"),
        Problem("template", "must be an object"),
        Problem("items", "must be a list"),
        Problem("on", "must be true or false"),
    )
    assert "Whole" not in str(raised.value)
    assert "Part" not in str(raised.value)


def test_an_opaque_part_is_the_very_same_object() -> None:
    template = {"spec": {}}
    assert Whole.parse({"someName": "x", "template": template}).template is template
