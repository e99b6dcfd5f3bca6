"""The runtimes of a folder, kept in a cluster by a manager."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from copy import deepcopy
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml

from kftrainer.devcluster import cache_paths
from kftrainer.devcluster.client import ApiClient
from kftrainer.devcluster.controlplane import ControlPlane
from kftrainer.devcluster.processes.ports import PortReservations
from kftrainer.devcluster.waiting import until
from tests.integration.controllers.team import IN_USE, MERGE, TEST_TIMEOUT, Team, finalizers
from tests.support.fault_proxy import Delay, ProxiedRequest, running_proxy
from tests.support.managers import ManagerProcess, manager_process
from tests.support.objects import API, Object, replicated_job, runtime
from tests.support.permissions import allow
from tests.support.runtimes import SHIPPED
from tests.support.webhooks import (
    admitting_manager,
    register,
    unregister,
    wait_until_call_fails,
)

CLUSTER = f"/apis/{API}/clustertrainingruntimes"
HASH = "trainer.kubeflow.org/shipped-hash"
MANAGED_BY = "trainer.kubeflow.org/managed-by"
CONTROLLER = "shippedruntimes_controller"


class RuntimeFiles:
    """A folder of runtimes, and what the cluster has of them; names are the test's own."""

    def __init__(self, folder: Path, api: ApiClient, suffix: str) -> None:
        self.folder = folder
        self._api = api
        self._suffix = suffix

    def name(self, of: str) -> str:
        return f"{of}-{self._suffix}"

    def put(self, of: str, nodes: int = 1, *, labels: Object | None = None, **spec: Any) -> Object:
        """Write the file of a runtime."""
        document = runtime(self.name(of), "ClusterTrainingRuntime", **spec)
        document["metadata"]["labels"] |= labels or {}
        document["spec"]["mlPolicy"]["numNodes"] = nodes
        (self.folder / f"{of}.yaml").write_text(yaml.safe_dump(document))
        return document

    def drop(self, of: str) -> None:
        (self.folder / f"{of}.yaml").unlink()

    async def find(self, of: str) -> Object | None:
        return await self._api.get_or_none(f"{CLUSTER}/{self.name(of)}")

    async def patch(self, of: str, change: Object) -> None:
        path = f"{CLUSTER}/{self.name(of)}"
        await self._api.request("PATCH", path, body=change, content_type=MERGE)

    async def delete(self, of: str) -> None:
        await self._api.delete(f"{CLUSTER}/{self.name(of)}")

    async def wait_until_exists(self, of: str, *, nodes: int = 1, not_uid: str = "") -> Object:
        """Wait until the runtime exists with this number of nodes."""

        async def there() -> Object | None:
            found = await self.find(of)
            if found is None or found["metadata"]["uid"] == not_uid:
                return None
            return found if nodes_of(found) == nodes else None

        return await until(there, within=TEST_TIMEOUT, what=f"{of} with {nodes} nodes")

    async def wait_until_deleted(self, of: str) -> None:
        async def is_deleted() -> bool:
            return await self.find(of) is None

        await until(is_deleted, within=TEST_TIMEOUT, what=f"the end of {of}")

    async def wait_until_terminating(self, of: str) -> Object:
        async def going() -> Object | None:
            found = await self.find(of)
            return found if found and "deletionTimestamp" in found["metadata"] else None

        return await until(going, within=TEST_TIMEOUT, what=f"{of} being deleted")


def nodes_of(found: Object) -> int:
    nodes: int = found["spec"]["mlPolicy"]["numNodes"]
    return nodes


def logged_about(manager: ManagerProcess, event: str, name: str) -> list[Object]:
    return [each for each in manager.log_entries(event) if each["name"] == name]


async def wait_until_logged(
    manager: ManagerProcess, event: str, name: str, times: int = 1
) -> Object:
    async def has_logged() -> Object | None:
        entries = logged_about(manager, event, name)
        return entries[-1] if len(entries) >= times else None

    return await until(has_logged, within=TEST_TIMEOUT, what=f"{event} of {name}")


def reconcile_count(manager: ManagerProcess, name: str) -> int:
    done = logged_about(manager, "reconcile_succeeded", name)
    return sum(each["controller"] == CONTROLLER for each in done)


async def wait_until_reconciled(manager: ManagerProcess, name: str, times: int) -> None:
    async def is_reconciled() -> bool:
        return reconcile_count(manager, name) > times

    await until(is_reconciled, within=TEST_TIMEOUT, what=f"a reconcile of {name}")


