"""The form in which TrainJobs are stored, and the times of their patches."""

import copy
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kftrainer.api import limits
from kftrainer.api.resources import TRAIN_JOBS
from kftrainer.api.schema.creation import creation_errors
from kftrainer.api.schema.offline import schema_of, stored
from kftrainer.api.trainjob import TrainJob
from kftrainer.kube.objects.model import InvalidDocumentError
from kftrainer.kube.schema.defaulting import Schema
from kftrainer.runtime import canonical_form
from kftrainer.runtime.canonical_form import canonical_train_job
from kftrainer.runtime.cluster_reader import GivenObjects
from tests.support.go_clients import is_map, is_quantity, written_by_go
from tests.support.objects import Object, train_job
from tests.support.other_releases import KUEUE_ENTRY
from tests.support.plans import RUNTIMES
from tests.support.random_objects import mutants
from tests.support.runtimes import SHIPPED

NOW = datetime(2026, 5, 4, 3, 2, 1, 999_999, UTC)
STAMP, EARLIER, LATER = "2026-05-04T03:02:01Z", "2026-01-01T00:00:00Z", "2030-01-01T00:00:00Z"
MANAGER = "example.com/me"


def form(new: Object, old: Object | None = None) -> Any:
    """The spec in canonical form; the input must not change."""
    before = copy.deepcopy((old, new))
    result = canonical_train_job(old, new, NOW)
    assert (old, new) == before
    return result["spec"]


def of_trainer(**fields: Any) -> Any:
    return form(train_job(trainer=fields))["trainer"]


@pytest.mark.parametrize(
    ("given_", "expected"),
    [
        (4, "4"),
        (4.0, "4"),
        (0.5, "500m"),
        (1.5, "1500m"),
        (0, "0"),
        ("4", "4"),
        ("1000m", "1"),
        ("0.5", "500m"),
        ("1024Mi", "1Gi"),
        ("1.5Gi", "1536Mi"),
        ("1e3", "1e3"),
        (" 2 ", "2"),
        (-1, -1),
        ("-1", "-1"),
        ("much", "much"),
        (True, True),
        (None, None),
        (1e30, 1e30),
        ([], []),
        ({"a": 1}, {"a": 1}),
    ],
)
def test_quantities_become_strings_unless_invalid(given_: Any, expected: Any) -> None:
    resources = {"limits": {"cpu": given_}, "requests": {"memory": given_}}
    changed = of_trainer(resourcesPerNode=resources)["resourcesPerNode"]
    found = [changed["limits"]["cpu"], changed["requests"]["memory"]]
    assert found == [expected, expected]
    assert {type(each) for each in found} == {type(expected)}


POD = {
    "volumes": [
        {"name": "a", "emptyDir": {"sizeLimit": 1024}},
        {
            "name": "b",
            "ephemeral": {
                "volumeClaimTemplate": {
                    "spec": {"accessModes": [], "resources": {"requests": {"storage": 5.0}}}
                }
            },
        },
        {"name": "c", "projected": {"sources": []}},
        {"name": "d", "emptyDir": {}},
    ],
    "containers": [
        {
            "name": "node",
            "env": [
                {"name": "A", "value": ""},
                {"name": "B", "valueFrom": {"resourceFieldRef": {"divisor": 1.0}}},
            ],
            "volumeMounts": [],
        }
    ],
    "nodeSelector": {},
    "tolerations": [],
}
POD_FORM = {
    "volumes": [
        {"name": "a", "emptyDir": {"sizeLimit": "1024"}},
        {
            "name": "b",
            "ephemeral": {
                "volumeClaimTemplate": {"spec": {"resources": {"requests": {"storage": "5"}}}}
            },
        },
        {"name": "c", "projected": {"sources": []}},
        {"name": "d", "emptyDir": {}},
    ],
    "containers": [
        {
            "name": "node",
            "env": [
                {"name": "A", "value": ""},
                {"name": "B", "valueFrom": {"resourceFieldRef": {"divisor": "1"}}},
            ],
        }
    ],
}


def patch(spec: Object, **fields: Any) -> Object:
    """A patch of the pods of a job."""
    job = {"name": "node", "template": {"spec": {"template": {"spec": spec}}}}
    runtime = {"template": {"spec": {"replicatedJobs": [job]}}}
    return {"manager": MANAGER, "time": EARLIER, "trainingRuntimeSpec": runtime, **fields}


