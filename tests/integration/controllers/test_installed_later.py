"""Kinds that are installed while the manager runs: TrainJobs that need them continue."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import pytest

from kftrainer.devcluster import cache_paths
from kftrainer.devcluster.artifacts import manifests, versions
from kftrainer.devcluster.artifacts.manifests import Document
from kftrainer.devcluster.client import ApiClient, Object
from kftrainer.devcluster.components import kubernetes
from kftrainer.devcluster.controlplane import ControlPlane
from kftrainer.devcluster.progress import SILENT
from kftrainer.devcluster.waiting import until
from tests.integration.controllers.team import (
    COMPLETED,
    ROW,
    TEST_TIMEOUT,
    Team,
    conditions_of,
    wait_until_logged,
)
from tests.integration.controllers.test_writes import is_watch_of
from tests.support.fault_proxy import Answer, running_proxy
from tests.support.managers import ManagerProcess, manager_process
from tests.support.permissions import allow

SOURCES = {
    "JobSet": versions.JOBSET_MANIFESTS,
    "gang": versions.COSCHEDULING_MANIFESTS,
    "volcano": versions.VOLCANO_MANIFESTS,
}
GROUPS = {
    "gang": ("PodGroup", "scheduling.x-k8s.io/v1alpha1"),
    "volcano": ("Volcano", "scheduling.volcano.sh/v1beta1"),
}


@pytest.fixture
def control_plane(bare_control_plane: ControlPlane) -> ControlPlane:
    """One that serves our own kinds only."""
    return bare_control_plane


@pytest.fixture
async def definitions(api: ApiClient) -> AsyncIterator[Mapping[str, Document]]:
    """The definitions of the kinds, none of which is there before the test, nor after it."""
    found = {}
    for name, source in SOURCES.items():
        folder = await manifests.provide(source, cache=cache_paths.cache_home(), progress=SILENT)
        [found[name]] = kubernetes.crds_in(folder / source.crd_file)
    yield found
    for definition in found.values():
        path = await api.path_of(definition)
        if await api.get_or_none(path) is not None:
            await api.delete(path)

            async def is_deleted(path: str = path) -> bool:
                return await api.get_or_none(path) is None

            await until(is_deleted, within=TEST_TIMEOUT, what=f"the end of {path}")


def version_of(obj: Object) -> int:
    return int(obj["metadata"]["resourceVersion"])


async def test_kinds_that_are_installed_later_are_awaited(
    control_plane: ControlPlane, definitions: Mapping[str, Document], team: Team
) -> None:
    for name in ("torch", "gang", "volcano"):
        await team.create_runtime(name)
        await team.create_job(name, runtime=name)
    async with manager_process(control_plane.kubeconfig, "--namespace", team.namespace):
        job = await team.wait_for_condition("Blocked", "JobSetNotInstalled", name="torch")
        message = conditions_of(job)["Blocked"]["message"]
        assert "the kind JobSet (jobset.x-k8s.io/v1alpha2) is not installed" in message
        for name, (_, group) in GROUPS.items():
            job = await team.wait_for_condition("Blocked", "PodGroupNotInstalled", name=name)
            assert group in conditions_of(job)["Blocked"]["message"]
        async with asyncio.TaskGroup() as installing:
            for definition in definitions.values():
                installing.create_task(team.api.apply_crd(definition))
        created_objects = {
            name: await team.wait_until_exists("JobSet", name) for name in ("torch", *GROUPS)
        }
        for name, (kind, _) in GROUPS.items():
            gang = await team.get(kind, name)
            assert version_of(gang) < version_of(created_objects[name]), (
                "it would start without its gang"
            )
        for name in created_objects:
            await team.wait_until_condition_removed("Blocked", name)
        await team.set_jobset_status(COMPLETED, name="torch")
        await team.wait_for_condition("Complete", COMPLETED["reason"], name="torch")


async def uninstall(api: ApiClient, definition: Document) -> None:
    """Delete a CustomResourceDefinition and wait until its kind is not served any more."""
    path, spec = await api.path_of(definition), definition["spec"]
    served = f"/apis/{spec['group']}/{spec['versions'][0]['name']}/{spec['names']['plural']}"
    await api.delete(path)

    async def is_deleted() -> bool:
        return await api.get_or_none(path) is None and await api.get_or_none(served) is None

    await until(is_deleted, within=TEST_TIMEOUT, what=f"the end of {path}")


async def test_kind_removed_while_running_is_reported_and_reinstallation_is_detected(
    control_plane: ControlPlane, definitions: Mapping[str, Document], team: Team
) -> None:
    await team.api.apply_crd(definitions["JobSet"])
    await team.create_runtime("torch")
    async with manager_process(control_plane.kubeconfig, "--namespace", team.namespace) as manager:
        await manager.wait_ready()
        await team.create_job("before")
        await team.wait_until_exists("JobSet", "before")
        await uninstall(team.api, definitions["JobSet"])
        await team.create_job("meanwhile")
        job = await team.wait_for_condition("Blocked", "JobSetNotInstalled", name="meanwhile")
        message = conditions_of(job)["Blocked"]["message"]
        assert "the kind JobSet (jobset.x-k8s.io/v1alpha2) is not installed" in message
        await wait_until_logged(manager, "kind_not_installed")
        # From now on it is not tried again: only the return of the kind can wake it.
        await team.create_job("later")
        await team.wait_for_condition("Blocked", "JobSetNotInstalled", name="later")
        await team.api.apply_crd(definitions["JobSet"])
        for name in ("meanwhile", "later"):
            await team.wait_until_exists("JobSet", name)
            await team.wait_until_condition_removed("Blocked", name)
        for event in ("kind_not_installed", "kind_installed"):
            kinds = [each["kind"] for each in manager.log_entries(event)]
            assert kinds == ["JobSet.jobset.x-k8s.io"]


async def create_running(team: Team, *names: str) -> None:
    """Create TrainJobs, and wait until the status of each shows its running JobSet."""
    await team.create_runtime("torch")
    for name in names:
        await team.create_job(name)
        await team.wait_until_exists("JobSet", name)
        await team.set_jobset_status(rows=[ROW], name=name)
        await team.wait_for_jobs_status(ROW, name=name)


async def wait_until_not_retried(team: Team, manager: ManagerProcess, name: str) -> Object:
    """Wait until only the return of the kind JobSet can wake the TrainJob; the TrainJob.

    Each attempt before the informer of JobSets has noticed their end schedules another one.
    """
    await team.wait_for_condition("Blocked", "JobSetNotInstalled", name=name)
    await wait_until_logged(manager, "kind_not_installed")
    await team.touch(manager, name)
    return await team.wait_for_condition("Blocked", "JobSetNotInstalled", name=name)


async def test_jobset_removed_with_its_kind_is_created_again_when_the_kind_returns(
    control_plane: ControlPlane, definitions: Mapping[str, Document], team: Team
) -> None:
    """As each running JobSet whose deletion is watched; the API server deletes them with a kind."""
    await team.api.apply_crd(definitions["JobSet"])
    flags = ("--namespace", team.namespace, "--log-level", "debug")
    async with manager_process(control_plane.kubeconfig, *flags) as manager:
        await manager.wait_ready()
        await create_running(team, "running", "ended")
        first = await team.get("JobSet", "running")
        await team.set_jobset_status(COMPLETED, rows=[ROW], name="ended")
        ended = await team.wait_for_condition("Complete", COMPLETED["reason"], name="ended")

        await uninstall(team.api, definitions["JobSet"])
        blocked = await wait_until_not_retried(team, manager, "running")
        assert set(conditions_of(blocked)) == {"Blocked"}
        assert blocked["status"]["jobsStatus"] == [ROW]
        assert blocked["status"]["jobSet"] == {"uid": first["metadata"]["uid"]}

        await team.api.apply_crd(definitions["JobSet"])
        again = await team.wait_until_exists("JobSet", "running")
        recovered = await team.wait_until_condition_removed("Blocked", "running")
        assert recovered["status"]["jobSet"] == {"uid": again["metadata"]["uid"]}
        assert {"conditions", "jobsStatus"}.isdisjoint(recovered["status"])
        await team.set_jobset_status(COMPLETED, name="running")
        await team.wait_for_condition("Complete", COMPLETED["reason"], name="running")
        await team.touch(manager, "ended")
        assert (await team.get("TrainJob", "ended"))["status"] == ended["status"]
        assert await team.find("JobSet", "ended") is None
        created = [each["name"] for each in manager.log_entries("object_created")]
        assert sorted(created) == ["ended", "running", "running"]


async def test_training_is_not_repeated_if_the_end_of_its_kind_was_not_watched(
    control_plane: ControlPlane, definitions: Mapping[str, Document], team: Team
) -> None:
    """JobSet's definition is removed while no manager runs, and installed while one does."""
    await team.api.apply_crd(definitions["JobSet"])
    flags = ("--namespace", team.namespace, "--log-level", "debug")
    async with manager_process(control_plane.kubeconfig, *flags) as manager:
        await create_running(team, "running")
        await manager.stop()
        await uninstall(team.api, definitions["JobSet"])
        manager.start()
        blocked = await team.wait_for_condition("Blocked", "JobSetNotInstalled", name="running")
        assert blocked["status"]["jobsStatus"] == [ROW]
        await team.api.apply_crd(definitions["JobSet"])
        failed = await team.wait_for_condition("Failed", "OutcomeUnknown", name="running")
        assert set(conditions_of(failed)) == {"Failed"}
        await team.touch(manager, "running")
        assert await team.all("JobSet") == []


