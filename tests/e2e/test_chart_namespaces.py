"""The chart for some namespaces only: rights there are enough, and there is no right elsewhere."""

from collections.abc import Sequence
from typing import Any

import pytest

from kftrainer.devcluster.client import ApiClient
from kftrainer.devcluster.controlplane import ControlPlane
from tests.support.audit import refused, requests_of, rights_of
from tests.support.installations import MANAGER, Cluster, Ports, replicas
from tests.support.objects import runtime
from tests.support.releases import NAMESPACE, Release, user_of
from tests.support.trainjobs import Ground, summary


@pytest.fixture
def control_plane(watched_chart_plane: ControlPlane) -> ControlPlane:
    """The cluster of charts, for the fixtures of all tests."""
    return watched_chart_plane


async def test_rights_in_the_watched_namespaces_are_enough(
    release: Release,
    chart_cluster: Cluster,
    ports: Sequence[Ports],
    values: dict[str, Any],
    api: ApiClient,
    namespace: str,
) -> None:
    plane = chart_cluster.plane
    here, elsewhere = Ground(api, namespace), Ground(api, await plane.create_namespace(api))
    start = plane.audit_log.stat().st_size
    only = {"disabled": ["MPI", "CoScheduling", "Volcano"]}
    values["config"]["plugins"] = only
    await release.install(values={**values, "watchNamespaces": [namespace]})
    objects = await release.objects()
    async with replicas(chart_cluster, ports[:1], namespace=namespace):
        for ground in (elsewhere, here):
            await ground.create(runtime("own"))
            await ground.create_job(runtime="own")
        assert summary(await here.until_ended("train")) == {"Complete": "True/AllJobsCompleted"}
        assert "status" not in await elsewhere.get("TrainJob")

    assert not refused(requests_of(plane.audit_log, user_of(MANAGER), start=start))
    rights = rights_of(objects, MANAGER, NAMESPACE)
    assert {each.namespace for each in rights if each.resource == "jobsets"} == {namespace}
    # Its own certificate is the only Secret that it can read.
    secrets = {(each.namespace, each.name) for each in rights if each.resource == "secrets"}
    assert secrets == {(NAMESPACE, "kubeflow-trainer-webhook-cert")}
