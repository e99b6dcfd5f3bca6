"""`kftrainer purge` on a real API server, with a manager beside it."""

import asyncio
import shlex
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import pytest_asyncio
import yaml

from kftrainer.devcluster.client import ApiClient, Object
from kftrainer.devcluster.components.kubernetes import crds_in
from kftrainer.devcluster.controlplane import ControlPlane
from kftrainer.devcluster.waiting import until
from tests.integration.controllers.team import IN_USE, TEST_TIMEOUT, Team, finalizers
from tests.support.commands import Ended, error_output, kftrainer
from tests.support.managers import ManagerProcess, manager_process
from tests.support.objects import API, runtime
from tests.support.permissions import allow

CLUSTER = f"/apis/{API}/clustertrainingruntimes"
JOBS = f"/apis/{API}/trainjobs"
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
DONE = "no TrainJobs and no runtimes are left"
BACK = (
    f"{DONE}, except those that a manager has re-created: 1 ClusterTrainingRuntime: shipped; they "
    "are deleted with the CustomResourceDefinitions"
)
UNKNOWN = "the CustomResourceDefinitions are not installed: nothing to delete"
GONE_WITHIN = 120.0

pytestmark = pytest.mark.usefixtures("no_webhook", "empty_after")


@pytest_asyncio.fixture
async def empty_after(plane: ControlPlane, no_webhook: None) -> AsyncIterator[None]:
    """Leave nothing behind, however the test ends."""
    yield
    async with manager_process(plane.kubeconfig):
        await purged(plane)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    document = runtime("shipped", "ClusterTrainingRuntime")
    (tmp_path / "shipped.yaml").write_text(yaml.safe_dump(document))
    return tmp_path


async def purged(plane: ControlPlane, *flags: str) -> Ended:
    return await kftrainer("purge", "--kubeconfig", plane.kubeconfig, "--yes", *flags)


async def failed_purge(plane: ControlPlane) -> str:
    """The message about objects that are not deleted."""
    return await error_output("purge", "--kubeconfig", plane.kubeconfig, "--yes", "--timeout", "5")


@asynccontextmanager
async def ready_manager(plane: ControlPlane, *flags: str) -> AsyncIterator[ManagerProcess]:
    async with manager_process(plane.kubeconfig, *flags) as manager:
        await manager.wait_ready()
        yield manager


async def cluster_runtime(api: ApiClient, name: str) -> Object | None:
    return await api.get_or_none(f"{CLUSTER}/{name}")


async def train(team: Team) -> None:
    """A TrainJob on a TrainingRuntime, and one on the shipped runtime."""
    await team.create_runtime()
    await team.create_job("one")
    await team.create_job("two", runtimeRef={"name": "shipped"})
    for job in ("one", "two"):
        await team.wait_until_exists("JobSet", job)
    await team.wait_until_in_use()

    async def in_use() -> bool:
        return IN_USE in finalizers(await cluster_runtime(team.api, "shipped"))

    await until(in_use, within=TEST_TIMEOUT, what="the shipped runtime being in use")