async def test_training_is_not_repeated_if_the_connection_broke_before_the_end_of_its_kind(
    control_plane: ControlPlane, definitions: Mapping[str, Document], team: Team, tmp_path: Path
) -> None:
    """The manager reads that the kind is missing, and never that the JobSet was deleted."""
    await team.api.apply_crd(definitions["JobSet"])
    flags = ("--namespace", team.namespace, "--log-level", "debug")
    async with (
        running_proxy(control_plane, tmp_path) as proxy,
        manager_process(proxy.kubeconfig, *flags) as manager,
    ):
        await manager.wait_ready()
        await create_running(team, "running")
        proxy.stall_all(is_watch_of("jobsets"))
        await uninstall(team.api, definitions["JobSet"])
        proxy.reset_all(is_watch_of("jobsets"))
        await wait_until_logged(manager, "kind_not_installed")
        await team.api.apply_crd(definitions["JobSet"])
        failed = await team.wait_for_condition("Failed", "OutcomeUnknown", name="running")
        assert set(conditions_of(failed)) == {"Failed"}
        assert failed["status"]["jobsStatus"] == [ROW]
        await team.touch(manager, "running")
        assert await team.all("JobSet") == []


async def test_removed_runtime_kind_is_reported_as_not_installed(
    control_plane: ControlPlane, definitions: Mapping[str, Document], team: Team, tmp_path: Path
) -> None:
    """A kind of our own, which is read live before a runtime is reported as missing."""
    await team.api.apply_crd(definitions["JobSet"])
    async with (
        running_proxy(control_plane, tmp_path) as proxy,
        manager_process(proxy.kubeconfig, "--namespace", team.namespace) as manager,
    ):
        await manager.wait_ready()
        one = team.path("TrainingRuntime", "torch")
        page = Answer(404, "404 page not found\n")
        proxy.inject(page, lambda each: each.path == one and each.is_list, times=1000)
        await team.create_job()
        await team.wait_for_condition("Blocked", "TrainingRuntimeNotInstalled")
        proxy.forget_faults()
        await team.create_runtime("torch")
        await team.wait_until_exists("JobSet")
        await team.wait_until_condition_removed("Blocked")


