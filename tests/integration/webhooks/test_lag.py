"""The manager's cache lags behind the API server: nobody is refused for that."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from kftrainer.devcluster.client import ApiClient, Object
from kftrainer.devcluster.controlplane import ControlPlane
from tests.integration.webhooks.cases import KINDS, job_on, job_with, placed, torch
from tests.integration.webhooks.trainjob_cases import volcano
from tests.support.fault_proxy import running_proxy
from tests.support.webhooks import Applicant, admitting_manager, applicant_with

pytestmark = pytest.mark.integration

DATASET: Object = {"initializer": {"dataset": {"storageUri": "hf://a/b"}}}
INITIALIZING = torch(job_with("dataset-initializer", "dataset-initializer"), job_with())


@pytest_asyncio.fixture
async def person(
    plane: ControlPlane, tmp_path: Path, api: ApiClient, namespace: str
) -> AsyncIterator[Applicant]:
    """Somebody who applies things while the manager hears no news of anything.

    A runtime `known` has been there before.
    """
    await api.create(placed(torch(), "TrainingRuntime", "known", namespace))
    async with (
        running_proxy(plane, tmp_path) as proxy,
        admitting_manager(plane, kubeconfig=proxy.kubeconfig) as manager,
    ):
        proxy.stall_all(lambda request: request.is_watch)
        yield applicant_with(api, manager)


async def test_a_runtime_that_the_cache_does_not_know_is_read(
    person: Applicant, namespace: str
) -> None:
    for kind in KINDS:
        job = job_on(kind, namespace, namespace)
        assert "must be created before" in (await person.create(job, dry_run=True)).denial
        assert (await person.create(placed(torch(), kind, namespace, namespace))).accepted
        assert (await person.create(job, dry_run=True)).message == ""

    job = job_on("TrainingRuntime", "known", namespace, **DATASET)
    assert "must have dataset-initializer job" in (await person.create(job, dry_run=True)).denial
    mended = placed(INITIALIZING, "TrainingRuntime", "known", namespace)
    assert (await person.apply(mended)).accepted
    assert (await person.create(job, dry_run=True)).message == ""


async def test_what_such_a_runtime_needs_is_read_as_well(person: Applicant, namespace: str) -> None:
    ranked = placed(volcano(priorityClassName=namespace), "TrainingRuntime", "ranked", namespace)
    assert (await person.create(ranked)).accepted
    job = job_on("TrainingRuntime", "ranked", namespace)
    assert "doesn't exist" in (await person.create(job, dry_run=True)).denial
    priority = {
        "apiVersion": "scheduling.k8s.io/v1",
        "kind": "PriorityClass",
        "metadata": {"name": namespace},
        "value": 7,
    }
    assert (await person.create(priority)).accepted
    assert (await person.create(job, dry_run=True)).message == ""
