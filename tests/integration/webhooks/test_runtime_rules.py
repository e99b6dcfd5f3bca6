"""Every rule about runtimes, of both kinds: when they are created, and when they are changed."""

from copy import deepcopy

import pytest

from kftrainer.devcluster.client import ApiClient
from tests.integration.webhooks.cases import (
    KINDS,
    RuntimeCase,
    expected,
    merge_patch,
    placed,
)
from tests.integration.webhooks.runtime_cases import RUNTIME_CASES
from tests.support.objects import Object
from tests.support.runtimes import SHIPPED
from tests.support.webhooks import AdmissionClient, AdmissionOutcome

pytestmark = pytest.mark.integration

MPI_RUNTIME = next(each for each in SHIPPED if "mpi" in each["spec"]["mlPolicy"])


def check_wrong(case: RuntimeCase, manifest: Object, outcome: AdmissionOutcome) -> None:
    """Check that exactly this message is reported."""
    kind, name = manifest["kind"], manifest["metadata"]["name"]
    message = expected(case.message, kind, name).replace("<kind>", kind)
    if case.is_warning:
        assert (outcome.message, outcome.warnings) == ("", [message])
    else:
        assert outcome.denial == message
        assert (outcome.status, outcome.body["reason"]) == (403, "Forbidden")
        [cause] = outcome.body["details"]["causes"]
        assert cause["message"] == message
        assert message.startswith(f"{cause['field']}: ")


def check_right(outcome: AdmissionOutcome) -> None:
    """Check that nothing is reported."""
    assert (outcome.message, outcome.warnings) == ("", [])


@pytest.mark.parametrize("case", RUNTIME_CASES, ids=str)
async def test_a_runtime_is_created_and_changed(
    case: RuntimeCase, user: AdmissionClient, namespace: str
) -> None:
    for kind in KINDS:
        await check_case(case, kind, user, namespace)


async def check_case(case: RuntimeCase, kind: str, user: AdmissionClient, namespace: str) -> None:
    """Write the right and the wrong one in every way."""
    right, wrong = (placed(each, kind, namespace, namespace) for each in (case.right, case.wrong))
    check_wrong(case, wrong, await user.create(wrong, dry_run=True))
    if not case.is_warning:
        check_wrong(case, wrong, await user.create(wrong))
    assert await user.get(wrong) is None
    check_right(await user.create(right, dry_run=True))
    created = await user.apply(right)
    check_right(created)
    for outcome in (
        await user.apply(wrong, dry_run=True),
        await user.replace({**created.body, **_changed(wrong, created)}, dry_run=True),
        await user.patch(wrong, merge_patch(right, wrong), dry_run=True),
    ):
        check_wrong(case, wrong, outcome)
    if not case.is_warning:
        check_wrong(case, wrong, await user.apply(wrong))
    assert await user.get(right) == created.body


def _changed(manifest: Object, stored: AdmissionOutcome) -> Object:
    """The replacement for the stored object's spec."""
    metadata = {**stored.body["metadata"], "labels": manifest["metadata"]["labels"]}
    return {"metadata": metadata, "spec": manifest["spec"]}


async def test_server_side_apply_that_mixes_two_orders_of_jobs_is_rejected(
    user: AdmissionClient, api: ApiClient, namespace: str
) -> None:
    """Kubeflow Trainer 2.1 has MPI's launcher first, without dependsOn."""
    for kind in KINDS:
        bundled = placed(deepcopy(MPI_RUNTIME), kind, namespace, namespace)
        stored = await api.apply(bundled)
        upstream = deepcopy(bundled)
        jobs = upstream["spec"]["template"]["spec"]["replicatedJobs"]
        jobs.reverse()
        del jobs[0]["dependsOn"]
        outcome = await user.apply(upstream)
        where = "spec.template.spec.replicatedJobs[0].dependsOn"
        assert outcome.denial.startswith(f"[{where}: Forbidden: JobSet would reject every ")
        assert {each["field"] for each in outcome.body["details"]["causes"]} == {
            where,
            f"{where}[0].name",
        }
        # As the documentation advises.
        check_right(await user.replace({**stored, "spec": upstream["spec"]}))