async def test_kind_is_served_where_it_may_be_read_and_later_where_it_may_not(
    control_plane: ControlPlane, definitions: Mapping[str, Document], team: Team
) -> None:
    """A kind that is installed later, with one namespace in which the manager must not read it."""
    other = Team(team.api, await control_plane.create_namespace(team.api))
    user = f"manager-of-{team.namespace}"
    cluster_kinds = ("clustertrainingruntimes", "runtimeclasses", "priorityclasses")
    await allow(team.api, user, ("get", "list", "watch", "patch"), cluster_kinds)
    await allow(team.api, user, ("*",), in_=team.namespace)
    all_but_job_sets = ("trainjobs", "trainjobs/status", "trainingruntimes", "events", "jobs")
    unused = (
        "controllerrevisions",
        "secrets",
        "configmaps",
        "limitranges",
        "resourceclaimtemplates",
    )
    await allow(team.api, user, ("*",), (*all_but_job_sets, *unused), in_=other.namespace)
    for each in (team, other):
        await each.create_runtime()
        await each.create_job()
    await other.create_job("paused", suspend=True)
    flags = ("--namespace", other.namespace, "--namespace", team.namespace)
    async with manager_process(control_plane.kubeconfig_for(user), *flags) as manager:
        for each in (team, other):
            await each.wait_for_condition("Blocked", "JobSetNotInstalled")
        await team.api.apply_crd(definitions["JobSet"])
        await team.wait_until_exists("JobSet")
        await team.wait_until_condition_removed("Blocked")
        await wait_until_logged(manager, "namespace_unavailable")
        await other.wait_for_condition("Blocked", "JobSetNotInstalled")
        # Its JobSet may run: that it is suspended is not reported before it can be read.
        paused = await other.wait_for_condition("Blocked", "JobSetNotInstalled", name="paused")
        assert "Suspended" not in conditions_of(paused)
        role = f"job-sets-of-{user}"
        await allow(team.api, user, ("*",), ("jobsets",), name=role, in_=other.namespace)
        await other.wait_until_exists("JobSet")
        await other.wait_until_condition_removed("Blocked")
        await other.wait_for_condition("Suspended", "Suspended", name="paused")
