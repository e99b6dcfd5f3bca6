"""TrainJobs in a namespace with a queue, and the Workloads that Kueue keeps for them."""

from collections.abc import Mapping, Sequence
from typing import Any

from kftrainer.devcluster.client import ApiClient, Object, condition_is_true
from kftrainer.devcluster.waiting import until
from tests.integration.controllers.team import JOB, MERGE, conditions_of
from tests.support.kueue import (
    API,
    PATCH_MANAGER,
    PRIORITY_LABEL,
    QUEUE_LABEL,
    Flavor,
    local_queue,
    queue_manifest,
    topology,
)
from tests.support.objects import replicated_job, runtime, train_job
from tests.support.runtimes import mpi
from tests.support.trainjobs import COMPLETES_LATE, END_TO_END_TIMEOUT, FAILS, ClusterTeam

POOL = "example.com/pool"
HOST = "kubernetes.io/hostname"
DEDICATED = {"key": "dedicated", "value": "training", "effect": "NoSchedule"}
TOLERATION = {**DEDICATED, "operator": "Equal"}
FAST_NODES, SLOW_NODES = ("kwok-0", "kwok-1"), ("kwok-2", "kwok-3")
FAST = {"nodeLabels": {POOL: "fast"}, "tolerations": [TOLERATION]}
SLOW = {"nodeLabels": {POOL: "slow"}}
RACKED = {"nodeLabels": {POOL: "slow"}, "topologyName": "hosts"}
RESOURCES = (
    topology("hosts", HOST),
    Flavor("fast", "0", FAST).manifest(),
    Flavor("slow", "0", SLOW).manifest(),
    Flavor("racked", "0", RACKED).manifest(),
)
PRIORITIES = {"low": 1, "high": 100}
WITH_INTEGERS = """\
apiVersion: config.trainer.kubeflow.org/v1alpha1
kind: Configuration
admission:
  stringNumProcPerNode: Reject
"""
ONE_CPU = {"requests": {"cpu": "1"}, "limits": {"cpu": "1"}}
STEP = "dataset-initializer"
REQUIRED_TOPOLOGY = "kueue.x-k8s.io/podset-required-topology"


def fast(cpus: int) -> Flavor:
    """Fast nodes with this quota."""
    return Flavor("fast", str(cpus), FAST)


def slow(cpus: int) -> Flavor:
    """Slow nodes with this quota."""
    return Flavor("slow", str(cpus), SLOW)


def racked(cpus: int) -> Flavor:
    """Slow nodes as a topology, with this quota."""
    return Flavor("racked", str(cpus), RACKED)


async def label_nodes(api: ApiClient) -> None:
    """Divide the nodes into two pools; only jobs of the flavor `fast` tolerate the fast ones."""
    for pool, names in (("fast", FAST_NODES), ("slow", SLOW_NODES)):
        changes: Object = {"metadata": {"labels": {POOL: pool}}}
        if pool == "fast":
            changes["spec"] = {"taints": [DEDICATED]}
        for name in names:
            path = f"/api/v1/nodes/{name}"
            await api.request("PATCH", path, body=changes, content_type=MERGE)


def job_with(
    name: str, step: str, annotations: Mapping[str, str], labels: Mapping[str, str] | None = None
) -> Object:
    """A replicated job of one CPU, without retries, whose pods have this metadata."""
    job = replicated_job(name, step, resources=ONE_CPU)
    job["template"]["spec"]["backoffLimit"] = 0
    job["template"]["spec"]["template"]["metadata"] = {
        "annotations": dict(annotations),
        "labels": dict(labels or {}),
    }
    return job


def _initialized(annotations: Mapping[str, str]) -> list[Object]:
    node = job_with("node", "trainer", annotations)
    node["dependsOn"] = [{"name": STEP, "status": "Complete"}]
    return [job_with(STEP, STEP, {}), node]


def runtimes() -> Sequence[Object]:
    """The runtimes by what their pods do: end soon, run until they are deleted, or fail."""
    mpi_manifest = mpi("deepspeed")
    for job in mpi_manifest["spec"]["template"]["spec"]["replicatedJobs"]:
        template = job["template"]["spec"]["template"]
        template["metadata"] = {"annotations": COMPLETES_LATE}
        template["spec"]["containers"][0]["resources"] = ONE_CPU
    jobs = {
        "short": [job_with("node", "trainer", {})],
        "lasting": [job_with("node", "trainer", COMPLETES_LATE)],
        "failing": [job_with("node", "trainer", {}, FAILS)],
        "initialized": _initialized(COMPLETES_LATE),
        "racked": [job_with("node", "trainer", {**COMPLETES_LATE, REQUIRED_TOPOLOGY: HOST})],
    }
    named = [runtime(name, jobs=list(each)) for name, each in jobs.items()]
    metadata = {**mpi_manifest["metadata"], "name": "mpi"}
    return [*named, {**mpi_manifest, "kind": "TrainingRuntime", "metadata": metadata}]