async def test_purge_with_the_documented_permissions_deletes_everything_so_that_crds_can_be_removed(
    plane: ControlPlane, admin: ApiClient, team: Team, folder: Path, pytestconfig: pytest.Config
) -> None:
    user = f"remover-{team.namespace}"
    kinds = [
        "trainjobs",
        "trainingruntimes",
        "clustertrainingruntimes",
        "controllerrevisions",
    ]
    await allow(admin, user, ["list", "delete"], kinds)
    other = Team(admin, await plane.create_namespace(admin))
    async with ready_manager(plane, "--runtimes", str(folder)) as manager:
        for each in (team, other):
            await train(each)
        before = await cluster_runtime(admin, "shipped")
        assert before is not None
        ended = await kftrainer("purge", "--kubeconfig", plane.kubeconfig_for(user), "--yes")
        assert (ended.code, ended.err) == (0, [])
        assert ended.out[-1] in (DONE, BACK), "it may come back a moment later"
        assert ended.out[0].startswith("deleting 4 TrainJobs: ")
        for each in (team, other):
            for kind in ("TrainJob", "JobSet", "TrainingRuntime", "ControllerRevision"):
                assert await each.all(kind) == [], "gone means gone"
        # The manager has brought its runtime back, with nothing to hold it.
        back = await cluster_runtime(admin, "shipped")
        assert back is None or back["metadata"]["uid"] != before["metadata"]["uid"]
        assert finalizers(back) == []
        await manager.stop()
        files = pytestconfig.getini("devcluster_crds")
        definitions = [crd for file in files for crd in crds_in(file)]
        for definition in definitions:
            await admin.delete(f"{CRDS}/{definition['metadata']['name']}")

        async def is_deleted() -> bool:
            found = [
                await admin.get_or_none(f"{CRDS}/{each['metadata']['name']}")
                for each in definitions
            ]
            return found == [None] * len(definitions)

        try:
            await until(is_deleted, within=GONE_WITHIN, what="the end of our kinds")
            ended = await purged(plane)
            assert (ended.code, ended.out, ended.err) == (0, [UNKNOWN], [])
            ended = await kftrainer("purge", "--kubeconfig", plane.kubeconfig)
            assert (ended.code, ended.out, ended.err) == (0, [UNKNOWN], [])
        finally:
            await until(is_deleted, within=GONE_WITHIN, what="the end of our kinds")
            for definition in definitions:
                await admin.apply_crd(definition)


async def test_purge_without_confirmation_only_lists_objects(
    plane: ControlPlane, admin: ApiClient, team: Team
) -> None:
    ended = await kftrainer("purge", "--kubeconfig", plane.kubeconfig)
    assert (ended.code, ended.out) == (0, ["there is nothing to delete"])
    await team.create_runtime()
    await team.create_job()
    ended = await kftrainer("purge", "--kubeconfig", plane.kubeconfig)
    assert ended.code == 2
    assert ended.out == [
        f"would delete 1 TrainJob: {team.namespace}/train",
        f"would delete 1 TrainingRuntime: {team.namespace}/torch",
    ]
    assert ended.err == ["kftrainer purge: dry run, nothing was deleted; pass --yes to delete"]
    assert "deletionTimestamp" not in (await team.get("TrainJob"))["metadata"]


async def run_kubectl(program: Path, plane: ControlPlane, *arguments: str) -> None:
    argv = [program, "--kubeconfig", plane.kubeconfig, *arguments]
    process = await asyncio.create_subprocess_exec(*argv)
    assert await process.wait() == 0


async def use_a_runtime(team: Team) -> None:
    await team.create_runtime()
    await team.create_job()
    await team.wait_until_in_use()


async def end_the_use(team: Team) -> None:
    """Delete the TrainJob: a purge would wait for the garbage collector, which may take long."""
    await team.delete("TrainJob")
    await team.wait_until_deleted("TrainJob")


async def test_purge_names_objects_with_finalizers_and_a_manager_releases_them(
    plane: ControlPlane, admin: ApiClient, team: Team, kubectl_program: Path
) -> None:
    async with ready_manager(plane):
        await use_a_runtime(team)
    await end_the_use(team)
    message = await failed_purge(plane)
    report, _, command = message.partition("; to remove it manually: kubectl ")
    assert report == (
        f"after 5 s: left: 1 TrainingRuntime: {team.namespace}/torch (kept by {IN_USE}); nothing "
        f"removes the finalizer {IN_USE}: no manager is running, or it watches other namespaces "
        "only"
    )
    async with ready_manager(plane):
        assert (await purged(plane)).code == 0
        assert await team.all("TrainingRuntime") == []
        await use_a_runtime(team)
    await end_the_use(team)
    # Or manually, with the command in the message.
    await failed_purge(plane)
    await run_kubectl(kubectl_program, plane, *shlex.split(command))
    assert await team.all("TrainingRuntime") == []


