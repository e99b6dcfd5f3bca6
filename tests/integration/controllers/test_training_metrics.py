"""Metrics of a manager without access to Jobs, and metrics from the status of Jobs."""

from kftrainer.devcluster.client import Object
from kftrainer.devcluster.controlplane import ControlPlane
from kftrainer.devcluster.waiting import until
from tests.integration.controllers.team import (
    COMPLETED,
    JOB,
    TEST_TIMEOUT,
    Team,
    wait_until_jobs_are_watched,
)
from tests.support.managers import manager_process
from tests.support.permissions import allow
from tests.support.scraping import Scraper, scraper

CREATION_COUNT = "kftrainer_trainjob_jobset_creation_seconds_count"
RAN = "kftrainer_trainjob_first_pod_running_seconds_count"
DURATION_COUNT = "kftrainer_trainjob_duration_seconds_count"
OURS = ("trainjobs", "trainjobs/status", "trainingruntimes", "clustertrainingruntimes")
OTHER_RESOURCES = ("controllerrevisions", "jobsets", "podgroups", "secrets", "configmaps", "events")
OF_KUBERNETES = ("limitranges", "runtimeclasses", "priorityclasses", "resourceclaimtemplates")


async def wait_until_counted(metrics: Scraper, name: str, count: int) -> None:
    async def is_counted() -> bool:
        return await metrics.series(name, runtime="_namespaced") == {(): count}

    await until(is_counted, within=TEST_TIMEOUT, what=f"{name} being {count}")


async def create_job_of(team: Team, job_set: Object, name: str) -> str:
    """Play the JobSet controller: a Job of one pod; its path."""
    owner = {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "controller": True}
    metadata = {
        "name": name,
        "labels": {"jobset.sigs.k8s.io/jobset-name": job_set["metadata"]["name"]},
        "ownerReferences": [owner | {key: job_set["metadata"][key] for key in ("name", "uid")}],
    }
    containers = [{"name": "node", "image": "trainer"}]
    template = {"spec": {"restartPolicy": "Never", "containers": containers}}
    spec = {"template": template}
    await team.create({"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": spec})
    return f"/apis/batch/v1/namespaces/{team.namespace}/jobs/{name}"


async def test_missing_permission_to_read_jobs_is_logged_once_and_the_rest_works(
    team: Team, plane: ControlPlane
) -> None:
    user = f"manager-of-{team.namespace}"
    await allow(team.api, user, ["*"], [*OURS, *OTHER_RESOURCES, *OF_KUBERNETES])
    await team.create_runtime()
    async with (
        scraper() as metrics,
        manager_process(
            plane.kubeconfig_for(user), "--namespace", team.namespace, *metrics.flags
        ) as manager,
    ):
        await manager.wait_ready()
        await team.create_job()
        await team.wait_until_exists("JobSet")
        await team.set_jobset_status(COMPLETED)
        for name in (CREATION_COUNT, DURATION_COUNT):
            await wait_until_counted(metrics, name, 1)
        assert await metrics.series(RAN) == {}

        async def logged_warning() -> list[Object] | None:
            return manager.log_entries("jobs_not_readable") or None

        [warning] = await until(logged_warning, within=TEST_TIMEOUT, what="its saying so")
        assert warning["level"] == "warning"
        assert "jobs.batch is forbidden" in warning["error"]
        assert RAN.removesuffix("_count") in warning["consequence"]


async def test_first_pod_metric_uses_the_status_of_jobs(team: Team, plane: ControlPlane) -> None:
    await team.create_runtime()
    flags = ("--namespace", team.namespace)
    async with (
        scraper() as metrics,
        manager_process(plane.kubeconfig, *flags, *metrics.flags) as manager,
    ):
        await wait_until_jobs_are_watched(manager)
        await team.create_job()
        job_set = await team.wait_until_exists("JobSet")
        paths = [await create_job_of(team, job_set, f"{JOB}-{number}") for number in range(2)]

        async def set_status(path: str, **status: int) -> None:
            await team.api.request(
                "PATCH",
                f"{path}/status",
                body={"status": {"startTime": "2026-01-01T00:00:00Z", **status}},
                content_type="application/merge-patch+json",
            )

        for path in paths:
            await set_status(path, active=1)
        for path in paths:
            await set_status(path, active=1, ready=1)
            await wait_until_counted(metrics, RAN, 1)
        kept = await metrics.series("machinery_informer_objects", kind="Job.batch")
        assert kept == {(): 1}, "of Jobs, only what was waited for is kept"
        await manager.stop()
        manager.start()
        await team.create_job("another")
        await wait_until_counted(metrics, CREATION_COUNT, 1)
        assert await metrics.series(RAN) == {}
