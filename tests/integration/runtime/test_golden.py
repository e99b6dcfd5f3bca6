"""The objects of the golden cases, on a real API server that serves their kinds."""

from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio

from kftrainer.api.resources import JOB_SETS
from kftrainer.devcluster import pytest_plugin
from kftrainer.devcluster.artifacts import versions
from kftrainer.devcluster.cluster_options import Shape
from kftrainer.devcluster.controlplane import ControlPlane
from kftrainer.kube.client.client import Client
from kftrainer.kube.client.credentials import load_connection
from kftrainer.kube.client.errors import ApiError
from kftrainer.kube.objects.resource import Manifest
from kftrainer.runtime.object_builders import thaw
from tests.integration.kube.kinds import NAMESPACES, resource
from tests.support.golden import CASES, NAMES, Case
from tests.support.strict_transport import StrictTransport, dropped_fields

JOBS = resource("Job", "jobs", group="batch")
SHAPE = Shape(
    crds=(versions.JOBSET_MANIFESTS, versions.COSCHEDULING_MANIFESTS, versions.VOLCANO_MANIFESTS)
)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def plane(pytestconfig: pytest.Config) -> AsyncIterator[ControlPlane]:
    """An API server with JobSets and PodGroups, without their controllers."""
    async for plane in pytest_plugin._for_session(pytestconfig, SHAPE):
        yield plane


@pytest.fixture
async def transport(plane: ControlPlane) -> AsyncIterator[StrictTransport]:
    connection = await load_connection(plane.kubeconfig)
    async with StrictTransport(connection, user_agent="kftrainer-tests/1") as transport:
        yield transport


def jobs_of(jobset: Manifest, namespace: str) -> Iterator[Manifest]:
    """A Job of each replicated job, as the JobSet controller would create it."""
    claims = [
        {"name": claim, "persistentVolumeClaim": {"claimName": f"{claim}-demo"}}
        for policy in jobset["spec"].get("volumeClaimPolicies") or ()
        for claim in (template["metadata"]["name"] for template in policy["templates"])
    ]
    for replicated in jobset["spec"]["replicatedJobs"]:
        job = thaw(replicated["template"]["spec"])
        pod = job["template"]["spec"]
        pod["volumes"] = [*pod.get("volumes", ()), *claims]
        pod.setdefault("restartPolicy", "OnFailure")
        metadata = {"generateName": f"{replicated['name']}-", "namespace": namespace}
        yield {"metadata": metadata, "spec": {**job, "completionMode": "Indexed"}}


async def refusal(client: Client, job: Manifest) -> str | None:
    try:
        await client.create(JOBS, job, dry_run=True)
    except ApiError as error:
        return str(error)
    return None


@pytest.mark.parametrize("case", CASES, ids=NAMES)
async def test_the_objects_are_kept_as_they_are_and_applying_them_again_changes_nothing(
    case: Case, transport: StrictTransport
) -> None:
    client = Client(transport, field_manager="trainer")
    metadata = {"generateName": "golden-"}
    namespace = await client.create(NAMESPACES, {"metadata": metadata})
    for planned in case.planned(namespace["metadata"]["name"]):
        manifest = planned.generate() if planned.generate else planned.manifest
        result = await client.apply(planned.resource, manifest, dry_run=True)
        applied = await client.apply(planned.resource, manifest)
        again = await client.apply(planned.resource, manifest)
        assert [*dropped_fields(manifest, result), *dropped_fields(manifest, applied)] == []
        assert again == applied
    assert transport.warnings == []


async def test_planned_jobs_are_accepted_by_kubernetes(transport: StrictTransport) -> None:
    client = Client(transport)
    jobs = {
        (case.name, index): job
        for case in CASES
        for planned in case.planned("default")
        if planned.resource is JOB_SETS
        for index, job in enumerate(jobs_of(planned.manifest, "default"))
    }
    assert jobs
    assert {name: why for name, job in jobs.items() if (why := await refusal(client, job))} == {}
    assert transport.warnings == []
