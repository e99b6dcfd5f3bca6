"""A runtime is not deleted under its TrainJobs, whatever the order in which things happen."""

from datetime import datetime
from itertools import pairwise

from kftrainer.controllers.runtime_finalizer import FIRST_PAUSE
from kftrainer.devcluster.client import Object
from kftrainer.devcluster.controlplane import ControlPlane
from kftrainer.devcluster.waiting import until
from tests.integration.controllers.team import (
    COMPLETED,
    IN_USE,
    JOB,
    TEST_TIMEOUT,
    Team,
    a_runtime,
    finalizers,
)
from tests.support.managers import ManagerProcess
from tests.support.objects import API, runtime

CLUSTER = f"/apis/{API}/clustertrainingruntimes"


async def test_runtime_in_use_is_deleted_after_its_last_job(
    team: Team, manager: ManagerProcess
) -> None:
    """Defect D15."""
    await team.create_runtime()
    assert finalizers(await team.get("TrainingRuntime", "torch")) == []
    for name in ("one", "two"):
        await team.create_job(name)
    await team.wait_until_in_use()
    await team.delete("TrainingRuntime", "torch")
    await team.delete("TrainJob", "one")
    await team.touch(manager, "two")
    waiting = await team.get("TrainingRuntime", "torch")
    assert waiting["metadata"]["deletionTimestamp"]
    assert finalizers(waiting) == [IN_USE]
    await team.delete("TrainJob", "two")
    await team.wait_until_deleted("TrainingRuntime", "torch")


async def test_unused_runtime_is_deleted_immediately(team: Team, manager: ManagerProcess) -> None:
    """Defect D15."""
    await team.create_runtime()
    await team.create_job()
    await team.wait_until_in_use()
    await team.delete("TrainJob")
    await team.delete("TrainingRuntime", "torch")
    await team.wait_until_deleted("TrainingRuntime", "torch")


async def test_a_cluster_runtime_waits_for_jobs_in_all_namespaces(
    team: Team, manager: ManagerProcess, plane: ControlPlane
) -> None:
    name = f"cluster-{team.namespace}"
    other = Team(team.api, await plane.create_namespace(team.api))
    path = f"{CLUSTER}/{name}"
    await team.api.create(runtime(name, "ClusterTrainingRuntime"))
    for each in (team, other):
        await each.create_job(runtimeRef={"name": name})

    async def in_use() -> bool:
        return IN_USE in finalizers(await team.api.get_or_none(path))

    await until(in_use, within=TEST_TIMEOUT, what="the runtime being in use")
    await team.api.delete(path)
    await team.delete("TrainJob")
    await other.touch(manager)
    assert finalizers(await team.api.get(path)) == [IN_USE]
    await other.delete("TrainJob")

    async def is_deleted() -> bool:
        return await team.api.get_or_none(path) is None

    await until(is_deleted, within=TEST_TIMEOUT, what="the end of the runtime")


async def test_a_runtime_of_the_same_name_elsewhere_is_not_in_use(
    team: Team, manager: ManagerProcess, plane: ControlPlane
) -> None:
    other = Team(team.api, await plane.create_namespace(team.api))
    await team.create_runtime()
    await other.create_runtime()
    await team.create_job()
    await team.wait_until_in_use()
    await other.delete("TrainingRuntime", "torch")
    await other.wait_until_deleted("TrainingRuntime", "torch")
    assert finalizers(await team.get("TrainingRuntime", "torch")) == [IN_USE]


async def test_finalizers_of_other_controllers_are_preserved(
    team: Team, manager: ManagerProcess
) -> None:
    foreign_finalizer = "example.org/theirs"
    manifest = a_runtime("torch")
    await team.create(
        {**manifest, "metadata": {**manifest["metadata"], "finalizers": [foreign_finalizer]}}
    )
    await team.create_job()
    assert finalizers(await team.wait_until_in_use()) == [foreign_finalizer, IN_USE]
    await team.delete("TrainingRuntime", "torch")
    await team.delete("TrainJob")

    async def own_finalizer_removed() -> bool:
        return finalizers(await team.get("TrainingRuntime", "torch")) == [foreign_finalizer]

    await until(own_finalizer_removed, within=TEST_TIMEOUT, what="our finalizer being taken off")
    await team.patch("TrainingRuntime", "torch", {"metadata": {"finalizers": None}})
    await team.wait_until_deleted("TrainingRuntime", "torch")


