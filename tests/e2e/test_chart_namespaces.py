"""The chart for some namespaces only: rights there are enough, and none is left over."""

from collections.abc import Sequence
from typing import Any

import aiohttp
import pytest

from kftrainer.api.names import ANNOTATION_SHIPPED_HASH
from kftrainer.devcluster.client import ApiClient
from kftrainer.devcluster.components.jobset import PROBE as JOB_SET_PROBE
from kftrainer.devcluster.controlplane import ControlPlane
from kftrainer.devcluster.waiting import until
from tests.integration.controllers.team import IN_USE, finalizers
from tests.support.audit import permissions_of, refused
from tests.support.installations import MANAGER, Cluster, Ports, replicas, requests_by
from tests.support.objects import COLLECTIONS, runtime, train_job
from tests.support.releases import NAMESPACE, Release, token
from tests.support.scenarios import keep_recreating_jobset
from tests.support.trainjobs import (
    END_TO_END_TIMEOUT,
    FAILS,
    ClusterTeam,
    one_try_runtime,
    pods_with,
    summary,
)
from tests.support.webhooks import MERGE, admission_client_for, wait_until_called


@pytest.fixture
def control_plane(watched_chart_plane: ControlPlane) -> ControlPlane:
    """The cluster of charts, for the fixtures of all tests."""
    return watched_chart_plane


async def test_rights_in_the_watched_namespaces_are_enough_and_none_is_left_over(
    release: Release,
    chart_cluster: Cluster,
    ports: Sequence[Ports],
    values: dict[str, Any],
    api: ApiClient,
    namespace: str,
) -> None:
    plane = chart_cluster.plane
    here, elsewhere = (
        ClusterTeam(api, namespace),
        ClusterTeam(api, await plane.create_namespace(api)),
    )
    start = plane.audit_log.stat().st_size
    only = {"disabled": ["MPI", "CoScheduling", "Volcano"]}
    values["config"]["plugins"] = only
    of_mpi = ("deepspeedDistributed", "mlxDistributed")
    values["runtimes"] = {name: {"enabled": False} for name in of_mpi}
    await release.install(values={**values, "watchNamespaces": [namespace]})
    objects = await release.objects()
    async with replicas(chart_cluster, ports[:1], namespace=namespace):
        for team in (elsewhere, here):
            await team.create(runtime("own"))
            await team.create_job("first", runtime="own")
        assert summary(await here.wait_until_ended("first")) == {
            "Complete": "True/AllJobsCompleted"
        }
        assert "status" not in await elsewhere.get("TrainJob", "first")
        await here.create(one_try_runtime())
        await here.create_job("bad", "once", podTemplateOverrides=pods_with(labels=FAILS))
        await here.wait_until_ended("bad", "Failed")
        await delete_trainjob(here)
        await query_metrics(api, ports[0])

    rights = permissions_of(objects, MANAGER, NAMESPACE)
    assert not refused(await requests_by(MANAGER, plane.audit_log, start, rights))
    assert {each.namespace for each in rights if each.resource == "jobsets"} == {namespace}
    # Its own certificate is the only Secret that it can read.
    secrets = {(each.namespace, each.name) for each in rights if each.resource == "secrets"}
    assert secrets == {(NAMESPACE, "kubeflow-trainer-webhook-cert")}


async def test_deleted_namespace_does_not_stop_the_manager_for_the_others(
    release: Release,
    chart_cluster: Cluster,
    ports: Sequence[Ports],
    values: dict[str, Any],
    api: ApiClient,
    namespace: str,
) -> None:
    """Row 3: the Role of a watched namespace is deleted with it, and the manager restarts."""
    plane = chart_cluster.plane
    kept, deleted = ClusterTeam(api, namespace), ClusterTeam(api, await plane.create_namespace(api))
    watched = [deleted.namespace, kept.namespace]
    await release.install(values={**values, "watchNamespaces": watched})
    async with replicas(chart_cluster, ports[:1], namespace=namespace) as [manager]:
        for team in (kept, deleted):
            await team.create(runtime("own"))
            await team.create_job("first", runtime="own")
            await team.wait_until_ended("first")
        await manager.stop()
        await delete_namespace(api, deleted.namespace)
        manager.start()
        await manager.wait_ready()
        assert [each["namespace"] for each in manager.log_entries("namespace_unavailable")] == [
            deleted.namespace
        ]
        await wait_until_called(plane, namespace)
        user = admission_client_for(api)
        wrong = train_job("wrong", runtimeRef={"kind": "TrainingRuntime", "name": "nowhere"})
        wrong["metadata"]["namespace"] = namespace
        assert "nowhere" in (await user.create(wrong)).denial
        await kept.create_job("second", runtime="own")
        assert summary(await kept.wait_until_ended("second")) == {
            "Complete": "True/AllJobsCompleted"
        }


async def delete_namespace(api: ApiClient, namespace: str) -> None:
    """Delete a namespace with all that is in it, and wait until it is gone."""
    path = f"/api/v1/namespaces/{namespace}"
    await api.delete(path)

    async def is_deleted() -> bool:
        return await api.get_or_none(path) is None

    await until(is_deleted, within=END_TO_END_TIMEOUT, what=f"the end of the namespace {namespace}")


async def delete_trainjob(team: ClusterTeam) -> None:
    """What a TrainJob that comes to its end at once has no need of."""
    await keep_recreating_jobset(team)
    await team.create({**JOB_SET_PROBE, "metadata": {"name": "taken"}})
    await team.create_job("taken")
    await team.wait_for_condition("Blocked", "NameTaken", name="taken")
    await have_a_runtime_replaced(team.api)
    await delete_a_runtime_with_a_finalizer(team)
    user = admission_client_for(team.api)
    for kind in ("TrainingRuntime", "ClusterTrainingRuntime"):
        wrong = train_job("wrong", runtimeRef={"kind": kind, "name": "nowhere"})
        wrong["metadata"]["namespace"] = team.namespace
        assert "nowhere" in (await user.create(wrong)).denial


async def have_a_runtime_replaced(api: ApiClient) -> None:
    """Let a runtime of the chart look as if it were of another release."""
    path, mark = f"{COLLECTIONS['ClusterTrainingRuntime']}/plain", "plain/another"
    change = {"metadata": {"annotations": {ANNOTATION_SHIPPED_HASH: mark}}}
    await api.request("PATCH", path, body=change, content_type=MERGE)

    async def replaced() -> bool:
        found = await api.get(path)
        return bool(found["metadata"]["annotations"][ANNOTATION_SHIPPED_HASH] != mark)

    await until(replaced, within=END_TO_END_TIMEOUT, what="the runtime being replaced")


async def delete_a_runtime_with_a_finalizer(team: ClusterTeam) -> None:
    """As a manager of all namespaces has left it; this one adds none that it could not remove."""
    assert finalizers(await team.get("TrainingRuntime", "own")) == []
    remaining = runtime("left")
    await team.create({**remaining, "metadata": {**remaining["metadata"], "finalizers": [IN_USE]}})
    await team.delete("TrainingRuntime", "left")
    await team.wait_until_deleted("TrainingRuntime", "left")


async def query_metrics(api: ApiClient, ports: Ports) -> None:
    """Ask as one who is known but may not see them, for which both reviews are needed."""
    header = {"Authorization": f"Bearer {await token(api, 'default', 'default')}"}
    async with (
        aiohttp.ClientSession() as session,
        session.get(ports.metrics_url, headers=header, ssl=False) as page,
    ):
        assert page.status == 403
