"""TrainJobs from their creation to Complete, with the controllers and the nodes of a cluster."""

import asyncio
import copy
import re
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from kftrainer.devcluster import cache_paths
from kftrainer.devcluster.client import ApiClient, Object
from kftrainer.devcluster.controlplane import ControlPlane
from kftrainer.devcluster.processes.ports import LOOPBACK, PortReservations
from kftrainer.devcluster.waiting import until
from tests.integration.controllers.team import conditions_of, reconciles
from tests.support.managers import ManagerProcess
from tests.support.objects import replicated_job, runtime, train_job
from tests.support.plans import pod_of
from tests.support.runtimes import SHIPPED
from tests.support.scenarios import FETCHING, WITH_INITIALIZERS, Scenario, disk, on_nodes
from tests.support.trainjobs import (
    COMPLETES_AT_ONCE,
    COMPLETES_LATE,
    END_TO_END_TIMEOUT,
    ClusterTeam,
    created_jobset_count,
    install_pod_groups,
    pods_with,
    summary,
)
from tests.support.webhooks import admitting_manager

COUNTS = ("ready", "succeeded", "failed", "active", "suspended")
WRITES = re.compile(r'^rest_client_requests_total\{.*method="(?:POST|PUT|PATCH|DELETE)".*\} (\S+)$')
INITIALIZERS = ("dataset-initializer", "model-initializer")
# What those who install Kubeflow Trainer provide besides its runtimes.
CACHE_ACCOUNT = {
    "apiVersion": "v1",
    "kind": "ServiceAccount",
    "metadata": {"name": "kubeflow-trainer-cache-initializer"},
}


def shipped(name: str) -> Object:
    """One of the shipped runtimes, to be changed."""
    return copy.deepcopy(next(each for each in SHIPPED if each["metadata"]["name"] == name))


def outside_launcher() -> Object:
    """MPI with a launcher that does not train."""
    deepspeed = shipped("deepspeed-distributed")
    deepspeed["spec"]["mlPolicy"]["mpi"]["runLauncherAsNode"] = False
    return {**deepspeed, "kind": "TrainingRuntime", "metadata": {"name": "outside-launcher"}}


def plain() -> Object:
    """Training that no framework has a part in."""
    return runtime("plain", mlPolicy={"numNodes": 2})


LIFECYCLES = {
    "torch": Scenario("torch-distributed", {"node": 2}, spec=on_nodes(2)),
    "cached": Scenario("torch-distributed-with-cache", {"dataset-initializer": 1, "node": 1}),
    "llama-1b": Scenario("torchtune-llama3.2-1b", WITH_INITIALIZERS, spec=FETCHING),
    "llama-3b": Scenario("torchtune-llama3.2-3b", WITH_INITIALIZERS),
    "qwen": Scenario("torchtune-qwen2.5-1.5b", WITH_INITIALIZERS),
    "deepspeed": Scenario("deepspeed-distributed", {"launcher": 1, "node": 2}, spec=on_nodes(3)),
    "deepspeed-alone": Scenario("deepspeed-distributed", {"launcher": 1}, spec=on_nodes(1)),
    "mlx": Scenario("mlx-distributed", {"launcher": 1, "node": 1}, spec=on_nodes(2)),
    "outside": Scenario(
        "outside-launcher", {"launcher": 1, "node": 2}, "TrainingRuntime", on_nodes(2)
    ),
    "plain": Scenario("plain", {"node": 2}, "TrainingRuntime"),
}
ON_MPI = ("deepspeed", "deepspeed-alone", "mlx", "outside")
ON_TORCHTUNE = ("llama-1b", "llama-3b", "qwen")


async def begin(team: ClusterTeam) -> None:
    """Create all the TrainJobs at once, and what they need."""
    for shared in (*SHIPPED, *(disk(f"{team.namespace}-{name}") for name in ON_TORCHTUNE)):
        await team.api.apply(shared)
    for own in (CACHE_ACCOUNT, outside_launcher(), plain()):
        await team.create(own)
    for name, life in LIFECYCLES.items():
        await life.begin(team, name)


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def metrics_url() -> AsyncIterator[str]:
    """The manager's metrics, which count the requests that it has sent."""
    ports = PortReservations(cache_paths.ports(cache_paths.cache_home()))
    yield f"{LOOPBACK}:{ports.reserve()}"
    ports.release_all()


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def manager(
    full_control_plane: ControlPlane, metrics_url: str
) -> AsyncIterator[ManagerProcess]:
    """The manager of the module, over a cluster with PodGroups."""
    async with full_control_plane.client() as api:
        await install_pod_groups(api)
    flags = ("--metrics-bind-address", metrics_url, "--no-metrics-secure")
    async with admitting_manager(full_control_plane, "--log-level", "debug", *flags) as manager:
        yield manager


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def lifecycle_namespace(
    full_control_plane: ControlPlane, manager: ManagerProcess
) -> AsyncIterator[str]:
    """Where all the TrainJobs of LIFECYCLES run side by side."""
    async with full_control_plane.client() as api:
        team = ClusterTeam(api, await full_control_plane.create_namespace(api))
        await begin(team)
    yield team.namespace


