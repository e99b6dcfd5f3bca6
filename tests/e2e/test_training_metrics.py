"""What managers export about TrainJobs that others make pods of, run and end."""

from collections.abc import AsyncIterator, Mapping
from datetime import datetime
from typing import Any

import pytest

from kftrainer.devcluster.client import ApiClient
from kftrainer.devcluster.controlplane import ControlPlane
from kftrainer.devcluster.waiting import until
from tests.integration.controllers.team import wait_until_jobs_are_watched
from tests.support.objects import API
from tests.support.scraping import Scraper, scraper
from tests.support.trainjobs import (
    COMPLETES_AT_ONCE,
    COMPLETES_LATE,
    END_TO_END_TIMEOUT,
    FAILS,
    ClusterTeam,
    one_try_runtime,
    pods_with,
    ready_manager,
)

COUNTS = "kftrainer_trainjobs"
OLDEST = "kftrainer_trainjob_oldest_timestamp_seconds"
CREATION_COUNT = "kftrainer_trainjob_jobset_creation_seconds_count"
RAN = "kftrainer_trainjob_first_pod_running_seconds_count"
DURATION_COUNT = "kftrainer_trainjob_duration_seconds_count"
CLUSTER_RUNTIME, NAMESPACED_RUNTIME = "ClusterTrainingRuntime", "_namespaced"
UNSCHEDULABLE = {"nodeSelector": {"kubernetes.io/hostname": "there-is-none"}}
SHORT: dict[str, Any] = {"podTemplateOverrides": pods_with(annotations=COMPLETES_AT_ONCE)}


@pytest.fixture
def team(api: ApiClient, namespace: str) -> ClusterTeam:
    """A namespace of the test's own."""
    return ClusterTeam(api, namespace)


@pytest.fixture
async def metrics() -> AsyncIterator[Scraper]:
    """Where the manager of the test exports."""
    async with scraper() as metrics:
        yield metrics


async def wait_until_reported(
    metrics: Scraper, name: str, *labels: str, expected: Mapping[Any, float], **of: str
) -> None:
    """Wait until these are the series, by one label or by several."""
    wanted = {key if isinstance(key, tuple) else (key,): expected[key] for key in expected}

    async def user_visible() -> bool:
        found = await metrics.series(name, *labels, **of)
        last.append(found)
        return found == wanted

    last: list[Any] = []
    try:
        await until(user_visible, within=END_TO_END_TIMEOUT, what=f"{name} being reported")
    except Exception as error:
        error.add_note(f"{name} is {last[-1:]}, not {wanted}")
        raise


@pytest.fixture
async def runtime(team: ClusterTeam) -> AsyncIterator[str]:
    """The name of a runtime for all namespaces that no other test has."""
    name = f"of-{team.namespace}"
    await team.api.create({**one_try_runtime(name), "kind": CLUSTER_RUNTIME})
    yield name
    await team.api.delete(f"/apis/{API}/clustertrainingruntimes/{name}")


async def begin(team: ClusterTeam, runtime: str) -> None:
    """A TrainJob in each state, one of them on a runtime of its namespace."""
    unschedulable = [{"targetJobs": [{"name": "node"}], "spec": UNSCHEDULABLE}]
    await team.create(one_try_runtime(f"{runtime}-bad"))
    jobs: dict[str, Any] = {
        "good": SHORT,
        "resting": {"suspend": True, **SHORT},
        "lasting": {"podTemplateOverrides": pods_with(annotations=COMPLETES_LATE)},
        "waiting": {"podTemplateOverrides": unschedulable},
    }
    for name, spec in jobs.items():
        await create_job(team, name, runtime, **spec)
    await team.create_job("blocked", f"{runtime}-none")
    failing = pods_with(labels=FAILS)
    await team.create_job("bad", f"{runtime}-bad", podTemplateOverrides=failing)
    managed_by = "kueue.x-k8s.io/multikueue"
    await create_job(team, "others", runtime, managedBy=managed_by)


async def create_job(team: ClusterTeam, name: str, runtime: str, **spec: Any) -> None:
    """A TrainJob on a runtime for all namespaces."""
    await team.create_job(name, runtimeRef={"name": runtime, "kind": CLUSTER_RUNTIME}, **spec)


STATES = {
    ("", "Complete"): 1,
    ("", "Suspended"): 1,
    ("", "Running"): 1,
    ("", "Pending"): 1,
    ("-none", "Blocked"): 1,
    ("-bad", "Failed"): 1,
}


