"""JobSets that name a TrainJob as their owner and were not created by the controller."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from copy import deepcopy

import pytest

from kftrainer.devcluster.client import Object
from kftrainer.devcluster.errors import ApiError
from kftrainer.devcluster.waiting import until
from tests.integration.controllers.team import (
    APPLY,
    COMPLETED,
    JOB,
    ROW,
    TEST_TIMEOUT,
    Team,
    conditions_of,
)
from tests.integration.controllers.test_writes import is_watch_of
from tests.support.fault_proxy import FaultProxy
from tests.support.managers import ManagerProcess, manager_process
from tests.support.other_releases import definitions

FOREIGN = "ForeignJobSet"
FORGED_IMAGE = "forged:1"
KEPT = ("name", "labels", "annotations", "ownerReferences")


@pytest.fixture
async def alone(proxy: FaultProxy, team: Team) -> AsyncIterator[ManagerProcess]:
    """A manager of the test's own namespace, behind the proxy."""
    flags = ("--namespace", team.namespace, "--log-level", "debug")
    async with manager_process(proxy.kubeconfig, *flags) as manager:
        await manager.wait_ready()
        yield manager


def image_of(job_set: Object) -> str:
    [replicated] = job_set["spec"]["replicatedJobs"]
    image: str = replicated["template"]["spec"]["template"]["spec"]["containers"][0]["image"]
    return image


def forged_from(job_set: Object, image: str = FORGED_IMAGE) -> Object:
    """Return a copy with all marks of the controller and another image."""
    [replicated] = job_set["spec"]["replicatedJobs"]
    replicated["template"]["spec"]["template"]["spec"]["containers"][0]["image"] = image
    metadata = {field: job_set["metadata"][field] for field in KEPT if field in job_set["metadata"]}
    head = {field: job_set[field] for field in ("apiVersion", "kind")}
    return {**head, "metadata": metadata, "spec": job_set["spec"]}


async def replace(team: Team, **spec: object) -> Object:
    """Delete the JobSet and create a forged one in its place; the forged one."""
    live = await team.get("JobSet")
    await team.delete("JobSet")
    await team.wait_until_deleted("JobSet")
    forged = forged_from(live)
    return await team.create({**forged, "spec": {**forged["spec"], **spec}})


async def wait_until_recorded(team: Team, uid: str) -> Object:
    async def recorded() -> Object | None:
        job = await team.get("TrainJob")
        return job if job.get("status", {}).get("jobSet") == {"uid": uid} else None

    return await until(recorded, within=TEST_TIMEOUT, what=f"the JobSet {uid} in the status")


async def wait_until_recreated(team: Team, than: Object) -> Object:
    async def created() -> Object | None:
        found = await team.find("JobSet")
        is_new = found is not None and found["metadata"]["uid"] != than["metadata"]["uid"]
        return found if is_new else None

    return await until(created, within=TEST_TIMEOUT, what="another JobSet")


async def test_jobset_recreated_with_another_image_is_not_resumed(
    team: Team, alone: ManagerProcess
) -> None:
    await team.create_runtime()
    await team.create_job(suspend=True)
    created = await team.wait_until_exists("JobSet")
    await wait_until_recorded(team, created["metadata"]["uid"])
    await alone.stop()
    forged = await replace(team)
    alone.start()
    await team.suspend(suspend=False)
    job = await team.wait_for_condition("Blocked", FOREIGN)
    message = conditions_of(job)["Blocked"]["message"]
    assert f"JobSet {team.namespace}/{JOB} (UID {forged['metadata']['uid']})" in message
    assert "Delete the JobSet" in message
    event = await team.wait_for_event("TrainJobResourcesCreationFailed")
    assert message in event["message"]

    await team.set_jobset_status(COMPLETED, rows=[ROW])
    await team.touch(alone)
    job = await team.get("TrainJob")
    assert "Complete" not in conditions_of(job)
    assert "jobsStatus" not in job["status"]
    live = await team.get("JobSet")
    assert (live["spec"]["suspend"], image_of(live)) == (True, FORGED_IMAGE)

    await team.delete("JobSet")
    own = await wait_until_recreated(team, forged)
    job = await wait_until_recorded(team, own["metadata"]["uid"])
    assert (own["spec"].get("suspend", False), image_of(own)) == (False, image_of(created))
    job = await team.wait_until_condition_removed("Blocked")
    assert "Complete" not in conditions_of(job)


async def test_running_jobset_replaced_under_the_manager_is_ignored_and_suspended_with_the_trainjob(
    team: Team, proxy: FaultProxy, alone: ManagerProcess
) -> None:
    await team.create_runtime()
    await team.create_job()
    created = await team.wait_until_exists("JobSet")
    await team.set_jobset_status(rows=[ROW])
    await team.wait_for_jobs_status(ROW)
    await wait_until_recorded(team, created["metadata"]["uid"])
    proxy.stall_all(is_watch_of("jobsets"))
    forged = await replace(team)
    proxy.reset_all(is_watch_of("jobsets"))
    await team.wait_for_condition("Blocked", FOREIGN)
    await team.set_jobset_status(COMPLETED, rows=[{**ROW, "failed": 7}])

    await team.suspend(suspend=True)

    async def suspended() -> bool:
        return bool((await team.get("JobSet"))["spec"].get("suspend"))

    await until(suspended, within=TEST_TIMEOUT, what="the foreign JobSet being suspended")
    await team.wait_for_condition("Suspended", "Suspended")
    await team.suspend(suspend=False)
    await team.wait_for_condition("Suspended", "JobSetSuspended")
    await team.touch(alone)
    assert await suspended()
    assert (await team.get("TrainJob"))["status"]["jobsStatus"] == [ROW]

    await team.delete("JobSet")
    own = await wait_until_recreated(team, forged)
    assert image_of(own) == image_of(created)
    await wait_until_recorded(team, own["metadata"]["uid"])
    job = await team.wait_until_condition_removed("Blocked")
    assert not {"Complete", "Failed"} & set(conditions_of(job))


