"""Kinds that are installed when the manager runs already: who waited for them goes on."""

import asyncio
from collections.abc import AsyncIterator, Mapping

import pytest

from kftrainer.devcluster import kubernetes, manifests, parts, places
from kftrainer.devcluster.client import ApiClient, Object
from kftrainer.devcluster.controlplane import ControlPlane
from kftrainer.devcluster.manifests import Document
from kftrainer.devcluster.progress import SILENT
from kftrainer.devcluster.waiting import until
from tests.integration.controllers.team import ANY_MOMENT, COMPLETED, Team, conditions_of
from tests.support.managers import manager_process

SOURCES = {
    "JobSet": parts.JOBSET_MANIFESTS,
    "gang": parts.COSCHEDULING_MANIFESTS,
    "volcano": parts.VOLCANO_MANIFESTS,
}
GROUPS = {
    "gang": ("PodGroup", "scheduling.x-k8s.io/v1alpha1"),
    "volcano": ("Volcano", "scheduling.volcano.sh/v1beta1"),
}


@pytest.fixture
def control_plane(bare_control_plane: ControlPlane) -> ControlPlane:
    """One that serves our own kinds only."""
    return bare_control_plane


@pytest.fixture
async def definitions(api: ApiClient) -> AsyncIterator[Mapping[str, Document]]:
    """The definitions of the kinds, none of which is there before the test, nor after it."""
    found = {}
    for name, source in SOURCES.items():
        folder = await manifests.provide(source, cache=places.cache_home(), progress=SILENT)
        [found[name]] = kubernetes.crds_in(folder / source.crd_file)
    yield found
    for definition in found.values():
        path = await api.path_of(definition)
        if await api.get_or_none(path) is not None:
            await api.delete(path)

            async def gone(path: str = path) -> bool:
                return await api.get_or_none(path) is None

            await until(gone, within=ANY_MOMENT, what=f"the end of {path}")


def version_of(obj: Object) -> int:
    return int(obj["metadata"]["resourceVersion"])


async def test_kinds_that_are_installed_later_are_awaited(
    control_plane: ControlPlane, definitions: Mapping[str, Document], team: Team
) -> None:
    for name in ("torch", "gang", "volcano"):
        await team.create_runtime(name)
        await team.create_job(name, runtime=name)
    async with manager_process(control_plane.kubeconfig, "--namespace", team.namespace):
        job = await team.until_says("Blocked", "JobSetNotInstalled", name="torch")
        said = conditions_of(job)["Blocked"]["message"]
        assert "the kind JobSet (jobset.x-k8s.io/v1alpha2) is not installed" in said
        for name, (_, group) in GROUPS.items():
            job = await team.until_says("Blocked", "PodGroupNotInstalled", name=name)
            assert group in conditions_of(job)["Blocked"]["message"]
        async with asyncio.TaskGroup() as installing:
            for definition in definitions.values():
                installing.create_task(team.api.apply_crd(definition))
        made = {name: await team.until_there("JobSet", name) for name in ("torch", *GROUPS)}
        for name, (kind, _) in GROUPS.items():
            gang = await team.get(kind, name)
            assert version_of(gang) < version_of(made[name]), "it would start without its gang"
        for name in made:
            await team.until_without("Blocked", name)
        await team.job_set_says(COMPLETED, name="torch")
        await team.until_says("Complete", COMPLETED["reason"], name="torch")
