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
from tests.support.trainjobs import BY_THE_END, FOR_LONG, Ground, pods_with
from tests.support.webhooks import MERGE, admitting_manager

REASON = "PodsNotCreated"
LASTING: dict[str, Any] = {"podTemplateOverrides": pods_with(annotations=FOR_LONG)}


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def manager(full_control_plane: ControlPlane) -> AsyncIterator[ManagerProcess]:
    """The manager of the module."""
    async with admitting_manager(full_control_plane, "--log-level", "debug") as manager:
        yield manager


@pytest.fixture
async def ground(api: ApiClient, namespace: str, manager: ManagerProcess) -> Ground:
    """A namespace of the test's own, with a runtime."""
    ground = Ground(api, namespace)
    await ground.create(runtime("plain"))
    return ground


async def until_refused(ground: Ground) -> str:
    """Wait until the status reports it; the message."""
    job = await ground.until_says("Blocked", REASON)
    message: str = conditions_of(job)["Blocked"]["message"]
    return message


async def limit(ground: Ground, kind: str, **spec: Any) -> None:
    manifest = {"apiVersion": "v1", "kind": kind, "metadata": {"name": "limit"}, "spec": spec}
    await ground.create(manifest)


async def until_quota_counts(ground: Ground) -> None:
    """Wait until the quota is enforced with what is used."""
    path = f"/api/v1/namespaces/{ground.namespace}/resourcequotas/limit"

    async def counted() -> bool:
        return "used" in (await ground.api.get(path)).get("status", {})

    await until(counted, within=BY_THE_END, what="the quota being counted")


async def test_pods_refused_by_pod_security_are_reported(ground: Ground) -> None:
    level = {"pod-security.kubernetes.io/enforce": "restricted"}
    path = f"/api/v1/namespaces/{ground.namespace}"
    body = {"metadata": {"labels": level}}
    await ground.api.request("PATCH", path, body=body, content_type=MERGE)
    await ground.create_job(runtime="plain")
    message = await until_refused(ground)
    assert message.startswith(
        f'pods of Job {JOB}-node-0 are not created: pods "{JOB}-node-0-*" is forbidden: violates '
        'PodSecurity "restricted:latest": allowPrivilegeEscalation != false'
    )

    await ground.suspend(suspend=True)
    job = await ground.until_without("Blocked")
    assert conditions_of(job)["Suspended"]["status"] == "True"


async def test_pods_refused_by_a_quota_are_reported_until_it_is_raised(ground: Ground) -> None:
    await limit(ground, "ResourceQuota", hard={"pods": "1"})
    await until_quota_counts(ground)
    await ground.create_job(runtime="plain", trainer={"numNodes": 2}, **LASTING)
    message = await until_refused(ground)
    assert "exceeded quota: limit, requested: pods=1, used: pods=1, limited: pods=1" in message
    path = f"/api/v1/namespaces/{ground.namespace}/resourcequotas/limit"
    body = {"spec": {"hard": {"pods": "2"}}}
    await ground.api.request("PATCH", path, body=body, content_type=MERGE)
    await ground.until_without("Blocked")
    assert len(await ground.pods(JOB)) == 2


async def test_pods_refused_by_a_limit_range_are_reported(ground: Ground) -> None:
    await limit(ground, "LimitRange", limits=[{"type": "Container", "max": {"cpu": "1"}}])
    resources = {"requests": {"cpu": "2"}, "limits": {"cpu": "2"}}
    await ground.create_job(runtime="plain", trainer={"resourcesPerNode": resources})
    assert "maximum cpu usage per Container is 1, but limit is 2" in await until_refused(ground)


async def test_jobs_refused_by_a_quota_are_reported_until_it_is_raised(ground: Ground) -> None:
    await limit(ground, "ResourceQuota", hard={"count/jobs.batch": "0"})
    await until_quota_counts(ground)
    await ground.create_job(runtime="plain", **LASTING)
    message = await until_refused(ground)
    assert message.startswith(f'Jobs of JobSet {JOB} are not created: job "{JOB}-node-0" creation')
    assert "exceeded quota: limit" in message
    path = f"/api/v1/namespaces/{ground.namespace}/resourcequotas/limit"
    await ground.api.request("DELETE", path)
    await ground.until_without("Blocked")
