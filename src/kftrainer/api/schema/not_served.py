"""Finds fields of other releases in objects stored before the schema rejected them."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, get_args

from kftrainer.api.schema.markers import NotServed
from kftrainer.kube.objects.model import KubeModel


@dataclass(frozen=True, slots=True)
class Unserved:
    """A field with a value that has no effect here."""

    path: str
    marker: NotServed


def unserved_fields(part: KubeModel, path: str) -> Iterator[Unserved]:
    """Yield the fields that are set but not served, with their paths."""
    for name, (alias, marker) in _candidates(type(part)).items():
        value = getattr(part, name)
        if value is None or value == []:
            continue
        where = f"{path}.{alias}"
        if marker is not None:
            yield Unserved(where, marker)
        elif isinstance(value, list):
            for index, item in enumerate(value):
                yield from unserved_fields(item, f"{where}[{index}]")
        else:
            yield from unserved_fields(value, where)


@cache
def _candidates(model: type[KubeModel]) -> Mapping[str, tuple[str, NotServed | None]]:
    """Return the fields that are marked or contain marked fields, by Python name."""
    found: dict[str, tuple[str, NotServed | None]] = {}
    for name, field in model.model_fields.items():
        marker = next((each for each in field.metadata if isinstance(each, NotServed)), None)
        inner = _model_in(field.annotation)
        if marker is not None or (inner is not None and _candidates(inner)):
            found[name] = (field.alias or name, marker)
    return found


def _model_in(annotation: Any) -> type[KubeModel] | None:
    """Return the model in an annotation such as `Model | None` or `list[Model] | None`."""
    if isinstance(annotation, type) and issubclass(annotation, KubeModel):
        return annotation
    inner = (_model_in(each) for each in get_args(annotation))
    return next((each for each in inner if each is not None), None)
