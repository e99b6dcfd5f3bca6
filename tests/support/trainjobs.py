"""TrainJobs on a whole cluster with pods, and kubectl."""

import asyncio
import os
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from kftrainer.devcluster import cache_paths
from kftrainer.devcluster.artifacts import manifests, versions
from kftrainer.devcluster.client import ApiClient, Object
from kftrainer.devcluster.components.kubernetes import crds_in
from kftrainer.devcluster.controlplane import ControlPlane
from kftrainer.devcluster.progress import SILENT
from kftrainer.devcluster.waiting import until
from tests.integration.controllers.team import Team, conditions_of
from tests.support.managers import ManagerProcess, manager_process
from tests.support.objects import replicated_job, runtime

END_TO_END_TIMEOUT = 120.0  # much more than it takes on a busy machine
COMPLETES_LATE = {"pod-complete.stage.kwok.x-k8s.io/delay": "1h"}
COMPLETES_AT_ONCE = {"pod-complete.stage.kwok.x-k8s.io/delay": "1ms"}
FAILS = {"pod-container-running-failed.stage.kwok.x-k8s.io": "true"}
OF_JOB_SETS = {
    "Job": "/apis/batch/v1/namespaces/{}/jobs",
    "Pod": "/api/v1/namespaces/{}/pods",
    "Service": "/api/v1/namespaces/{}/services",
}


def pods_with(*jobs: str, **metadata: dict[str, str]) -> list[Object]:
    """Overrides that put labels or annotations on the pods of the jobs, or of the job `node`."""
    targets = [{"name": job} for job in jobs or ("node",)]
    return [{"targetJobs": targets, "metadata": metadata}]


def one_try_runtime(name: str = "once", **template: Any) -> Object:
    """A TrainingRuntime whose pods are not tried again when they fail."""
    job = replicated_job()
    job["template"]["spec"]["backoffLimit"] = 0
    manifest = runtime(name, jobs=[job])
    manifest["spec"]["template"]["spec"].update(template)
    return manifest


def summary(job: Object) -> dict[str, str]:
    """The conditions of a TrainJob as type: status/reason."""
    return {kind: f"{each['status']}/{each['reason']}" for kind, each in conditions_of(job).items()}


class ClusterTeam(Team):
    """A namespace of a whole cluster."""

    within = END_TO_END_TIMEOUT

    async def children(self) -> Sequence[str]:
        """Which objects there are that every cluster serves and that TrainJobs need."""
        return [
            f"{kind}/{each['metadata']['name']}"
            for kind in ("Secret", "ConfigMap", "JobSet")
            for each in await self.all(kind)
            if each["metadata"]["name"] != "kube-root-ca.crt"
        ]

    async def owned(self, kind: str, job: str) -> Sequence[Object]:
        """The objects that the JobSet controller has created for the TrainJob."""
        name = "jobset.sigs.k8s.io/jobset-name"
        query = {} if kind == "Service" else {"labelSelector": f"{name}={job}"}
        path = OF_JOB_SETS[kind].format(self.namespace)
        found: Sequence[Object] = (await self.api.request("GET", path, query=query))["items"]
        return found

    async def pods(self, job: str) -> Sequence[Object]:
        """The TrainJob's pods."""
        return await self.owned("Pod", job)

    async def pod_counts(self, job: str) -> dict[str, int]:
        """How many pods each replicated job has."""
        label = "jobset.sigs.k8s.io/replicatedjob-name"
        return Counter(pod["metadata"]["labels"][label] for pod in await self.pods(job))

    async def wait_until_running(self, job: str, pods: int) -> Sequence[Object]:
        """Wait until this number of pods of the TrainJob run, and no others exist."""

        async def running() -> Sequence[Object] | None:
            found = await self.pods(job)
            phases = [each["status"].get("phase") for each in found]
            return found if phases == ["Running"] * pods else None

        return await until(running, within=END_TO_END_TIMEOUT, what=f"{pods} pods of {job} running")

    async def wait_until_running_is_observed(
        self, job: str, pods: int, manager: ManagerProcess
    ) -> None:
        """Wait until they run, the status reports it, and the manager has read all events."""
        await self.wait_until_running(job, pods)

        async def has_condition() -> bool:
            rows = (await self.get("TrainJob", job)).get("status", {}).get("jobsStatus") or ()
            return any(each["ready"] for each in rows)

        await until(has_condition, within=END_TO_END_TIMEOUT, what=f"{job} being ready")
        await self.touch(manager, job)

    async def wait_until_children_deleted(
        self, job: str, kinds: Sequence[str] = tuple(OF_JOB_SETS)
    ) -> None:
        """Wait until all objects of the JobSet controller are deleted."""

        async def nothing_left() -> bool:
            return not any([await self.owned(kind, job) for kind in kinds])

        await until(nothing_left, within=END_TO_END_TIMEOUT, what=f"{kinds} of {job} being gone")

    async def wait_until_ended(self, job: str, condition: str = "Complete") -> Object:
        """Wait until the TrainJob has this terminal condition, and return it."""

        async def ended() -> Object | None:
            found = await self.get("TrainJob", job)
            return found if summary(found).get(condition, "").startswith("True/") else None

        return await until(ended, within=END_TO_END_TIMEOUT, what=f"{job} being {condition}")


class Kubectl:
    """kubectl as the administrator of a cluster, in one namespace."""

    def __init__(self, program: Path, kubeconfig: Path, namespace: str, home: Path) -> None:
        self._argv = (str(program), f"--kubeconfig={kubeconfig}", f"--namespace={namespace}")
        self._environment = {**os.environ, "HOME": str(home)}

    async def __call__(self, *arguments: str) -> str:
        """What it prints; it must succeed."""
        process = await asyncio.create_subprocess_exec(
            *self._argv,
            *arguments,
            env=self._environment,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        printed, errors = await process.communicate()
        assert process.returncode == 0, errors.decode()
        return printed.decode()


async def install_pod_groups(
    api: ApiClient, wanted: versions.Manifests = versions.COSCHEDULING_MANIFESTS
) -> None:
    """Let the cluster serve the PodGroups of coscheduling, or those of another project."""
    folder = await manifests.provide(wanted, cache=cache_paths.cache_home(), progress=SILENT)
    for definition in crds_in(folder / wanted.crd_file):
        await api.apply_crd(definition)


@asynccontextmanager
async def ready_manager(plane: ControlPlane, *flags: str) -> AsyncIterator[ManagerProcess]:
    """A manager that logs each reconcile, none of which may raise.

    It has no webhook, so that TrainJobs and runtimes can be invalid.
    """
    async with manager_process(plane.kubeconfig, "--log-level", "debug", *flags) as manager:
        await manager.wait_ready()
        yield manager


def created_jobset_count(manager: ManagerProcess, namespace: str, job: str) -> int:
    """The number of JobSets that the manager has created for the TrainJob."""
    return sum(
        (each["kind"], each["object"]) == ("JobSet", f"{namespace}/{job}")
        for each in manager.log_entries("object_created")
    )
