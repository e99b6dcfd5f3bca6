"""Merge keys of a PodTemplateSpec for strategic merge patches, from Kubernetes' schema."""

from typing import Any

ROOT = "io.k8s.api.core.v1.PodTemplateSpec"
REFERENCE = "#/$defs/"

Definitions = dict[str, dict[str, Any]]
Table = dict[str, dict[str, dict[str, Any]]]


def table(definitions: Definitions) -> Table:
    """Return, for each type below PodTemplateSpec, the fields with a merge strategy.

    By default, objects are merged field by field and lists are replaced. An entry contains the
    strategy of a list (`list`: merged by `mergeKey` or, for scalars, as a set) or of an object
    (`retainKeys`), or the `type` that has such fields.
    """
    found: Table = {}
    _collect(ROOT, definitions, found)
    while redundant := _redundant(found):
        found = {
            name: {key: entry for key, entry in fields.items() if (name, key) not in redundant}
            for name, fields in found.items()
        }
    named = {_short(name): fields for name, fields in sorted(found.items()) if fields}
    known = set(named)
    for fields in named.values():
        for entry in fields.values():
            if entry.get("type") not in known:
                entry.pop("type", None)
    return named


def _redundant(found: Table) -> set[tuple[str, str]]:
    """Return the fields below which no field has a merge strategy."""
    special = {_short(name) for name, fields in found.items() if fields}
    return {
        (name, key)
        for name, fields in found.items()
        for key, entry in fields.items()
        if entry.keys() == {"type"} and entry["type"] not in special
    }


def _collect(name: str, definitions: Definitions, found: Table) -> None:
    if name in found:
        return
    found[name] = {}
    for field, schema in sorted(definitions[name].get("properties", {}).items()):
        target = _reference(schema) or _reference(schema.get("items", {}))
        strategies = schema.get("x-kubernetes-patch-strategy", "").split(",")
        merged_list = "items" in schema and "merge" in strategies
        if target is not None and ("items" not in schema or merged_list):
            _collect(target, definitions, found)
        entry = _entry(schema, target, strategies, merged_list=merged_list)
        if entry:
            found[name][field] = entry


def _entry(
    schema: dict[str, Any], target: str | None, strategies: list[str], *, merged_list: bool
) -> dict[str, Any]:
    entry: dict[str, Any] = {}
    if target is not None and ("items" not in schema or merged_list):
        entry["type"] = _short(target)
    if merged_list:
        entry["list"] = True
        if key := schema.get("x-kubernetes-patch-merge-key"):
            entry["mergeKey"] = key
    if "retainKeys" in strategies:
        entry["retainKeys"] = True
    return entry


def _reference(schema: dict[str, Any]) -> str | None:
    reference = schema.get("$ref", "")
    return reference.removeprefix(REFERENCE) if reference.startswith(REFERENCE) else None


def _short(name: str) -> str:
    return name.rpartition(".")[2]
