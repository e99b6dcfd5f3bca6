"""How often the manager tries again, and what that costs."""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from itertools import pairwise
from typing import Any

import orjson
import pytest
import yaml

from kftrainer.devcluster.client import Object
from kftrainer.devcluster.waiting import until
from kftrainer.machinery.manager.clock import SystemClock
from tests.integration.controllers.team import (
    JOB,
    TEST_TIMEOUT,
    Team,
    conditions_of,
)
from tests.integration.controllers.test_blocked import NEEDED, OTHER_UID, SPECS
from tests.integration.controllers.test_writes import requests_since, wait_until_started, working
from tests.support.fault_proxy import Answer, FaultProxy, ProxiedRequest
from tests.support.managers import FAST, ROOT, ManagerProcess, manager_process
from tests.support.objects import API
from tests.support.scraping import Scraper, scraper

CLOCK = SystemClock()
ATTEMPTS = 10
FIRST_DELAY, JITTER = 0.005, 0.1
STATUS = f"PATCH trainjobs/{JOB}/status"
EVENT = "TrainJobResourcesCreationFailed"
PENDING = "WaitingForDeletion"
ALERTS = ROOT / "charts/kftrainer/files/alerts.yaml"
ERRORS = "controller_runtime_reconcile_errors_total"
OF_TRAIN_JOBS = {"controller": "trainjob_controller"}


def is_job_set_write(request: ProxiedRequest) -> bool:
    return request.method == "PATCH" and "/jobsets/" in request.path


def is_status_write(request: ProxiedRequest) -> bool:
    return request.method == "PATCH" and request.path.endswith(f"/trainjobs/{JOB}/status")


class Attempts:
    """Rejects every JobSet or status, each with the next message, and records when."""

    def __init__(
        self,
        proxy: FaultProxy,
        code: int,
        message: str,
        is_rejected: Callable[[ProxiedRequest], bool] = is_job_set_write,
    ) -> None:
        self.times: list[float] = []
        self._is_rejected = is_rejected
        for number in range(1000):
            letters = "".join(chr(ord("a") + int(digit)) for digit in str(number))
            text = message.format(number=10_000 + number, word=letters)
            status = {"kind": "Status", "code": code, "reason": "InternalError", "message": text}
            headers = {"Content-Type": "application/json"}
            proxy.inject(Answer(code, orjson.dumps(status).decode(), headers), self._match)

    def _match(self, request: ProxiedRequest) -> bool:
        matches = self._is_rejected(request)
        if matches:
            self.times.append(CLOCK.monotonic())
        return matches

    @property
    def gaps(self) -> Sequence[float]:
        """The seconds between attempts."""
        return [later - earlier for earlier, later in pairwise(self.times)]


# A message of errors that differ in a number or a word, and the writes of the status for it.
MESSAGES = {
    "ports": ("read tcp 127.0.0.1:{number}->10.0.0.1:9443: connection reset by peer", 1),
    "times": ("x509: current time 2026-01-02T03:04:05.{number}Z is after 2026-01-01T00:00:00Z", 1),
    "addresses": ("RuntimeError: <object at 0x{number}>", 1),
    "long": (f"{'x' * 3000} {{number}}", 1),
    "words": ("RuntimeError: {word}", ATTEMPTS),
}


@pytest.mark.parametrize("message", MESSAGES)
async def test_error_text_that_changes_does_not_bypass_the_back_off(
    message: str, proxy: FaultProxy, team: Team
) -> None:
    text, most_writes = MESSAGES[message]
    await team.create_runtime()
    async with working(proxy, team):
        attempts = Attempts(proxy, 500, text)
        await team.create_job()

        async def repeated() -> bool:
            return len(attempts.times) >= ATTEMPTS

        await until(repeated, within=TEST_TIMEOUT, what=f"{ATTEMPTS} attempts")
        requests = requests_since(proxy)
    least = [(1 - JITTER) * FIRST_DELAY * 2**number for number in range(ATTEMPTS - 1)]
    gaps = attempts.gaps[: ATTEMPTS - 1]
    assert [gap >= delay for gap, delay in zip(gaps, least, strict=True)] == [True] * len(least)
    events = [each for each in requests if " events" in each and not each.startswith("GET ")]
    assert 1 <= requests.count(STATUS) <= most_writes
    assert 1 <= len(events) <= most_writes


