"""Kueue and TrainJobs whose numProcPerNode is a string, which its Go type cannot hold.

Kueue's webhook rejects them when they are created. One that exists already, or that is created
where that webhook is not called, stops Kueue from reading the TrainJobs of all namespaces. The
setting `admission.stringNumProcPerNode: Reject` prevents that.
"""

from pathlib import Path

import pytest

from kftrainer.devcluster.client import ApiClient
from kftrainer.devcluster.controlplane import ControlPlane
from kftrainer.devcluster.processes.process import ManagedProcess
from kftrainer.devcluster.waiting import until
from tests.clients.kueue.conftest import manager_with_integers
from tests.clients.kueue.queueing import Queueing, slow
from tests.integration.controllers.team import JOB
from tests.support.kueue import NAMESPACE, QUEUE_LABEL
from tests.support.objects import Object, train_job
from tests.support.trainjobs import END_TO_END_TIMEOUT
from tests.support.webhooks import admission_client_for, admitting_manager

pytestmark = pytest.mark.e2e

NOT_FOUND_BY_KUEUE = '"mjobset.kb.io" denied the request: TrainJob.trainer.kubeflow.org "train"'
UNREADABLE = "cannot unmarshal string into Go struct field"


def with_string(namespace: str) -> Object:
    """A TrainJob as releases 2.0 and 2.1 allow it."""
    reference = {"name": "lasting", "kind": "TrainingRuntime"}
    manifest = train_job(
        "strings", runtimeRef=reference, suspend=True, trainer={"numProcPerNode": "auto"}
    )
    manifest["metadata"]["namespace"] = namespace
    manifest["metadata"]["labels"] = {QUEUE_LABEL: "queue"}
    return manifest


async def prepared(api: ApiClient, namespace: str) -> Queueing:
    """The runtimes in the namespace, and in the one that Kueue's webhooks exclude."""
    queueing = Queueing(api, namespace)
    await queueing.create_runtimes()
    await queueing.create_queue(slow(1))
    lasting = await queueing.get("TrainingRuntime", "lasting")
    copied = {key: lasting[key] for key in ("apiVersion", "kind", "spec")}
    await api.apply({**copied, "metadata": {"name": "lasting", "namespace": NAMESPACE}})
    return queueing


async def test_strings_stop_kueue_if_they_are_only_warned_about(
    control_plane: ControlPlane, api: ApiClient, namespace: str, kueue_process: ManagedProcess
) -> None:
    async with admitting_manager(control_plane, "--log-level", "debug") as manager:
        queueing = await prepared(api, namespace)
        client = admission_client_for(api)
        rejected = await client.create(with_string(namespace))
        assert "mtrainjob.kb.io" in rejected.message
        assert UNREADABLE in rejected.message

        size = kueue_process.log.stat().st_size
        try:
            stored = await client.create(with_string(NAMESPACE))
            assert stored.accepted, stored.message

            async def broken() -> bool:
                text = kueue_process.log.read_text()[size:]
                return f"failed to list *v1alpha1.TrainJob: json: {UNREADABLE}" in text

            await until(broken, within=END_TO_END_TIMEOUT, what="Kueue failing to list TrainJobs")
            await queueing.queue_job()

            async def is_rejected() -> bool:
                failures = manager.log_entries("reconcile_failed")
                return any(NOT_FOUND_BY_KUEUE in each.get("error", "") for each in failures)

            # Kueue's webhook for JobSets looks the owner up in the cache of TrainJobs.
            await until(is_rejected, within=END_TO_END_TIMEOUT, what="Kueue rejecting the JobSet")
            assert await queueing.workloads() == {}
        finally:
            await client.delete(with_string(NAMESPACE))
        await queueing.wait_until_running_on("slow")


async def test_rejected_strings_do_not_reach_kueue(
    control_plane: ControlPlane, api: ApiClient, namespace: str, tmp_path: Path
) -> None:
    async with manager_with_integers(control_plane, tmp_path):
        queueing = await prepared(api, namespace)
        client = admission_client_for(api)
        assert not (await client.create(with_string(namespace))).accepted
        rejected = await client.create(with_string(NAMESPACE))
        assert "spec.trainer.numProcPerNode" in rejected.denial
        await queueing.queue_job()
        await queueing.wait_until_running_on("slow")
        assert list(await queueing.workloads()) == [JOB]
