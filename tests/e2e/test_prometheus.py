"""A real Prometheus scrapes a working manager, and every query returns data."""

import json
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import yaml

from kftrainer.devcluster import cache_paths
from kftrainer.devcluster.client import ApiClient, Object
from kftrainer.devcluster.controlplane import ControlPlane
from kftrainer.devcluster.errors import NotReadyError
from kftrainer.devcluster.processes.ports import LOOPBACK, PortReservations
from kftrainer.devcluster.waiting import until
from monitoring.panels import PanelQuery, queries_of
from monitoring.prometheus import Prometheus, Target, is_number, reader_token, scraping
from tests.support.helm import CHART, WITHOUT_CRDS, named, render
from tests.support.managers import ManagerProcess
from tests.support.objects import runtime, train_job
from tests.support.trainjobs import (
    COMPLETES_AT_ONCE,
    COMPLETES_LATE,
    FAILS,
    ClusterTeam,
    one_try_runtime,
    pods_with,
)
from tests.support.webhooks import admission_client_for, admitting_manager

JOB = "kubeflow-trainer-controller-manager"
OTHER_CLIENT, API_SERVER = "stranger", "apiserver"
DASHBOARD = CHART / "files" / "dashboard.json"
# As Grafana fills them in; all that happens does so within a few minutes.
VARIABLES = {"job": JOB, "namespace": ".*", "__rate_interval": "10m", "__range": "10m"}
WITHIN = 60.0
FIRST_END = f'kftrainer_trainjob_duration_seconds_count{{job="{JOB}",result="Complete"}}'
FIRST_PODS = f'kftrainer_trainjob_first_pod_running_seconds_count{{job="{JOB}"}}'
SHORT_JOB: Mapping[str, Any] = {"podTemplateOverrides": pods_with(annotations=COMPLETES_AT_ONCE)}
# Metrics that alerts read and that exist only after the first failure.
OUR_WEBHOOKS = 'name=~"validator[.].+[.]trainer[.]kubeflow[.]org"'
REFUSALS = "the API server has refused us nothing"
IGNORE = "only with failurePolicy Ignore"
ONLY_AFTER_FAILURES = {
    f'rest_client_requests_total{{code="401",job="{JOB}"}}': REFUSALS,
    f'rest_client_requests_total{{code="403",job="{JOB}",method="GET"}}': REFUSALS,
    f'rest_client_requests_total{{code=~"429|5..|<error>",job="{JOB}"}}': REFUSALS,
    f"apiserver_admission_webhook_fail_open_count{{{OUR_WEBHOOKS}}}": IGNORE,
    "apiserver_admission_webhook_fail_open_count{}": IGNORE,
}


@dataclass(frozen=True)
class Watched:
    """A manager, and the Prometheus that scrapes it."""

    prometheus: Prometheus
    manager: ManagerProcess
    namespace: str  # where the TrainJobs are

    async def wait_for_result(self, expr: str, *, what: str, within: float = WITHIN) -> None:
        """Wait until there are series with numbers for the expression."""

        async def answered() -> bool:
            return any(map(is_number, await self.prometheus.query(expr)))

        await until(answered, within=within, what=f"an answer to {what}: {expr}")


