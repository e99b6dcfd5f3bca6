"""The steps of a migrated TrainJob's life, and what each step has to show."""

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from kftrainer.api.resources import JOB_SETS, TRAIN_JOBS
from kftrainer.devcluster.client import NOT_FOUND, ApiClient, Object
from kftrainer.devcluster.errors import ApiError, DevClusterError
from kftrainer.devcluster.waiting import until
from kftrainer.kube.objects.resource import Manifest, ObjectKey, Resource, unstructured
from tests.integration.controllers.team import conditions_of
from tests.support.kubelet import MERGE, end_pods
from tests.support.managers import ManagerProcess
from tests.support.object_log import ObjectLog
from tests.support.trainjobs import summary
from tests.support.upstream_trainjobs import CONFLICT, JOB, Copy, rows_of

T = TypeVar("T")

WITHIN = 60.0  # more than a step takes on a busy machine
EVERY = 0.1
PODS: Resource[Manifest] = Resource("", "v1", "Pod", "pods", namespaced=True, decode=unstructured)
ENDED = ("Succeeded", "Failed")
REPLICATED_JOB = "jobset.sigs.k8s.io/replicatedjob-name"
SCHEDULING_GATES = ".spec.schedulingGates"  # removed before the pods run
# What Kueue adds to a TrainJob when it admits it: as an override until 0.16, as a runtime patch in
# later releases, which admit TrainJobs of 2.2 and later.
PATCHES, QUEUE = "runtimePatches", "kueue.x-k8s.io/manager"
PODSET = {"kueue.x-k8s.io/podset": "node"}
FLAVOR = {"flavor": "reserved"}
TOLERATION = {"key": "flavor", "operator": "Equal", "value": "reserved", "effect": "NoSchedule"}
SUSPENDED = {
    "type": "Suspended",
    "status": "True",
    "reason": "Suspended",
    "message": "TrainJob is suspended",
    "lastTransitionTime": "2026-01-02T03:04:05Z",
}


@dataclass(frozen=True, slots=True)
class World:
    """Where the TrainJobs live."""

    api: ApiClient
    log: ObjectLog