async def restart(manager: ManagerProcess) -> None:
    """Stop it as Kubernetes does, and start it again."""
    await manager.stop()
    assert manager.ending() == "exit code 0"
    manager.start()
    await manager.wait_ready()


@pytest.fixture
def files(tmp_path: Path, api: ApiClient, namespace: str) -> RuntimeFiles:
    return RuntimeFiles(tmp_path, api, namespace)


@asynccontextmanager
async def keeping(
    files: RuntimeFiles, plane: ControlPlane, *flags: str
) -> AsyncIterator[ManagerProcess]:
    """A manager that keeps the folder's runtimes in the cluster."""
    flags = ("--runtimes", str(files.folder), "--log-level", "debug", *flags)
    async with manager_process(plane.kubeconfig, *flags) as manager:
        yield manager


@pytest.mark.parametrize("flags", [(), ("--namespace", "default")], ids=["all", "one namespace"])
async def test_runtimes_of_the_folder_are_applied_and_recreated_after_deletion(
    files: RuntimeFiles, plane: ControlPlane, flags: Sequence[str]
) -> None:
    document = files.put("torch", nodes=3)
    async with keeping(files, plane, *flags) as manager:
        created = await files.wait_until_exists("torch", nodes=3)
        labels = {"trainer.kubeflow.org/framework": "torch", MANAGED_BY: "kftrainer"}
        assert created["metadata"]["labels"] == labels
        assert created["metadata"]["annotations"][HASH].startswith(f"{files.name('torch')}/")
        [owned] = created["metadata"]["managedFields"]
        assert (owned["manager"], owned["operation"]) == ("kftrainer-runtimes", "Update")
        assert created["spec"]["mlPolicy"] == document["spec"]["mlPolicy"]
        await files.delete("torch")
        await files.wait_until_exists("torch", nodes=3, not_uid=created["metadata"]["uid"])
        entry = await wait_until_logged(manager, "shipped_runtime_applied", files.name("torch"), 2)
        assert (entry["level"], entry["why"]) == ("info", "it does not exist")


async def test_an_edit_by_hand_stays_until_the_file_changes(
    files: RuntimeFiles, plane: ControlPlane
) -> None:
    name = files.name("torch")
    files.put("torch", nodes=1)
    async with keeping(files, plane) as manager:
        await files.wait_until_exists("torch", nodes=1)
        await wait_until_logged(manager, "shipped_runtime_applied", name)
        before = reconcile_count(manager, name)
        await files.patch("torch", {"spec": {"mlPolicy": {"numNodes": 5}}})
        await wait_until_reconciled(manager, name, before)
        assert nodes_of(await files.wait_until_exists("torch", nodes=5)) == 5
        before = reconcile_count(manager, name)
        await restart(manager)
        await wait_until_reconciled(manager, name, before)
        assert nodes_of(await files.wait_until_exists("torch", nodes=5)) == 5
        assert len(logged_about(manager, "shipped_runtime_applied", name)) == 1
        files.put("torch", nodes=2)
        await restart(manager)
        await files.wait_until_exists("torch", nodes=2)
        entry = await wait_until_logged(manager, "shipped_runtime_applied", name, 2)
        assert entry["why"] == "its file has changed"


async def test_runtime_created_by_others_is_adopted_only_when_labelled(
    files: RuntimeFiles, plane: ControlPlane, api: ApiClient
) -> None:
    name = files.name("torch")
    document = files.put("torch", nodes=2)
    foreign = {**document, "spec": {**document["spec"], "mlPolicy": {"numNodes": 7, "torch": {}}}}
    labels = {**document["metadata"]["labels"], "helm": "other"}
    created = await api.create({**foreign, "metadata": {**document["metadata"], "labels": labels}})
    async with keeping(files, plane) as manager:
        entry = await wait_until_logged(manager, "shipped_runtime_not_managed", name)
        assert entry["level"] == "warning"
        assert f"label it {MANAGED_BY}=kftrainer" in entry["why"]
        assert await files.find("torch") == created
        await files.patch("torch", {"metadata": {"labels": {MANAGED_BY: "kftrainer"}}})
        taken = await files.wait_until_exists("torch", nodes=2)
        entry = await wait_until_logged(manager, "shipped_runtime_applied", name)
        assert entry["why"] == "another client created it and has labelled it for this manager"
        assert len(logged_about(manager, "shipped_runtime_not_managed", name)) == 1
    # What they wrote besides stays.
    assert taken["metadata"]["labels"] == {**labels, MANAGED_BY: "kftrainer"}


