"""TrainJobs that were stored under a looser schema than ours."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from kftrainer.devcluster.client import ApiClient, Object
from kftrainer.devcluster.errors import ApiError
from kftrainer.devcluster.waiting import until
from tests.integration.controllers.team import (
    COMPLETED,
    JOB,
    MERGE,
    ROW,
    TEST_TIMEOUT,
    Team,
    conditions_of,
)
from tests.support.managers import ManagerProcess
from tests.support.objects import train_job

CRD = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/trainjobs.trainer.kubeflow.org"
SPEC = ("schema", "openAPIV3Schema", "properties", "spec", "properties")


@asynccontextmanager
async def looser_schema(api: ApiClient) -> AsyncIterator[None]:
    """Serve TrainJobs for a while without a lower bound of numNodes, as Kubeflow Trainer does."""
    before = (await api.get(CRD))["spec"]["versions"]
    changed = (await api.get(CRD))["spec"]["versions"]
    properties = changed[0]
    for field in SPEC:
        properties = properties[field]
    del properties["trainer"]["properties"]["numNodes"]["minimum"]
    await api.request("PATCH", CRD, body={"spec": {"versions": changed}}, content_type=MERGE)
    try:
        yield
    finally:
        await api.request("PATCH", CRD, body={"spec": {"versions": before}}, content_type=MERGE)


@pytest.fixture
async def stored(team: Team, manager: ManagerProcess) -> Object:
    """A TrainJob with no nodes, which our schema and model reject."""
    await team.create_runtime()
    reference = {"name": "torch", "kind": "TrainingRuntime"}
    invalid = train_job(JOB, runtimeRef=reference, trainer={"numNodes": 0})

    async def create() -> Object | None:
        try:
            return await team.create(invalid)
        except ApiError:  # the API server serves the new schema a moment later
            return None

    async with looser_schema(team.api):
        return await until(create, within=TEST_TIMEOUT, what="the looser schema being served")


async def test_unreadable_trainjob_is_blocked_visibly(team: Team, stored: Object) -> None:
    job = await team.wait_for_condition("Blocked", "InvalidTrainJob")
    message = conditions_of(job)["Blocked"]["message"]
    assert "spec.trainer.numNodes: must be at least 1" in message
    assert await team.children() == []


async def test_unreadable_trainjob_with_a_running_jobset_is_suspended_and_finished(
    team: Team, stored: Object, manager: ManagerProcess
) -> None:
    await team.wait_for_condition("Blocked", "InvalidTrainJob")
    owner = {
        "apiVersion": stored["apiVersion"],
        "kind": "TrainJob",
        "name": JOB,
        "uid": stored["metadata"]["uid"],
        "controller": True,
        "blockOwnerDeletion": True,
    }
    pod = {"containers": [{"name": "node", "image": "trainer:1"}], "restartPolicy": "Never"}
    template = {"spec": {"template": {"spec": pod}}}
    job_set = {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": JOB, "ownerReferences": [owner]},
        "spec": {"replicatedJobs": [{"name": "node", "template": template}], "suspend": False},
    }
    await team.create(job_set)
    await team.set_jobset_status(rows=[ROW])
    job = await team.wait_for_jobs_status(ROW)
    await team.wait_until_condition_removed("Blocked")

    await team.suspend(suspend=True)
    job = await team.wait_for_condition("Suspended", "Suspended")
    assert (await team.get("JobSet"))["spec"]["suspend"] is True
    await team.suspend(suspend=False)
    await team.set_jobset_status(COMPLETED, rows=[ROW])
    job = await team.wait_for_condition("Complete", COMPLETED["reason"])
    assert job["spec"]["trainer"] == {"numNodes": 0}
