"""One namespace: writes by its users and, simulated, by the JobSet controller."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from kftrainer.devcluster.client import ApiClient, Object
from kftrainer.devcluster.waiting import until
from tests.support.managers import ManagerProcess
from tests.support.objects import API, replicated_job, train_job
from tests.support.objects import runtime as runtime_of
from tests.support.runtimes import mpi

MERGE = "application/merge-patch+json"
APPLY = "application/apply-patch+yaml"
TEST_TIMEOUT = 90.0  # more than it takes on a busy machine, where a manager may have to start first
AT_THE_END = "2026-01-02T03:04:05Z"
JOB = "train"
IN_USE = "trainer.kubeflow.org/resource-in-use"
ROW = {"name": "node", "ready": 1, "succeeded": 0, "failed": 0, "active": 1, "suspended": 0}
ROOTS = {
    "TrainJob": (f"/apis/{API}", "trainjobs"),
    "TrainingRuntime": (f"/apis/{API}", "trainingruntimes"),
    "JobSet": ("/apis/jobset.x-k8s.io/v1alpha2", "jobsets"),
    "Secret": ("/api/v1", "secrets"),
    "ConfigMap": ("/api/v1", "configmaps"),
    "Event": ("/api/v1", "events"),
    "ControllerRevision": ("/apis/apps/v1", "controllerrevisions"),
    "PodGroup": ("/apis/scheduling.x-k8s.io/v1alpha1", "podgroups"),
    "Volcano": ("/apis/scheduling.volcano.sh/v1beta1", "podgroups"),
}
CHILDREN = ("Secret", "ConfigMap", "PodGroup", "Volcano", "JobSet")

GANGS = {
    "gang": {"coscheduling": {"scheduleTimeoutSeconds": 100}},
    "volcano": {"volcano": {}},
}


def a_runtime(name: str) -> Object:
    """A TrainingRuntime: torch, mpi, gang or volcano, by its name."""
    if name == "mpi":
        manifest = mpi("deepspeed")
        return {**manifest, "kind": "TrainingRuntime", "metadata": {"name": name}}
    policy: Object = {"podGroupPolicy": GANGS[name]} if name in GANGS else {}
    return runtime_of(name, jobs=[replicated_job("node", image="trainer:1")], **policy)


def condition(kind: str, reason: str, message: str = "as it is", **more: Any) -> Object:
    """A condition of a JobSet."""
    fields = {"status": "True", "lastTransitionTime": AT_THE_END, **more}
    return {"type": kind, "reason": reason, "message": message, **fields}


COMPLETED = condition("Completed", "AllJobsCompleted", "jobset completed successfully")
FAILED = condition("Failed", "FailedJobs", "jobset failed due to one or more job failures")


def conditions_of(obj: Object) -> dict[str, Object]:
    """The conditions by their types."""
    found = obj.get("status", {}).get("conditions") or []
    return {each["type"]: each for each in found}


def time_of(timestamp: str) -> datetime:
    """Return the time of a timestamp in an object."""
    return datetime.fromisoformat(timestamp)


def finalizers(obj: Object | None) -> Sequence[str]:
    """The finalizers of an object, if it exists."""
    found: Sequence[str] = (obj or {"metadata": {}})["metadata"].get("finalizers", [])
    return found


def reconciles(manager: ManagerProcess, namespace: str, name: str = JOB) -> int:
    """Count the reconciles of the TrainJob, which the manager logs at the level debug."""
    return sum(
        (each["namespace"], each["name"], each["controller"])
        == (namespace, name, "trainjob_controller")
        for each in ended_reconciles(manager)
    )


def ended_reconciles(manager: ManagerProcess) -> Sequence[Object]:
    """Return the log entries of reconciles that succeeded or failed."""
    return [*manager.log_entries("reconcile_succeeded"), *manager.log_entries("reconcile_failed")]


def has_reconciled(manager: ManagerProcess, job: Object) -> bool:
    """Whether the manager has reconciled this version of the TrainJob, or a later one."""
    metadata = job["metadata"]
    seen = {
        each["reconcileID"]
        for each in manager.log_entries("trainjob_read")
        if (each["namespace"], each["name"]) == (metadata["namespace"], metadata["name"])
        and int(each["resource_version"]) >= int(metadata["resourceVersion"])
    }
    return any(each["reconcileID"] in seen for each in ended_reconciles(manager))


async def wait_until_jobs_are_watched(manager: ManagerProcess, starts: int = 1) -> None:
    """Wait until the manager has listed Jobs in each of its starts, which nothing else waits for.

    Pods of the initial list may have run for any time.
    """

    async def listed() -> bool:
        kinds = [each["kind"] for each in manager.log_entries("informer_synced")]
        return kinds.count("Job.batch") >= starts

    await until(listed, within=TEST_TIMEOUT, what="Jobs being watched")


async def wait_until_logged(manager: ManagerProcess, event: str) -> None:
    """Wait until the manager has logged the event."""

    async def logged() -> bool:
        return bool(manager.log_entries(event))

    await until(logged, within=TEST_TIMEOUT, what=f"{event} in the log")


class Team:
    """One namespace."""

    within = TEST_TIMEOUT  # the timeout of each wait

    def __init__(self, api: ApiClient, namespace: str) -> None:
        self.api = api
        self.namespace = namespace

    def path(self, kind: str, name: str = "") -> str:
        """The path of an object, or of all of the kind."""
        root, plural = ROOTS[kind]
        return f"{root}/namespaces/{self.namespace}/{plural}" + (f"/{name}" if name else "")

    async def create(self, manifest: Mapping[str, Any]) -> Object:
        """Create an object in the namespace."""
        metadata = {**manifest["metadata"], "namespace": self.namespace}
        return await self.api.create({**manifest, "metadata": metadata})

    async def create_runtime(self, name: str = "torch") -> Object:
        """Create one of the shipped runtimes."""
        return await self.create(a_runtime(name))

    async def create_job(self, name: str = JOB, runtime: str = "torch", **spec: Any) -> Object:
        """Create a TrainJob on a TrainingRuntime."""
        reference = {"name": runtime, "kind": "TrainingRuntime"}
        return await self.create(train_job(name, **{"runtimeRef": reference, **spec}))

    async def get(self, kind: str, name: str = JOB) -> Object:
        """An existing object."""
        return await self.api.get(self.path(kind, name))

    async def find(self, kind: str, name: str = JOB) -> Object | None:
        """The object, or None if it does not exist."""
        return await self.api.get_or_none(self.path(kind, name))

    async def all(self, kind: str) -> Sequence[Object]:
        """All objects of the kind."""
        found: Sequence[Object] = (await self.api.get(self.path(kind)))["items"]
        return found

    async def children(self) -> Sequence[str]:
        """The existing objects that TrainJobs need, as kind/name."""
        return [
            f"{kind}/{each['metadata']['name']}"
            for kind in CHILDREN
            for each in await self.all(kind)
        ]

    async def patch(self, kind: str, name: str, changes: Object, subresource: str = "") -> Object:
        """Change some fields."""
        path = self.path(kind, name) + subresource
        return await self.api.request("PATCH", path, body=changes, content_type=MERGE)

    async def suspend(self, *, suspend: bool, name: str = JOB) -> None:
        """Suspend or resume the TrainJob."""
        await self.patch("TrainJob", name, {"spec": {"suspend": suspend}})

    async def delete(self, kind: str, name: str = JOB, policy: str = "Background") -> None:
        """Delete it."""
        query = {"propagationPolicy": policy}
        await self.api.request("DELETE", self.path(kind, name), query=query)

    async def age_of(self, obj: Object) -> float:
        """Return the age of the object in seconds, by the clock of the API server."""
        metadata = {"generateName": "clock-"}
        clock = await self.create({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata})
        now = time_of(clock["metadata"]["creationTimestamp"])
        return (now - time_of(obj["metadata"]["creationTimestamp"])).total_seconds()

    async def set_jobset_status(
        self, *conditions: Object, rows: Sequence[Object] = (), name: str = JOB
    ) -> None:
        """Write the status of the JobSet, as the JobSet controller does."""
        status = {"conditions": list(conditions), "replicatedJobsStatus": list(rows)}
        await self.patch("JobSet", name, {"status": status}, "/status")

    async def wait_until_exists(self, kind: str, name: str = JOB) -> Object:
        """Wait until the object exists; return it."""

        async def exists() -> Object | None:
            return await self.find(kind, name)

        return await until(exists, within=self.within, what=f"{kind} {name}")

    async def wait_until_deleted(self, kind: str, name: str = JOB) -> None:
        """Wait until the object is deleted."""

        async def is_deleted() -> bool:
            return await self.find(kind, name) is None

        await until(is_deleted, within=self.within, what=f"the end of {kind} {name}")

    async def wait_for_condition(
        self, kind: str, reason: str, status: str = "True", name: str = JOB
    ) -> Object:
        """Wait until the TrainJob has this condition; the TrainJob."""

        async def has_condition() -> Object | None:
            job = await self.get("TrainJob", name)
            found = conditions_of(job).get(kind, {})
            matches = (found.get("reason"), found.get("status")) == (reason, status)
            return job if matches else None

        return await until(has_condition, within=self.within, what=f"{name} being {kind}/{reason}")

    async def wait_until_condition_removed(self, kind: str, name: str = JOB) -> Object:
        """Wait until the TrainJob has no such condition; the TrainJob."""

        async def is_removed() -> Object | None:
            job = await self.get("TrainJob", name)
            return None if kind in conditions_of(job) else job

        return await until(is_removed, within=self.within, what=f"{name} not being {kind}")

    async def wait_for_jobs_status(self, *rows: Object, name: str = JOB) -> Object:
        """Wait until the TrainJob's status has these jobsStatus rows; the TrainJob."""

        async def has() -> Object | None:
            job = await self.get("TrainJob", name)
            return job if job.get("status", {}).get("jobsStatus") == list(rows) else None

        return await until(has, within=self.within, what=f"{name} having the rows {rows}")

    async def wait_for_event(self, reason: str, name: str = JOB) -> Object:
        """Wait for an Event about the TrainJob; the Event."""

        async def event_exists() -> Object | None:
            found = [
                each
                for each in await self.all("Event")
                if (each["involvedObject"]["name"], each["reason"]) == (name, reason)
            ]
            return found[0] if found else None

        return await until(event_exists, within=self.within, what=f"an Event {reason} about {name}")

    async def wait_until_in_use(self, name: str = "torch") -> Object:
        """Wait until the runtime has our finalizer; the runtime."""

        async def in_use() -> Object | None:
            found = await self.find("TrainingRuntime", name)
            return found if IN_USE in finalizers(found) else None

        return await until(in_use, within=self.within, what=f"the runtime {name} being in use")

    async def without_revision(self, name: str = JOB) -> None:
        """Turn the TrainJob into one of an earlier release, which follows its runtime."""

        async def recorded() -> bool:
            job = await self.get("TrainJob", name)
            return "runtimeRevision" in job.get("status", {})

        if not await recorded():
            await self.set_jobset_status(rows=[ROW], name=name)
        await until(recorded, within=self.within, what=f"the revision of {name} being recorded")
        await self.patch("TrainJob", name, {"status": {"runtimeRevision": None}}, "/status")

    async def touch(self, manager: ManagerProcess, name: str = JOB, kind: str = "TrainJob") -> None:
        """Label the object, and wait until the manager has reconciled its TrainJob since then.

        For a TrainJob, that reconcile has read the label. For another object it may have had
        another cause.
        """
        before = reconciles(manager, self.namespace, name)
        found = await self.get(kind, name)
        labels = found["metadata"].get("labels") or {}
        touched = str(int(labels.get("touched", "0")) + 1)
        changed = await self.patch(kind, name, {"metadata": {"labels": {"touched": touched}}})
        if kind == "TrainJob":
            await self.wait_until_observed(manager, changed)
        else:
            await self.wait_until_reconciled(manager, name, before)

    async def wait_until_observed(self, manager: ManagerProcess, job: Object) -> None:
        """Wait until the manager has reconciled this version of the TrainJob, or a later one."""

        async def is_reconciled() -> bool:
            return has_reconciled(manager, job)

        name = job["metadata"]["name"]
        await until(
            is_reconciled, within=self.within, what=f"a reconcile of this version of {name}"
        )

    async def wait_until_reconciled(self, manager: ManagerProcess, name: str, times: int) -> None:
        """Wait until the manager has reconciled the TrainJob more than this number of times."""

        async def is_reconciled() -> bool:
            return reconciles(manager, self.namespace, name) > times

        await until(is_reconciled, within=self.within, what=f"a reconcile of {name}")