async def failures(metrics: Scraper) -> tuple[float, float, float]:
    """Failed reconciles of TrainJobs by both of their metrics, and retries."""
    results = await metrics.series("controller_runtime_reconcile_total", "result", **OF_TRAIN_JOBS)
    errors = await metrics.series(ERRORS, **OF_TRAIN_JOBS)
    retries = await metrics.series("workqueue_retries_total", **OF_TRAIN_JOBS)
    return results.get(("error",), 0), errors.get((), 0), retries.get((), 0)


async def test_rejected_apply_counts_as_failed_reconcile_and_as_retry(
    proxy: FaultProxy, team: Team
) -> None:
    await team.create_runtime()
    flags = ("--namespace", team.namespace)
    async with (
        scraper() as metrics,
        manager_process(proxy.kubeconfig, *flags, *metrics.flags) as manager,
    ):
        await wait_until_started(manager, 1)
        before = await failures(metrics)
        attempts = Attempts(proxy, 500, "no endpoints available")
        await team.create_job()
        job = await team.wait_for_condition("Blocked", "ResourcesCreationFailed")
        for wanted in (3, ATTEMPTS):

            async def counted(wanted: int = wanted) -> bool:
                least = min(await failures(metrics))
                return len(attempts.times) >= wanted and least >= wanted

            await until(counted, within=TEST_TIMEOUT, what=f"{wanted} errors and retries")
        found = await failures(metrics)
        logged = [each["level"] for each in manager.log_entries("reconcile_failed")]
        is_alerted = [
            ERRORS in rule["expr"] and "(job, controller)" in rule["expr"] for rule in rules()
        ]
        assert before == (0, 0, 0)
        assert max(found) <= len(attempts.times)
        assert logged == ["error"], "the status reports the repetitions"
        assert manager.log_entries("objects_not_applied") == []
        assert "no endpoints available" in conditions_of(job)["Blocked"]["message"]
        assert is_alerted.count(True) == 1


async def test_rejected_status_counts_as_failed_reconcile_and_is_retried(
    proxy: FaultProxy, team: Team
) -> None:
    await team.create_runtime()
    flags = ("--namespace", team.namespace)
    async with (
        scraper() as metrics,
        manager_process(proxy.kubeconfig, *flags, *metrics.flags) as manager,
    ):
        await wait_until_started(manager, 1)
        attempts = Attempts(proxy, 500, "no endpoints available", is_status_write)
        await team.create_job(suspend=True)

        async def counted() -> bool:
            return min(await failures(metrics)) >= ATTEMPTS

        await until(counted, within=TEST_TIMEOUT, what=f"{ATTEMPTS} errors and retries")
        errors = {each["error"] for each in manager.log_entries("reconcile_failed")}
        assert errors == {"cannot write the status: no endpoints available"}
        least = [(1 - JITTER) * FIRST_DELAY * 2**number for number in range(ATTEMPTS - 1)]
        gaps = zip(attempts.gaps, least, strict=False)
        assert all(gap >= delay for gap, delay in gaps)


