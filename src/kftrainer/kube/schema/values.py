"""Validation of values against a CRD's schema: bounds, patterns and uniqueness."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from typing import Any

import orjson

from kftrainer.kube.objects.field_errors import ErrorType, FieldError, invalid
from kftrainer.kube.schema.defaulting import Schema

QUANTITY = (
    r"^(\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))"
    r"(([KMGTPE]i)|[numkMGTPE]|([eE](\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))))?$"
)
# Patterns with a better-known description.
_KNOWN_PATTERNS = {QUANTITY: "be a quantity such as 2, 500m or 1.5Gi"}
_RANGES = {"int32": (-(2**31), 2**31 - 1), "int64": (-(2**63), 2**63 - 1)}
TIME = re.compile(
    r"\d{4}-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])[Tt]([01]\d|2[0-3]):[0-5]\d:[0-5]\d(\.\d+)?"
    r"([Zz]|[+-]([01]\d|2[0-3]):[0-5]\d)",
    re.ASCII,
)


def bound_errors(value: Any, schema: Schema, path: str) -> Iterator[FieldError]:
    """Yield the errors of this value itself, without those of its children."""
    allowed = schema.get("enum")
    if allowed and value not in allowed:
        shown = ", ".join(each or '""' if isinstance(each, str) else str(each) for each in allowed)
        yield FieldError(path, ErrorType.NOT_SUPPORTED, f"must be one of {shown}", value)
    if isinstance(value, str):
        yield from _errors_of_text(value, schema, path)
    elif isinstance(value, list):
        yield from _errors_of_list(value, schema, path)
    elif isinstance(value, Mapping):
        yield from _errors_of_size(value, schema, path)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield from _errors_of_number(value, schema, path)


def many(count: int, noun: str) -> str:
    """Return a count with its noun, such as "2 items"."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _errors_of_text(value: str, schema: Schema, path: str) -> Iterator[FieldError]:
    least, most = schema.get("minLength", 0), schema.get("maxLength")
    if len(value) < least:
        detail = f"have at least {many(least, 'character')}" if value else "not be empty"
        yield invalid(path, value, f"must {detail}")
    if most is not None and len(value) > most:
        detail = f"must have at most {many(most, 'character')}, and has {len(value)}"
        yield FieldError(path, ErrorType.TOO_LONG, detail, value)
    pattern = schema.get("pattern")
    if pattern is not None and not _compiled(pattern).search(value):
        yield invalid(path, value, f"must {_KNOWN_PATTERNS.get(pattern, f'match {pattern}')}")
    if schema.get("format") == "date-time" and not TIME.fullmatch(value):
        yield invalid(path, value, "must be a time such as 2026-01-31T12:00:00Z")


@cache
def _compiled(pattern: str) -> re.Pattern[str]:
    """Compile a pattern with Go's rules: $ is the end of the text, digits are ASCII."""
    if pattern.endswith("$") and not pattern.endswith(r"\$"):
        pattern = pattern[:-1] + r"\Z"
    return re.compile(pattern, re.ASCII)


def _errors_of_number(value: float, schema: Schema, path: str) -> Iterator[FieldError]:
    # The API server checks the range of a format only since Kubernetes 1.36.
    lowest, highest = _RANGES.get(schema.get("format", ""), (None, None))
    least, most = schema.get("minimum", lowest), schema.get("maximum", highest)
    if least is not None and value < least:
        yield invalid(path, value, f"must be at least {least}")
    if most is not None and value > most:
        yield invalid(path, value, f"must be at most {most}")


def _errors_of_count(
    value: Mapping[str, Any] | list[Any], least: int, most: int | None, unit: str, path: str
) -> Iterator[FieldError]:
    if len(value) < least:
        yield invalid(path, value, f"must have at least {many(least, unit)}")
    if most is not None and len(value) > most:
        detail = f"must have at most {many(most, unit)}"
        yield FieldError(path, ErrorType.TOO_MANY, detail, len(value))


def _errors_of_size(value: Mapping[str, Any], schema: Schema, path: str) -> Iterator[FieldError]:
    least, most = schema.get("minProperties", 0), schema.get("maxProperties")
    yield from _errors_of_count(value, least, most, "field", path)


def _errors_of_list(value: list[Any], schema: Schema, path: str) -> Iterator[FieldError]:
    least, most = schema.get("minItems", 0), schema.get("maxItems")
    yield from _errors_of_count(value, least, most, "item", path)
    kind = schema.get("x-kubernetes-list-type")
    if kind == "set":
        yield from _twins(enumerate(value), path, "is already in the list")
    elif kind == "map":
        yield from _twins_by_key(value, schema["x-kubernetes-list-map-keys"], path)


def _twins_by_key(items: list[Any], keys: list[str], path: str) -> Iterator[FieldError]:
    """Yield items with equal keys; not checked if an item has the wrong type."""
    if not all(item is None or isinstance(item, Mapping) for item in items):
        return
    found: dict[int, Any] = {
        index: {key: item[key] for key in keys if key in item}
        for index, item in enumerate(items)
        if item is not None
    }
    if len(keys) == 1:
        found = {index: each.get(keys[0]) for index, each in found.items()}
    yield from _twins(found.items(), path, f"is already the {' and '.join(keys)} of another item")


def _twins(items: Iterable[tuple[int, Any]], path: str, detail: str) -> Iterator[FieldError]:
    """Yield the second occurrence of each duplicate."""
    seen = Counter[bytes]()
    for index, item in items:
        encoded = orjson.dumps(item, option=orjson.OPT_SORT_KEYS)
        seen[encoded] += 1
        if seen[encoded] == 2:  # noqa: PLR2004
            yield FieldError(f"{path}[{index}]", ErrorType.DUPLICATE, detail, item)
