"""JobSets that cannot become what is planned, and JobSets that other clients change."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime
from itertools import pairwise

import pytest

from kftrainer.devcluster.client import Object
from kftrainer.devcluster.errors import ApiError
from kftrainer.devcluster.waiting import until
from tests.integration.controllers.team import JOB, TEST_TIMEOUT, Team, conditions_of
from tests.support.managers import ManagerProcess

POLICIES = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies"
BINDINGS = f"{POLICIES[: -len('policies')]}policybindings"
PROBE = "policy-probe"
# What JobSet's own webhook rejects: every change of the pod templates.
IMMUTABLE = "object.spec.replicatedJobs == oldObject.spec.replicatedJobs"
NEVER = "object.spec.suspend == oldObject.spec.suspend"


@asynccontextmanager
async def rejecting(team: Team, rule: str) -> AsyncIterator[None]:
    """Have the API server reject updates of the namespace's JobSets that break the rule."""
    name = f"{team.namespace}.example.org"
    metadata = {"name": name}
    head = "admissionregistration.k8s.io/v1"
    rules = {
        "apiGroups": ["jobset.x-k8s.io"],
        "apiVersions": ["*"],
        "operations": ["UPDATE"],
        "resources": ["jobsets"],
        "scope": "Namespaced",
    }
    selector = {"matchLabels": {"kubernetes.io/metadata.name": team.namespace}}
    policy = {
        "apiVersion": head,
        "kind": "ValidatingAdmissionPolicy",
        "metadata": metadata,
        "spec": {
            "failurePolicy": "Fail",
            "matchConstraints": {"resourceRules": [rules], "namespaceSelector": selector},
            "validations": [
                {"expression": f"object.metadata.name != '{PROBE}' && ({rule})"},
            ],
        },
    }
    binding = {
        "apiVersion": head,
        "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": metadata,
        "spec": {"policyName": name, "validationActions": ["Deny"]},
    }
    live = await team.get("JobSet")
    probe = {**live, "metadata": {"name": PROBE}}
    await team.create({key: probe[key] for key in ("apiVersion", "kind", "metadata", "spec")})
    await team.api.create(policy)
    await team.api.create(binding)
    try:

        async def is_enforced() -> bool:
            try:
                await team.patch("JobSet", PROBE, {"metadata": {"labels": {"a": "b"}}})
            except ApiError:
                return True
            return False

        await until(is_enforced, within=TEST_TIMEOUT, what="the policy being enforced")
        yield
    finally:
        for path in (BINDINGS, POLICIES):
            await team.api.request("DELETE", f"{path}/{name}")


async def running_jobset_of_another_implementation(team: Team) -> Object:
    """Turn the JobSet into one that was created by another implementation; the TrainJob."""
    await team.create_runtime()
    job = await team.create_job()
    created = await team.wait_until_exists("JobSet")
    template = created["spec"]["replicatedJobs"]
    template[0]["template"]["spec"]["template"]["spec"]["containers"][0]["image"] = "mirror:1"
    annotations = dict.fromkeys(created["metadata"]["annotations"])
    changes = {"metadata": {"annotations": annotations}, "spec": {"replicatedJobs": template}}
    await team.patch("JobSet", JOB, changes)
    return job


async def wait_until_suspended(team: Team, *, suspended: bool) -> Object:
    async def has_changed() -> Object | None:
        found = await team.get("JobSet")
        return found if bool(found["spec"].get("suspend")) is suspended else None

    return await until(
        has_changed, within=TEST_TIMEOUT, what=f"the JobSet's suspend being {suspended}"
    )


