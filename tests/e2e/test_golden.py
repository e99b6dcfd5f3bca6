"""The JobSets of the golden cases, before the JobSet project's own webhooks."""

from kftrainer.api.resources import JOB_SETS
from kftrainer.devcluster.controlplane import ControlPlane
from kftrainer.kube.client.client import Client
from kftrainer.kube.client.credentials import load_connection
from kftrainer.kube.client.errors import ApiError
from kftrainer.kube.objects.resource import Manifest
from tests.support.golden import CASES
from tests.support.strict_transport import StrictTransport, dropped_fields


async def jobset_errors(client: Client, jobset: Manifest) -> list[str]:
    """The errors and defaults of JobSet for it."""
    try:
        return [*dropped_fields(jobset, await client.apply(JOB_SETS, jobset, dry_run=True))]
    except ApiError as error:
        return [str(error)]


async def test_jobset_admits_them_as_they_are(control_plane: ControlPlane, namespace: str) -> None:
    jobsets = {
        case.name: planned.manifest
        for case in CASES
        for planned in case.planned(namespace)
        if planned.resource is JOB_SETS
    }
    assert jobsets
    connection = await load_connection(control_plane.kubeconfig)
    async with StrictTransport(connection, user_agent="kftrainer-tests/1") as transport:
        client = Client(transport, field_manager="trainer")
        results = {name: await jobset_errors(client, jobset) for name, jobset in jobsets.items()}
    assert {name: errors for name, errors in results.items() if errors} == {}
    assert transport.warnings == []
