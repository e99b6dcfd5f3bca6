"""The limits on TrainJobs and runtimes."""

from typing import Any

import pytest

from kftrainer.api import limits
from kftrainer.api.limits import LimitExceededError, LimitProblem, exceeded, size_of, values_in
from kftrainer.api.resources import TRAIN_JOBS
from kftrainer.api.schema.creation import creation_errors
from kftrainer.api.schema.offline import schema_of
from kftrainer.controllers.trainjob.unreadable import readable_part
from kftrainer.kube.objects.resource import Manifest
from tests.support.objects import Object, replicated_job, runtime, train_job


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


def with_jobs(count: int) -> Object:
    return runtime(jobs=[replicated_job(f"job-{n}") for n in range(count)])


def with_containers(count: int) -> Object:
    document = runtime()
    [job] = document["spec"]["template"]["spec"]["replicatedJobs"]
    pod = job["template"]["spec"]["template"]["spec"]
    pod["containers"] = [{"name": f"c{n}"} for n in range(count)]
    return document


@pytest.mark.parametrize(
    ("manifest", "error"),
    [
        (
            train_job(trainer={"args": ["x" * 300_000]}),
            "<root>: Too long: may not be more than 262144 bytes as JSON, and is 300153: "
            "put code and data into an image, a ConfigMap or a volume",
        ),
        (
            train_job(anything=[[1] * 100 for _ in range(60)]),
            "<root>: Too long: may not have more than 3000 fields and items",
        ),
        (
            train_job(
                trainer={
                    "resourcesPerNode": {
                        half: {f"r{n}": "1" for n in range(60)} for half in ("limits", "requests")
                    }
                },
                podTemplateOverrides=[
                    {"spec": {"volumes": [{"name": f"v{n}", "emptyDir": {"sizeLimit": "1"}}]}}
                    for n in range(100)
                ],
            ),
            None,
        ),
        (
            train_job(anything=[{"emptyDir": {"sizeLimit": "1"}} for _ in range(501)]),
            "<root>: Too long: may not have more than 500 resource quantities",
        ),
        (
            train_job(anything=nested(70)),
            "<root>: Too long: may not be nested deeper than 64 levels",
        ),
        (
            train_job(trainer={"env": [{"name": "A"}] * 513}),
            "spec.trainer.env: Too many: 513: must have at most 512 items",
        ),
        (
            train_job(labels={f"a{n}": "b" for n in range(257)}),
            "spec.labels: Too many: 257: must have at most 256 entries",
        ),
        (
            with_jobs(101),
            "spec.template.spec.replicatedJobs: Too many: 101: must have at most 100 items",
        ),
        (
            with_containers(65),
            "spec.template.spec.replicatedJobs[0].template.spec.template.spec.containers: "
            "Too many: 65: must have at most 64 items",
        ),
        (with_jobs(100), None),
        (with_containers(64), None),
        (train_job(trainer={"args": ["x" * 125_000] * 2}), None),
        (train_job(trainer={"env": [{"name": f"A{n}", "value": "b"} for n in range(512)]}), None),
    ],
    ids=range(13),
)
def test_exceeded_limit_is_reported_with_its_field(manifest: Object, error: str | None) -> None:
    found = exceeded(manifest)
    assert (found and str(found)) == error


def test_size_does_not_count_managed_fields_and_status() -> None:
    job = train_job()
    size = size_of(job)
    job["metadata"]["managedFields"] = [{"manager": "x" * 1000}]
    job["status"] = {"conditions": ["x" * 1000]}
    assert size_of(job) == size


def rows(count: int) -> list[Object]:
    numbers = dict.fromkeys(("ready", "succeeded", "failed", "active", "suspended"), 0)
    return [{"name": f"job-{n}", **numbers} for n in range(count)]


def at_the_limit() -> Object:
    """A TrainJob with exactly as many fields and items as it may have."""
    job = train_job(anything=[0])
    job["spec"]["anything"] *= limits.OBJECT_VALUES - values_in(job) + 2  # the name does not count
    return job


