"""The patches with which TrainJobs are stored in canonical form."""

import asyncio
from typing import Any

import pytest

from kftrainer.api import limits
from kftrainer.machinery.webhook.admission import ALLOWED, AdmissionRequest, AdmissionResponse
from kftrainer.webhooks.trainjob_defaulter import TrainJobDefaulter
from tests.support.fake_clock import FakeClock
from tests.support.objects import Object, train_job
from tests.support.other_releases import KUEUE_ENTRY

CLOCK = FakeClock()
NOW = CLOCK.now().strftime("%Y-%m-%dT%H:%M:%SZ")
# As the SDK sends it.
RESOURCES = {"limits": {"cpu": 4.0, "nvidia.com/gpu": 1.0}, "requests": {"cpu": 4.0}}
FROM_SDK = train_job(
    trainer={"numNodes": 2, "resourcesPerNode": RESOURCES},
    initializer={"dataset": {"storageUri": "hf://a/b", "env": []}},
    runtimePatches=[KUEUE_ENTRY],
)
PATCH = [
    {"op": "replace", "path": "/spec/trainer/resourcesPerNode/limits/cpu", "value": "4"},
    {
        "op": "replace",
        "path": "/spec/trainer/resourcesPerNode/limits/nvidia.com~1gpu",
        "value": "1",
    },
    {"op": "replace", "path": "/spec/trainer/resourcesPerNode/requests/cpu", "value": "4"},
    {"op": "remove", "path": "/spec/initializer/dataset/env"},
    {"op": "add", "path": "/spec/runtimePatches/0/time", "value": NOW},
]


def response(
    new: Object | None, old: Object | None = None, *, namespaces: tuple[str, ...] = ()
) -> AdmissionResponse:
    request = AdmissionRequest(
        uid="1",
        operation="CREATE" if old is None else "UPDATE",
        group="trainer.kubeflow.org",
        version="v1alpha1",
        kind="TrainJob",
        namespace="team",
        name="job",
        object=new,
        old_object=old,
        dry_run=False,
    )
    return asyncio.run(TrainJobDefaulter(clock=CLOCK, namespaces=namespaces)(request))


def with_metadata(job: Object, **metadata: Any) -> Object:
    return {**job, "metadata": {**job["metadata"], **metadata}}


@pytest.mark.parametrize("namespaces", [(), ("team", "other")])
def test_patch_is_minimal(namespaces: tuple[str, ...]) -> None:
    assert response(FROM_SDK, namespaces=namespaces) == AdmissionResponse(allowed=True, patch=PATCH)


def test_canonical_job_needs_no_patch() -> None:
    assert response(train_job()) == ALLOWED


def test_jobs_in_other_namespaces_are_not_changed() -> None:
    assert response(FROM_SDK, namespaces=("other",)) == ALLOWED


@pytest.mark.parametrize(
    "new",
    [
        with_metadata(FROM_SDK, finalizers=["example.com/mine"]),
        with_metadata(FROM_SDK, labels={"a": "b"}),
        with_metadata(train_job(trainer={"args": []}), deletionTimestamp="2026-01-01T00:00:00Z"),
    ],
    ids=["bookkeeping", "labels", "deletion"],
)
def test_updates_that_are_not_validated_have_no_patch(new: Object) -> None:
    assert response(new, FROM_SDK) == ALLOWED


def test_only_changed_parts_of_an_update_are_patched() -> None:
    new = {**FROM_SDK, "spec": {**FROM_SDK["spec"], "suspend": True}}
    changed = {**new["spec"]["trainer"], "env": []}
    new["spec"]["trainer"] = changed
    assert response(new, FROM_SDK).patch == [{"op": "remove", "path": "/spec/trainer/env"}]


@pytest.mark.parametrize("old", [None, train_job()], ids=["create", "update"])
def test_jobs_beyond_a_limit_are_admitted_without_a_patch(old: Object | None) -> None:
    """The validator rejects them."""
    many = {str(number): 1.0 for number in range(limits.FEW + 1)}
    large = train_job(trainer={"env": [], "resourcesPerNode": {"limits": many}})
    assert response(large, old) == ALLOWED


def test_deletion_is_allowed() -> None:
    assert response(None, FROM_SDK) == ALLOWED
