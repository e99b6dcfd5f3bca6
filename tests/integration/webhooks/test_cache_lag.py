"""The manager's cache lags behind the API server: no request is denied for that."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from kftrainer.devcluster.client import ApiClient, Object
from kftrainer.devcluster.controlplane import ControlPlane
from tests.integration.webhooks.cases import KINDS, NODE, job_on, job_with, placed, torch
from tests.integration.webhooks.trainjob_cases import volcano
from tests.support.fault_proxy import (
    FaultProxy,
    ProxiedRequest,
    Stall,
    running_proxy,
    status_answer,
)
from tests.support.webhooks import AdmissionClient, admission_client_for, admitting_manager

pytestmark = pytest.mark.integration

DATASET: Object = {"initializer": {"dataset": {"storageUri": "hf://a/b"}}}
INITIALIZING = torch(job_with("dataset-initializer", "dataset-initializer"), job_with())


@pytest_asyncio.fixture
async def proxy(plane: ControlPlane, tmp_path: Path) -> AsyncIterator[FaultProxy]:
    """What the manager reaches the API server through."""
    async with running_proxy(plane, tmp_path) as proxy:
        yield proxy


@pytest_asyncio.fixture
async def user(
    plane: ControlPlane, proxy: FaultProxy, api: ApiClient, namespace: str
) -> AsyncIterator[AdmissionClient]:
    """A user who applies objects while the manager's watches deliver nothing.

    A runtime `known` has been there before.
    """
    await api.create(placed(torch(), "TrainingRuntime", "known", namespace))
    async with admitting_manager(plane, kubeconfig=proxy.kubeconfig) as manager:
        proxy.stall_all(lambda request: request.is_watch)
        yield admission_client_for(api, manager)


def job_set_of(job: Object) -> Object:
    """The JobSet of a TrainJob, as another replica has applied it."""
    owner = {
        "apiVersion": job["apiVersion"],
        "kind": "TrainJob",
        "name": job["metadata"]["name"],
        "uid": job["metadata"]["uid"],
        "controller": True,
    }
    name, namespace = job["metadata"]["name"], job["metadata"]["namespace"]
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": name, "namespace": namespace, "ownerReferences": [owner]},
        "spec": {"suspend": True, "replicatedJobs": [job_with()]},
    }


async def test_runtime_missing_from_the_cache_is_read_from_the_server(
    user: AdmissionClient, namespace: str
) -> None:
    for kind in KINDS:
        job = job_on(kind, namespace, namespace)
        assert "must be created before" in (await user.create(job, dry_run=True)).denial
        assert (await user.create(placed(torch(), kind, namespace, namespace))).accepted
        assert (await user.create(job, dry_run=True)).message == ""

    job = job_on("TrainingRuntime", "known", namespace, **DATASET)
    assert "must have dataset-initializer job" in (await user.create(job, dry_run=True)).denial
    fixed = placed(INITIALIZING, "TrainingRuntime", "known", namespace)
    assert (await user.apply(fixed)).accepted
    assert (await user.create(job, dry_run=True)).message == ""


CHANGES: dict[str, Object] = {
    "spec.trainer.image": {"trainer": {"image": "other"}},
    "spec.podTemplateOverrides": {
        "podTemplateOverrides": [{"targetJobs": NODE, "spec": {"serviceAccountName": "other"}}]
    },
}


async def test_edit_is_refused_once_there_is_a_jobset_that_the_cache_does_not_show(
    user: AdmissionClient, namespace: str
) -> None:
    job = job_on("TrainingRuntime", "known", namespace, suspend=True)
    created = await user.create(job)
    assert created.accepted
    for change in CHANGES.values():
        assert (await user.patch(job, {"spec": change}, dry_run=True)).message == ""
    assert (await user.create(job_set_of({**job, **created.body}))).accepted
    for path, change in CHANGES.items():
        outcome = await user.patch(job, {"spec": change})
        assert outcome.denial.startswith(
            f"{path}: Forbidden: cannot be changed after the JobSet was "
        )
    assert (await user.patch(job, {"spec": {"suspend": False}})).message == ""


async def test_edit_is_refused_while_the_jobset_cannot_be_read(
    user: AdmissionClient, proxy: FaultProxy, api: ApiClient, namespace: str
) -> None:
    job = job_on("TrainingRuntime", "known", namespace, suspend=True)
    assert (await user.create(job)).accepted

    def is_read_of_the_job_set(request: ProxiedRequest) -> bool:
        return request.method == "GET" and request.path.endswith(f"/{namespace}/jobsets/train")

    for fault in (status_answer(500, "InternalError"), Stall()):
        proxy.inject(fault, is_read_of_the_job_set, times=10)
        change = {"spec": CHANGES["spec.trainer.image"]}
        outcome = await admission_client_for(api).patch(job, change, dry_run=True)
        assert (outcome.status, outcome.body["reason"]) == (503, "ServiceUnavailable")
        assert (
            outcome.denial == "the JobSet or the runtime of the TrainJob cannot be read: try again"
        )
        # What no JobSet could contradict needs no reading.
        assert (await user.patch(job, {"spec": {"suspend": False}}, dry_run=True)).accepted
        proxy.forget_faults()
    outcome = await user.patch(job, {"spec": CHANGES["spec.trainer.image"]}, dry_run=True)
    assert outcome.message == ""


async def test_objects_referenced_by_such_a_runtime_are_read(
    user: AdmissionClient, namespace: str
) -> None:
    ranked = placed(volcano(priorityClassName=namespace), "TrainingRuntime", "ranked", namespace)
    assert (await user.create(ranked)).accepted
    job = job_on("TrainingRuntime", "ranked", namespace)
    assert "doesn't exist" in (await user.create(job, dry_run=True)).denial
    priority = {
        "apiVersion": "scheduling.k8s.io/v1",
        "kind": "PriorityClass",
        "metadata": {"name": namespace},
        "value": 7,
    }
    assert (await user.create(priority)).accepted
    assert (await user.create(job, dry_run=True)).message == ""