def test_object_at_the_limit_has_no_room_for_one_more() -> None:
    job = at_the_limit()
    assert exceeded(job) is None
    job["spec"]["anything"].append(0)
    assert "3000 fields and items" in str(exceeded(job))


CONDITION = {"type": "Failed", "status": "True", "reason": "R", "lastTransitionTime": "T"}


@pytest.mark.parametrize(
    "added",
    [
        {"status": {"jobsStatus": rows(limits.STATUS_ROWS)}},
        {"status": {"conditions": [{**CONDITION, "message": "x" * 32_768}] * 8}},
        {
            "metadata": {
                "uid": "u",
                "resourceVersion": "1",
                "generation": 10**9,
                "creationTimestamp": "2026-01-31T12:00:00Z",
                "deletionTimestamp": "2026-01-31T12:00:00Z",
                "deletionGracePeriodSeconds": 0,
                "finalizers": [f"example.com/{n}" for n in range(20)],
                "ownerReferences": [{"apiVersion": "v1", "kind": "A", "name": "a", "uid": "u"}],
                "managedFields": [{"fieldsV1": {str(n): {} for n in range(20_000)}}],
            }
        },
    ],
    ids=["rows", "messages", "metadata"],
)
def test_content_that_is_added_after_admission_does_not_count(added: Object) -> None:
    job = at_the_limit()
    for part, fields in added.items():
        job[part] = {**job.get(part, {}), **fields}
    assert exceeded(job) is None
    assert size_of(job) == size_of(at_the_limit())


@pytest.mark.parametrize(
    ("added", "error"),
    [
        (
            {"status": {"jobsStatus": rows(limits.STATUS_ROWS + 1)}},
            "status.jobsStatus: Too many: 1001: must have at most 1000 items",
        ),
        (
            {"status": {"anything": [0] * 10_000}},
            "<root>: Too long: may not have more than 10000 fields and items in status and "
            "metadata, without labels and annotations",
        ),
        (
            {"status": {"conditions": [{**CONDITION, "message": "x" * 600_000}]}},
            "<root>: Too long: may not be more than 524288 bytes as JSON in status and metadata, "
            "without labels and annotations, and is 600138",
        ),
        (
            {"status": {"anything": nested(70)}},
            "<root>: Too long: may not be nested deeper than 64 levels",
        ),
        (
            {"metadata": {"finalizers": ["x"] * 10_000}},
            "<root>: Too long: may not have more than 10000 fields and items in status and "
            "metadata, without labels and annotations",
        ),
    ],
    ids=["rows", "values", "bytes", "depth", "finalizers"],
)
def test_status_and_system_metadata_have_limits_of_their_own(added: Object, error: str) -> None:
    assert str(exceeded({**train_job(), **added})) == error


@pytest.mark.parametrize("name", ["status", "managedFields"])
def test_field_of_the_same_name_in_the_spec_counts(name: str) -> None:
    inside = train_job(anything={name: [[0] * 100] * 60})
    assert "3000 fields and items" in str(exceeded(inside))