def kueue_patch(job: Object) -> Object | None:
    """Kueue's entry in the runtime patches of a TrainJob."""
    entries = [
        each for each in job["spec"].get("runtimePatches", ()) if each["manager"] == PATCH_MANAGER
    ]
    return entries[0] if entries else None


class Queueing(ClusterTeam):
    """A namespace of a whole cluster with one LocalQueue."""

    async def create_runtimes(self) -> None:
        """Create the runtimes."""
        for manifest in runtimes():
            await self.create(manifest)

    async def create_queue(self, *flavors: Flavor, **spec: Any) -> None:
        """Create the LocalQueue and its ClusterQueue, which is named after the namespace."""
        await self.api.create(queue_manifest(self.namespace, *flavors, **spec))
        await self.api.create(local_queue(self.namespace, self.namespace))

    async def set_quota(self, *flavors: Flavor) -> None:
        """Change the quotas."""
        await self.api.apply(queue_manifest(self.namespace, *flavors))

    async def queue_job(
        self, name: str = JOB, runtime: str = "lasting", *, priority: str = "low", **spec: Any
    ) -> Object:
        """Create a TrainJob in the queue."""
        reference = {"name": runtime, "kind": "TrainingRuntime"}
        manifest = train_job(name, **{"runtimeRef": reference, **spec})
        manifest["metadata"]["labels"] = {QUEUE_LABEL: "queue", PRIORITY_LABEL: priority}
        return await self.create(manifest)

    async def workloads(self) -> Mapping[str, Object]:
        """The Workloads of the namespace by the names of their owners."""
        path = f"/apis/{API}/namespaces/{self.namespace}/workloads"
        return {
            owner["name"]: each
            for each in (await self.api.get(path))["items"]
            for owner in each["metadata"].get("ownerReferences", ())
        }

    async def wait_for_workload(self, condition: str, name: str = JOB) -> Object:
        """Wait until the Workload of the TrainJob has this condition, and return it."""

        async def fulfilled() -> Object | None:
            found = (await self.workloads()).get(name)
            return found if found and condition_is_true(found, condition) else None

        what = f"the Workload of {name} being {condition}"
        return await until(fulfilled, within=END_TO_END_TIMEOUT, what=what)

    async def wait_until_waiting(self, name: str = JOB) -> Object:
        """Wait until Kueue has refused to admit the TrainJob for now."""

        async def refused() -> Object | None:
            found = (await self.workloads()).get(name)
            reserved = conditions_of(found or {}).get("QuotaReserved", {})
            return found if reserved.get("status") == "False" else None

        return await until(refused, within=END_TO_END_TIMEOUT, what=f"{name} waiting for quota")

    async def wait_until_queued(self, name: str = JOB) -> Object:
        """Wait until it waits for quota and its suspended JobSet exists; the JobSet."""
        await self.wait_until_waiting(name)
        return await self.wait_until_exists("JobSet", name)

    async def wait_until_workload_deleted(self, name: str = JOB) -> None:
        """Wait until the Workload of the TrainJob is deleted."""

        async def is_deleted() -> bool:
            return name not in await self.workloads()

        await until(
            is_deleted, within=END_TO_END_TIMEOUT, what=f"the Workload of {name} being gone"
        )

    async def used_cpus(self) -> str:
        """The CPUs that the ClusterQueue reserves, summed over its flavors."""
        found = await self.api.get(f"/apis/{API}/clusterqueues/{self.namespace}")
        usage = found["status"].get("flavorsReservation", ())
        return str(sum(int(each["total"]) for flavor in usage for each in flavor["resources"]))

    async def wait_until_used(self, cpus: int) -> None:
        """Wait until the ClusterQueue reserves this number of CPUs."""

        async def used() -> bool:
            return await self.used_cpus() == str(cpus)

        await until(used, within=END_TO_END_TIMEOUT, what=f"{cpus} CPUs being reserved")

    async def wait_until_running_on(
        self, pool: str, job: str = JOB, pods: int = 1
    ) -> Sequence[Object]:
        """Wait until this number of its pods, and no others, run on nodes of the pool."""

        async def running() -> Sequence[Object] | None:
            found = await self.pods(job)
            seen = [
                (each["status"].get("phase"), each["spec"].get("nodeSelector", {}).get(POOL))
                for each in found
            ]
            return found if seen == [("Running", pool)] * pods else None

        what = f"{pods} pods of {job} running on {pool} nodes"
        return await until(running, within=END_TO_END_TIMEOUT, what=what)
