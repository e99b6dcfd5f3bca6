"""The manager's requests: as few as possible, and none for settled TrainJobs."""

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from kftrainer.devcluster.client import Object
from kftrainer.devcluster.waiting import until
from tests.integration.controllers.burst import (
    SETTLED_WITHIN,
    play_jobset_controller,
    some_at_a_time,
)
from tests.integration.controllers.team import (
    COMPLETED,
    FAILED,
    JOB,
    ROW,
    TEST_TIMEOUT,
    Team,
    a_runtime,
    conditions_of,
    reconciles,
    wait_until_jobs_are_watched,
)
from tests.support.fault_proxy import (
    Cut,
    FaultProxy,
    Match,
    ProxiedRequest,
    status_answer,
)
from tests.support.managers import ManagerProcess, manager_process

KEYS, HOSTFILE = f"{JOB}-mpi-ssh-auth", f"{JOB}-mpi-hostfile"
FOR_OTHER_NAMESPACES = ("/selfsubjectaccessreviews", "/v1alpha1/trainingruntimes")
STATUS = f"PATCH trainjobs/{JOB}/status"
PROBE = f"PROBE secrets/{KEYS}"  # whether it exists, without the right to read it


@asynccontextmanager
async def working(proxy: FaultProxy, team: Team) -> AsyncIterator[ManagerProcess]:
    """A manager that has filled its caches and has not sent requests through the proxy yet."""
    flags = ("--namespace", team.namespace, "--log-level", "debug")
    async with manager_process(proxy.kubeconfig, *flags) as manager:
        await wait_until_started(manager, 1)
        yield manager


async def wait_until_started(manager: ManagerProcess, times: int) -> None:
    async def started() -> bool:
        return len(manager.log_entries("manager_started")) == times

    await until(started, within=TEST_TIMEOUT, what="the manager working")
    await wait_until_jobs_are_watched(manager, times)


def described(request: ProxiedRequest) -> str:
    """The method and, without the group and the namespace, the path."""
    method = "PROBE" if request.is_dry_run else request.method
    return f"{method} {re.sub('.*/namespaces/[^/]*/', '', request.path)}"


def requests_since(proxy: FaultProxy, since: int = 0) -> list[str]:
    """All requests but watches, and but those that look after other namespaces."""
    return [
        described(each)
        for each in _in_watched_namespaces(proxy, since)
        if not each.is_watch and not each.path.endswith(FOR_OTHER_NAMESPACES)
    ]


def _in_watched_namespaces(proxy: FaultProxy, since: int) -> list[ProxiedRequest]:
    """Leave out what earlier tests have left in their namespaces, which is cleaned up."""
    watched = {_namespace(each) for each in proxy.requests if each.is_watch}
    return [each for each in proxy.requests[since:] if _namespace(each) in watched]


def _namespace(request: ProxiedRequest) -> str:
    found = re.search("/namespaces/([^/]*)/", request.path)
    return found[1] if found else ""


def written(proxy: FaultProxy, since: int = 0) -> list[str]:
    """All requests that may change something."""
    return [described(each) for each in _in_watched_namespaces(proxy, since) if each.is_write]


REVISION = "POST controllerrevisions"  # by the first TrainJob of a runtime
LIFECYCLES = {
    "torch": [REVISION, f"PATCH jobsets/{JOB}"],
    "mpi": [
        REVISION,
        f"PATCH secrets/{KEYS}",
        f"PATCH configmaps/{HOSTFILE}",
        f"PATCH jobsets/{JOB}",
    ],
    "gang": [REVISION, f"PATCH podgroups/{JOB}", f"PATCH jobsets/{JOB}"],
}