@pytest.mark.parametrize("part", ["status", "spec"])
def test_walk_stops_at_the_limit(part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a huge part only as many objects and lists are visited as its limit allows."""
    visited = 0
    descend = limits._inner

    def counted(level: list[tuple[str, Any]]) -> list[tuple[str, Any]]:
        nonlocal visited
        found = descend(level)
        visited += len(found)
        return found

    monkeypatch.setattr(limits, "_inner", counted)
    huge = {"a": [{"b": [0] * 500} for _ in range(2_000)]}
    assert exceeded({**train_job(), part: huge}) is not None
    assert visited < limits.SYSTEM_VALUES


def test_admitted_trainjob_with_a_long_status_is_planned() -> None:
    job = at_the_limit()
    job["metadata"] |= {"namespace": "team", "uid": "u"}
    job["status"] = {"jobsStatus": rows(limits.REPLICATED_JOBS)}
    _, problems = readable_part(job)
    assert not any(isinstance(each, LimitProblem) for each in problems)


def test_size_of_a_manifest_with_a_huge_integer_is_computed() -> None:
    assert size_of({"a": 10**30}) == len('{"a":1000000000000000000000000000000}')


def test_object_beyond_a_limit_is_never_decoded() -> None:
    def decode(_manifest: Manifest) -> None:
        raise AssertionError

    with pytest.raises(LimitExceededError) as raised:
        limits.within_limits(decode)(train_job(anything=nested(70)))
    [problem] = raised.value.problems
    assert isinstance(problem, LimitProblem)
    assert str(problem) == "<root>: Too long: may not be nested deeper than 64 levels"


def test_trainjob_beyond_a_limit_is_not_parsed() -> None:
    manifest = train_job(trainer={"numNodes": "no number", "env": [{"name": "A"}] * 513})
    with pytest.raises(LimitExceededError):
        TRAIN_JOBS.decode(manifest)


def fields_of(schema: Any, name: str = "") -> Any:
    """All fields of a schema with their names."""
    yield name, schema
    for field, inner in (schema.get("properties") or {}).items():
        yield from fields_of(inner, field)
    for key in ("items", "additionalProperties"):
        if isinstance(schema.get(key), dict):
            yield from fields_of(schema[key])


@pytest.mark.parametrize("kind", ["TrainJob", "TrainingRuntime", "ClusterTrainingRuntime"])
def test_crds_have_the_limits_of_the_code(kind: str) -> None:
    without_bounds = [
        name
        for name, schema in fields_of(schema_of(kind))
        if (
            schema.get("type") == "array"
            and schema.get("maxItems", 0) > limits.MAX_ITEMS.get(name, 10**9)
        )
        or (schema.get("type") == "array" and name in limits.MAX_ITEMS and "maxItems" not in schema)
        or (
            "additionalProperties" in schema
            and name in limits.MAX_PROPERTIES
            and schema.get("maxProperties") != limits.MAX_PROPERTIES[name]
        )
    ]
    assert without_bounds == []


@pytest.mark.parametrize("kind", ["TrainJob", "TrainingRuntime", "ClusterTrainingRuntime"])
def test_crds_bound_every_text_list_and_map(kind: str) -> None:
    """Without the webhook the schema alone limits what is stored."""
    schema = schema_of(kind)["properties"]
    unbounded = [
        name
        for part in ("spec", "status")
        for name, each in fields_of(schema.get(part, {}))
        if (each.get("type") == "array" and "maxItems" not in each)
        or ("additionalProperties" in each and "maxProperties" not in each)
        or (
            (each.get("type") == "string" or each.get("x-kubernetes-int-or-string"))
            and not each.keys() & {"maxLength", "enum"}
        )
    ]
    assert unbounded == []


@pytest.mark.parametrize(
    ("text", "accepted"),
    [("x" * 131_072, True), ("x" * 131_073, False), ("é" * 120_000, True)],
    ids=["longest", "too long", "characters, not bytes"],
)
def test_text_may_be_as_long_as_linux_accepts_an_argument(text: str, accepted: bool) -> None:
    errors = [str(error) for error in creation_errors(train_job(trainer={"args": [text]}))]
    detail = "must have at most 131072 characters, and has 131073"
    assert errors == ([] if accepted else [f"spec.trainer.args[0]: Too long: {detail}"])


def test_value_of_an_annotation_may_be_as_long_as_the_api_server_accepts() -> None:
    job = train_job(annotations={"a": "x" * 200_000})
    assert creation_errors(job) == []


def test_manifest_beyond_the_size_has_no_other_errors() -> None:
    [error] = creation_errors(train_job(trainer={"numNodes": "x", "args": ["x" * 300_000]}))
    assert error.path == "<root>"


def test_limit_that_no_schema_has_is_reported_for_files() -> None:
    job = train_job()
    job["metadata"]["labels"] = {f"a{n}": "b" for n in range(300)}
    assert [str(error) for error in creation_errors(job)] == [
        "metadata.labels: Too many: 300: must have at most 256 entries"
    ]