@pytest.fixture
def lifecycle_team(api: ApiClient, lifecycle_namespace: str) -> ClusterTeam:
    """The same, for one test."""
    return ClusterTeam(api, lifecycle_namespace)


@pytest.fixture
def team(api: ApiClient, namespace: str, lifecycle_namespace: str) -> ClusterTeam:
    """A namespace of the test's own, while those of LIFECYCLES run in theirs."""
    return ClusterTeam(api, namespace)


async def test_suspended_job_has_no_pods_and_resumes_with_changed_overrides(
    team: ClusterTeam,
) -> None:
    await team.create(runtime("torch"))
    await team.create_job(**on_nodes(2), podTemplateOverrides=pods_with(annotations=COMPLETES_LATE))
    await team.wait_until_running("train", 2)

    await team.suspend(suspend=True)
    await team.wait_until_children_deleted("train", ["Pod"])
    suspended_status = {"ready": 0, "succeeded": 0, "failed": 0, "active": 0, "suspended": 1}
    job = await team.wait_for_jobs_status({"name": "node", **suspended_status})
    assert summary(job) == {"Suspended": "True/Suspended"}

    toleration = {"key": "team", "operator": "Equal", "value": "a", "effect": "NoSchedule"}
    created = {
        "nodeSelector": {"kubernetes.io/hostname": "kwok-2"},
        "tolerations": [toleration],
    }
    [override] = pods_with(annotations=COMPLETES_LATE)
    changed = {"podTemplateOverrides": [{**override, "spec": created}], "suspend": False}
    await team.patch("TrainJob", "train", {"spec": changed})
    pods = await team.wait_until_running("train", 2)
    assert [each["spec"]["nodeName"] for each in pods] == ["kwok-2"] * 2
    assert all(toleration in each["spec"]["tolerations"] for each in pods)
    job = await team.wait_for_condition("Suspended", "Resumed", "False")
    assert summary(job) == {"Suspended": "False/Resumed"}

    await team.suspend(suspend=True)
    await team.wait_until_children_deleted("train", ["Pod"])
    await team.wait_for_condition("Suspended", "Suspended")
    await team.wait_for_jobs_status(
        {"name": "node", **suspended_status}
    )  # before that, admission refuses

    changed = {"podTemplateOverrides": pods_with(annotations=COMPLETES_AT_ONCE), "suspend": False}
    await team.patch("TrainJob", "train", {"spec": changed})
    job = await team.wait_until_ended("train")
    assert summary(job) == {"Suspended": "False/Resumed", "Complete": "True/AllJobsCompleted"}
    # The JobSet has followed; its controller leaves what it has once put on its Jobs.
    pod = pod_of(await team.get("JobSet"))
    assert "nodeSelector" not in pod
    assert "tolerations" not in pod


@pytest.mark.parametrize("name", LIFECYCLES)
async def test_it_runs_to_its_end(
    lifecycle_team: ClusterTeam, name: str, manager: ManagerProcess
) -> None:
    job = await lifecycle_team.wait_until_ended(name)
    assert summary(job) == {"Complete": "True/AllJobsCompleted"}
    complete = conditions_of(job)["Complete"]
    [end] = [
        each
        for each in (await lifecycle_team.get("JobSet", name))["status"]["conditions"]
        if each["type"] == "Completed"
    ]
    assert {**end, "type": "Complete"} == complete
    assert await lifecycle_team.pod_counts(name) == LIFECYCLES[name].pods
    assert created_jobset_count(manager, lifecycle_team.namespace, name) == 1

    async def events_exist() -> list[Object] | None:
        rows: list[Object] = (await lifecycle_team.get("TrainJob", name))["status"]["jobsStatus"]
        trainer = "launcher" if "launcher" in LIFECYCLES[name].pods else "node"
        done = any(row["name"] == trainer and row["succeeded"] == 1 for row in rows)
        return rows if done else None

    rows = await until(
        events_exist, within=END_TO_END_TIMEOUT, what=f"{name} telling that its jobs succeeded"
    )
    assert all(set(row) == {"name", *COUNTS} for row in rows)
    replicated_jobs = (await lifecycle_team.get("JobSet", name))["spec"]["replicatedJobs"]
    assert sorted(row["name"] for row in rows) == sorted(each["name"] for each in replicated_jobs)


@pytest.mark.parametrize("name", ["cached", *ON_TORCHTUNE])
async def test_initializers_are_over_before_the_training_begins(
    lifecycle_team: ClusterTeam, name: str
) -> None:
    await lifecycle_team.wait_until_ended(name)
    jobs = {
        each["metadata"]["labels"]["jobset.sigs.k8s.io/replicatedjob-name"]: each
        for each in await lifecycle_team.owned("Job", name)
    }
    before = [jobs[each]["status"]["completionTime"] for each in INITIALIZERS if each in jobs]
    assert before
    assert max(before) <= jobs["node"]["metadata"]["creationTimestamp"]


