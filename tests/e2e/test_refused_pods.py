"""Pods that the cluster refuses to create are reported in the status of the TrainJob."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from kftrainer.devcluster.client import ApiClient
from kftrainer.devcluster.controlplane import ControlPlane
from kftrainer.devcluster.waiting import until
from tests.integration.controllers.team import JOB, conditions_of
from tests.support.managers import ManagerProcess
from tests.support.objects import runtime
from tests.support.trainjobs import COMPLETES_LATE, END_TO_END_TIMEOUT, ClusterTeam, pods_with
from tests.support.webhooks import MERGE, admitting_manager

REASON = "PodsNotCreated"
LASTING: dict[str, Any] = {"podTemplateOverrides": pods_with(annotations=COMPLETES_LATE)}


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def manager(full_control_plane: ControlPlane) -> AsyncIterator[ManagerProcess]:
    """The manager of the module."""
    async with admitting_manager(full_control_plane, "--log-level", "debug") as manager:
        yield manager


@pytest.fixture
async def team(api: ApiClient, namespace: str, manager: ManagerProcess) -> ClusterTeam:
    """A namespace of the test's own, with a runtime."""
    team = ClusterTeam(api, namespace)
    await team.create(runtime("plain"))
    return team


async def wait_until_refused(team: ClusterTeam) -> str:
    """Wait until the status reports it; the message."""
    job = await team.wait_for_condition("Blocked", REASON)
    message: str = conditions_of(job)["Blocked"]["message"]
    return message


async def limit(team: ClusterTeam, kind: str, **spec: Any) -> None:
    manifest = {"apiVersion": "v1", "kind": kind, "metadata": {"name": "limit"}, "spec": spec}
    await team.create(manifest)


async def wait_until_quota_is_counted(team: ClusterTeam) -> None:
    """Wait until the quota is enforced with what is used."""
    path = f"/api/v1/namespaces/{team.namespace}/resourcequotas/limit"

    async def counted() -> bool:
        return "used" in (await team.api.get(path)).get("status", {})

    await until(counted, within=END_TO_END_TIMEOUT, what="the quota being counted")


async def test_pods_refused_by_pod_security_are_reported(team: ClusterTeam) -> None:
    level = {"pod-security.kubernetes.io/enforce": "restricted"}
    path = f"/api/v1/namespaces/{team.namespace}"
    body = {"metadata": {"labels": level}}
    await team.api.request("PATCH", path, body=body, content_type=MERGE)
    await team.create_job(runtime="plain")
    message = await wait_until_refused(team)
    assert message.startswith(
        f'pods of Job {JOB}-node-0 are not created: pods "{JOB}-node-0-*" is forbidden: violates '
        'PodSecurity "restricted:latest": allowPrivilegeEscalation != false'
    )

    await team.suspend(suspend=True)
    job = await team.wait_until_condition_removed("Blocked")
    assert conditions_of(job)["Suspended"]["status"] == "True"


async def test_pods_refused_by_a_quota_are_reported_until_it_is_raised(team: ClusterTeam) -> None:
    await limit(team, "ResourceQuota", hard={"pods": "1"})
    await wait_until_quota_is_counted(team)
    await team.create_job(runtime="plain", trainer={"numNodes": 2}, **LASTING)
    message = await wait_until_refused(team)
    assert "exceeded quota: limit, requested: pods=1, used: pods=1, limited: pods=1" in message
    path = f"/api/v1/namespaces/{team.namespace}/resourcequotas/limit"
    body = {"spec": {"hard": {"pods": "2"}}}
    await team.api.request("PATCH", path, body=body, content_type=MERGE)
    await team.wait_until_condition_removed("Blocked")
    assert len(await team.pods(JOB)) == 2


async def test_pods_refused_by_a_limit_range_are_reported(team: ClusterTeam) -> None:
    await limit(team, "LimitRange", limits=[{"type": "Container", "max": {"cpu": "1"}}])
    resources = {"requests": {"cpu": "2"}, "limits": {"cpu": "2"}}
    await team.create_job(runtime="plain", trainer={"resourcesPerNode": resources})
    assert "maximum cpu usage per Container is 1, but limit is 2" in await wait_until_refused(team)


async def test_jobs_refused_by_a_quota_are_reported_until_it_is_raised(team: ClusterTeam) -> None:
    await limit(team, "ResourceQuota", hard={"count/jobs.batch": "0"})
    await wait_until_quota_is_counted(team)
    await team.create_job(runtime="plain", **LASTING)
    message = await wait_until_refused(team)
    assert message.startswith(f'Jobs of JobSet {JOB} are not created: job "{JOB}-node-0" creation')
    assert "exceeded quota: limit" in message
    path = f"/api/v1/namespaces/{team.namespace}/resourcequotas/limit"
    await team.api.request("DELETE", path)
    await team.wait_until_condition_removed("Blocked")
