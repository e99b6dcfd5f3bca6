"""Reads of nested fields in documents whose structure is not validated."""

from collections.abc import Mapping
from typing import Any


def mapping_or_empty(value: object) -> Mapping[str, Any]:
    """Return the value if it is a mapping, else an empty mapping."""
    return value if isinstance(value, Mapping) else {}


def nested_field(document: object, *path: str) -> object:
    """Return the value of a nested field; None if a mapping on the path is missing."""
    for name in path:
        document = mapping_or_empty(document).get(name)
    return document
