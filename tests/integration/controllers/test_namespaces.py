"""A manager of some namespaces only."""

from pathlib import Path

from kftrainer.devcluster.client import ApiClient
from kftrainer.devcluster.controlplane import ControlPlane
from kftrainer.devcluster.waiting import until
from tests.integration.controllers.team import (
    COMPLETED,
    IN_USE,
    JOB,
    TEST_TIMEOUT,
    Team,
    finalizers,
    wait_until_logged,
)
from tests.support.fault_proxy import ProxiedRequest, running_proxy, status_answer
from tests.support.managers import manager_process
from tests.support.objects import API, Object, runtime
from tests.support.permissions import allow


async def test_other_namespaces_are_not_modified(team: Team, plane: ControlPlane) -> None:
    cluster_runtime = f"cluster-{team.namespace}"
    await team.api.create(runtime(cluster_runtime, "ClusterTrainingRuntime"))
    others = [Team(team.api, await plane.create_namespace(team.api)) for _ in range(2)]
    second, outside = others
    for each in (team, *others):
        for name in ("mpi", "gang"):
            await each.create_runtime(name)
            await each.create_job(name, runtime=name)
        await each.create_job("cluster", runtimeRef={"name": cluster_runtime})
        await each.create_job("blocked", runtime="none")
    before = await outside.all("TrainJob"), await outside.all("TrainingRuntime")
    flags = ("--namespace", team.namespace, "--namespace", second.namespace)
    async with manager_process(plane.kubeconfig, *flags, "--log-level", "debug") as manager:
        for each in (team, second):
            for name in ("mpi", "gang", "cluster"):
                await each.wait_until_exists("JobSet", name)
            await each.wait_for_condition("Blocked", "RuntimeNotFound", name="blocked")
            await each.set_jobset_status(COMPLETED, name="mpi")
            await each.wait_for_condition("Complete", COMPLETED["reason"], name="mpi")
            await each.wait_until_in_use("gang")
        await outside.create_job(JOB, runtime="mpi")
        await outside.delete("TrainJob", JOB)
        # A watch of all namespaces delivers these in the order in which they happened.
        await team.touch(manager, "mpi")
        namespaces = {each.get("namespace") for each in manager.log_entries("reconcile_succeeded")}
        assert namespaces == {team.namespace, second.namespace, ""}, "and cluster runtimes"
    # It cannot determine whether other TrainJobs use it, so it adds no finalizer.
    path = f"/apis/trainer.kubeflow.org/v1alpha1/clustertrainingruntimes/{cluster_runtime}"
    assert finalizers(await team.api.get(path)) == []
    assert (await outside.all("TrainJob"), await outside.all("TrainingRuntime")) == before
    assert await outside.children() == []
    assert await outside.all("Event") == []


def left_behind(name: str, kind: str = "TrainingRuntime") -> Object:
    """A runtime with the finalizer that an earlier manager, or Kubeflow Trainer, has added."""
    manifest = runtime(name, kind)
    return {**manifest, "metadata": {**manifest["metadata"], "finalizers": [IN_USE]}}


async def wait_until_deleted(api: ApiClient, path: str) -> None:
    """Wait until there is no such object."""

    async def is_deleted() -> bool:
        return await api.get_or_none(path) is None

    await until(is_deleted, within=TEST_TIMEOUT, what=f"the end of {path}")


async def test_cluster_runtime_with_a_finalizer_can_be_deleted_when_no_job_uses_it(
    team: Team, plane: ControlPlane
) -> None:
    """As after a switch from all namespaces to some of them."""
    name = f"left-{team.namespace}"
    path = f"/apis/{API}/clustertrainingruntimes/{name}"
    other = Team(team.api, await plane.create_namespace(team.api))
    await team.api.create(left_behind(name, "ClusterTrainingRuntime"))
    await team.create_job(runtimeRef={"name": name})
    flags = ("--namespace", team.namespace, "--log-level", "debug")
    async with manager_process(plane.kubeconfig, *flags) as manager:
        await team.wait_until_exists("JobSet")
        await team.api.delete(path)
        await team.touch(manager)
        assert finalizers(await team.api.get(path)) == [IN_USE], "its own TrainJob uses it"
        await other.create_job(runtimeRef={"name": name})
        await team.delete("TrainJob")
        await team.create_job("next", runtime="none")
        await team.wait_for_condition("Blocked", "RuntimeNotFound", name="next")
        assert finalizers(await team.api.get(path)) == [IN_USE], "it may see the other's TrainJob"
    user = f"manager-of-{team.namespace}"
    await allow_cluster_kinds(team.api, user)
    await allow(team.api, user, ("*",), in_=team.namespace)
    async with manager_process(plane.kubeconfig_for(user), "--namespace", team.namespace):
        # It may not read other namespaces, and no other client would remove the finalizer.
        await wait_until_deleted(team.api, path)


