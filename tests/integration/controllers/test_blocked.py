"""Blocked TrainJobs report the reason, and continue once the cause is removed."""

import pytest

from kftrainer.devcluster.client import Object
from tests.integration.controllers.team import (
    COMPLETED,
    JOB,
    Team,
    a_runtime,
    conditions_of,
)
from tests.support.managers import ManagerProcess
from tests.support.objects import API, replicated_job, runtime

EVENT = "TrainJobResourcesCreationFailed"


async def message(team: Team, reason: str, name: str = JOB) -> str:
    """Wait until the TrainJob is blocked for this reason; return the message."""
    job = await team.wait_for_condition("Blocked", reason, name=name)
    text: str = conditions_of(job)["Blocked"]["message"]
    return text


async def wait_until_unblocked(team: Team, name: str = JOB) -> None:
    """Wait until the TrainJob continues and is no longer blocked."""
    await team.wait_until_exists("JobSet", name)
    await team.wait_until_condition_removed("Blocked", name)


async def test_missing_runtime_is_reported_and_retried(team: Team, manager: ManagerProcess) -> None:
    """Defect D6."""
    job = await team.create_job()
    text = f"TrainingRuntime torch is not found in namespace {team.namespace}"
    assert await message(team, "RuntimeNotFound") == text
    event = await team.wait_for_event(EVENT)
    assert event["type"] == "Warning"
    assert event["message"] == f"TrainJob resources reconciliation failed: {text}"
    assert event["involvedObject"] == {
        "apiVersion": API,
        "kind": "TrainJob",
        "namespace": team.namespace,
        "name": JOB,
        "uid": job["metadata"]["uid"],
    }
    assert await team.children() == []
    await team.create_runtime()
    await wait_until_unblocked(team)
    assert conditions_of(await team.get("TrainJob")) == {}


async def test_missing_cluster_runtime_is_reported_and_retried(
    team: Team, manager: ManagerProcess
) -> None:
    name = f"cluster-{team.namespace}"
    await team.create_job(runtimeRef={"name": name})
    assert await message(team, "RuntimeNotFound") == f"ClusterTrainingRuntime {name} is not found"
    await team.api.create(runtime(name, "ClusterTrainingRuntime"))
    await wait_until_unblocked(team)


async def test_runtime_of_unknown_kind_is_a_failure(team: Team, manager: ManagerProcess) -> None:
    """Defect D1."""
    reference = {"name": "torch", "kind": "Deployment", "apiGroup": "apps"}
    await team.create_job(runtimeRef=reference)
    job = await team.wait_for_condition("Failed", "TrainingRuntimeNotSupported")
    assert set(conditions_of(job)) == {"Failed"}
    assert "Deployment.apps" in conditions_of(job)["Failed"]["message"]
    assert "Deployment.apps" in (await team.wait_for_event(EVENT))["message"]
    await team.touch(manager)
    assert await team.children() == []
    assert (await team.get("TrainJob"))["status"] == job["status"]


async def test_invalid_runtime_is_reported_and_retried_when_it_changes(
    team: Team, manager: ManagerProcess
) -> None:
    broken = runtime("torch", jobs=[replicated_job("other")])
    await team.create(broken)
    await team.create_job()
    assert "spec.template.spec.replicatedJobs" in await message(team, "InvalidRuntime")
    fixed = a_runtime("torch")["spec"]
    await team.patch("TrainingRuntime", "torch", {"spec": fixed})
    await wait_until_unblocked(team)


async def test_too_long_name_is_reported_with_the_maximum_length(
    team: Team, manager: ManagerProcess
) -> None:
    """Defect D45."""
    await team.create_runtime()
    name = "x" * 63
    await team.create_job(name)
    text = await message(team, "InvalidTrainJob", name)
    assert "metadata.name" in text
    assert "must be no more than 48 characters" in text
    await team.wait_for_event(EVENT, name)
    await team.create_job("x" * 48)
    await team.wait_until_exists("JobSet", "x" * 48)
    assert await team.children() == [f"JobSet/{'x' * 48}"]


async def test_rejection_of_the_jobset_by_the_api_server_is_reported(
    team: Team, manager: ManagerProcess
) -> None:
    await team.create_runtime()
    await team.create_job(labels={"no such label!": "x"})
    text = await message(team, "ResourcesCreationFailed")
    assert "metadata.labels: Invalid value" in text
    assert "no such label!" in text
    assert text in (await team.wait_for_event(EVENT))["message"]
    await team.patch("TrainJob", JOB, {"spec": {"labels": {"no such label!": None}}})
    await wait_until_unblocked(team)