def test_overrides_and_patches_get_the_canonical_form() -> None:
    def job(spec: Object) -> Object:
        targets = [{"name": "node"}]
        return train_job(
            podTemplateOverrides=[{"targetJobs": targets, "spec": spec}],
            podSpecOverrides=[{"targetJobs": targets, **spec}],
            runtimePatches=[patch(spec)],
        )

    assert form(job(POD)) == job(POD_FORM)["spec"]


def test_empty_lists_and_maps_are_removed_and_nothing_is_added() -> None:
    job = train_job(
        trainer={"command": [], "args": [], "env": [], "resourcesPerNode": {"limits": {}}},
        initializer={"dataset": {"env": []}, "model": {}},
        labels={},
        annotations={},
        podTemplateOverrides=[],
        runtimePatches=[],
    )
    assert form(job) == {
        **train_job()["spec"],
        "trainer": {"resourcesPerNode": {}},
        "initializer": {"dataset": {}, "model": {}},
    }


def test_required_empty_lists_are_kept() -> None:
    terms = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": []}}
    override = {"targetJobs": [], "spec": {"affinity": {"nodeAffinity": terms}}}
    job = train_job(podTemplateOverrides=[override])
    assert form(job) is job["spec"]


def test_entry_of_kueue_keeps_its_empty_object() -> None:
    [entry] = form(train_job(runtimePatches=[KUEUE_ENTRY]))["runtimePatches"]
    assert entry == {**KUEUE_ENTRY, "time": STAMP}


def test_metadata_and_status_are_not_changed() -> None:
    job = {**train_job(), "status": {"conditions": []}}
    job["metadata"] |= {"labels": {}, "finalizers": []}
    assert canonical_train_job(None, job, NOW) is job


SAME: Object = {"nodeSelector": {"a": "b"}}
OTHER: Object = {"nodeSelector": {"a": "c"}}
MISSING = object()


def with_time(spec: Object, time: object) -> Object:
    """A patch with this time, or without one."""
    fields = patch(spec)
    del fields["time"]
    return fields if time is MISSING else {**fields, "time": time}


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        # create, time absent: now
        (None, (SAME, MISSING), STAMP),
        (None, (SAME, None), STAMP),
        # create, time given: kept
        (None, (SAME, LATER), LATER),
        # update, same content: the old time, whatever the request has
        ((SAME, EARLIER), (SAME, EARLIER), EARLIER),
        ((SAME, EARLIER), (SAME, LATER), EARLIER),
        ((SAME, EARLIER), (SAME, None), EARLIER),
        ((SAME, EARLIER), (SAME, MISSING), EARLIER),
        ((SAME, MISSING), (SAME, LATER), MISSING),
        ((SAME, MISSING), (SAME, MISSING), MISSING),
        # update, changed content: now, even if the request has a time
        ((SAME, EARLIER), (OTHER, MISSING), STAMP),
        ((SAME, EARLIER), (OTHER, EARLIER), STAMP),
        ((SAME, EARLIER), (OTHER, LATER), STAMP),
        ((SAME, MISSING), (OTHER, None), STAMP),
    ],
)
def test_time_of_a_patch(
    old: tuple[Object, object] | None, new: tuple[Object, object], expected: object
) -> None:
    before = None if old is None else train_job(runtimePatches=[with_time(*old)])
    [entry] = form(train_job(runtimePatches=[with_time(*new)], suspend=True), before)[
        "runtimePatches"
    ]
    assert entry.get("time", MISSING) == expected


@pytest.mark.parametrize(("time", "expected"), [(MISSING, STAMP), (None, STAMP), (LATER, LATER)])
def test_time_of_a_patch_of_a_new_manager(time: object, expected: str) -> None:
    old = patch(SAME, manager="example.com/other")
    [first, second] = form(
        train_job(runtimePatches=[with_time(SAME, time), old]), train_job(runtimePatches=[old])
    )["runtimePatches"]
    assert (first["time"], second) == (expected, old)


