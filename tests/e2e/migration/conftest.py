"""The cluster of the migration tests: nodes for every golden case, and PodGroups."""

from collections.abc import AsyncIterator

import pytest_asyncio

from kftrainer.devcluster.artifacts.versions import COSCHEDULING_MANIFESTS, VOLCANO_MANIFESTS
from kftrainer.devcluster.controlplane import ControlPlane
from tests.e2e.migration.lifecycle import FLAVOR
from tests.support.cluster_nodes import extra_node
from tests.support.trainjobs import install_pod_groups

# Where the pods of the golden cases want to run. The last is for n11 without its patches: JobSet
# replaces node selectors in its Jobs, and never removes them.
LABELS = ({"a": "1", "b": "20", "c": "3"}, {"a": "A", "b": "B"}, {"a": "1", "b": "B"})


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def migration_plane(full_control_plane: ControlPlane) -> AsyncIterator[ControlPlane]:
    """The whole cluster, with more nodes that are as large as all cases together."""
    async with full_control_plane.client() as api:
        for manifests in (COSCHEDULING_MANIFESTS, VOLCANO_MANIFESTS):
            await install_pod_groups(api, manifests)
        nodes = [
            extra_node(f"migration-{number}", {**labels, **FLAVOR})
            for number, labels in enumerate(LABELS)
        ]
        for each in nodes:
            await api.create(each)
    yield full_control_plane
    async with full_control_plane.client() as api:
        for each in nodes:
            await api.delete(await api.path_of(each))
