"""Every golden case of Kubeflow Trainer 2.1 and 2.3 after the switch to kftrainer.

All TrainJobs live at once, each in its own namespace: one that runs at the switch, one that is
suspended and one that has failed for each case. They are stored under CRDs as loose as the
original's, which are then replaced. The tests report what became of each step.

Fields of later releases that are not served yet (`NOT_SERVED`) stay stored. Such a TrainJob has the
same life as all others, because the effect of these fields is in the JobSet that exists.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
import pytest_asyncio

from kftrainer.api.resources import JOB_SETS, TRAIN_JOBS
from kftrainer.devcluster import cache_paths
from kftrainer.devcluster.client import ApiClient, Object
from kftrainer.devcluster.controlplane import ControlPlane
from kftrainer.devcluster.errors import ApiError, NotReadyError
from kftrainer.devcluster.processes.ports import LOOPBACK, PortReservations
from kftrainer.devcluster.waiting import until
from tests.e2e.migration.lifecycle import (
    PODS,
    WITHIN,
    EndedScenario,
    Reconciles,
    RunningScenario,
    Scenario,
    SuspendedScenario,
    World,
)
from tests.support.object_log import object_log
from tests.support.objects import API
from tests.support.upstream_trainjobs import (
    NOT_SERVED,
    ORIGINALS,
    Copy,
    Original,
    crds_of_the_original,
)
from tests.support.webhooks import admitting_manager

WRITES = re.compile(r'^rest_client_requests_total\{.*method="(?:POST|PUT|PATCH|DELETE)".*\} (\S+)$')
BAD_REQUESTS = (400, 422)
# The steps after the switch. Fields that are not served stay stored all the time.
FIRST: Mapping[type[Scenario], Sequence[str]] = {
    RunningScenario: ("untouched", "suspend"),
    SuspendedScenario: ("untouched",),
    EndedScenario: ("report",),
}
SECOND: Mapping[type[Scenario], Sequence[str]] = {
    RunningScenario: ("resume",),
    SuspendedScenario: ("admit", "evict"),
    EndedScenario: (),
}
THIRD: Mapping[type[Scenario], Sequence[str]] = {
    RunningScenario: ("complete", "delete"),
    SuspendedScenario: ("resume", "delete"),
    EndedScenario: ("delete",),
}
every_case = pytest.mark.parametrize("case", ORIGINALS, ids=str)


@dataclass
class Report:
    """What became of every TrainJob, and of the runtimes in the end."""

    lives: dict[tuple[Original, type[Scenario]], Scenario] = field(default_factory=dict)
    writes: list[str] = field(default_factory=list)  # why writes did not end
    runtimes: dict[Original, str] = field(default_factory=dict)

    def check(self, case: Original, life: type[Scenario], step: str) -> None:
        """Fail if the step failed."""
        failure = self.lives[case, life].results[step]
        assert not failure, failure


async def all_at_once(
    lives: Mapping[Any, Scenario], steps: Mapping[type[Scenario], Sequence[str]]
) -> None:
    """Have each TrainJob take its steps."""
    async with asyncio.TaskGroup() as group:
        for life in lives.values():
            todo = [getattr(life, step) for step in steps[type(life)]]
            group.create_task(life.attempt(*todo))


async def without_writes(lives: Sequence[Scenario], reconciles: Reconciles, metrics: str) -> str:
    """Reconcile all TrainJobs until that takes no write; why it did not come to that."""
    rounds, failure = 0, ""
    async with ApiClient(f"http://{metrics}", None) as probe:

        async def writes() -> float:
            page = (await probe.fetch("GET", "/metrics")).decode()
            return sum(float(found[1]) for found in map(WRITES.match, page.splitlines()) if found)

        async def quiet() -> bool:
            nonlocal rounds
            rounds += 1
            before = await writes()
            async with asyncio.TaskGroup() as group:
                for life in lives:
                    group.create_task(life.touch(reconciles, str(rounds)))
            return await writes() == before

        try:
            await until(quiet, within=WITHIN, what="reconciling all TrainJobs without a write")
        except* (NotReadyError, ApiError) as errors:
            failure = str([str(each) for each in errors.exceptions])
    return failure


async def delete_runtime(api: ApiClient, runtime: Object) -> str:
    """Delete a runtime that is no longer used; return why that failed."""
    path = await api.path_of(runtime)

    async def is_deleted() -> bool:
        return await api.get_or_none(path) is None

    try:
        await api.delete(path)
        await until(is_deleted, within=WITHIN, what=f"the end of {path}", every=0.5)
    except (NotReadyError, ApiError) as error:
        return str(error)
    return ""


@asynccontextmanager
async def metrics_address() -> AsyncIterator[str]:
    """Where the manager serves its metrics."""
    ports = PortReservations(cache_paths.ports(cache_paths.cache_home()))
    yield f"{LOOPBACK}:{ports.reserve()}"
    ports.release_all()


async def populate(plane: ControlPlane, world: World, report: Report) -> None:
    """Create all TrainJobs as the original left them."""

    async def begin(case: Original, kind: type[Scenario]) -> None:
        namespace = await plane.create_namespace(world.api, f"{case.short}-")
        life = kind(Copy(case, namespace, suspend=kind is SuspendedScenario), world)
        report.lives[case, kind] = life
        await life.attempt(life.create)

    async with asyncio.TaskGroup() as group:
        for case in ORIGINALS:
            for kind in FIRST:
                group.create_task(begin(case, kind))


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def report(migration_plane: ControlPlane) -> Report:
    """All lives, from the original's objects to the deletion of the runtimes."""
    found = Report()
    kubeconfig = migration_plane.kubeconfig
    async with (
        migration_plane.client() as api,
        object_log(kubeconfig, TRAIN_JOBS, JOB_SETS, PODS) as log,
        metrics_address() as metrics,
    ):
        async with crds_of_the_original(api):
            await populate(migration_plane, World(api, log), found)
        lives = found.lives
        flags = ("--log-level", "debug", "--metrics-bind-address", metrics, "--no-metrics-secure")
        async with admitting_manager(migration_plane, *flags) as manager:
            reconciles = Reconciles(manager)
            created = [each for each in lives.values() if not each.has_failed]
            found.writes.append(await without_writes(created, reconciles, metrics))
            await all_at_once(lives, FIRST)
            await all_at_once(lives, SECOND)
            found.writes.append(await without_writes(created, reconciles, metrics))
            await all_at_once(lives, THIRD)
            async with asyncio.TaskGroup() as group:
                ends = {
                    case: group.create_task(
                        delete_runtime(api, lives[case, RunningScenario].copy.runtime)
                    )
                    for case in ORIGINALS
                }
            found.runtimes = {case: task.result() for case, task in ends.items()}
    return found