def with_divisor(**divisor: str) -> Object:
    source = {"resourceFieldRef": {"resource": "limits.cpu", **divisor}}
    return {"containers": [{"name": "a", "env": [{"name": "A", "valueFrom": source}]}]}


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"tolerations": []}, {}),
        ({"nodeSelector": {}}, {}),
        (POD, POD_FORM),
        (with_divisor(), with_divisor(divisor="0")),
    ],
    ids=["list", "map", "quantities", "divisor"],
)
def test_equal_content_in_another_form_keeps_the_time(before: Object, after: Object) -> None:
    for old, new in ((before, after), (after, before)):
        [entry] = form(
            train_job(runtimePatches=[{**patch(new), "time": LATER}]),
            train_job(runtimePatches=[patch(old)]),
        )["runtimePatches"]
        assert entry["time"] == EARLIER


def test_empty_object_and_no_object_are_different_content() -> None:
    [entry] = form(
        train_job(runtimePatches=[{"manager": MANAGER, "trainingRuntimeSpec": {}}]),
        train_job(runtimePatches=[{"manager": MANAGER, "time": EARLIER}]),
    )["runtimePatches"]
    assert entry["time"] == STAMP


def test_unchanged_parts_of_an_update_stay_as_they_are_stored() -> None:
    old = train_job(
        trainer={"env": [], "resourcesPerNode": {"limits": {"cpu": 4, "memory": "1024Mi"}}},
        podTemplateOverrides=[{"targetJobs": [{"name": "node"}], "spec": {"tolerations": []}}],
        labels={},
    )
    new = {**old, "spec": {**old["spec"], "suspend": True}}
    assert canonical_train_job(old, new, NOW) is new
    new = copy.deepcopy(new)
    new["spec"]["trainer"]["resourcesPerNode"]["limits"] |= {"memory": "2048Mi", "gpu": 1}
    assert form(new, old) == {
        **new["spec"],
        "trainer": {
            "env": [],
            "resourcesPerNode": {"limits": {"cpu": 4, "memory": "2Gi", "gpu": "1"}},
        },
    }


def test_unchanged_variables_are_found_by_name() -> None:
    def variable(name: str) -> Object:
        return {"name": name, "valueFrom": {"resourceFieldRef": {"divisor": 1}}}

    old = train_job(trainer={"env": [variable("A")]})
    new = train_job(trainer={"env": [variable("B"), variable("A")]})
    [added, kept] = form(new, old)["trainer"]["env"]
    assert added["valueFrom"]["resourceFieldRef"] == {"divisor": "1"}
    assert kept == variable("A")


def test_objects_beyond_a_limit_are_not_changed() -> None:
    def job(count: int) -> Object:
        variables = [{"name": f"V{number}", "value": "x"} for number in range(count)]
        return train_job(trainer={"env": variables, "args": []}, suspend=count == 1)

    large = job(limits.ENV_VARS + 1)
    assert canonical_train_job(None, large, NOW) is large
    assert "args" not in form(job(limits.ENV_VARS))["trainer"]
    assert canonical_train_job(large, small := job(1), NOW) is small


def test_objects_beyond_a_limit_cannot_be_reduced_below_it() -> None:
    job = train_job(annotations={"a": ""}, trainer={"args": []})
    job["spec"]["annotations"]["a"] = "x" * (limits.OBJECT_BYTES - limits.size_of(job) + 1)
    assert canonical_train_job(None, job, NOW) is job
    job["spec"]["annotations"]["a"] = "x"
    assert form(job)["trainer"] == {}


def test_objects_that_would_exceed_a_limit_are_not_changed() -> None:
    job = train_job(runtimePatches=[KUEUE_ENTRY], annotations={"a": ""})
    room = limits.OBJECT_BYTES - limits.size_of(job)
    job["spec"]["annotations"]["a"] = "x" * room
    assert canonical_train_job(None, job, NOW) is job
    job["spec"]["annotations"]["a"] = "x" * (room - 31)
    assert form(job)["runtimePatches"][0]["time"] == STAMP


@pytest.mark.parametrize("spec", [None, [], "x", 1, {"runtimePatches": [None, 1, {"manager": []}]}])
def test_any_structure_is_accepted(spec: Any) -> None:
    job = {**train_job(), "spec": spec}
    for old in (None, train_job(), {**train_job(), "spec": None}, {"spec": {"runtimePatches": 1}}):
        assert canonical_train_job(old, job, NOW) is job


