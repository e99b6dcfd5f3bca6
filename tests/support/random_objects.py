"""TrainJobs and runtimes with random, mostly invalid changes."""

import copy
import random
from collections.abc import Callable, Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

from kftrainer.api.schema.offline import schema_of
from kftrainer.kube.schema.defaulting import Schema, schema_of_field
from kftrainer.kube.schema.metadata import METADATA
from tests.support.golden import CASES, read
from tests.support.objects import Object, replicated_job, runtime, train_job
from tests.support.other_releases import KUEUE_ADMISSION, KUEUE_ENTRY, SDK_PATCH, UNSERVED
from tests.support.runtimes import SHIPPED

DEMO = Path(__file__).parent.parent.parent / "hack" / "demo"
OURS = ("TrainJob", "TrainingRuntime", "ClusterTrainingRuntime")
MALFORMED_VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 1.0, 1.5, 2**31, 2**40, 1e19, -(2**40)),
    *("", "x", "1", "1Gi", "1 Gi", "-", "A_b", "a.b/c", "x\n", "ü", "x" * 64, "x" * 5000),
    *([], [None], ["x", "x"], [{}], {}, {"a": None}, {"a": 1}, {"a": "b"}, {"name": "x"}),
)
PLAUSIBLE_VALUES: dict[object, tuple[Any, ...]] = {
    "int or string": (1, "1Gi", "500m", "1e3", "x", "50%", "", 2**40),
    "string": (*("x", "y", "", "Always", "2026-01-01T00:00:00Z", "a.b/c", "1Gi"), "x" * 700),
    "integer": (0, 1, 2, -1, 600, 1.0, 2**31 - 1, 2**31, 2**63 - 1),
    "boolean": (True, False),
}
NAMES = ("", "a", "1st", "a.b", "A", "a_b", "-a", "a-", "x" * 63, "x" * 64, "x" * 254, "ü", "a\n")
KEYS = ("a", "a/b", "/b", "a/", "a/b/c", "A/b", "a_b", "a b", "-", "x" * 64, "é", "x.y/z", "")
Place = tuple[Any, Any, Schema | None]  # what it is in, the field or index, and its schema
Mutator = Callable[[Object, random.Random], None]


def corpus() -> list[Object]:
    """Documents that the API server accepts."""
    golden = (document for case in CASES for document in case.documents)
    demo = (document for file in sorted(DEMO.glob("*.yaml")) for document in read(file))
    small = (train_job(), runtime(), runtime(kind="ClusterTrainingRuntime"))
    found = (*golden, *demo, *SHIPPED, *small)
    return [_bare(document) for document in found if document["kind"] in OURS]


def _bare(document: Object) -> Object:
    """A copy that is in no namespace yet, and has no status."""
    bare = {key: value for key, value in copy.deepcopy(document).items() if key != "status"}
    bare["metadata"].pop("namespace", None)
    return bare


def mutants(seed: int, count: int) -> Iterator[tuple[str, Object]]:
    """A number of documents with one or two changes each, and the descriptions of these."""
    rng = random.Random(seed)  # noqa: S311  the same each time
    good = corpus()
    for _ in range(count):
        mutant = copy.deepcopy(rng.choice(good))
        done = rng.choices(MUTATORS, k=rng.choice((1, 1, 1, 2)))
        for mutate in done:
            mutate(mutant, rng)
        yield "+".join(mutate.__name__ for mutate in done), mutant


def malformed_value(rng: random.Random) -> Any:
    """Return a copy of an odd value: a document may have several, and is changed further."""
    return copy.deepcopy(rng.choice(MALFORMED_VALUES))


def drop(document: Object, rng: random.Random) -> None:
    """Leave a field or an item out."""
    if found := [*places(document)]:
        inside, key, _ = rng.choice(found)
        del inside[key]


def replace(document: Object, rng: random.Random) -> None:
    """Put something odd in the place of a value."""
    if found := [*places(document)]:
        inside, key, _ = rng.choice(found)
        inside[key] = malformed_value(rng)


def repeat(document: Object, rng: random.Random) -> None:
    """Have an item of a list twice."""
    lists = [inside[key] for inside, key, _ in places(document) if isinstance(inside[key], list)]
    items = rng.choice([each for each in lists if each] or [[]])
    if items:
        items.append(copy.deepcopy(rng.choice(items)))


def add_unknown(document: Object, rng: random.Random) -> None:
    """Add an unknown field, or one that is known elsewhere."""
    objects = [inside[key] for inside, key, _ in places(document) if isinstance(inside[key], dict)]
    rng.choice([document, *objects])[rng.choice(("nonesuch", "name", "spec"))] = "x"


def grow(document: Object, rng: random.Random) -> None:
    """Add a field of the schema with a value that may be valid."""
    candidates: list[tuple[Object, str, Schema]] = []
    for inside, key, schema in places(document):
        object_metadata = inside[key]
        if isinstance(object_metadata, dict) and schema is not None and schema is not METADATA:
            properties = schema.get("properties") or {}
            candidates += [(object_metadata, name, each) for name, each in properties.items()]
    missing = [each for each in candidates if each[1] not in each[0]]
    if missing:
        object_metadata, name, schema = rng.choice(missing)
        object_metadata[name] = generated_value(schema, rng)


