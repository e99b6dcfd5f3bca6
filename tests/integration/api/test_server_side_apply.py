"""Server-side apply of an object that loses its last field: `{}` stays, and means something."""

from collections.abc import Iterator
from typing import Any

import pytest

from kftrainer.api.schema.offline import schema_of, with_defaults
from kftrainer.devcluster.client import ApiClient
from kftrainer.kube.schema.defaulting import Schema
from tests.support.objects import Object, runtime, train_job

# The API server computes null for an object that loses its last field, and rejects that, unless
# the object is atomic. These objects stay granular, so that several managers can own parts of
# them; {} says nothing there that cannot be said by leaving the object out, or by `numNodes: 1`.
GRANULAR = frozenset(
    {
        "spec.initializer",
        "spec.initializer.dataset",
        "spec.initializer.model",
        "spec.labels",
        "spec.annotations",
        "spec.trainer",
        "spec.mlPolicy",
        "spec.podGroupPolicy",
        "spec.template.metadata",
        "spec.template.metadata.labels",
        "spec.template.metadata.annotations",
    }
)
ATOMIC = frozenset(
    {
        "spec.mlPolicy.torch",
        "spec.mlPolicy.mpi",
        "spec.podGroupPolicy.coscheduling",
        "spec.podGroupPolicy.volcano",
        "spec.podGroupPolicy.volcano.networkTopology",
    }
)

# Parts of an object that is applied as a whole.
INSIDE_ATOMIC = frozenset({"spec.mlPolicy.torch.envInjection"})


def optional_objects(schema: Schema, path: str) -> Iterator[tuple[str, Schema]]:
    """Objects of our own types that may be empty, outside of lists."""
    for name, each in (schema.get("properties") or {}).items():
        where = f"{path}.{name}"
        if each.get("type") != "object" or "description" not in each or is_rejected(each):
            continue  # those of Kubernetes and JobSet have no description
        if not each.get("required") and not each.get("minProperties"):
            yield where, each
        yield from optional_objects(each, where)


def is_rejected(schema: Schema) -> bool:
    rules = schema.get("x-kubernetes-validations", ())
    return any(rule.get("reason") == "FieldValueForbidden" for rule in rules)


FOUND = {
    path: (kind, schema)
    for kind in ("TrainJob", "TrainingRuntime")
    for path, schema in optional_objects(schema_of(kind)["properties"]["spec"], "spec")
    if not path.startswith(("spec.template.spec", "spec.trainer.", "spec.runtimeRef"))
    and not path.endswith(".secretRef")
}


def examples(schema: Schema) -> Iterator[Object]:
    """Objects with one field each that is valid and not the default."""
    for name, each in schema["properties"].items():
        if is_rejected(each):
            continue
        if "enum" in each:
            yield from ({name: value} for value in each["enum"] if value != each.get("default"))
        elif each.get("x-kubernetes-int-or-string") or each["type"] == "integer":
            yield {name: 7}
        else:
            yield {name: {"string": "/x", "boolean": True, "object": {}}[each["type"]]}


CASES = [
    pytest.param(path, value, id=f"{path}: {value}")
    for path in sorted(ATOMIC)
    for value in examples(FOUND[path][1])
]


def document(kind: str, path: str, value: Object, namespace: str) -> Object:
    base = train_job("applied") if kind == "TrainJob" else runtime("applied")
    base["metadata"]["namespace"] = namespace
    if path.startswith(("spec.mlPolicy", "spec.podGroupPolicy")):
        base["spec"].pop("mlPolicy")
    *above, last = path.split(".")
    place = base
    for step in above:
        place = place.setdefault(step, {})
    place[last] = value
    return base


def value_at(document: Any, path: str) -> Any:
    for step in path.split("."):
        document = document[step]
    return document


def test_every_object_that_may_be_empty_is_listed() -> None:
    assert set(FOUND) == GRANULAR | ATOMIC | INSIDE_ATOMIC


@pytest.mark.parametrize(("path", "value"), CASES)
async def test_policy_that_loses_its_last_field_by_apply_is_empty(
    api: ApiClient, namespace: str, path: str, value: Object
) -> None:
    for each in (value, {}, value):
        wanted = document(FOUND[path][0], path, each, namespace)
        applied = await api.apply(wanted)
        assert value_at(applied, path) == value_at(with_defaults(wanted), path)


async def test_torch_policy_can_lose_its_processes_by_apply(api: ApiClient, namespace: str) -> None:
    before = runtime("torch", mlPolicy={"torch": {"numProcPerNode": "auto"}})
    before["metadata"]["namespace"] = namespace
    await api.apply(before)
    before["spec"]["mlPolicy"] = {"torch": {}}
    assert (await api.apply(before))["spec"]["mlPolicy"] == {"torch": {}}