@pytest.mark.parametrize("runtime", LIFECYCLES)
async def test_a_life_costs_a_request_per_object_and_one_per_change_of_the_status(
    runtime: str, proxy: FaultProxy, team: Team
) -> None:
    await team.create_runtime(runtime)
    async with working(proxy, team) as manager:
        before = len(proxy.requests)
        await team.create_job(runtime=runtime)
        await team.wait_until_exists("JobSet")
        # The reconcile that creates the JobSet also writes a status that it already observes.
        await team.wait_until_reconciled(manager, JOB, 0)
        await team.set_jobset_status(rows=[ROW])
        await team.wait_for_jobs_status(ROW)
        await team.set_jobset_status(COMPLETED, rows=[ROW])
        await team.wait_for_condition("Complete", COMPLETED["reason"])
        await team.touch(manager)
        await team.wait_until_in_use(runtime)
        in_use = f"PATCH trainingruntimes/{runtime}"
        requests = requests_since(proxy, before)
    requests.remove(in_use)  # by another controller, at some time
    # Secrets are not watched: this one is looked up once for each status of the JobSet.
    probes = [PROBE] if runtime == "mpi" else []
    assert requests == [*LIFECYCLES[runtime], *probes, STATUS, *probes, STATUS]


async def test_a_life_with_a_pause_costs_one_more_for_the_jobset_and_one_for_the_status(
    proxy: FaultProxy, team: Team
) -> None:
    await team.create_runtime("mpi")
    async with working(proxy, team) as manager:
        before = len(proxy.requests)
        await team.create_job(runtime="mpi", suspend=True)
        await team.wait_for_condition("Suspended", "Suspended")
        await team.suspend(suspend=False)
        await team.wait_for_condition("Suspended", "Resumed", "False")
        await team.set_jobset_status(COMPLETED)
        await team.wait_for_condition("Complete", COMPLETED["reason"])
        await team.touch(manager)
        await team.wait_until_in_use("mpi")
        requests = requests_since(proxy, before)
    requests.remove("PATCH trainingruntimes/mpi")
    assert requests == [*LIFECYCLES["mpi"], STATUS, f"PATCH jobsets/{JOB}", STATUS, PROBE, STATUS]


async def test_blocked_job_sends_one_runtime_read_one_status_write_and_one_event(
    proxy: FaultProxy, team: Team
) -> None:
    async with working(proxy, team) as manager:
        before = len(proxy.requests)
        await team.create_job()
        await team.wait_for_condition("Blocked", "RuntimeNotFound")
        await team.touch(manager)
        await team.touch(manager)

        async def is_recorded() -> bool:  # by another task, at some time
            return "POST events" in requests_since(proxy, before)

        await until(is_recorded, within=TEST_TIMEOUT, what="an Event")
        assert sorted(requests_since(proxy, before)) == [
            "GET trainingruntimes/torch",
            STATUS,
            "POST events",
        ]


@pytest.mark.parametrize("kind", ["TrainingRuntime", "ClusterTrainingRuntime"])
async def test_runtime_not_yet_in_the_cache_is_not_reported_as_missing(
    kind: str, proxy: FaultProxy, team: Team
) -> None:
    async with working(proxy, team) as manager:
        proxy.stall_all(is_watch_of(f"{kind.lower()}s"))
        before = len(proxy.requests)
        name = f"torch-{team.namespace}"
        reference = {"name": name, "kind": kind}
        manifest = {**a_runtime("torch"), "kind": kind, "metadata": {"name": name}}
        if kind == "TrainingRuntime":
            await team.create(manifest)
        else:
            await team.api.create(manifest)
        await team.create_job(runtimeRef=reference)
        await team.wait_until_exists("JobSet")
        await team.set_jobset_status(COMPLETED)
        job = await team.wait_for_condition("Complete", COMPLETED["reason"])
        await team.touch(manager)
        reads = [each for each in requests_since(proxy, before) if each.endswith(name)]
        assert [each.split(" ")[0] for each in reads] == ["GET"]
    assert set(conditions_of(job)) == {"Complete"}
    assert await team.all("Event") == []


async def test_runtime_that_cannot_be_read_is_retried_without_a_condition(
    proxy: FaultProxy, team: Team
) -> None:
    async with working(proxy, team):
        proxy.stall_all(is_watch_of("trainingruntimes"))
        await team.create_runtime()
        proxy.inject(status_answer(503, "ServiceUnavailable"), is_read_of("torch"), times=3)
        await team.create_job(suspend=True)
        await team.wait_until_exists("JobSet")
        job = await team.wait_for_condition("Suspended", "Suspended")
        assert proxy.faults_left == 0
    assert set(conditions_of(job)) == {"Suspended"}
    assert await team.all("Event") == []