@every_case
def test_running_trainjob_is_not_changed_by_the_switch(report: Report, case: Original) -> None:
    report.check(case, RunningScenario, "create")
    report.check(case, RunningScenario, "untouched")


@every_case
def test_running_trainjob_is_suspended_before_it_reports_so(report: Report, case: Original) -> None:
    report.check(case, RunningScenario, "suspend")


@every_case
def test_suspended_trainjob_is_resumed(report: Report, case: Original) -> None:
    report.check(case, RunningScenario, "resume")


@every_case
def test_resumed_trainjob_completes(report: Report, case: Original) -> None:
    report.check(case, RunningScenario, "complete")


@every_case
def test_completed_trainjob_is_deleted_with_its_objects(report: Report, case: Original) -> None:
    report.check(case, RunningScenario, "delete")


@every_case
def test_suspended_trainjob_is_not_changed_by_the_switch(report: Report, case: Original) -> None:
    report.check(case, SuspendedScenario, "create")
    report.check(case, SuspendedScenario, "untouched")


@every_case
def test_suspended_trainjob_runs_where_its_queue_admits_it(report: Report, case: Original) -> None:
    report.check(case, SuspendedScenario, "admit")


@every_case
def test_evicted_trainjob_stops_and_loses_its_flavor(report: Report, case: Original) -> None:
    report.check(case, SuspendedScenario, "evict")


@every_case
def test_evicted_trainjob_is_resumed(report: Report, case: Original) -> None:
    report.check(case, SuspendedScenario, "resume")


@every_case
def test_running_trainjob_is_deleted_with_its_objects(report: Report, case: Original) -> None:
    report.check(case, SuspendedScenario, "delete")


@every_case
def test_trainjob_that_failed_before_the_switch_stays_failed(
    report: Report, case: Original
) -> None:
    report.check(case, EndedScenario, "create")
    report.check(case, EndedScenario, "report")


@every_case
def test_failed_trainjob_is_deleted_with_its_objects(report: Report, case: Original) -> None:
    report.check(case, EndedScenario, "delete")


@every_case
def test_runtime_without_trainjobs_is_deleted(report: Report, case: Original) -> None:
    assert not report.runtimes[case], report.runtimes[case]


@pytest.mark.parametrize("moment", ["after the switch", "after suspension and resumption"])
def test_unchanged_trainjobs_cause_no_writes(report: Report, moment: str) -> None:
    failure = report.writes[moment != "after the switch"]
    assert not failure, failure


async def refusal(api: ApiClient, document: Object) -> str:
    """What the API server has against the document; unknown fields count."""
    path = (await api.path_of(document)).rpartition("/")[0]
    query = {"dryRun": "All", "fieldValidation": "Strict"}
    try:
        await api.request("POST", path, body=document, query=query)
    except ApiError as error:
        if error.status not in BAD_REQUESTS:
            raise
        return str(error)
    return ""


async def refusals(
    api: ApiClient, documents: Sequence[Object], namespace: str
) -> Mapping[str, str]:
    """What the API server has against the TrainJob and the runtime among the documents."""
    found = {
        each["kind"]: await refusal(api, _in_namespace(each, namespace))
        for each in documents
        if each["apiVersion"] == API
    }
    return {kind: why for kind, why in found.items() if why}


@every_case
async def test_table_of_fields_that_are_not_served_is_exact(
    api: ApiClient, namespace: str, case: Original
) -> None:
    """The API server refuses what the table names, and accepts everything else."""
    assert await refusals(api, case.served(), namespace) == {}
    refused = await refusals(api, case.documents, namespace)
    missing = NOT_SERVED.get(case.name)
    assert set(refused) == (set() if missing is None else {missing.kind})
    if missing is not None:
        assert missing.path[-1] in refused[missing.kind]


def _in_namespace(document: Object, namespace: str) -> Object:
    metadata = {**document["metadata"], "name": "served"}
    metadata.pop("uid", None)
    if "namespace" in metadata:
        metadata["namespace"] = namespace
    return {**document, "metadata": metadata}