class Reconciles:
    """Which version of each TrainJob a manager has reconciled, by its log."""

    def __init__(self, manager: ManagerProcess) -> None:
        self._manager = manager
        self._read = 0  # entries
        self._seen: dict[str, tuple[ObjectKey, int]] = {}  # by reconcile
        self._done: dict[ObjectKey, int] = {}

    def version_of(self, key: ObjectKey) -> int:
        """Return the newest version that was reconciled without an error."""
        entries = self._manager.log_entries()
        for entry in entries[self._read :]:
            if entry["event"] == "trainjob_read":
                about = ObjectKey(entry["namespace"], entry["name"])
                self._seen[entry["reconcileID"]] = (about, int(entry["resource_version"]))
            elif entry["event"] == "reconcile_succeeded":
                found, version = self._seen.pop(entry["reconcileID"], (None, 0))
                if found is not None:
                    self._done[found] = max(version, self._done.get(found, 0))
        self._read = len(entries)
        return self._done.get(key, 0)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What must not change when another manager takes over."""

    job_set: tuple[str, int]  # uid and generation
    pods: Mapping[str, str]  # uids by name
    children: Mapping[str, Any]  # spec or data by kind and name
    conditions: Mapping[str, str]


@dataclass
class Scenario(ABC):
    """One TrainJob; a step that fails ends it, and later steps are recorded as not reached."""

    copy: Copy
    world: World
    results: dict[str, str] = field(default_factory=dict)  # why a step failed; empty if it passed
    before: Snapshot | None = None

    @property
    def key(self) -> ObjectKey:
        """The key of the TrainJob and of its JobSet."""
        return ObjectKey(self.copy.namespace, JOB)

    @property
    def has_failed(self) -> bool:
        """Whether a step failed."""
        return any(self.results.values())

    async def attempt(self, *steps: Callable[[], Awaitable[None]]) -> None:
        """Do the steps in order and record what became of each."""
        for step in steps:
            if self.has_failed:
                self.results[step.__name__] = "not reached: an earlier step failed"
                continue
            try:
                await step()
            except (AssertionError, DevClusterError) as error:
                self.results[step.__name__] = f"{error}\n{self.describe()}"
            else:
                self.results[step.__name__] = ""

    def describe(self) -> str:
        """The state of the TrainJob in a few lines."""
        job, job_set = self.find(TRAIN_JOBS), self.find(JOB_SETS)
        phases = [each.get("status", {}).get("phase") for each in self.pods()]
        return "\n".join(
            (
                f"TrainJob {self.key}: spec.suspend={job and job['spec'].get('suspend')} "
                f"status={job and job.get('status')}",
                f"JobSet: spec.suspend={job_set and job_set['spec'].get('suspend')} "
                f"status={job_set and job_set.get('status')}",
                f"pods: {phases}",
            )
        )

    # What is there.

    def find(self, resource: Resource[Any]) -> Manifest | None:
        """The TrainJob or its JobSet, if there is one."""
        return self.world.log.get(resource, self.key)

    def live(self, resource: Resource[Any]) -> Manifest:
        """The TrainJob or its JobSet, which is there."""
        found = self.find(resource)
        assert found is not None, f"{resource.kind} {self.key} is not there"
        return found

    def conditions(self) -> dict[str, str]:
        """The TrainJob's conditions as type: status/reason."""
        return summary(dict(self.live(TRAIN_JOBS)))

    def pods(self) -> Sequence[Object]:
        """The pods that have not ended."""
        found = self.world.log.list(PODS, self.copy.namespace)
        return [dict(each) for each in found if each.get("status", {}).get("phase") not in ENDED]

    async def until(self, check: Callable[[], T | None], what: str) -> T:
        """Wait until the check returns something that is true."""

        async def checked() -> T | None:
            return check() or None

        return await until(checked, within=WITHIN, what=f"{self.key}: {what}", every=EVERY)

    async def wait_for_condition(self, kind: str, wanted: str) -> None:
        """Wait until the TrainJob has the condition, as status/reason."""
        await self.until(lambda: self.conditions().get(kind) == wanted, f"{kind} {wanted}")

    async def wait_until_running(self) -> Sequence[Object]:
        """Wait until all pods run, and remove scheduling gates as their owner does."""

        async def running() -> Sequence[Object] | None:
            pods = self.pods()
            for pod in pods:
                if (
                    pod["spec"].get("schedulingGates")
                    and "deletionTimestamp" not in pod["metadata"]
                ):
                    await self._ungate(pod)
            alive = [each for each in pods if "deletionTimestamp" not in each["metadata"]]
            phases = [each.get("status", {}).get("phase") for each in alive]
            return alive if phases == ["Running"] * self.copy.pods else None

        what = f"{self.key}: {self.copy.pods} pods running"
        return await until(running, within=WITHIN, what=what, every=EVERY)

    async def _ungate(self, pod: Object) -> None:
        path = f"/api/v1/namespaces/{self.copy.namespace}/pods/{pod['metadata']['name']}"
        ungated: Object = {"spec": {"schedulingGates": None}}
        try:
            await self.world.api.request("PATCH", path, body=ungated, content_type=MERGE)
        except ApiError as error:
            if error.status != NOT_FOUND:
                raise

    async def wait_until_idle(self) -> None:
        """Wait until the JobSet is suspended, no pod is left and the TrainJob reports both."""
        await self.until(lambda: self.live(JOB_SETS)["spec"].get("suspend"), "JobSet suspended")
        await self.until(lambda: not self.pods(), "no pods")
        await self.wait_for_condition("Suspended", "True/Suspended")
        # Kueue waits for this before it releases the quota.
        await self.until(
            lambda: not any(row["active"] for row in self.rows()), "no active jobs in the status"
        )
        assert "Blocked" not in self.conditions()

    def rows(self) -> Sequence[Mapping[str, Any]]:
        """The TrainJob's jobsStatus."""
        found: Sequence[Mapping[str, Any]] = (self.live(TRAIN_JOBS).get("status") or {}).get(
            "jobsStatus"
        ) or ()
        return found

    # What users, Kueue and nodes do.

    @property
    def path(self) -> str:
        """The TrainJob's path."""
        return TRAIN_JOBS.object_path(self.key)

    async def patch(self, changes: Object) -> Object:
        """Patch the TrainJob."""
        return await self.world.api.request("PATCH", self.path, body=changes, content_type=MERGE)

    async def set_suspend(self, *, suspend: bool) -> None:
        """Suspend or resume the TrainJob."""
        await self.patch({"spec": {"suspend": suspend}})

    async def assign_flavor(self) -> None:
        """Set where the pods run, by replacing the whole TrainJob as Kueue does."""
        jobs = [each["name"] for each in self.copy.job_set["spec"]["replicatedJobs"]]
        pods: Object = {
            "metadata": {"labels": PODSET},
            "spec": {"nodeSelector": FLAVOR, "tolerations": [TOLERATION]},
        }
        if self.queue_field == PATCHES:
            patched = [{"name": name, "template": {"spec": {"template": pods}}} for name in jobs]
            template = {"spec": {"replicatedJobs": patched}}
            entry = {"manager": QUEUE, "trainingRuntimeSpec": {"template": template}}
        else:
            entry = {"targetJobs": [{"name": name} for name in jobs], **pods}

        async def replaced() -> bool:
            job = await self.world.api.get(self.path)
            job["spec"][self.queue_field] = [*self.own_entries(), entry]
            try:
                await self.world.api.request("PUT", self.path, body=job)
            except ApiError as error:
                if error.status != CONFLICT:
                    raise
                return False
            return True

        await until(replaced, within=WITHIN, what=f"{self.key}: a write without conflict")

    @property
    def queue_field(self) -> str:
        """The field that the queue of this release writes."""
        return PATCHES if self.copy.case.release == "v2.3" else "podTemplateOverrides"

    def own_entries(self) -> Sequence[Object]:
        """The overrides or runtime patches that the TrainJob was created with."""
        own: Sequence[Object] = self.copy.train_job["spec"].get(self.queue_field, ())
        return own

    async def end_all(self, phase: Any) -> None:
        """End the pods that run, and those that start afterwards, until the JobSet has ended."""

        async def ended() -> bool:
            conditions = conditions_of(dict(self.live(JOB_SETS)))
            if {"Completed", "Failed"} & conditions.keys():
                return True
            running = [each for each in self.pods() if each["status"].get("phase") == "Running"]
            await end_pods(self.world.api, running, phase)
            return False

        await until(ended, within=WITHIN, what=f"{self.key}: the end of the JobSet", every=EVERY)

    async def children(self) -> dict[str, Any]:
        """Spec or data of the objects that the original created besides the JobSet."""
        found = {}
        for child in self.copy.children:
            if child["kind"] != "JobSet":
                live = await self.world.api.get_or_none(await self.world.api.path_of(child))
                content = live and {**live.get("data", {}), **live.get("spec", {})}
                found[f"{child['kind']}/{child['metadata']['name']}"] = content
        return found

    async def snapshot(self) -> Snapshot:
        """What must not change."""
        metadata = self.live(JOB_SETS)["metadata"]
        return Snapshot(
            job_set=(metadata["uid"], metadata["generation"]),
            pods={each["metadata"]["name"]: each["metadata"]["uid"] for each in self.pods()},
            children=await self.children(),
            conditions=self.conditions(),
        )

    # Steps that all lives have.

    @abstractmethod
    async def create(self) -> None:
        """Create the TrainJob as the original left it."""

    async def touch(self, reconciles: Reconciles, value: str) -> None:
        """Label the TrainJob and wait until the manager has reconciled it since."""
        touched = await self.patch({"metadata": {"labels": {"touched": value}}})
        version = _version(touched)
        await self.until(lambda: reconciles.version_of(self.key) >= version, "a reconcile")

    async def _delete(self, policy: str) -> None:
        api = self.world.api
        await api.request("DELETE", self.path, query={"propagationPolicy": policy})
        await self.until(lambda: self.find(TRAIN_JOBS) is None, "the TrainJob deleted")
        await self.until(lambda: self.find(JOB_SETS) is None, "the JobSet deleted")
        await self.until(
            lambda: not self.world.log.list(PODS, self.copy.namespace), "the pods deleted"
        )

        async def collected() -> bool:
            return not any((await self.children()).values())

        await until(collected, within=WITHIN, what=f"{self.key}: all objects deleted", every=0.5)


