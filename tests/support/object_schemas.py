"""Validates objects with Kubernetes' OpenAPI definitions, including unknown fields."""

import re
from functools import cache
from typing import Any

from jsonschema import Draft202012Validator
from kubernetes_validate.utils import schema_contents
from referencing import Registry, Resource

OLDEST, NEWEST = "1.31.0", "1.37.0"  # that the chart is for, and that is known


class UnknownKindError(Exception):
    """Kubernetes itself has no such kind."""


def problems_of(manifest: dict[str, Any], version: str = NEWEST) -> list[str]:
    """Return the errors of the object; raises UnknownKindError for other kinds."""
    validator = _validator(manifest["apiVersion"], manifest["kind"], version)
    return [f"{error.json_path}: {error.message}" for error in validator.iter_errors(manifest)]


@cache
def _validator(api_version: str, kind: str, version: str) -> Draft202012Validator:
    group = re.sub(r"^([^./]*)(\.[^/]*)?/", r"\1-", api_version)
    folder = f"kubernetes-json-schema/v{version}-local-strict"
    try:
        schema = schema_contents(f"{folder}/{kind.lower()}-{group}.json", version)
    except FileNotFoundError:
        raise UnknownKindError(f"{api_version} {kind}") from None
    registry = Resource.from_contents(schema) @ _definitions(folder, version)
    return Draft202012Validator(schema, registry=registry)


@cache
def _definitions(folder: str, version: str) -> "Registry[Any]":
    contents = schema_contents(f"{folder}/_definitions.json", version)
    return Resource.from_contents(contents) @ Registry()
