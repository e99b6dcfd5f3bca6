from copy import deepcopy
from dataclasses import replace
from typing import Any, ClassVar

import pytest

from kftrainer.api.resources import CLUSTER_TRAINING_RUNTIMES, TRAINING_RUNTIMES, AnyResource
from kftrainer.kube.objects.field_errors import ValidationResult
from kftrainer.machinery.webhook.admission import ALLOWED, AdmissionRequest, AdmissionResponse
from kftrainer.runtime.framework.extension_points import RuntimeValidation
from kftrainer.runtime.framework.framework import Framework
from kftrainer.runtime.framework.plugin_loader import load_framework
from kftrainer.runtime.info import AnyRuntime, Info
from kftrainer.webhooks.training_runtime import RuntimeAdmission
from tests.support.objects import Object, replicated_job, runtime
from tests.support.plans import RUNTIMES
from tests.support.runtimes import SHIPPED

RESOURCES = (TRAINING_RUNTIMES, CLUSTER_TRAINING_RUNTIMES)
SUPPORT = "trainer.kubeflow.org/support"
JOBS = "spec.template.spec.replicatedJobs"
GOOD = runtime()
BAD = runtime(jobs=[{**replicated_job(), "replicas": 2}])
REPLICAS = f"{JOBS}[0].replicas: Invalid value: 2: always must be 1"

pytestmark = pytest.mark.parametrize("resource", RESOURCES, ids=lambda each: each.kind)


async def reviewed(
    resource: AnyResource, new: Object | None, old: Object | None = None, operation: str = ""
) -> AdmissionResponse:
    """The verdict on creating `new` or, if there is an `old`, on changing it into `new`."""
    request = AdmissionRequest(
        uid="1",
        operation=operation or ("CREATE" if old is None else "UPDATE"),
        group=resource.group,
        version=resource.version,
        kind=resource.kind,
        namespace="team" if resource.namespaced else "",
        name="runtime",
        object=new,
        old_object=old,
        dry_run=False,
    )
    response = await RuntimeAdmission(resource, RUNTIMES.framework)(request)
    return replace(response, warnings=tuple(response.warnings))


def with_metadata(document: Object, **metadata: Any) -> Object:
    return {**document, "metadata": {**document["metadata"], **metadata}}


def deprecated(document: Object) -> Object:
    return with_metadata(document, labels={**document["metadata"]["labels"], SUPPORT: "deprecated"})


async def test_valid_runtime_is_admitted(resource: AnyResource) -> None:
    assert await reviewed(resource, GOOD) == ALLOWED


@pytest.mark.parametrize("document", SHIPPED, ids=lambda each: each["metadata"]["name"])
async def test_bundled_runtimes_are_admitted_without_warnings(
    resource: AnyResource, document: Object
) -> None:
    assert await reviewed(resource, document) == ALLOWED


async def test_invalid_runtime_is_denied(resource: AnyResource) -> None:
    response = await reviewed(resource, BAD)
    assert (response.allowed, response.code, response.reason) == (False, 403, "Forbidden")
    assert response.message == REPLICAS
    assert response.details is not None
    assert response.details["causes"] == [
        {"reason": "FieldValueInvalid", "message": REPLICAS, "field": f"{JOBS}[0].replicas"}
    ]


async def test_denial_lists_all_errors(resource: AnyResource) -> None:
    job = {**replicated_job(), "replicas": 2}
    job["template"]["spec"]["template"]["spec"]["containers"][0]["name"] = "main"
    response = await reviewed(resource, runtime(jobs=[job]))
    assert response.message == (
        f"[{REPLICAS}, {JOBS}[0].template.spec.template.spec.containers: Invalid value: "
        '[{"name":"main"}]: must contain the required container for the ancestor: trainer]'
    )


async def test_update_to_an_invalid_runtime_is_denied(resource: AnyResource) -> None:
    """G6."""
    assert (await reviewed(resource, BAD, GOOD)).message == REPLICAS
    assert await reviewed(resource, GOOD, BAD) == ALLOWED


