"""Our rules about names match JobSet's: its webhook rejects what they reject, and nothing else."""

from collections.abc import AsyncIterator

import pytest_asyncio

from kftrainer.api.resources import JOB_SETS
from kftrainer.devcluster.controlplane import ControlPlane
from kftrainer.kube.client.client import Client
from kftrainer.kube.client.errors import InvalidError
from tests.support.informers import connected
from tests.support.jobsets import ADMITTED, REJECTED, TOO_LONG, Case


@pytest_asyncio.fixture
async def client(control_plane: ControlPlane) -> AsyncIterator[Client]:
    async with connected(control_plane.kubeconfig) as client:
        yield client


async def errors_of_jobset(client: Client, namespace: str, case: Case) -> list[str]:
    """Return the errors of JobSet, or of its CRD, for this JobSet."""
    manifest = {
        "apiVersion": JOB_SETS.api_version,
        "kind": JOB_SETS.kind,
        "metadata": {"name": case.name, "namespace": namespace},
        "spec": case.spec,
    }
    try:
        await client.create(JOB_SETS, manifest, dry_run=True)
    except InvalidError as error:
        return [cause.message for cause in error.causes] or [str(error)]
    return []


def missing(case: Case, errors: list[str]) -> list[str]:
    """Return the messages of the table that JobSet does not have; it adds values before them."""
    messages = {message for _, message in case.rejections}
    return [each for each in messages if not any(error.endswith(each) for error in errors)]


async def test_jobset_rejects_the_names_that_our_rules_reject(
    client: Client, namespace: str
) -> None:
    cases = (*REJECTED, *TOO_LONG)
    errors = {case.title: await errors_of_jobset(client, namespace, case) for case in cases}
    assert {case.title: missing(case, errors[case.title]) for case in cases} == {
        case.title: [] for case in cases
    }


async def test_jobset_admits_the_names_that_our_rules_admit(client: Client, namespace: str) -> None:
    errors = {case.title: await errors_of_jobset(client, namespace, case) for case in ADMITTED}
    assert errors == {case.title: [] for case in ADMITTED}