async def test_runtime_whose_read_is_forbidden_is_retried(proxy: FaultProxy, team: Team) -> None:
    async with working(proxy, team):
        proxy.inject(status_answer(403, "Forbidden"), is_read_of("torch"))
        await team.create_job(suspend=True)
        await team.wait_for_condition("Blocked", "RuntimeNotFound")
        assert proxy.faults_left == 0
        await team.create_runtime()
        await team.wait_for_condition("Suspended", "Suspended")
        await team.wait_until_condition_removed("Blocked")


async def test_job_is_suspended_while_its_deleted_runtime_cannot_be_read(
    proxy: FaultProxy, team: Team
) -> None:
    await team.create_runtime()
    async with working(proxy, team) as manager:
        await team.create_job()
        await team.wait_until_exists("JobSet")
        await team.wait_until_in_use()
        await team.delete("TrainingRuntime", "torch")
        await team.patch("TrainingRuntime", "torch", {"metadata": {"finalizers": None}})
        await team.wait_until_deleted("TrainingRuntime", "torch")
        await team.touch(manager)
        proxy.inject(status_answer(503, "ServiceUnavailable"), is_read_of("torch"), times=1000)
        await team.suspend(suspend=True)

        async def suspended() -> bool:
            return bool((await team.get("JobSet"))["spec"].get("suspend"))

        await until(suspended, within=TEST_TIMEOUT, what="the JobSet being suspended")


def is_read_of(runtime: str) -> Match:
    def match(request: ProxiedRequest) -> bool:
        return request.method == "GET" and request.path.endswith(f"/trainingruntimes/{runtime}")

    return match


class Settled:
    """TrainJobs in all settled states, a number of each."""

    def __init__(self, team: Team, each: int) -> None:
        self._team = team
        self._each = each

    def names(self, *states: str) -> list[str]:
        """Those in these states."""
        return [f"{state}-{number}" for state in states for number in range(self._each)]

    @property
    def all(self) -> list[str]:
        """All of them."""
        return self.names(*STATES)

    async def settle(self) -> None:
        """Bring them there, with a manager that then has nothing left to write."""
        runtimes = ("torch", "mpi", "gang", "volcano")
        for runtime in runtimes:
            await self._team.create_runtime(runtime)
        await some_at_a_time(
            self._team.create_job(name, runtime=runtime, suspend=suspend)
            for state, (runtime, suspend, _) in STATES.items()
            for name in self.names(state)
        )
        condition_writes = {
            name: end
            for state, (_, _, end) in STATES.items()
            if end is not None
            for name in self.names(state)
        }
        await play_jobset_controller(self._team, condition_writes)
        for settled in (self._are_settled, self._are_recorded):
            await until(settled, within=SETTLED_WITHIN, what="all being settled", every=0.3)
        for runtime in runtimes:
            await self._team.wait_until_in_use(runtime)

    async def _are_settled(self) -> bool:
        jobs = await self._team.all("TrainJob")
        return all(_is_settled(each) for each in jobs)

    async def _are_recorded(self) -> bool:
        events = await self._team.all("Event")
        blocked = self.names("blocked", "blocked-waiting")
        return {*blocked} <= {each["involvedObject"]["name"] for each in events}


# The runtime, whether it is suspended, and the JobSet's final conditions.
STATES = {
    "runs": ("torch", False, []),
    "runs-mpi": ("mpi", False, []),
    "runs-together": ("gang", False, []),
    "waits": ("torch", True, []),
    "waits-mpi": ("mpi", True, []),
    "waits-together": ("gang", True, []),
    "waits-volcano": ("volcano", True, []),
    "done": ("mpi", False, [COMPLETED]),
    "failed": ("gang", False, [FAILED]),
    "blocked": ("none", False, None),
    "blocked-waiting": ("none", True, None),
}