async def test_finalizer_removed_by_another_client_is_added_again_with_backoff(
    team: Team, manager: ManagerProcess
) -> None:
    await team.create_runtime()
    await team.create_job()
    for _ in range(5):
        await team.wait_until_in_use()
        await team.patch("TrainingRuntime", "torch", {"metadata": {"finalizers": None}})
    await team.wait_until_in_use()

    async def written_six_times() -> list[datetime] | None:  # the log is written a moment later
        written = [
            datetime.fromisoformat(each["timestamp"])
            for each in manager.log_entries("runtime_finalizers_updated")
            if each["namespace"] == team.namespace
        ]
        return written if len(written) >= 6 else None

    written = await until(written_six_times, within=TEST_TIMEOUT, what="six entries in the log")
    pauses = [(later - before).total_seconds() for before, later in pairwise(written)]
    assert len(pauses) == 5
    assert pauses[-1] > 10 * FIRST_PAUSE
    [contested] = [
        each
        for each in manager.log_entries("runtime_finalizer_repeatedly_removed")
        if each["namespace"] == team.namespace
    ]
    assert contested["name"] == "torch"


async def test_nothing_is_added_to_a_runtime_that_is_being_deleted(
    team: Team, manager: ManagerProcess
) -> None:
    foreign_finalizer = "example.org/theirs"
    manifest = a_runtime("torch")
    await team.create(
        {**manifest, "metadata": {**manifest["metadata"], "finalizers": [foreign_finalizer]}}
    )
    await team.delete("TrainingRuntime", "torch")
    await team.create_job()
    await team.wait_until_exists("JobSet")
    await team.touch(manager)
    assert finalizers(await team.get("TrainingRuntime", "torch")) == [foreign_finalizer]


def with_pods_in(zone: str, num_nodes: int = 1) -> Object:
    """The spec of the MPI runtime, with its pods in a zone."""
    spec: Object = a_runtime("mpi")["spec"]
    spec["mlPolicy"]["numNodes"] = num_nodes
    for job in spec["template"]["spec"]["replicatedJobs"]:
        job["template"]["spec"]["template"]["spec"]["nodeSelector"] = {"zone": zone}
    return spec


async def wait_for_zone(team: Team, name: str, zone: str | None) -> Object:
    async def follows() -> Object | None:
        job_set = await team.get("JobSet", name)
        jobs = job_set["spec"]["replicatedJobs"]
        pods = [each["template"]["spec"]["template"]["spec"] for each in jobs]
        zones = {each.get("nodeSelector", {}).get("zone") for each in pods}
        return job_set if zones == {zone} else None

    return await until(follows, within=TEST_TIMEOUT, what=f"{name} being in the zone {zone}")


async def test_a_changed_runtime_concerns_suspended_jobs_and_none_that_run(
    team: Team, manager: ManagerProcess
) -> None:
    await team.create_runtime("mpi")
    for name, suspend in (("runs", False), ("waits", True), ("done", False)):
        await team.create_job(name, runtime="mpi", suspend=suspend)
        await team.wait_until_exists("JobSet", name)
        await team.without_revision(name)
    await team.set_jobset_status(COMPLETED, name="done")
    await team.wait_for_condition("Complete", COMPLETED["reason"], name="done")
    untouched = {
        (kind, child): await team.get(kind, child)
        for name in ("runs", "done")
        for kind, child in (("JobSet", name), ("ConfigMap", f"{name}-mpi-hostfile"))
    }
    await team.patch("TrainingRuntime", "mpi", {"spec": with_pods_in("east")})
    await wait_for_zone(team, "waits", "east")
    await team.patch("TrainingRuntime", "mpi", {"spec": a_runtime("mpi")["spec"]})
    await wait_for_zone(team, "waits", None)
    for name in ("runs", "done"):
        await team.touch(manager, name)
    for (kind, child), before in untouched.items():
        assert await team.get(kind, child) == before


async def test_immutable_jobset_fields_are_kept_and_reported_once(
    team: Team, manager: ManagerProcess
) -> None:
    await team.create_runtime("mpi")
    await team.create_job(runtime="mpi", suspend=True)
    await team.wait_for_condition("Suspended", "Suspended")
    await team.without_revision()
    hostfile = await team.get("ConfigMap", f"{JOB}-mpi-hostfile")
    await team.patch("TrainingRuntime", "mpi", {"spec": with_pods_in("east", num_nodes=5)})
    kept = await wait_for_zone(team, JOB, "east")
    [node, _] = kept["spec"]["replicatedJobs"]
    assert node["template"]["spec"]["parallelism"] == 0
    assert await team.get("ConfigMap", f"{JOB}-mpi-hostfile") == hostfile
    for _ in range(2):
        await team.touch(manager)
    assert await team.get("JobSet") == kept

    async def is_reported() -> bool:
        return [each["reason"] for each in await team.all("Event")] == ["JobSetKept"]

    await until(is_reported, within=TEST_TIMEOUT, what="an Event about it")
    assert [each["count"] for each in await team.all("Event")] == [1]