async def test_jobset_created_by_another_client_first_is_not_adopted(
    team: Team, proxy: FaultProxy, alone: ManagerProcess
) -> None:
    """The manager does not see the JobSet in its cache when it creates its own."""
    await team.create_runtime()
    await team.create_job("example")
    example = await team.wait_until_exists("JobSet", "example")
    job = await team.create_job(runtime="missing", suspend=True)
    await team.wait_for_condition("Blocked", "RuntimeNotFound")
    proxy.stall_all(is_watch_of("jobsets"))
    forged = forged_from(example)
    [owner] = forged["metadata"]["ownerReferences"]
    owner |= {"name": JOB, "uid": job["metadata"]["uid"]}
    suspended = {**forged["spec"], "suspend": True}
    await team.create(
        {**forged, "metadata": {**forged["metadata"], "name": JOB}, "spec": suspended}
    )
    runtime = await team.get("TrainingRuntime", "torch")
    await team.create(
        {
            **{field: runtime[field] for field in ("apiVersion", "kind", "spec")},
            "metadata": {"name": "missing"},
        }
    )
    await team.wait_for_condition("Blocked", FOREIGN)
    proxy.reset_all(is_watch_of("jobsets"))
    await team.suspend(suspend=False)
    await team.touch(alone)
    live = await team.get("JobSet")
    assert (live["spec"]["suspend"], image_of(live)) == (True, FORGED_IMAGE)
    assert "jobSet" not in (await team.get("TrainJob"))["status"]


async def test_jobset_whose_uid_was_not_recorded_is_adopted_after_a_restart(
    team: Team, alone: ManagerProcess
) -> None:
    await team.create_runtime()
    await team.create_job()
    created = await team.wait_until_exists("JobSet")
    await team.touch(alone)
    assert "status" not in await team.get("TrainJob")
    alone.kill()
    alone.start()
    await team.touch(alone)
    assert "status" not in await team.get("TrainJob")
    await team.set_jobset_status(rows=[ROW])
    job = await wait_until_recorded(team, created["metadata"]["uid"])
    assert job["status"]["jobsStatus"] == [ROW]
    assert (await team.get("JobSet"))["metadata"]["uid"] == created["metadata"]["uid"]


async def test_jobset_observed_by_an_earlier_release_is_adopted_and_recorded(
    team: Team, alone: ManagerProcess
) -> None:
    """It differs from the plan, as JobSets of Kubeflow Trainer do."""
    await team.create_runtime()
    await team.create_job(suspend=True)
    created = await team.wait_until_exists("JobSet")
    row = {**ROW, "ready": 0, "active": 0, "suspended": 1}
    await team.set_jobset_status(rows=[row])
    await team.wait_for_jobs_status(row)
    await wait_until_recorded(team, created["metadata"]["uid"])
    await alone.stop()
    await team.patch("JobSet", JOB, {"spec": forged_from(created)["spec"]})
    await team.patch("TrainJob", JOB, {"status": {"jobSet": None}}, "/status")
    alone.start()
    await wait_until_recorded(team, created["metadata"]["uid"])
    await team.suspend(suspend=False)
    job = await team.wait_for_condition("Suspended", "Resumed", "False")
    assert "Blocked" not in conditions_of(job)
    assert image_of(await team.get("JobSet")) == FORGED_IMAGE


@asynccontextmanager
async def older_definition(team: Team) -> AsyncIterator[None]:
    """The CRD of a release that records no UID and no revision, for the length of the block."""
    [crd] = [each for each in definitions() if each["spec"]["names"]["kind"] == "TrainJob"]
    older = deepcopy(crd)
    [version] = older["spec"]["versions"]
    status = version["schema"]["openAPIV3Schema"]["properties"]["status"]["properties"]
    del status["jobSet"], status["runtimeRevision"]
    head = {"apiVersion": crd["spec"]["group"] + "/" + version["name"], "kind": "TrainJob"}

    async def wait_until_declared(*, declared: bool) -> None:
        async def has_changed() -> bool:
            body = {**head, "metadata": {"name": JOB}, "status": {"jobSet": {"uid": "u"}}}
            query = {"fieldManager": "test", "dryRun": "All", "force": "true"}
            try:
                await team.api.request(
                    "PATCH",
                    team.path("TrainJob", JOB) + "/status",
                    query=query,
                    body=body,
                    content_type=APPLY,
                )
            except ApiError:
                return not declared
            return declared

        await until(has_changed, within=TEST_TIMEOUT, what=f"the field being {declared=}")

    try:
        await team.api.apply_crd(older)
        await wait_until_declared(declared=False)
        yield
    finally:
        await team.api.apply_crd(crd)
        await wait_until_declared(declared=True)


async def test_status_is_written_with_the_crd_of_an_older_release(
    team: Team, alone: ManagerProcess
) -> None:
    await team.create_job(suspend=True)
    await team.wait_for_condition("Blocked", "RuntimeNotFound")
    async with older_definition(team):
        await team.create_runtime()
        job = await team.wait_until_condition_removed("Blocked")
        assert conditions_of(job)["Suspended"]["status"] == "True"
        assert {"jobSet", "runtimeRevision"}.isdisjoint(job["status"])
        await team.suspend(suspend=False)
        await team.wait_for_condition("Suspended", "Resumed", "False")
    events = ("jobset_uid_not_recorded", "runtime_revision_not_recorded")
    assert [len(alone.log_entries(each)) for each in events] == [1, 1]