def _is_settled(job: Object) -> bool:
    state = job["metadata"]["name"].rpartition("-")[0]
    _, suspend, end = STATES[state]
    wanted = {"Blocked"} if end is None else {_END[each["type"]] for each in end}
    wanted |= {"Suspended"} if suspend else set()
    rows = job.get("status", {}).get("jobsStatus")
    return set(conditions_of(job)) == wanted and (end is None or rows == [ROW])


_END = {"Completed": "Complete", "Failed": "Failed"}


async def test_reconciles_of_an_unchanged_job_send_no_requests(
    proxy: FaultProxy, team: Team
) -> None:
    settled = Settled(team, 1)
    async with working(proxy, team) as manager:
        await settled.settle()
        for name in settled.all:
            await team.touch(manager, name)
        before = len(proxy.requests)
        for name in settled.all:
            await team.touch(manager, name)
            if await team.find("JobSet", name):
                await team.touch(manager, name, kind="JobSet")
        assert requests_since(proxy, before) == []


async def test_restart_with_unchanged_jobs_writes_nothing(proxy: FaultProxy, team: Team) -> None:
    settled = Settled(team, 5)
    assert len(settled.all) >= 50
    async with working(proxy, team) as manager:
        await settled.settle()
        await manager.stop()
        reconciles_before = {
            name: reconciles(manager, team.namespace, name) for name in settled.all
        }
        versions = {
            kind: [each["metadata"]["resourceVersion"] for each in await team.all(kind)]
            for kind in ("TrainJob", "JobSet", "Secret", "ConfigMap", "PodGroup", "Volcano")
        }
        before = len(proxy.requests)
        manager.start()
        await wait_until_started(manager, 2)
        for name, times in reconciles_before.items():
            await team.wait_until_reconciled(manager, name, times)
        assert written(proxy, before) == []
    for kind, before_it in versions.items():
        after = [each["metadata"]["resourceVersion"] for each in await team.all(kind)]
        assert after == before_it


async def test_finished_job_does_not_run_again_after_a_restart(
    proxy: FaultProxy, team: Team
) -> None:
    """Defects D3 and D4."""
    await team.create_runtime("mpi")
    async with working(proxy, team) as manager:
        for name, end in (("done", COMPLETED), ("failed", FAILED)):
            await team.create_job(name, runtime="mpi")
            await team.wait_until_exists("JobSet", name)
            await team.set_jobset_status(end, name=name)
            await team.wait_for_condition(_END[end["type"]], end["reason"], name=name)
        await team.wait_until_in_use("mpi")
        ended = {name: await team.get("TrainJob", name) for name in ("done", "failed")}
        await manager.stop()
        for name in ended:
            await team.delete("JobSet", name)
            await team.delete("Secret", f"{name}-mpi-ssh-auth")
        reconciles_before = {name: reconciles(manager, team.namespace, name) for name in ended}
        before = len(proxy.requests)
        manager.start()
        for name, times in reconciles_before.items():
            await team.wait_until_reconciled(manager, name, times)
        assert written(proxy, before) == []
    for name, job in ended.items():
        assert await team.get("TrainJob", name) == job
    assert await team.children() == [f"ConfigMap/{name}-mpi-hostfile" for name in sorted(ended)]


def is_watch_of(*plurals: str) -> Match:
    def match(request: ProxiedRequest) -> bool:
        return request.is_watch and request.path.rpartition("/")[2] in plurals

    return match


async def test_objects_missing_from_the_stale_cache_are_not_created_again(
    proxy: FaultProxy, team: Team
) -> None:
    """Defect D44."""
    await team.create_runtime("mpi")
    async with working(proxy, team) as manager:
        proxy.stall_all(is_watch_of("secrets", "configmaps", "jobsets"))
        before = len(proxy.requests)
        await team.create_job(runtime="mpi")
        await team.wait_until_exists("JobSet")
        secret = await team.get("Secret", KEYS)
        for _ in range(3):
            await team.touch(manager)
        await team.wait_until_in_use("mpi")
        requests = requests_since(proxy, before)
        requests.remove("PATCH trainingruntimes/mpi")
        assert requests == LIFECYCLES["mpi"]
        assert await team.get("Secret", KEYS) == secret