def of_release_2_1(document: Object) -> Object:
    """The torchtune runtime as Kubeflow Trainer 2.1 has it: with a claim that people create."""
    original = deepcopy(document)
    template = original["spec"]["template"]["spec"]
    del template["volumeClaimPolicies"]
    for job in template["replicatedJobs"]:
        claim = {"claimName": original["metadata"]["name"]}
        volume = {"name": "initializer", "persistentVolumeClaim": claim}
        job["template"]["spec"]["template"]["spec"]["volumes"] = [volume]
    original["metadata"]["labels"]["app.kubernetes.io/part-of"] = "kubeflow"
    original["metadata"]["finalizers"] = ["example.com/mine"]
    return original


TORCHTUNE = next(
    each for each in SHIPPED if "volumeClaimPolicies" in each["spec"]["template"]["spec"]
)


@pytest.mark.parametrize("how", ["create", "apply"])
async def test_runtime_of_the_original_becomes_exactly_the_shipped_one(
    files: RuntimeFiles, plane: ControlPlane, api: ApiClient, how: str
) -> None:
    """Also under the eyes of our webhook, which would refuse a mixture of both."""
    document = deepcopy(TORCHTUNE)
    document["metadata"]["name"] = name = files.name("tune")
    (files.folder / "tune.yaml").write_text(yaml.safe_dump(document))
    original = of_release_2_1(document)
    fresh = {**document, "metadata": {**document["metadata"], "name": files.name("fresh")}}
    as_stored = (await api.create(fresh))["spec"]
    await (api.create(original) if how == "create" else api.apply(original))
    async with admitting_manager(plane, "--runtimes", str(files.folder)) as manager:
        await wait_until_logged(manager, "shipped_runtime_not_managed", name)
        await files.patch("tune", {"metadata": {"labels": {MANAGED_BY: "kftrainer"}}})
        await wait_until_logged(manager, "shipped_runtime_applied", name)
        found = await files.find("tune")
        assert found is not None
        assert found["spec"] == as_stored
        metadata = found["metadata"]
        assert metadata["labels"] == {**original["metadata"]["labels"], MANAGED_BY: "kftrainer"}
        assert metadata["finalizers"] == ["example.com/mine"]
        assert logged_about(manager, "reconcile_failed", name) == []
    await files.patch("tune", {"metadata": {"finalizers": None}})


async def test_manual_edit_is_overwritten_when_the_file_changes(
    files: RuntimeFiles, plane: ControlPlane, api: ApiClient
) -> None:
    name = files.name("torch")
    files.put("torch", nodes=1, labels={"ours": "1", "kept": "1"})
    async with keeping(files, plane) as manager:
        created = await files.wait_until_exists("torch", nodes=1)
        await wait_until_logged(manager, "shipped_runtime_applied", name)
        edited = deepcopy(created)
        pod = edited["spec"]["template"]["spec"]["replicatedJobs"][0]["template"]["spec"]
        pod["template"]["spec"]["volumes"] = [{"name": "mine", "emptyDir": {}}]
        edited["spec"]["template"]["spec"]["successPolicy"] = {"operator": "All"}
        labels = {**created["metadata"]["labels"], "theirs": "1"}
        change = {"metadata": {"labels": labels}, "spec": edited["spec"]}
        await files.patch("torch", change)
        files.put("torch", nodes=2, labels={"kept": "2"})
        await restart(manager)
        now = await files.wait_until_exists("torch", nodes=2)
    created["spec"]["mlPolicy"]["numNodes"] = 2
    assert now["spec"] == created["spec"]
    framework = {"trainer.kubeflow.org/framework": "torch"}
    ours = {"kept": "2", MANAGED_BY: "kftrainer", **framework}
    assert now["metadata"]["labels"] == {**ours, "theirs": "1"}