async def work(team: ClusterTeam) -> None:
    """TrainJobs of every state, and some that are refused."""
    foreign: dict[str, Any] = {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": "blocked"},
        "spec": {"suspend": True, "replicatedJobs": []},
    }
    await team.create(foreign)
    unschedulable = {"nodeSelector": {"kubernetes.io/hostname": "there-is-none"}}
    jobs: Mapping[str, Mapping[str, Any]] = {
        "good": SHORT_JOB,
        "bad": {"podTemplateOverrides": pods_with(labels=FAILS)},
        "lasting": {"podTemplateOverrides": pods_with(annotations=COMPLETES_LATE)},
        "waiting": {
            "podTemplateOverrides": [{"targetJobs": [{"name": "node"}], "spec": unschedulable}]
        },
        "resting": {"suspend": True},
        "blocked": {},
    }
    for name, spec in jobs.items():
        await team.create_job(name, "once", **spec)
    user = admission_client_for(team.api)
    wrong = {"name": "there-is-none", "kind": "TrainingRuntime"}
    for number in range(3):
        manifest = train_job(f"wrong-{number}", runtimeRef=wrong)
        manifest["metadata"]["namespace"] = team.namespace
        assert (await user.create(manifest)).denial


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def watched(
    full_control_plane: ControlPlane,
    prometheus_program: Path,
    helm_program: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> AsyncIterator[Watched]:
    """All of it, when the work has begun and some is over."""
    folder = tmp_path_factory.mktemp("prometheus")
    values = {**WITHOUT_CRDS, "metrics": {"rules": {"enabled": True}}}
    rules = named(render(helm_program, values), "PrometheusRule")["spec"]["groups"]
    ports = PortReservations(cache_paths.ports(cache_paths.cache_home()))
    address = f"{LOOPBACK}:{ports.reserve()}"
    runtimes = tmp_path_factory.mktemp("runtimes")
    shipped = runtime("shipped", "ClusterTrainingRuntime")
    (runtimes / "shipped.yaml").write_text(yaml.safe_dump(shipped))
    flags = ("--metrics-bind-address", address, "--leader-elect", "--runtimes", str(runtimes))
    try:
        async with (
            full_control_plane.client() as api,
            admitting_manager(full_control_plane, *flags) as manager,
        ):
            team = ClusterTeam(api, await full_control_plane.create_namespace(api))
            token = await reader_token(api, team.namespace, folder / "token")
            its_api = full_control_plane.url.removeprefix("https://")
            targets = (
                Target(JOB, address, token, labels={"namespace": "kubeflow-system"}),
                Target(OTHER_CLIENT, address),
                Target(API_SERVER, its_api, token, only="apiserver_admission.*", every="5s"),
            )
            async with scraping(prometheus_program, folder, targets, rules) as prometheus:
                watched = Watched(prometheus, manager, team.namespace)
                await watched.wait_for_result(f'up{{job="{JOB}"}} == 1', what="the manager")

                async def leads() -> bool:  # what happens before that is not measured
                    return bool(manager.log_entries("manager_started"))

                await until(leads, within=WITHIN, what="the manager leading")
                # A rate omits the first value of a series: one TrainJob comes first.
                await team.create(one_try_runtime("once"))
                await team.create_job("first", "once", **SHORT_JOB)
                for metric in (FIRST_PODS, FIRST_END):
                    await watched.wait_for_result(metric, what="the first")
                await work(team)
                await team.wait_until_ended("good")
                await team.wait_until_ended("bad", "Failed")
                await team.wait_for_condition("Blocked", "NameTaken", name="blocked")
                yield watched
    finally:
        ports.release_all()


def queries() -> list[PanelQuery]:
    """All queries of the dashboard."""
    panels = json.loads(DASHBOARD.read_text())["panels"]
    return [panel_query for panel in panels for panel_query in queries_of(panel, VARIABLES)]


@pytest.mark.parametrize(
    "panel_query", queries(), ids=lambda panel_query: f"{panel_query.panel}-{panel_query.legend}"
)
async def test_every_panel_has_data(watched: Watched, panel_query: PanelQuery) -> None:
    await watched.wait_for_result(panel_query.expr, what=panel_query.panel)


async def test_misspelt_query_has_no_data(watched: Watched) -> None:
    with pytest.raises(NotReadyError, match=r"an answer to it: kftrainer_trainjob\{\}"):
        await watched.wait_for_result("kftrainer_trainjob{}", what="it", within=3)


async def test_unauthorized_user_gets_no_metrics(watched: Watched) -> None:
    async def refused() -> bool:
        return "401" in await watched.prometheus.scrape_error(OTHER_CLIENT)

    await until(refused, within=WITHIN, what="the scrape without a token being refused")
    [up] = await watched.prometheus.query(f'up{{job="{OTHER_CLIENT}"}}')
    assert up.points[0][1] == 0

    async def is_shown() -> bool:
        return await watched.prometheus.scrape_error(JOB) == ""

    await until(is_shown, within=WITHIN, what="a scrape with the token")


async def test_series_of_trainjobs_have_their_own_namespaces(watched: Watched) -> None:
    query = f'count by (namespace) (kftrainer_trainjobs{{job="{JOB}"}})'

    async def counted() -> set[str] | None:
        found = {each.labels["namespace"] for each in await watched.prometheus.query(query)}
        return found if watched.namespace in found else None

    assert "kubeflow-system" not in await until(counted, within=WITHIN, what="TrainJobs")


async def test_alerts_are_evaluated_and_none_fires(watched: Watched) -> None:
    """What takes hours is for promtool to play; that a rule can be evaluated is seen here."""

    async def evaluated() -> list[Object] | None:
        rules = await watched.prometheus.rules()
        return rules if all(each["health"] != "unknown" for each in rules) else None

    rules = await until(evaluated, within=WITHIN, what="every rule being evaluated")
    assert [(each["name"], each.get("lastError")) for each in rules if each["health"] != "ok"] == []
    assert [each["name"] for each in rules if each["state"] == "firing"] == []


async def test_alerts_query_existing_series(watched: Watched, api: ApiClient) -> None:
    """The last one: it takes the manager away, so that it cannot be called."""
    await watched.manager.stop()
    user = admission_client_for(api)
    missed = train_job("unseen", runtimeRef={"name": "once", "kind": "TrainingRuntime"})
    missed["metadata"]["namespace"] = watched.namespace
    assert "failed calling webhook" in (await user.create(missed)).message
    read = {
        selector: rule["name"]
        for rule in await watched.prometheus.rules()
        for selector in await watched.prometheus.selectors(rule["query"])
    }
    assert set(ONLY_AFTER_FAILURES) <= set(read), "unused expectation"
    for selector, alert in read.items():
        if selector not in ONLY_AFTER_FAILURES:
            await watched.wait_for_result(f"last_over_time({selector}[10m])", what=alert)