async def test_changed_failure_replaces_the_reported_one(
    team: Team, manager: ManagerProcess
) -> None:
    await team.create_job(labels={"no such label!": "x"}, suspend=True)
    await message(team, "RuntimeNotFound")
    await team.create_runtime()
    await message(team, "ResourcesCreationFailed")
    await team.patch("TrainJob", JOB, {"spec": {"labels": None}})
    await wait_until_unblocked(team)
    assert set(conditions_of(await team.get("TrainJob"))) == {"Suspended"}


async def test_running_job_continues_when_its_runtime_changes_or_is_deleted(
    team: Team, manager: ManagerProcess
) -> None:
    await team.create_runtime()
    await team.create_job()
    before = await team.wait_until_exists("JobSet")
    empty: Object = {"spec": {"template": {"spec": {"replicatedJobs": []}}}}
    await team.patch("TrainingRuntime", "torch", empty)
    await team.touch(manager)
    assert "status" not in await team.get("TrainJob")
    assert await team.get("JobSet") == before
    await team.set_jobset_status(COMPLETED)
    job = await team.wait_for_condition("Complete", COMPLETED["reason"])
    assert set(conditions_of(job)) == {"Complete"}


SPECS: dict[str, Object] = {
    "JobSet": {
        "spec": {
            "replicatedJobs": [
                {
                    "name": "other",
                    "template": {
                        "spec": {
                            "template": {
                                "spec": {"containers": [{"name": "other", "image": "other"}]}
                            }
                        }
                    },
                }
            ]
        }
    },
    "Secret": {"stringData": {"ssh-privatekey": "theirs"}, "type": "Opaque"},
    "ConfigMap": {"data": {"hostfile": "theirs"}},
    "PodGroup": {"spec": {"minMember": 3}},
    "Volcano": {"spec": {"minMember": 3}},
}
# The runtime for which a TrainJob needs such an object, how it is called, and its kind.
NEEDED = {
    "JobSet": ("torch", JOB, "jobset.x-k8s.io/v1alpha2", "JobSet"),
    "Secret": ("mpi", f"{JOB}-mpi-ssh-auth", "v1", "Secret"),
    "ConfigMap": ("mpi", f"{JOB}-mpi-hostfile", "v1", "ConfigMap"),
    "PodGroup": ("gang", JOB, "scheduling.x-k8s.io/v1alpha1", "PodGroup"),
    "Volcano": ("volcano", JOB, "scheduling.volcano.sh/v1beta1", "PodGroup"),
}
OTHER_UID = "00000000-0000-0000-0000-000000000000"
OWNERS: dict[str, tuple[list[Object], str]] = {
    "nobody": ([], "does not belong to this TrainJob"),
    "a-deployment": (
        [{"apiVersion": "apps/v1", "kind": "Deployment", "name": "web", "controller": True}],
        "belongs to Deployment web",
    ),
    "another-trainjob": (
        [{"apiVersion": API, "kind": "TrainJob", "name": "another", "controller": True}],
        "belongs to TrainJob another",
    ),
    "not-its-controller": (
        [{"apiVersion": API, "kind": "TrainJob", "name": JOB}],
        "does not belong to this TrainJob",
    ),
}


@pytest.mark.parametrize("owner", OWNERS)
@pytest.mark.parametrize("kind", NEEDED)
async def test_object_of_another_owner_is_not_modified_and_is_named(
    kind: str, owner: str, team: Team, manager: ManagerProcess
) -> None:
    """Defect D44."""
    runtime_name, name, api_version, kind_name = NEEDED[kind]
    references = [{**each, "uid": OTHER_UID} for each in OWNERS[owner][0]]
    metadata = {"name": name, "ownerReferences": references}
    manifest = {"apiVersion": api_version, "kind": kind_name, "metadata": metadata}
    await team.create({**manifest, **SPECS[kind]})
    before = await team.api.fetch("GET", team.path(kind, name))
    await team.create_runtime(runtime_name)
    await team.create_job(runtime=runtime_name)
    text = await message(team, "NameTaken")
    assert f"{kind_name} {team.namespace}/{name} already exists and {OWNERS[owner][1]}" in text
    assert text in (await team.wait_for_event(EVENT))["message"]
    await team.touch(manager)
    assert await team.api.fetch("GET", team.path(kind, name)) == before
    assert kind == "JobSet" or await team.find("JobSet") is None
    await team.delete(kind, name)
    await wait_until_unblocked(team)
    ours = await team.get(kind, name)
    job = await team.get("TrainJob")
    assert [each["uid"] for each in ours["metadata"]["ownerReferences"]] == [job["metadata"]["uid"]]
