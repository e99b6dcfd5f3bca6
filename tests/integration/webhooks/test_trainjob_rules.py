"""Every rule about TrainJobs: the message on a violation, and no message otherwise."""

from collections.abc import Mapping
from typing import Any

import pytest

from tests.integration.webhooks.cases import (
    KINDS,
    JobCase,
    expected,
    job_of,
    merge_patch,
    placed,
)
from tests.integration.webhooks.trainjob_cases import JOB_CASES
from tests.support.objects import Object
from tests.support.webhooks import AdmissionClient, AdmissionOutcome

pytestmark = pytest.mark.integration

VALUE = "hunter2"  # the value of variables, which no answer may repeat
# No JobSet is created for such a TrainJob: only the rules of creation apply to an update.
NOT_RECONCILED = {"suspend": True, "managedBy": "kueue.x-k8s.io/multikueue"}
CHANGING = [case for case in JOB_CASES if case.changes]


class RuleCheck:
    """The runtimes of a case, of one kind, and the TrainJobs on them."""

    def __init__(self, case: JobCase, kind: str, namespace: str) -> None:
        self.case = case
        self.kind = kind
        self.namespace = namespace

    def runtime_name(self, manifest: Object | None) -> str:
        """Unique in the cluster: the webhook reads from a cache, which may remember another."""
        if manifest is None or self.case.is_named:
            return str(manifest and manifest["metadata"]["name"])
        return f"{self.namespace}.{'wrong' if manifest is self.case.runtime else 'right'}"

    async def prepare(self, user: AdmissionClient) -> None:
        """Create the runtimes."""
        for manifest in (self.case.runtime, self.case.other):
            if manifest is not None:
                name = self.runtime_name(manifest)
                outcome = await user.create(placed(manifest, self.kind, name, self.namespace))
                assert outcome.accepted, outcome.body

    def job(self, spec: Object, **more: Any) -> Object:
        """The TrainJob of this spec."""
        case = self.case
        runtime = case.runtime if spec is case.wrong else case.other or case.runtime
        job = job_of(case, spec, self.kind, self.runtime_name(runtime), self.namespace)
        job["spec"] |= more
        return job

    def check_wrong(self, outcome: AdmissionOutcome) -> None:
        """Check that exactly this message is reported."""
        name = self.runtime_name(self.case.runtime)
        message = expected(self.case.message, self.kind, name).replace("<kind>", self.kind)
        assert not any(VALUE in each for each in (outcome.message, *outcome.warnings))
        if self.case.is_warning:
            assert (outcome.message, outcome.warnings) == ("", [message])
        else:
            assert outcome.denial == message
            check_shape(outcome)

    def check_right(self, outcome: AdmissionOutcome) -> None:
        """Check that nothing is reported."""
        assert (outcome.message, outcome.warnings) == ("", [])


def check_shape(outcome: AdmissionOutcome) -> None:
    """A denial is for people and for programs: each cause has its reason, field and message."""
    details = outcome.body["details"]
    assert (outcome.status, outcome.body["reason"]) == (403, "Forbidden")
    assert (details["group"], details["kind"]) == ("trainer.kubeflow.org", "TrainJob")
    joined = ", ".join(cause["message"] for cause in details["causes"])
    assert outcome.denial in (joined, f"[{joined}]")
    assert all(cause["message"].startswith(f"{cause['field']}: ") for cause in details["causes"])


@pytest.mark.parametrize("case", JOB_CASES, ids=str)
async def test_a_train_job_is_created(case: JobCase, user: AdmissionClient, namespace: str) -> None:
    for kind in KINDS:
        rule_check = RuleCheck(case, kind, namespace)
        await rule_check.prepare(user)
        rule_check.check_wrong(await user.create(rule_check.job(case.wrong), dry_run=True))
        rule_check.check_right(await user.create(rule_check.job(case.right), dry_run=True))
    outcome = await user.create(rule_check.job(case.wrong))
    rule_check.check_wrong(outcome)
    assert (await user.get(rule_check.job(case.wrong)) is None) is not outcome.accepted
    if outcome.accepted:
        await user.delete(rule_check.job(case.wrong))
    rule_check.check_right(await user.create(rule_check.job(case.right)))


@pytest.mark.parametrize("case", CHANGING, ids=str)
async def test_a_train_job_is_changed(case: JobCase, user: AdmissionClient, namespace: str) -> None:
    rule_check = RuleCheck(case, KINDS[0], namespace)
    await rule_check.prepare(user)
    right, wrong = (rule_check.job(spec, **NOT_RECONCILED) for spec in (case.right, case.wrong))
    created = await user.apply(right)
    rule_check.check_right(created)
    for outcome in await create_update_and_patch(user, created.body, right, wrong):
        rule_check.check_wrong(outcome)
    if not case.is_warning:
        rule_check.check_wrong(await user.apply(wrong))
    assert await user.get(right) == created.body


async def create_update_and_patch(
    user: AdmissionClient, stored: Mapping[str, Any], old: Object, new: Object
) -> list[AdmissionOutcome]:
    """The outcomes of a change by apply, by PUT, and by a merge patch."""
    patch = {"spec": merge_patch(old["spec"], new["spec"])}
    return [
        await user.apply(new, dry_run=True),
        await user.replace({**stored, "spec": new["spec"]}, dry_run=True),
        await user.patch(new, patch, dry_run=True),
    ]