async def test_deleted_jobset_in_a_stale_cache_is_not_recreated_by_a_change(
    proxy: FaultProxy, team: Team
) -> None:
    await team.create_runtime()
    await team.create_job(suspend=True)
    async with working(proxy, team) as manager:
        await team.wait_for_condition("Suspended", "Suspended")
        await team.touch(manager)
        proxy.stall_all(is_watch_of("jobsets"))
        await team.delete("JobSet")
        await team.suspend(suspend=False)
        for _ in range(2):
            await team.touch(manager)
        assert await team.find("JobSet") is None
        proxy.reset_all()
        job_set = await team.wait_until_exists("JobSet")
        assert (job_set["spec"]["suspend"], job_set["metadata"]["generation"]) == (False, 1)
        job = await team.wait_for_condition("Suspended", "Resumed", "False")
        assert set(conditions_of(job)) == {"Suspended"}


async def test_a_status_that_the_cache_does_not_show_yet_is_not_written_again(
    proxy: FaultProxy, team: Team
) -> None:
    await team.create_runtime()
    await team.create_job(suspend=True)
    async with working(proxy, team) as manager:
        await team.wait_for_condition("Suspended", "Suspended")
        await team.touch(manager)
        await team.wait_until_in_use()
        proxy.stall_all(is_watch_of("trainjobs"))
        before = len(proxy.requests)
        await team.set_jobset_status(rows=[ROW])
        job = await team.wait_for_jobs_status(ROW)
        for _ in range(3):
            await team.touch(manager, kind="JobSet")
        assert requests_since(proxy, before) == [STATUS]
        assert await team.get("TrainJob") == job


def is_write_of(plural: str) -> Match:
    def match(request: ProxiedRequest) -> bool:
        return request.method == "PATCH" and f"/{plural}/" in request.path

    return match


CHILDREN = {"mpi": ("secrets", "configmaps", "jobsets"), "gang": ("podgroups", "jobsets")}


@pytest.mark.parametrize("stale", [False, True], ids=["fresh", "stale"])
@pytest.mark.parametrize("runtime", CHILDREN)
async def test_write_with_lost_response_is_not_repeated(
    runtime: str, stale: bool, proxy: FaultProxy, team: Team
) -> None:
    """Defect D44."""
    await team.create_runtime(runtime)
    async with working(proxy, team):
        if stale:
            proxy.stall_all(is_watch_of(*CHILDREN[runtime]))
        for plural in (*CHILDREN[runtime], "trainjobs"):
            proxy.inject(Cut(0, reset=True), is_write_of(plural))
        await team.create_job(runtime=runtime, suspend=True)
        await team.wait_until_exists("JobSet")
        job = await team.wait_for_condition("Suspended", "Suspended")
        assert proxy.faults_left == 0
    assert set(conditions_of(job)) == {"Suspended"}
    assert await team.all("Event") == []
    for kind in ("Secret", "ConfigMap", "PodGroup", "JobSet"):
        for child in await team.all(kind):
            assert len(child["metadata"]["managedFields"]) == 1
            assert child["metadata"].get("generation", 1) == 1


async def test_deleted_keys_are_created_again_when_the_jobset_changes(
    proxy: FaultProxy, team: Team
) -> None:
    await team.create_runtime("mpi")
    async with working(proxy, team):
        await team.create_job(runtime="mpi")
        await team.wait_until_exists("JobSet")
        before = await team.get("Secret", KEYS)
        await team.delete("Secret", KEYS)
        await team.set_jobset_status(rows=[ROW])  # as when pods cannot start for want of the Secret
        after = await team.wait_until_exists("Secret", KEYS)
    assert after["data"].keys() == before["data"].keys()
    assert after["metadata"]["uid"] != before["metadata"]["uid"]
