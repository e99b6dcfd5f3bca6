"""The limits on TrainJobs and runtimes."""

from typing import Any

import pytest

from kftrainer.api import limits
from kftrainer.api.creation import creation_errors
from kftrainer.api.defaults import schema_of
from kftrainer.api.limits import LimitExceededError, LimitProblem, exceeded, size_of
from kftrainer.api.resources import TRAIN_JOBS
from kftrainer.kube.resource import Manifest
from tests.support.objects import Object, replicated_job, runtime, train_job


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


def with_jobs(count: int) -> Object:
    return runtime(jobs=[replicated_job(f"job-{n}") for n in range(count)])


def with_containers(count: int) -> Object:
    made = runtime()
    [job] = made["spec"]["template"]["spec"]["replicatedJobs"]
    pod = job["template"]["spec"]["template"]["spec"]
    pod["containers"] = [{"name": f"c{n}"} for n in range(count)]
    return made


@pytest.mark.parametrize(
    ("manifest", "error"),
    [
        (
            train_job(trainer={"args": ["x" * 300_000]}),
            "<root>: Too long: may not be more than 262144 bytes as JSON, and is 300165",
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
        (train_job(trainer={"args": ["x" * 250_000]}), None),
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


def test_size_of_a_manifest_with_a_huge_integer_is_known() -> None:
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
    looser = [
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
    assert looser == []


def test_manifest_beyond_the_size_has_no_other_errors() -> None:
    [error] = creation_errors(train_job(trainer={"numNodes": "x", "args": ["x" * 300_000]}))
    assert error.path == "<root>"


def test_limit_that_no_schema_has_is_reported_for_files() -> None:
    job = train_job()
    job["metadata"]["labels"] = {f"a{n}": "b" for n in range(300)}
    assert [str(error) for error in creation_errors(job)] == [
        "metadata.labels: Too many: 300: must have at most 256 entries"
    ]