class RunningScenario(Scenario):
    """Running at the switch."""

    async def create(self) -> None:
        """Have the pods run, and the status show that."""
        await self.copy.create(self.world.api)
        await self.wait_until_running()
        await self.until(self._shown, "ready jobs in the JobSet's status")
        rows = rows_of(self.live(JOB_SETS))
        await self.copy.write_status(self.world.api, {"jobsStatus": rows})
        await self.until(self.rows, "the status")
        self.before = await self.snapshot()

    def _shown(self) -> bool:
        rows = rows_of(self.find(JOB_SETS) or {})
        return bool(rows) and all(row["ready"] or row["succeeded"] for row in rows)

    async def untouched(self) -> None:
        """The switch changed neither the objects nor the pods nor what the TrainJob reports."""
        assert await self.snapshot() == self.before

    async def suspend(self) -> None:
        """The JobSet is suspended first, and then the TrainJob reports it."""
        await self.set_suspend(suspend=True)
        await self.wait_until_idle()
        reported = next(
            each
            for each in self.world.log.states(TRAIN_JOBS, self.key)
            if summary(dict(each)).get("Suspended") == "True/Suspended"
        )
        suspended = next(
            each
            for each in self.world.log.states(JOB_SETS, self.key)
            if each["spec"].get("suspend")
        )
        assert _version(suspended) < _version(reported), "Suspended was reported too early"
        assert self._is_the_same(), "the JobSet was replaced"

    async def resume(self) -> None:
        """The pods start again."""
        await self.set_suspend(suspend=False)
        pods = await self.wait_until_running()
        await self.wait_for_condition("Suspended", "False/Resumed")
        assert "Blocked" not in self.conditions()
        assert self._is_the_same(), "the JobSet was replaced"
        self._check_pods(pods)

    def _check_pods(self, pods: Sequence[Object]) -> None:
        """The pods are those that the original planned."""
        templates = {
            each["name"]: each["template"]["spec"]["template"]
            for each in self.copy.job_set["spec"]["replicatedJobs"]
        }
        for pod in pods:
            template = templates[pod["metadata"]["labels"][REPLICATED_JOB]]
            missing = {*_missing(template, pod)} - {SCHEDULING_GATES}
            assert not missing, f"pod {pod['metadata']['name']} lacks {missing}"

    def _is_the_same(self) -> bool:
        assert self.before is not None
        return bool(self.live(JOB_SETS)["metadata"]["uid"] == self.before.job_set[0])

    async def complete(self) -> None:
        """The TrainJob completes with its JobSet."""
        await self.end_all("Succeeded")
        await self.wait_for_condition("Complete", "True/AllJobsCompleted")
        assert {"Blocked", "Failed"}.isdisjoint(self.conditions())

    async def delete(self) -> None:
        """Nothing is left of a completed TrainJob."""
        await self._delete("Background")