async def test_states_and_durations_are_reported_once_and_removed_with_their_jobs(
    team: ClusterTeam, control_plane: ControlPlane, metrics: Scraper, runtime: str
) -> None:
    namespace = team.namespace
    states = {(runtime + suffix, state): count for (suffix, state), count in STATES.items()}
    flags = ("--namespace", namespace, *metrics.flags)
    async with ready_manager(control_plane, *flags) as manager:
        await wait_until_jobs_are_watched(manager)
        await begin(team, runtime)
        await wait_until_reported(
            metrics, COUNTS, "runtime", "state", expected=states, namespace=namespace
        )
        await wait_until_reported(metrics, CREATION_COUNT, expected={(): 4}, runtime=runtime)
        await wait_until_reported(metrics, RAN, expected={(): 2}, runtime=runtime)
        await wait_until_reported(
            metrics, DURATION_COUNT, expected={(): 1}, runtime=runtime, result="Complete"
        )
        await wait_until_reported(
            metrics, DURATION_COUNT, expected={(): 1}, runtime=NAMESPACED_RUNTIME, result="Failed"
        )
        assert await metrics.series(CREATION_COUNT, runtime=NAMESPACED_RUNTIME) == {(): 1}
        await check_oldest(team, metrics)
        assert list(await metrics.series("kftrainer_build_info", "version", "python"))

        await manager.stop()
        manager.start()
        await wait_until_reported(
            metrics, COUNTS, "runtime", "state", expected=states, namespace=namespace
        )
        await check_oldest(team, metrics)
        await wait_until_jobs_are_watched(manager, starts=2)
        await create_job(team, "later", runtime, **SHORT)
        await team.suspend(suspend=False, name="resting")
        # Of the one that rested the pod is new to the manager, and its JobSet is not.
        await wait_until_reported(
            metrics, DURATION_COUNT, expected={(): 2}, runtime=runtime, result="Complete"
        )
        await wait_until_reported(metrics, RAN, expected={(): 2}, runtime=runtime)
        await wait_until_reported(metrics, CREATION_COUNT, expected={(): 1}, runtime=runtime)
        assert await metrics.series(DURATION_COUNT, runtime=NAMESPACED_RUNTIME) == {}

        for job in await team.all("TrainJob"):
            await team.delete("TrainJob", job["metadata"]["name"])
        await wait_until_reported(metrics, COUNTS, expected={}, namespace=namespace)
        assert await metrics.series(OLDEST, namespace=namespace) == {}
        assert await metrics.series(DURATION_COUNT, runtime=runtime) == {(): 2}


async def check_oldest(team: ClusterTeam, metrics: Scraper) -> None:
    """The start of a state is never before the creation of a TrainJob that is in it."""
    found = await metrics.series(OLDEST, "state", namespace=team.namespace)
    assert set(found) == {("Pending",), ("Running",), ("Suspended",), ("Blocked",)}
    for job, state in {"waiting": "Pending", "lasting": "Running", "blocked": "Blocked"}.items():
        created = (await team.get("TrainJob", job))["metadata"]["creationTimestamp"]
        assert found[state,] >= seconds(created)


def seconds(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


async def test_only_the_leader_counts(
    team: ClusterTeam, control_plane: ControlPlane, metrics: Scraper
) -> None:
    namespace = team.namespace
    flags = ("--leader-elect", "--leader-election-namespace", namespace, "--namespace", namespace)
    await team.create(one_try_runtime())
    await team.create_job("first", "once", **SHORT)
    async with (
        scraper() as other_metrics,
        ready_manager(control_plane, *flags, *metrics.flags) as leader,
    ):
        await wait_until_reported(metrics, COUNTS, "state", expected={"Complete": 1})
        async with ready_manager(control_plane, *flags, *other_metrics.flags) as other:
            assert not other.log_entries("manager_started")
            text = await other_metrics.text()
            assert "kftrainer_build_info{" in text
            assert "kftrainer_trainjob" not in text
            await leader.stop()
            await wait_until_reported(other_metrics, COUNTS, "state", expected={"Complete": 1})
            await wait_until_jobs_are_watched(other)
            await team.create_job("second", "once", **SHORT)
            await wait_until_reported(other_metrics, COUNTS, "state", expected={"Complete": 2})
            for name in (CREATION_COUNT, RAN, DURATION_COUNT):
                await wait_until_reported(other_metrics, name, expected={(): 1})