def rules() -> Sequence[Object]:
    """The chart's alerts."""
    groups = yaml.safe_load(ALERTS.read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def owned_by_other_trainjob(manifest: Object) -> Object:
    owner = {"apiVersion": API, "kind": "TrainJob", "name": JOB, "uid": OTHER_UID}
    references = [{**owner, "controller": True, "blockOwnerDeletion": True}]
    return {**manifest, "metadata": {**manifest["metadata"], "ownerReferences": references}}


def with_finalizer(manifest: Object) -> Object:
    return {**manifest, "metadata": {**manifest["metadata"], "finalizers": ["example.org/busy"]}}


async def create_needed(team: Team, kind: str, change: Any) -> tuple[str, str]:
    """Create an object of the name that a TrainJob needs; the TrainJob's runtime and the name."""
    runtime, name, api_version, kind_name = NEEDED[kind]
    metadata = {"name": name}
    manifest = {"apiVersion": api_version, "kind": kind_name, "metadata": metadata, **SPECS[kind]}
    await team.create(change(manifest))
    return runtime, name


# The clock of these managers is so much faster.
TIMES = 200
MANY_ATTEMPTS = 30  # with a bound of 1,000 s, they would take a minute


@asynccontextmanager
async def fast_manager(proxy: FaultProxy, team: Team) -> AsyncIterator[ManagerProcess]:
    program = (*FAST, str(TIMES))
    flags = ("--namespace", team.namespace)
    async with manager_process(proxy.kubeconfig, *flags, program=program) as manager:
        await wait_until_started(manager, 1)
        yield manager


async def wait_until_attempted(proxy: FaultProxy, times: int) -> None:
    async def attempted() -> bool:
        return sum(map(is_job_set_write, proxy.requests)) >= times

    await until(attempted, within=30.0, what=f"{times} attempts")


async def test_taken_name_is_retried_at_short_intervals(proxy: FaultProxy, team: Team) -> None:
    await create_needed(team, "JobSet", lambda manifest: manifest)
    await team.create_runtime()
    async with fast_manager(proxy, team):
        await team.create_job()
        await team.wait_for_condition("Blocked", "NameTaken")
        await wait_until_attempted(proxy, MANY_ATTEMPTS)
        await team.delete("JobSet")
        await team.wait_until_condition_removed("Blocked")
        requests = requests_since(proxy)
    assert requests.count(STATUS) == 2
    assert requests.count("POST events") == 1


async def test_predecessor_that_is_not_deleted_is_reported(proxy: FaultProxy, team: Team) -> None:
    await create_needed(team, "JobSet", owned_by_other_trainjob)
    await team.create_runtime()
    async with fast_manager(proxy, team):
        await team.create_job()
        job = await team.wait_for_condition("Blocked", PENDING)
        message = conditions_of(job)["Blocked"]["message"]
        assert f"waiting for the deletion of JobSet {team.namespace}/{JOB}" in message
        assert message in (await team.wait_for_event(EVENT))["message"]
        await team.delete("JobSet")
        await team.wait_until_condition_removed("Blocked")


async def test_job_rejected_by_a_quota_is_retried_at_short_intervals(
    proxy: FaultProxy, team: Team
) -> None:
    hard = {"count/jobsets.jobset.x-k8s.io": "0"}
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "few"}}
    await team.create({**quota, "spec": {"hard": hard}})
    path = f"/api/v1/namespaces/{team.namespace}/resourcequotas/few"
    await set_quota(team, path, hard)
    await team.create_runtime()
    async with fast_manager(proxy, team):
        await team.create_job()
        job = await team.wait_for_condition("Blocked", "ResourcesCreationFailed")
        assert "exceeded quota: few" in conditions_of(job)["Blocked"]["message"]
        await wait_until_attempted(proxy, MANY_ATTEMPTS)
        hard = {"count/jobsets.jobset.x-k8s.io": "1"}
        await set_quota(team, path, hard)
        await team.wait_until_exists("JobSet")
        await team.wait_until_condition_removed("Blocked")


async def set_quota(team: Team, path: str, hard: Object) -> None:
    """Set the quota, and its status as the quota controller does; wait until it is enforced."""
    merge = "application/merge-patch+json"
    spec = {"spec": {"hard": hard}}
    await team.api.request("PATCH", path, body=spec, content_type=merge)
    status = {"status": {"hard": hard, "used": dict.fromkeys(hard, "0")}}
    await team.api.request("PATCH", f"{path}/status", body=status, content_type=merge)