async def test_train_job_is_deleted_after_its_dependents(
    plane: ControlPlane, admin: ApiClient, team: Team
) -> None:
    async with ready_manager(plane):
        await team.create_runtime()
        await team.create_job()
        await team.wait_until_exists("JobSet")
        await team.patch("JobSet", "train", {"metadata": {"finalizers": ["acme.io/hold"]}})
        message = await failed_purge(plane)
        assert f"left: 1 TrainJob: {team.namespace}/train (kept by foregroundDeletion); " in message
        await team.patch("JobSet", "train", {"metadata": {"finalizers": None}})
        assert (await purged(plane)).code == 0


async def test_other_namespaces_are_not_modified(
    plane: ControlPlane, admin: ApiClient, team: Team
) -> None:
    other = Team(admin, await plane.create_namespace(admin))
    for each in (team, other):
        await each.create_runtime()
        await each.create_job()
    await admin.create(runtime("for-all", "ClusterTrainingRuntime"))
    only = ("--namespace", team.namespace)
    ended = await kftrainer("purge", "--kubeconfig", plane.kubeconfig, *only)
    assert ended.out[-1] == (
        "would not delete ClusterTrainingRuntimes: pass --cluster-runtimes to delete them"
    )
    assert await cluster_runtime(admin, "for-all") is not None
    done = f"no TrainJobs and no TrainingRuntimes are left in {team.namespace}"
    async with manager_process(plane.kubeconfig):
        ended = await purged(plane, *only)
        assert (ended.code, ended.out[-1]) == (
            0,
            f"{done}; ClusterTrainingRuntimes were not deleted",
        )
        assert await cluster_runtime(admin, "for-all") is not None
        ended = await purged(plane, *only, "--cluster-runtimes")
        assert (ended.code, ended.out[-1]) == (0, f"{done}, and no ClusterTrainingRuntimes")
        assert await cluster_runtime(admin, "for-all") is None
    assert [await team.all("TrainJob"), await team.all("TrainingRuntime")] == [[], []]
    for kind in ("TrainJob", "TrainingRuntime"):
        [kept] = await other.all(kind)
        assert "deletionTimestamp" not in kept["metadata"]


async def test_release_frees_the_runtimes_that_no_job_uses(
    plane: ControlPlane, admin: ApiClient, team: Team
) -> None:
    """No manager runs, or none that watches this namespace."""
    other = Team(admin, await plane.create_namespace(admin))

    async def left_behind(where: Team | None, name: str) -> None:
        manifest = runtime(name, "TrainingRuntime" if where else "ClusterTrainingRuntime")
        manifest["metadata"]["finalizers"] = [IN_USE]
        await (where.create(manifest) if where else admin.create(manifest))

    for where in (team, other):
        for name in ("used", "unused"):
            await left_behind(where, name)
        await where.create_job(runtime="used")
    await left_behind(None, "shared")
    await left_behind(None, "shared-unused")
    await other.create_job("on-shared", runtimeRef={"name": "shared"})
    command = ("purge", "--release-runtimes", "--kubeconfig", plane.kubeconfig)

    dry = await kftrainer(*command, "--namespace", team.namespace)
    assert (dry.code, dry.out) == (
        2,
        [
            f"not released, because TrainJobs use them: 1 TrainingRuntime: {team.namespace}/used",
            f"would remove {IN_USE} from 1 TrainingRuntime: {team.namespace}/unused",
        ],
    )
    assert IN_USE in finalizers(await team.get("TrainingRuntime", "unused"))

    one = await kftrainer(*command, "--namespace", team.namespace, "--yes")
    assert one.code == 0
    assert finalizers(await team.get("TrainingRuntime", "unused")) == []
    assert IN_USE in finalizers(await other.get("TrainingRuntime", "unused"))

    every = await kftrainer(*command, "--yes")
    assert every.code == 0
    assert finalizers(await other.get("TrainingRuntime", "unused")) == []
    for where in (team, other):
        assert IN_USE in finalizers(await where.get("TrainingRuntime", "used"))
    assert IN_USE in finalizers(await cluster_runtime(admin, "shared"))
    assert finalizers(await cluster_runtime(admin, "shared-unused")) == []
    assert [each["metadata"]["name"] for each in await team.all("TrainJob")] == ["train"]