async def test_error_of_the_stored_runtime_is_a_warning(resource: AnyResource) -> None:
    other = deepcopy(BAD)
    other["spec"]["mlPolicy"]["numNodes"] = 4
    response = await reviewed(resource, other, BAD)
    assert response.allowed
    assert list(response.warnings) == [f"the stored object already has this error: {REPLICAS}"]


async def test_update_that_adds_an_error_is_denied(resource: AnyResource) -> None:
    other = deepcopy(BAD)
    other["spec"]["podGroupPolicy"] = {"coscheduling": {}, "volcano": {}}
    response = await reviewed(resource, other, BAD)
    assert not response.allowed
    assert response.message.startswith("spec.podGroupPolicy: ")
    assert REPLICAS not in response.message


async def test_runtime_of_an_older_schema_can_be_edited(resource: AnyResource) -> None:
    """As with `numProcPerNode: 0`, which Kubeflow Trainer stored."""
    old = deepcopy(GOOD)
    old["spec"]["mlPolicy"] = {"numNodes": 1, "mpi": {"numProcPerNode": 0}}
    new = deepcopy(old)
    new["spec"]["mlPolicy"]["numNodes"] = 2
    response = await reviewed(resource, new, old)
    assert response.allowed
    assert "spec.mlPolicy.mpi.numProcPerNode" in response.warnings[0]
    worse = deepcopy(new)
    worse["spec"]["mlPolicy"]["numNodes"] = 0
    assert (await reviewed(resource, worse, old)).code == 400


async def test_finalizer_can_be_added_to_an_invalid_runtime(resource: AnyResource) -> None:
    in_use = with_metadata(BAD, finalizers=["trainer.kubeflow.org/resource-in-use"])
    assert await reviewed(resource, in_use, BAD) == ALLOWED
    assert await reviewed(resource, BAD, in_use) == ALLOWED


async def test_finalizer_can_be_added_to_an_undecodable_runtime(resource: AnyResource) -> None:
    malformed = {**GOOD, "spec": {"mlPolicy": {"numNodes": "many"}}}
    assert (
        await reviewed(resource, with_metadata(malformed, finalizers=["a"]), malformed) == ALLOWED
    )
    assert await reviewed(resource, deprecated(malformed), malformed) == ALLOWED


async def test_update_of_a_runtime_being_deleted_is_admitted(resource: AnyResource) -> None:
    leaving = with_metadata(BAD, deletionTimestamp="2026-01-01T00:00:00Z")
    assert await reviewed(resource, leaving, GOOD) == ALLOWED


async def test_create_with_a_deletion_timestamp_is_validated(
    resource: AnyResource,
) -> None:
    leaving = with_metadata(BAD, deletionTimestamp="2026-01-01T00:00:00Z")
    assert not (await reviewed(resource, leaving)).allowed


@pytest.mark.parametrize("operation", ["DELETE", "CONNECT"])
async def test_delete_request_is_allowed(resource: AnyResource, operation: str) -> None:
    assert await reviewed(resource, None, BAD, operation) == ALLOWED


async def test_creating_a_deprecated_runtime_causes_a_warning(
    resource: AnyResource,
) -> None:
    """W1."""
    response = await reviewed(resource, deprecated(GOOD))
    assert response.allowed
    [warning] = response.warnings
    assert warning.startswith(f'{resource.kind} "runtime" is deprecated and will be removed in a ')


async def test_deprecation_warning_appears_when_label_or_spec_change(
    resource: AnyResource,
) -> None:
    """W1."""
    old = deprecated(GOOD)
    changed = deepcopy(old)
    changed["spec"]["mlPolicy"]["numNodes"] = 2
    assert len((await reviewed(resource, old, GOOD)).warnings) == 1
    assert len((await reviewed(resource, changed, old)).warnings) == 1
    assert await reviewed(resource, with_metadata(old, annotations={"a": "b"}), old) == ALLOWED
    assert await reviewed(resource, GOOD, old) == ALLOWED