def metadata(document: Object, rng: random.Random) -> None:
    """Change the name, the labels or what else is there."""
    object_metadata = document.get("metadata")
    if not isinstance(object_metadata, dict):
        return
    owner = {"apiVersion": "v1", "kind": "Pod", "name": "x", "uid": "u", "controller": True}
    change: Object = rng.choice(
        (
            {"name": rng.choice(NAMES)},
            {"name": None, "generateName": rng.choice((*NAMES, "a-", "a.-"))},
            {"labels": {rng.choice(KEYS): rng.choice(("", *NAMES))}},
            {"annotations": {rng.choice(KEYS): rng.choice(NAMES)}},
            {"finalizers": [rng.choice(KEYS)]},
            {"ownerReferences": [owner, {**owner, rng.choice(tuple(owner)): None}]},
            {rng.choice(tuple(METADATA["properties"])): malformed_value(rng)},
        )
    )
    change.pop("namespace", None)  # it must be that of the request
    change.pop("resourceVersion", None)  # it must not be there
    object_metadata |= change


def break_rule(document: Object, rng: random.Random) -> None:
    """Make a change that only a CEL rule may reject."""
    spec = document.get("spec")
    if isinstance(spec, dict):
        of_train_job = document["kind"] == "TrainJob"
        spec |= (_malformed_train_job if of_train_job else _malformed_runtime)(rng)


def _malformed_train_job(rng: random.Random) -> Object:
    target = {"targetJobs": [{"name": "node"}]}
    identity: Object = {rng.choice(("name", "namespace", "labels")): "x"}
    processes = rng.choice((0, 1, "auto", "4", 2.0))
    changes: list[Object] = [
        {"podTemplateOverrides": [target], "podSpecOverrides": rng.choice(([target], []))},
        {"podTemplateOverrides": [{**target, "metadata": identity}]},
        {"podTemplateOverrides": [{**target, "metadata": {"finalizers": []}}]},
        {"managedBy": rng.choice(("me", "kueue.x-k8s.io/multikueue"))},
        {"trainer": {"numProcPerNode": processes}},
        *(copy.deepcopy(case.spec) for case in UNSERVED if case.kind == "TrainJob"),
        {
            "runtimePatches": deepcopy(
                rng.choice(([KUEUE_ENTRY], [KUEUE_ENTRY, KUEUE_ENTRY], [{}], None))
            )
        },
        {"runtimePatches": copy.deepcopy([KUEUE_ADMISSION, SDK_PATCH])},
    ]
    return rng.choice(changes)


def _malformed_runtime(rng: random.Random) -> Object:
    node = {**replicated_job(), "dependsOn": [{"name": "x", "status": "Ready"}]}
    order = {"startupPolicyOrder": rng.choice(("InOrder", "AnyOrder"))}
    named = rng.choice(({}, {"metadata": {"namespace": rng.choice(("", "x"))}}))
    claims = {"volumeClaimPolicies": [{"templates": [{"spec": {}, **named}]}]}
    jobs = rng.choice(({"replicatedJobs": [node]}, {}))
    changes: list[Object] = [
        {"mlPolicy": {"torch": {}, "mpi": {}}},
        {"mlPolicy": {"torch": {"numProcPerNode": rng.choice((0, 1, "auto", "4", 2.0))}}},
        {"podGroupPolicy": {"coscheduling": {}, "volcano": {}}},
        {"template": {"metadata": {"name": "x"}, "spec": jobs}},
        {"template": {"spec": {"startupPolicy": order, **jobs}}},
        {"template": {"spec": {**claims, **jobs}}},
        *(copy.deepcopy(case.spec) for case in UNSERVED if case.kind != "TrainJob"),
    ]
    return rng.choice(changes)


MUTATORS: tuple[Mutator, ...] = (
    *(drop, replace, replace, replace, repeat, add_unknown),
    *(grow, grow, grow, metadata, metadata, break_rule),
)


def places(document: Object) -> Iterator[Place]:
    """Everything in a document that could be changed, with its schema."""
    schema = schema_of(document["kind"])
    for field in ("metadata", "spec"):
        if field in document:
            inner = METADATA if field == "metadata" else schema_of_field(schema, field)
            yield document, field, inner
            yield from _within(document[field], inner)


def _within(value: Any, schema: Schema | None) -> Iterator[Place]:
    keys = value if isinstance(value, dict) else range(len(value) if isinstance(value, list) else 0)
    for key in keys:
        if key == "namespace" and schema is METADATA:
            continue
        inner = None
        if schema is not None:
            inner = schema_of_field(schema, key) if isinstance(key, str) else schema.get("items")
        yield value, key, inner
        yield from _within(value[key], inner)


def generated_value(schema: Schema, rng: random.Random, depth: int = 0) -> Any:
    """A value that usually matches the schema."""
    if rng.random() < 0.05:
        return malformed_value(rng)
    if schema.get("enum"):
        return rng.choice([*schema["enum"], "nonesuch"])
    kind = "int or string" if schema.get("x-kubernetes-int-or-string") else schema.get("type")
    if kind == "object":
        return _generated_object(schema, rng, depth)
    if kind == "array":
        few = range(rng.choice((0, 1, 1, 2, 2, 9) if depth < 4 else (0, 1)))
        return [generated_value(schema["items"], rng, depth + 1) for _ in few]
    return copy.deepcopy(rng.choice(PLAUSIBLE_VALUES.get(kind, MALFORMED_VALUES)))


def _generated_object(schema: Schema, rng: random.Random, depth: int) -> Object:
    properties = schema.get("properties") or {}
    required = [name for name in schema.get("required") or () if rng.random() < 0.97]
    most = rng.choice((0, 1, 2, 3)) if depth < 6 else 0
    others = rng.sample([*properties], min(len(properties), most))
    fields = dict.fromkeys((*required, *others))
    value = {name: generated_value(properties[name], rng, depth + 1) for name in fields}
    if isinstance(of_any_name := schema.get("additionalProperties"), dict):
        value[rng.choice(("a", "b.c/d", "e f"))] = generated_value(of_any_name, rng, depth + 1)
    return value