class SuspendedScenario(Scenario):
    """Suspended at the switch."""

    async def create(self) -> None:
        """Have the JobSet suspended, and the status show that."""
        await self.copy.create(self.world.api)
        await self.until(self._shown, "suspended jobs in the JobSet's status")
        rows = rows_of(self.live(JOB_SETS))
        status = {"conditions": [SUSPENDED], "jobsStatus": rows}
        await self.copy.write_status(self.world.api, status)
        await self.until(self.rows, "the status")
        self.before = await self.snapshot()

    def _shown(self) -> bool:
        return bool(rows_of(self.find(JOB_SETS) or {}))

    async def untouched(self) -> None:
        """The switch kept the JobSet suspended; what can be changed in it may follow our plan."""
        assert self.before is not None
        now = await self.snapshot()
        assert now.job_set[0] == self.before.job_set[0]
        assert now.pods == {}
        assert now.conditions["Suspended"] == self.before.conditions["Suspended"]
        assert "Blocked" not in now.conditions
        assert self.live(JOB_SETS)["spec"]["suspend"] is True

    async def admit(self) -> None:
        """Kueue assigns a flavor and resumes: the pods run there."""
        await self.assign_flavor()
        await self.set_suspend(suspend=False)
        pods = await self.wait_until_running()
        await self.wait_for_condition("Suspended", "False/Resumed")
        for pod in pods:
            assert FLAVOR.items() <= pod["spec"]["nodeSelector"].items()
            assert TOLERATION in pod["spec"]["tolerations"]
            assert PODSET.items() <= pod["metadata"]["labels"].items()
        assert "Blocked" not in self.conditions()

    async def evict(self) -> None:
        """Kueue suspends it, waits for the end of its jobs, and takes the flavor away."""
        await self.set_suspend(suspend=True)
        await self.wait_until_idle()
        await self.patch({"spec": {self.queue_field: [*self.own_entries()] or None}})
        await self.until(self._has_no_flavor, "a JobSet without the flavor")

    def _has_no_flavor(self) -> bool:
        return all(
            FLAVOR.keys().isdisjoint(
                job["template"]["spec"]["template"]["spec"].get("nodeSelector") or {}
            )
            for job in self.live(JOB_SETS)["spec"]["replicatedJobs"]
        )

    async def resume(self) -> None:
        """The pods start once more."""
        await self.set_suspend(suspend=False)
        await self.wait_until_running()

    async def delete(self) -> None:
        """Nothing is left of a running TrainJob that is deleted in the foreground."""
        await self._delete("Foreground")