async def test_removing_the_framework_label_causes_a_warning(resource: AnyResource) -> None:
    unlabelled = with_metadata(GOOD, labels={})
    [warning] = (await reviewed(resource, unlabelled, GOOD)).warnings
    assert warning.startswith("metadata.labels: without the label trainer.kubeflow.org/framework ")
    assert await reviewed(resource, GOOD, unlabelled) == ALLOWED
    assert (
        await reviewed(resource, with_metadata(unlabelled, finalizers=["a"]), unlabelled) == ALLOWED
    )


async def test_label_change_of_an_invalid_runtime_causes_no_other_warnings(
    resource: AnyResource,
) -> None:
    malformed = runtime(jobs=[replicated_job("a", "b"), replicated_job()])
    assert len((await reviewed(resource, deprecated(malformed), malformed)).warnings) == 1
    assert len((await reviewed(resource, deprecated(malformed))).warnings) == 2


async def test_denial_includes_warnings(resource: AnyResource) -> None:
    response = await reviewed(resource, deprecated(BAD))
    assert not response.allowed
    assert len(response.warnings) == 1


MALFORMED_DOCUMENTS: dict[str, Object] = {
    "a number in words": {**GOOD, "spec": {"mlPolicy": {"numNodes": "hunter2"}}},
    "a spec that is none": {**GOOD, "spec": "hunter2"},
    "a template that is none": {**GOOD, "spec": {"template": {"spec": "hunter2"}}},
    "metadata that are none": {**GOOD, "metadata": "hunter2"},
    "an environment that is none": runtime(jobs=[replicated_job(env="hunter2")]),
    "limits that are none": runtime(jobs=[replicated_job(resources={"limits": "hunter2"})]),
}


@pytest.mark.parametrize("what", MALFORMED_DOCUMENTS)
async def test_undecodable_runtime_is_a_bad_request_without_values(
    resource: AnyResource, what: str
) -> None:
    response = await reviewed(resource, MALFORMED_DOCUMENTS[what])
    assert (response.allowed, response.code, response.reason) == (False, 400, "BadRequest")
    assert response.rules == ("schema",)
    assert response.message.startswith(f"not a {resource.kind}: ")
    assert "hunter2" not in response.message


async def test_kind_and_api_version_may_be_missing_in_the_object(resource: AnyResource) -> None:
    bare = {field: GOOD[field] for field in ("metadata", "spec")}
    assert await reviewed(resource, bare) == ALLOWED


async def test_internal_error_is_not_reported_as_an_invalid_object(
    resource: AnyResource, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise LookupError("a bug")

    monkeypatch.setattr("kftrainer.webhooks.training_runtime.runtime_findings", fails)
    with pytest.raises(LookupError):
        await reviewed(resource, GOOD)


class Crashing(RuntimeValidation):
    name: ClassVar[str] = "crashing"

    def validate_runtime(self, runtime: AnyRuntime, info: Info | None) -> ValidationResult:
        raise KeyError(runtime.metadata.name)


async def test_runtime_for_which_a_plugin_fails_is_rejected(
    resource: AnyResource, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = Framework([*load_framework().plugins, Crashing()])
    monkeypatch.setattr(RUNTIMES, "framework", whole)
    response = await reviewed(resource, GOOD)
    assert (response.allowed, response.code, response.rules) == (False, 500, ("plugin-failed",))
    assert response.message == "plugin crashing failed: KeyError: 'runtime'"


async def test_rules_of_a_disabled_plugin_do_not_apply(
    resource: AnyResource, monkeypatch: pytest.MonkeyPatch
) -> None:
    mpi = runtime(mlPolicy={"mpi": {}}, jobs=[replicated_job("launcher")])
    response = await reviewed(resource, mpi)
    assert response.rules == ("runtime-mpi-workers",)
    monkeypatch.setattr(RUNTIMES, "framework", load_framework(disabled=["MPI"]))
    assert (await reviewed(resource, mpi)).allowed


async def test_runtime_beyond_a_limit_is_rejected(
    resource: AnyResource,
) -> None:
    large = runtime(jobs=[replicated_job(f"job-{n}", None) for n in range(101)])
    too_many = f"{JOBS}: Too many: 101: must have at most 100 items"
    for old in (None, GOOD):
        response = await reviewed(resource, large, old)
        assert (response.code, response.message, response.rules) == (403, too_many, ("too-large",))