async def test_jobset_that_differs_from_the_plan_is_suspended_and_resumed(
    team: Team, manager: ManagerProcess
) -> None:
    await running_jobset_of_another_implementation(team)
    async with rejecting(team, IMMUTABLE):
        await team.suspend(suspend=True)
        await wait_until_suspended(team, suspended=True)
        job = await team.wait_for_condition("Suspended", "Suspended")
        assert "Blocked" not in conditions_of(job)
        await team.suspend(suspend=False)
        live = await wait_until_suspended(team, suspended=False)
        job = await team.wait_for_condition("Suspended", "Resumed", "False")
        assert "Blocked" not in conditions_of(job)
    [replicated] = live["spec"]["replicatedJobs"]
    assert replicated["template"]["spec"]["template"]["spec"]["containers"][0]["image"] == (
        "mirror:1"
    )


async def test_jobset_is_suspended_although_everything_else_is_rejected(
    team: Team, manager: ManagerProcess
) -> None:
    await team.create_runtime()
    await team.create_job()
    await team.wait_until_exists("JobSet")
    async with rejecting(team, "object.metadata.annotations == oldObject.metadata.annotations"):
        await team.suspend(suspend=True)
        await wait_until_suspended(team, suspended=True)
        job = await team.wait_for_condition("Suspended", "Suspended")
        assert conditions_of(job)["Blocked"]["reason"] == "ResourcesCreationFailed"


async def test_suspended_is_not_reported_before_the_jobset_is_suspended(
    team: Team, manager: ManagerProcess
) -> None:
    await team.create_runtime()
    await team.create_job()
    await team.wait_until_exists("JobSet")
    async with rejecting(team, NEVER):
        await team.suspend(suspend=True)
        job = await team.wait_for_condition("Blocked", "ResourcesCreationFailed")
        assert "Suspended" not in conditions_of(job)
    job = await team.wait_for_condition("Suspended", "Suspended")
    assert (await team.get("JobSet"))["spec"]["suspend"] is True


async def test_suspension_that_failed_is_retried_although_the_runtime_is_invalid(
    team: Team, manager: ManagerProcess
) -> None:
    runtime = await team.create_runtime()
    await team.create_job()
    await team.wait_until_exists("JobSet")
    await team.without_revision()
    jobs = runtime["spec"]["template"]["spec"]["replicatedJobs"]
    jobs[0]["template"]["spec"]["template"]["spec"]["containers"][0]["name"] = "other"
    async with rejecting(team, NEVER):
        await team.patch("TrainingRuntime", "torch", {"spec": runtime["spec"]})
        await team.suspend(suspend=True)

        async def has_failed() -> bool:
            failed = manager.log_entries("reconcile_failed")
            return any(
                each["namespace"] == team.namespace and "cannot suspend the JobSet" in each["error"]
                for each in failed
            )

        await until(has_failed, within=TEST_TIMEOUT, what="the suspension being rejected")
        await team.wait_for_condition("Blocked", "InvalidRuntime")
    await wait_until_suspended(team, suspended=True)
    await team.wait_for_condition("Suspended", "Suspended")


def applied_at(
    manager: ManagerProcess, namespace: str, event: str = "object_updated"
) -> list[datetime]:
    """When the manager has changed objects of the namespace."""
    return [
        datetime.fromisoformat(each["timestamp"])
        for each in manager.log_entries(event)
        if each["namespace"] == namespace
    ]


async def keep_resuming(team: Team) -> None:
    while True:
        await wait_until_suspended(team, suspended=True)
        await team.patch("JobSet", JOB, {"spec": {"suspend": False}})


async def check_growing_pauses(team: Team, manager: ManagerProcess) -> None:
    """Have another client resume the JobSet repeatedly, and compare the manager's pauses."""

    def suspended_at() -> list[datetime]:
        return applied_at(manager, team.namespace, "jobset_suspended")

    async def suspended_often() -> bool:
        return len(suspended_at()) >= 3

    async with asyncio.TaskGroup() as tasks:
        other = tasks.create_task(keep_resuming(team))
        await until(suspended_often, within=TEST_TIMEOUT, what="the JobSet being suspended often")
        other.cancel()
    pauses = [(later - earlier).total_seconds() for earlier, later in pairwise(suspended_at()[:3])]
    assert all(found >= least for found, least in zip(pauses, (0.9, 1.9), strict=True)), pauses