async def test_runtime_of_a_namespace_that_is_not_watched_can_be_deleted(
    team: Team, plane: ControlPlane
) -> None:
    other = Team(team.api, await plane.create_namespace(team.api))
    for name in ("unused", "used", "alive"):
        await other.create(left_behind(name))
    await other.create_job(runtime="used")
    for name in ("unused", "used"):
        await other.delete("TrainingRuntime", name)
    async with manager_process(plane.kubeconfig, "--namespace", team.namespace):
        await other.wait_until_deleted("TrainingRuntime", "unused")
        for name in ("used", "alive"):
            assert finalizers(await other.get("TrainingRuntime", name)) == [IN_USE]


async def test_finalizer_is_not_added_where_it_could_not_be_removed_later(
    team: Team, plane: ControlPlane
) -> None:
    """A Role is deleted together with its namespace; what it was needed for would remain."""
    user = f"manager-of-{team.namespace}"
    await allow_cluster_kinds(team.api, user)
    await allow(team.api, user, ("*",), in_=team.namespace)
    await team.create_runtime()
    await team.create(left_behind("left"))
    await team.create_job()
    kubeconfig = plane.kubeconfig_for(user)
    async with manager_process(kubeconfig, "--namespace", team.namespace) as manager:
        await team.wait_until_exists("JobSet")
        await wait_until_logged(manager, "runtime_finalizers_not_added")
        await team.delete("TrainingRuntime", "left")
        await team.wait_until_deleted("TrainingRuntime", "left")
        assert finalizers(await team.get("TrainingRuntime", "torch")) == []
        [entry] = manager.log_entries("runtime_finalizers_not_added")
        assert entry["kind"] == "TrainingRuntime"


async def allow_cluster_kinds(api: ApiClient, user: str) -> None:
    """Let the user read what is in no namespace."""
    cluster_kinds = ("clustertrainingruntimes", "runtimeclasses", "priorityclasses")
    await allow(api, user, ("get", "list", "watch", "patch"), cluster_kinds)


async def test_namespace_without_rights_does_not_stop_the_manager_for_the_others(
    team: Team, plane: ControlPlane
) -> None:
    """As after the deletion of a watched namespace, with which its Role goes as well."""
    other = Team(team.api, await plane.create_namespace(team.api))
    user = f"manager-of-{team.namespace}"
    await allow_cluster_kinds(team.api, user)
    await allow(team.api, user, ("*",), in_=team.namespace)
    for each in (team, other):
        await each.create_runtime()
        await each.create_job("first")
    flags = ("--namespace", other.namespace, "--namespace", team.namespace)
    async with manager_process(plane.kubeconfig_for(user), *flags) as manager:
        await manager.wait_ready()
        await team.wait_until_exists("JobSet", "first")
        [reported] = manager.log_entries("namespace_unavailable")
        assert reported["namespace"] == other.namespace
        await allow(team.api, user, ("*",), in_=other.namespace)
        await other.wait_until_exists("JobSet", "first")
        await wait_until_logged(manager, "namespace_available")
        await other.set_jobset_status(COMPLETED, name="first")
        await other.wait_for_condition("Complete", COMPLETED["reason"], name="first")
        assert len(manager.log_entries("namespace_unavailable")) == 1


async def test_namespace_that_loses_its_rights_does_not_stop_the_manager_for_the_others(
    team: Team, plane: ControlPlane, tmp_path: Path
) -> None:
    other = Team(team.api, await plane.create_namespace(team.api))
    for each in (team, other):
        await each.create_runtime()
    flags = ("--namespace", other.namespace, "--namespace", team.namespace)

    def is_elsewhere(request: ProxiedRequest) -> bool:
        return f"/namespaces/{other.namespace}/" in request.path

    async with (
        running_proxy(plane, tmp_path) as proxy,
        manager_process(proxy.kubeconfig, *flags) as manager,
    ):
        await manager.wait_ready()
        proxy.inject(status_answer(403, "Forbidden"), is_elsewhere, times=100_000)
        proxy.reset_all(is_elsewhere)  # permissions are checked when a watch starts
        await wait_until_logged(manager, "namespace_unavailable")
        await team.create_job("first")
        await other.create_job("first")
        await team.wait_until_exists("JobSet", "first")
        await manager.wait_ready()
        proxy.forget_faults()
        await other.wait_until_exists("JobSet", "first")
        await wait_until_logged(manager, "namespace_available")
        assert len(manager.log_entries("namespace_unavailable")) == 1
