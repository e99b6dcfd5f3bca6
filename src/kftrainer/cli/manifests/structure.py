"""Checks that context objects have the structure that planning relies on.

An API server would not have stored other objects, but objects in files are unchecked.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from kftrainer.api.resources import (
    JOB_SETS,
    LIMIT_RANGES,
    RESOURCE_CLAIM_TEMPLATES,
    RUNTIME_CLASSES,
    AnyResource,
)
from kftrainer.kube.objects.model import Problem
from kftrainer.kube.objects.quantity import Quantity, QuantityError
from kftrainer.kube.schema.defaulting import Schema
from kftrainer.kube.schema.structure import misfits


def _object(*required: str, **fields: Schema) -> Schema:
    return {"type": "object", "nullable": True, "properties": fields, "required": required}


def _list_of(items: Schema) -> Schema:
    return {"type": "array", "nullable": True, "items": {**items, "nullable": False}}


_TEXT: Schema = {"type": "string"}
_AMOUNTS = _object()
_METADATA = _object(ownerReferences=_list_of(_object()))
_AMOUNTS_OF_LIMITS = ("max", "min", "default", "defaultRequest")
_DEVICES = {"deviceClassName": _TEXT, "count": {"type": "integer"}}
_ALTERNATIVE = _object("name", name=_TEXT, **_DEVICES)
_REQUEST = _object(
    "name", name=_TEXT, exactly=_object(**_DEVICES), firstAvailable=_list_of(_ALTERNATIVE)
)
_SHAPES: Mapping[str, Schema] = {
    JOB_SETS.group_kind: _object(
        "spec",
        spec={**_object(), "nullable": False},
        status=_object(
            conditions=_list_of(_object("type", "status", type=_TEXT, status=_TEXT)),
            replicatedJobsStatus=_list_of(_object("name", name=_TEXT)),
        ),
    ),
    LIMIT_RANGES.group_kind: _object(
        spec=_object(limits=_list_of(_object(**dict.fromkeys(_AMOUNTS_OF_LIMITS, _AMOUNTS))))
    ),
    RESOURCE_CLAIM_TEMPLATES.group_kind: _object(
        spec=_object(spec=_object(devices=_object(requests=_list_of(_REQUEST))))
    ),
    RUNTIME_CLASSES.group_kind: _object(overhead=_object(podFixed=_AMOUNTS)),
}


def shape_problems(content: Mapping[str, Any], resource: AnyResource) -> Iterator[Problem]:
    """Yield what planning could not read in an object of another project's kind."""
    shape = _SHAPES.get(resource.group_kind) or _object()
    found = [*misfits(content.get("metadata"), _METADATA, "metadata"), *misfits(content, shape)]
    yield from found
    if not found:
        for path, amounts in _amounts(content, resource):
            yield from _no_quantities(amounts or {}, path)


def _amounts(content: Mapping[str, Any], resource: AnyResource) -> Iterator[tuple[str, Any]]:
    """Yield the fields that contain quantities, with their paths."""
    if resource.group_kind == LIMIT_RANGES.group_kind:
        for index, item in enumerate((content.get("spec") or {}).get("limits") or ()):
            for field in _AMOUNTS_OF_LIMITS:
                yield f"spec.limits[{index}].{field}", item.get(field)
    if resource.group_kind == RUNTIME_CLASSES.group_kind:
        yield "overhead.podFixed", (content.get("overhead") or {}).get("podFixed")


def _no_quantities(amounts: Mapping[str, Any], path: str) -> Iterator[Problem]:
    for name, amount in amounts.items():
        try:
            Quantity.parse(amount)
        except QuantityError as error:
            yield Problem(f"{path}[{name}]", str(error))