class EndedScenario(Scenario):
    """Failed before the switch; the original has reported that or not."""

    @property
    def is_reported(self) -> bool:
        """Whether the original has reported the end, and the JobSet has expired since."""
        return self.copy.case.release == "v2.3"

    async def create(self) -> None:
        """Have the JobSet fail."""
        await self.copy.create(self.world.api)
        await self.wait_until_running()
        rows = rows_of(self.live(JOB_SETS))
        await self.copy.write_status(self.world.api, {"jobsStatus": rows})
        await self.end_all("Failed")
        if self.is_reported:
            job_set = self.live(JOB_SETS)
            failed = conditions_of(dict(job_set))["Failed"]
            status = {"conditions": [failed], "jobsStatus": rows_of(job_set)}
            await self.copy.write_status(self.world.api, status)
            path = JOB_SETS.object_path(self.key)
            await self.world.api.delete(path)
            await self.until(lambda: self.find(JOB_SETS) is None, "the JobSet deleted")

    async def report(self) -> None:
        """The TrainJob is Failed, and does not train again."""
        await self.wait_for_condition("Failed", "True/FailedJobs")
        assert {"Blocked", "Complete"}.isdisjoint(self.conditions())
        assert (self.find(JOB_SETS) is None) == self.is_reported
        assert self.pods() == []

    async def delete(self) -> None:
        """Nothing is left of a failed TrainJob."""
        await self._delete("Background")


def _missing(planned: Any, found: Any, path: str = "") -> Iterator[str]:
    """Yield the paths of planned fields that the pod lacks; defaults may be added to it."""
    match planned, found:
        case Mapping(), Mapping():
            for name, value in planned.items():
                yield from _missing(value, found.get(name), f"{path}.{name}")
        case list(), list():
            for index, value in enumerate(planned):
                if all([*_missing(value, each)] for each in found):
                    yield f"{path}[{index}]"
        case _:
            if planned != found:
                yield path


def _version(manifest: Manifest) -> int:
    return int(manifest["metadata"]["resourceVersion"])