async def test_runtime_that_others_create_concurrently_is_not_adopted(
    files: RuntimeFiles,
    plane: ControlPlane,
    api: ApiClient,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """The cache does not show it yet."""
    document = files.put("torch", nodes=2)

    def is_write(request: ProxiedRequest) -> bool:
        return request.method in ("POST", "PATCH") and "clustertraining" in request.path

    async with running_proxy(plane, tmp_path_factory.mktemp("proxy")) as proxy:
        proxy.inject(Delay(2.0), is_write)
        flags = ("--runtimes", str(files.folder), "--log-level", "debug")
        async with manager_process(proxy.kubeconfig, *flags) as manager:

            async def is_creating() -> bool:
                return proxy.faults_left == 0

            await until(is_creating, within=TEST_TIMEOUT, what="the manager creating it")
            foreign = {**document, "spec": {**document["spec"], "mlPolicy": {"numNodes": 7}}}
            created = await api.create(foreign)
            await wait_until_logged(manager, "shipped_runtime_not_managed", files.name("torch"))
            assert await files.find("torch") == created


async def test_contested_runtime_is_reapplied_with_backoff(
    files: RuntimeFiles,
    plane: ControlPlane,
    tmp_path_factory: pytest.TempPathFactory,
    api: ApiClient,
) -> None:
    """Two managers with two documents of one name, each of which takes it for its own."""
    other = RuntimeFiles(tmp_path_factory.mktemp("other"), api, files.name("")[1:])
    files.put("torch", nodes=1)
    other.put("torch", nodes=2)
    name = files.name("torch")
    async with keeping(files, plane) as first, keeping(other, plane) as second:
        for manager in (first, second):
            entry = await wait_until_logged(manager, "shipped_runtime_repeatedly_changed", name)
            assert entry["level"] == "warning"
            await wait_until_logged(manager, "shipped_runtime_applied", name, 5)
            writes = logged_about(manager, "shipped_runtime_applied", name)
            times = [datetime.fromisoformat(each["timestamp"]) for each in writes]
            pauses = [(after - at).total_seconds() for at, after in pairwise(times)]
            least = [0.2 * 2**number for number in range(len(pauses))]
            assert all(x > 0.9 * y for x, y in zip(pauses, least, strict=True)), pauses
            assert len(logged_about(manager, "shipped_runtime_repeatedly_changed", name)) == 1


async def test_runtimes_removed_from_the_folder_are_deleted_and_others_are_kept(
    files: RuntimeFiles, plane: ControlPlane, api: ApiClient
) -> None:
    for name in ("kept", "dropped", "released"):
        files.put(name)
    await api.create(runtime(files.name("foreign"), "ClusterTrainingRuntime"))
    async with keeping(files, plane) as manager:
        for name in ("kept", "dropped", "released"):
            await files.wait_until_exists(name)
        await files.patch("released", {"metadata": {"labels": {MANAGED_BY: None}}})
        copied = await files.wait_until_exists("dropped")
        kept = {key: copied["metadata"][key] for key in ("labels", "annotations")}
        metadata = {**kept, "name": files.name("a-copy")}
        await api.create({**copied, "metadata": metadata})
        for name in ("dropped", "released"):
            files.drop(name)
        before = reconcile_count(manager, files.name("released"))
        await restart(manager)
        await files.wait_until_deleted("dropped")
        await wait_until_logged(manager, "shipped_runtime_deleted", files.name("dropped"))
        await wait_until_reconciled(manager, files.name("released"), before)
        for name in ("kept", "released", "foreign", "a-copy"):
            found = await files.find(name)
            assert found is not None
            assert "deletionTimestamp" not in found["metadata"]
        files.drop("kept")  # and now the folder is empty
        await manager.stop()
        manager.start()

        async def has_ended() -> bool:
            return not manager.is_alive()

        await until(has_ended, within=TEST_TIMEOUT, what="the manager taking that for a mistake")
        assert "add an empty file named none" in manager.log_text()
        assert await files.find("kept") is not None
        (files.folder / "none").touch()
        await manager.stop()  # what is left of it
        manager.start()
        await files.wait_until_deleted("kept")


async def test_manager_of_single_namespaces_does_not_delete_removed_runtimes(
    files: RuntimeFiles, plane: ControlPlane, namespace: str
) -> None:
    for name in ("kept", "dropped"):
        files.put(name)
    async with keeping(files, plane, "--namespace", namespace) as manager:
        for name in ("kept", "dropped"):
            await files.wait_until_exists(name)
        files.drop("dropped")
        await restart(manager)
        entry = await wait_until_logged(manager, "shipped_runtime_kept", files.name("dropped"))
        assert "watches some namespaces only" in entry["why"]
        found = await files.find("dropped")
        assert found is not None
        assert "deletionTimestamp" not in found["metadata"]


async def test_removed_runtime_in_use_is_deleted_after_its_last_job_and_can_be_recreated(
    files: RuntimeFiles, plane: ControlPlane, team: Team
) -> None:
    name = files.name("torch")
    files.put("torch")
    async with keeping(files, plane) as manager:
        await files.wait_until_exists("torch")
        await team.create_job(runtimeRef={"name": name})

        async def in_use() -> bool:
            return IN_USE in finalizers(await files.find("torch"))

        await until(in_use, within=TEST_TIMEOUT, what="the runtime being in use")
        files.put("other")
        files.drop("torch")
        await restart(manager)
        entry = await wait_until_logged(manager, "shipped_runtime_kept", name)
        assert "TrainJobs refer to it" in entry["why"]
        found = await files.find("torch")
        assert found is not None
        assert "deletionTimestamp" not in found["metadata"]
        await team.delete("TrainJob")
        await files.wait_until_deleted("torch")
        await wait_until_logged(manager, "shipped_runtime_deleted", name)

        await team.create_job(runtimeRef={"name": name})  # there is no webhook here
        files.put("torch", nodes=4)
        await restart(manager)
        await files.wait_until_exists("torch", nodes=4)
        await until(in_use, within=TEST_TIMEOUT, what="the runtime being in use again")
        await files.delete("torch")
        going = await files.wait_until_terminating("torch")
        before = reconcile_count(manager, name)
        await restart(manager)
        await wait_until_reconciled(manager, name, before)
        assert await files.find("torch") == going, "a terminating runtime is not modified"
        await team.delete("TrainJob")
        await files.wait_until_exists("torch", nodes=4, not_uid=going["metadata"]["uid"])


async def test_runtime_that_may_not_be_applied_fails_its_reconcile_only(
    files: RuntimeFiles, plane: ControlPlane, api: ApiClient, team: Team
) -> None:
    user, name = f"reader-{team.namespace}", files.name("torch")
    files.put("torch")
    await allow(api, user, ["get", "list", "watch"])
    jobs = f"{user}-jobs"
    kinds = ["trainjobs", "trainjobs/status", "controllerrevisions", "jobsets", "events"]
    await allow(api, user, ["*"], kinds, name=jobs)
    flags = ("--runtimes", str(files.folder), "--log-level", "debug")
    async with manager_process(plane.kubeconfig_for(user), *flags) as manager:
        entry = await wait_until_logged(manager, "reconcile_failed", name, 3)
        assert 'cannot create resource "clustertrainingruntimes"' in entry["error"]
        await team.create_runtime()
        await team.create_job()
        await team.wait_until_exists("JobSet")
        resources = ["clustertrainingruntimes"]
        await allow(api, user, ["create"], resources, name=f"{user}-runtimes")
        await files.wait_until_exists("torch")


async def test_webhook_that_is_not_yet_available_is_waited_for(
    files: RuntimeFiles, plane: ControlPlane, api: ApiClient
) -> None:
    name = files.name("torch")
    files.put("torch")
    ports = PortReservations(cache_paths.ports(cache_paths.cache_home()))
    try:
        await register(api, ports.reserve())
        await wait_until_call_fails(api)
        async with keeping(files, plane) as manager:
            entry = await wait_until_logged(manager, "reconcile_failed", name)
            assert "failed calling webhook" in entry["error"]
            await unregister(api)
            await files.wait_until_exists("torch")
    finally:
        await unregister(api)
        ports.release_all()


async def test_shipped_runtimes_pass_the_webhook_and_a_rejected_one_does_not_block_others(
    files: RuntimeFiles, plane: ControlPlane, api: ApiClient
) -> None:
    files.put("a-bad-one", jobs=[{**replicated_job(), "replicas": 2}])
    names = [each["metadata"]["name"] for each in SHIPPED]
    for name, document in zip(names, SHIPPED, strict=True):
        (files.folder / f"{name}.yaml").write_text(yaml.safe_dump(document))
    flags = ("--runtimes", str(files.folder))
    async with admitting_manager(plane, *flags) as manager:

        async def applied() -> bool:
            found = (await api.get(CLUSTER))["items"]
            return {*names} <= {each["metadata"]["name"] for each in found}

        await until(applied, within=TEST_TIMEOUT, what="all that is shipped being there")

        async def refused() -> bool:
            entries = logged_about(manager, "reconcile_failed", files.name("a-bad-one"))
            return any("denied the request" in each["error"] for each in entries)

        await until(refused, within=TEST_TIMEOUT, what="the wrong one being reported")
        assert await files.find("a-bad-one") is None
        assert manager.is_alive()


async def test_only_the_leader_applies(
    files: RuntimeFiles, plane: ControlPlane, namespace: str
) -> None:
    files.put("torch")
    flags = ("--leader-elect", "--leader-election-namespace", namespace)
    async with keeping(files, plane, *flags) as first:
        await files.wait_until_exists("torch")
        files.put("torch", nodes=2)  # as an upgrade does
        async with keeping(files, plane, *flags) as second:
            await second.wait_ready()
            await files.delete("torch")
            await files.wait_until_exists("torch", nodes=1)
            assert second.log_entries("controller_started") == []
            await first.stop()
            await files.wait_until_exists("torch", nodes=2)