def fields_of(schema: Schema, name: str = "") -> Iterator[tuple[str, str, Schema, bool]]:
    """The fields of the spec: of what, their names and schemas, whether they are required."""
    for field, inner in (schema.get("properties") or {}).items():
        yield name, field, inner, field in (schema.get("required") or ())
        yield from fields_of(inner, field)
    if isinstance(schema.get("items"), dict):
        yield from fields_of(schema["items"], "")


def test_names_are_those_of_the_crd() -> None:
    fields = [*fields_of(schema_of("TrainJob")["properties"]["spec"], "spec")]
    lists = {field for _, field, schema, _ in fields if schema.get("type") == "array"}
    required = {field for _, field, schema, always in fields if always and "items" in schema}
    maps = {field for _, field, schema, _ in fields if is_map(schema)}
    amounts = {
        field
        for _, field, schema, _ in fields
        if is_map(schema) and is_quantity(schema["additionalProperties"])
    }
    assert lists == canonical_form.LISTS | canonical_form.WRITTEN_IF_EMPTY
    assert required == canonical_form.WRITTEN_IF_EMPTY - {"sources"}
    assert maps == canonical_form.MAPS
    assert amounts == canonical_form.QUANTITY_MAPS
    assert {
        (name, field) for name, field, schema, _ in fields if is_quantity(schema)
    } == canonical_form.QUANTITIES
    others = {field for _, field, schema, _ in fields if not is_map(schema)}
    assert not others & maps, "the content of an object would be skipped"


# Valid TrainJobs with random changes, most of them invalid.
JOBS = [document for _, document in mutants(17, 4_000) if document.get("kind") == "TrainJob"]


def is_valid(job: Object) -> bool:
    """Whether schema and validation accept the creation."""
    if creation_errors(job):
        return False
    whole = stored(job).document
    whole["metadata"] = {"namespace": "default", "name": "job", **whole["metadata"]}
    try:
        new = TRAIN_JOBS.decode(whole)
    except InvalidDocumentError:
        return False
    assert isinstance(new, TrainJob)
    return not RUNTIMES.validate(None, new, GivenObjects(SHIPPED)).errors


def test_form_of_random_jobs_is_idempotent_valid_and_stays_as_go_clients_write_it() -> None:
    accepted = changed = 0
    for number, job in enumerate(JOBS):
        old = JOBS[number - 1] if number % 3 == 0 else None
        once = canonical_train_job(old, job, NOW)
        assert canonical_train_job(old, once, NOW) == once
        assert repr(canonical_train_job(old, once, NOW)) == repr(once)
        if old is not None:
            continue
        changed += once is not job
        if is_valid(job):
            accepted += 1
            assert is_valid(once)
            filled = stored(once).document
            assert repr(written_by_go(filled)["spec"]) == repr(filled["spec"])
    assert accepted > 100
    assert changed > 100


AMOUNTS = (
    st.integers(0, 2**63 - 1)
    | st.floats(0, 1e18)
    | st.from_regex(r"\A[0-9]{1,12}(\.[0-9]{1,9})?(n|u|m|k|M|G|T|Ki|Mi|Gi|Ti|e[0-9])?\Z")
)
RESOURCES = st.fixed_dictionaries(
    {},
    optional={
        half: st.dictionaries(st.sampled_from(("cpu", "memory", "a/b")), AMOUNTS)
        for half in ("limits", "requests")
    },
)


@settings(deadline=None)
@example(resources={"limits": {"cpu": "10000000000G"}}, before={}, updated=False)
@given(RESOURCES, RESOURCES, st.booleans())
def test_form_of_resources_is_idempotent_and_written_by_go(
    resources: Object, before: Object, updated: bool
) -> None:
    job = train_job(trainer={"resourcesPerNode": resources})
    old = train_job(trainer={"resourcesPerNode": before}) if updated else None
    once = canonical_train_job(old, job, NOW)
    assert canonical_train_job(old, once, NOW) == once
    created = canonical_train_job(None, job, NOW)
    if is_valid(created):  # amounts may be too large
        assert repr(written_by_go(created)) == repr(created)
    else:
        assert not is_valid(job)