async def test_initializers_get_their_storage_uris(lifecycle_team: ClusterTeam) -> None:
    await lifecycle_team.wait_until_ended("llama-1b")
    events = {
        container["name"]: variable["value"]
        for pod in await lifecycle_team.pods("llama-1b")
        for container in pod["spec"]["containers"]
        for variable in container["env"]
        if variable["name"] == "STORAGE_URI"
    }
    assert events == {
        "dataset-initializer": "hf://team/dataset",
        "model-initializer": "hf://team/model",
    }


def host(pod: Object) -> str:
    """The name that other pods find the pod by."""
    return f"{pod['spec']['hostname']}.{pod['spec']['subdomain']}"


@pytest.mark.parametrize("name", ON_MPI)
async def test_the_hostfile_names_the_pods_that_train(
    lifecycle_team: ClusterTeam, name: str
) -> None:
    await lifecycle_team.wait_until_ended(name)
    training = {
        host(pod)
        for pod in await lifecycle_team.pods(name)
        if name != "outside" or "-launcher-" not in pod["metadata"]["name"]
    }
    hostfile = (await lifecycle_team.get("ConfigMap", f"{name}-mpi-hostfile"))["data"]["hostfile"]
    assert {line.removesuffix(" slots=1") for line in hostfile.splitlines()} == training
    keys = await lifecycle_team.get("Secret", f"{name}-mpi-ssh-auth")
    assert {*keys["data"]} == {"ssh-privatekey", "ssh-publickey"}


async def test_torch_finds_its_master_among_the_pods(lifecycle_team: ClusterTeam) -> None:
    await lifecycle_team.wait_until_ended("torch")
    pods = await lifecycle_team.pods("torch")
    events = [
        {each["name"]: each.get("value") for each in pod["spec"]["containers"][0]["env"]}
        for pod in pods
    ]
    assert {each["PET_MASTER_ADDR"] for each in events} == {"torch-node-0-0.torch"}
    assert "torch-node-0-0.torch" in {host(pod) for pod in pods}
    assert {each["PET_NNODES"] for each in events} == {"2"}


async def test_unchanged_trainjob_is_not_written(
    lifecycle_team: ClusterTeam, manager: ManagerProcess, metrics_url: str
) -> None:
    """Another reconcile of each finished TrainJob writes nothing."""
    reference = {"kind": "TrainingRuntime", "name": "outside-launcher"}
    await lifecycle_team.create(train_job("waiting", runtimeRef=reference, suspend=True))
    await lifecycle_team.wait_for_condition("Suspended", "Suspended", name="waiting")
    for name in LIFECYCLES:
        await lifecycle_team.wait_until_ended(name)
    names = (*LIFECYCLES, "waiting")

    async with ApiClient(f"http://{metrics_url}", None) as probe:

        async def writes() -> float:
            page = (await probe.fetch("GET", "/metrics")).decode()
            return sum(float(found[1]) for found in map(WRITES.match, page.splitlines()) if found)

        async def all_are_reconciled() -> bool:
            before = await writes()
            async with asyncio.TaskGroup() as group:
                for name in names:
                    group.create_task(lifecycle_team.touch(manager, name))
            return await writes() == before

        assert await writes() > 0
        await until(
            all_are_reconciled,
            within=END_TO_END_TIMEOUT,
            what="a reconcile of each TrainJob without a write",
        )
    assert all(reconciles(manager, lifecycle_team.namespace, name) > 1 for name in names)


async def test_pod_group_of_a_gang_is_deleted_with_the_job(team: ClusterTeam) -> None:
    """The last one: the garbage collector notices new kinds only every thirty seconds."""
    requested = {"requests": {"cpu": "500m", "memory": "1Gi"}}
    await team.create(
        runtime(
            "gang",
            jobs=[replicated_job(resources=requested)],
            podGroupPolicy={"coscheduling": {"scheduleTimeoutSeconds": 77}},
        )
    )
    long = pods_with(annotations=COMPLETES_LATE)
    await team.create_job(runtime="gang", **on_nodes(3), podTemplateOverrides=long)
    pods = await team.wait_until_running("train", 3)
    assert {each["metadata"]["labels"]["scheduling.x-k8s.io/pod-group"] for each in pods} == {
        "train"
    }
    assert (await team.get("PodGroup"))["spec"] == {
        "minMember": 3,
        "minResources": {"cpu": "1500m", "memory": "3Gi"},
        "scheduleTimeoutSeconds": 77,
    }
    await team.delete("TrainJob")
    await team.wait_until_deleted("PodGroup")
    await team.wait_until_children_deleted("train")
