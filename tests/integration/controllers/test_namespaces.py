"""A manager of some namespaces only."""

from kftrainer.devcluster.controlplane import ControlPlane
from tests.integration.controllers.team import COMPLETED, JOB, Team, finalizers
from tests.support.managers import manager_process
from tests.support.objects import runtime


async def test_other_namespaces_are_left_alone(team: Team, plane: ControlPlane) -> None:
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
                await each.until_there("JobSet", name)
            await each.until_says("Blocked", "RuntimeNotFound", name="blocked")
            await each.job_set_says(COMPLETED, name="mpi")
            await each.until_says("Complete", COMPLETED["reason"], name="mpi")
            await each.until_in_use("gang")
        await outside.create_job(JOB, runtime="mpi")
        await outside.delete("TrainJob", JOB)
        # Who watches all namespaces hears of these in the order in which they happened.
        await team.touch(manager, "mpi")
        looked_at = {each.get("namespace") for each in manager.log_entries("reconcile.succeeded")}
        assert looked_at == {team.namespace, second.namespace}
    # It cannot know whether others use it, so it does not answer for it.
    path = f"/apis/trainer.kubeflow.org/v1alpha1/clustertrainingruntimes/{cluster_runtime}"
    assert finalizers(await team.api.get(path)) == []
    assert (await outside.all("TrainJob"), await outside.all("TrainingRuntime")) == before
    assert await outside.children() == []
    assert await outside.all("Event") == []