async def test_jobset_that_another_client_resumes_is_suspended_with_growing_pauses(
    team: Team, manager: ManagerProcess
) -> None:
    """The TrainJob cannot be planned, so that only the suspension is applied."""
    runtime = await team.create_runtime()
    await team.create_job()
    await team.wait_until_exists("JobSet")
    await team.without_revision()
    jobs = runtime["spec"]["template"]["spec"]["replicatedJobs"]
    jobs[0]["template"]["spec"]["template"]["spec"]["containers"][0]["name"] = "other"
    await team.patch("TrainingRuntime", "torch", {"spec": runtime["spec"]})
    await team.suspend(suspend=True)
    await team.wait_for_condition("Blocked", "InvalidRuntime")
    await check_growing_pauses(team, manager)


async def test_jobset_whose_apply_is_rejected_is_suspended_with_growing_pauses(
    team: Team, manager: ManagerProcess
) -> None:
    await team.create_runtime()
    await team.create_job()
    await team.wait_until_exists("JobSet")
    async with rejecting(team, "object.metadata.annotations == oldObject.metadata.annotations"):
        await team.suspend(suspend=True)
        await team.wait_for_condition("Blocked", "ResourcesCreationFailed")
        await check_growing_pauses(team, manager)


async def test_jobset_that_another_client_suspends_is_resumed_with_growing_pauses(
    team: Team, manager: ManagerProcess
) -> None:
    await team.create_runtime()
    await team.create_job()
    await team.wait_until_exists("JobSet")

    async def keep_suspending() -> None:
        while True:
            await team.patch("JobSet", JOB, {"spec": {"suspend": True}})
            await wait_until_suspended(team, suspended=False)

    async def resumed_often() -> bool:
        return len(applied_at(manager, team.namespace)) >= 4

    async with asyncio.TaskGroup() as tasks:
        other = tasks.create_task(keep_suspending())
        await team.wait_for_condition("Suspended", "JobSetSuspended")
        await until(resumed_often, within=TEST_TIMEOUT, what="the JobSet being resumed four times")
        other.cancel()
    times = applied_at(manager, team.namespace)
    pauses = [(later - earlier).total_seconds() for earlier, later in pairwise(times[:4])]
    assert all(found >= least for found, least in zip(pauses, (0.9, 1.9, 3.9), strict=True)), pauses
    event = await team.wait_for_event("Contested")
    assert "changed back by another client" in event["message"]


async def test_repeated_suspend_and_resume_is_applied_without_backoff(
    team: Team, manager: ManagerProcess
) -> None:
    await team.create_runtime()
    await team.create_job()
    await team.wait_until_exists("JobSet")
    for suspend in (True, False) * 3:
        await team.suspend(suspend=suspend)
        await wait_until_suspended(team, suspended=suspend)
    events = [each["reason"] for each in await team.all("Event")]
    assert "Contested" not in events


@pytest.mark.parametrize("label_on_job", [False, True], ids=["own queue", "trainjob queue"])
async def test_jobset_with_a_queue_of_its_own_is_not_resumed(
    label_on_job: bool, team: Team, manager: ManagerProcess
) -> None:
    await team.create_runtime()
    label = {"kueue.x-k8s.io/queue-name": "users"}
    await team.create_job(labels=label)
    if label_on_job:
        await team.patch("TrainJob", JOB, {"metadata": {"labels": label}})
    await team.wait_until_exists("JobSet")
    await team.patch("JobSet", JOB, {"spec": {"suspend": True}})
    if label_on_job:
        await wait_until_suspended(team, suspended=False)
        return
    await team.wait_for_condition("Suspended", "JobSetSuspended")
    await team.touch(manager)
    assert (await team.get("JobSet"))["spec"]["suspend"] is True
    assert applied_at(manager, team.namespace) == []
