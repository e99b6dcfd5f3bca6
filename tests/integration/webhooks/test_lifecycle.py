"""What must always go through: suspending and resuming, labels, the end; and what others write."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
import pytest_asyncio

from kftrainer.devcluster.client import ApiClient, Object
from kftrainer.devcluster.waiting import until
from tests.integration.controllers.team import IN_USE, TEST_TIMEOUT, Team, finalizers
from tests.integration.webhooks.cases import (
    KINDS,
    NODE,
    expected,
    job_on,
    job_with,
    placed,
    torch,
)
from tests.integration.webhooks.trainjob_cases import POLICY
from tests.support.webhooks import AdmissionClient, AdmissionOutcome

pytestmark = pytest.mark.integration

Change = Callable[[Object], Object]

EXISTING_ERROR = "the stored object already has this error: "
BOTH = torch(job_with("dataset-initializer", "dataset-initializer"), job_with())
DATASET: Object = {"initializer": {"dataset": {"storageUri": "hf://a/b"}}}
NO_INITIALIZER = (
    "spec.runtimeRef: Invalid value: <runtimeRef>: must have dataset-initializer job when "
    "trainJob is configured with input datasetConfig"
)
DISCONNECTED = (
    "spec.runtimeRef: Invalid value: <runtimeRef>: TrainingRuntime.trainer.kubeflow.org "
    '"<runtime>" not found: specified trainingRuntime must be created before the TrainJob is '
    "created"
)
ROW = {"name": "node", "ready": 0, "succeeded": 0, "failed": 0, "active": 0, "suspended": 1}


def check_accepted(outcome: AdmissionOutcome, *warnings: str) -> None:
    assert (outcome.message, outcome.warnings) == ("", [*warnings])


@pytest_asyncio.fixture
async def team(api: ApiClient, namespace: str, user: AdmissionClient) -> Team:
    return Team(api, namespace)


async def start(team: Team, user: AdmissionClient, runtime: Object = BOTH, **spec: Any) -> Object:
    """A TrainJob on this runtime, which is in use from then on."""
    place = placed(runtime, "TrainingRuntime", "torch", team.namespace)
    check_accepted(await user.create(place))
    job = job_on("TrainingRuntime", "torch", team.namespace, **spec)
    check_accepted(await user.create(job))
    await team.wait_until_in_use()
    return job


async def edit_runtime(team: Team, user: AdmissionClient, runtime: Object) -> None:
    """Change the runtime under its TrainJobs."""
    stored = await team.get("TrainingRuntime", "torch")
    spec = {"spec": runtime["spec"]}
    check_accepted(await user.replace_now(stored, lambda now: {**now, **spec}))


async def remove_runtime(team: Team) -> None:
    """Delete the runtime although it is in use, by removing its finalizer."""
    await team.delete("TrainingRuntime", "torch")
    await team.patch("TrainingRuntime", "torch", {"metadata": {"finalizers": None}})
    await team.wait_until_deleted("TrainingRuntime", "torch")


def with_spec(**fields: Any) -> Change:
    """Put this into the spec."""
    return lambda now: {**now, "spec": {**now["spec"], **fields}}


def with_metadata(**fields: Any) -> Change:
    """Put this into the metadata."""
    return lambda now: {**now, "metadata": {**now["metadata"], **fields}}


async def wait_until_denied(user: AdmissionClient, job: Object, text: str) -> None:
    """Wait until the manager's cache holds the change of the runtime."""

    async def is_denied() -> bool:
        outcome = await user.patch(job, {"spec": {"labels": {"any": "news"}}}, dry_run=True)
        return text in outcome.warnings

    await until(is_denied, within=TEST_TIMEOUT, what=f"the webhook telling that {text}")


@pytest.mark.parametrize("failure", ["edited", "deleted"])
async def test_train_job_can_be_suspended_and_resumed_after_its_runtime_changed(
    failure: str, user: AdmissionClient, team: Team
) -> None:
    job = await start(team, user, **DATASET)
    other = {"suspend": True, "managedBy": "kueue.x-k8s.io/multikueue", **DATASET}
    not_begun = job_on("TrainingRuntime", "torch", team.namespace, **other)
    not_begun["metadata"]["name"] = "not-begun"
    check_accepted(await user.create(not_begun))
    await team.wait_until_exists("JobSet")
    await team.set_jobset_status(rows=[ROW])
    await team.wait_for_jobs_status(ROW)
    text = NO_INITIALIZER if failure == "edited" else DISCONNECTED
    is_denied = EXISTING_ERROR + expected(text, "TrainingRuntime", "torch")
    await (edit_runtime(team, user, torch()) if failure == "edited" else remove_runtime(team))
    await wait_until_denied(user, not_begun, is_denied)
    for suspend in (True, False):
        change = {"spec": {"suspend": suspend}}
        check_accepted(await user.patch(job, change, dry_run=True))
        check_accepted(await user.patch(job, change))
        stored = await team.get("TrainJob")
        assert stored["spec"]["suspend"] is suspend
        # A change outside the spec does not even cause a warning.
        for field in ("labels", "annotations"):
            label = {field: {"acme.io/suspended": str(suspend)}}
            check_accepted(await user.patch(job, {"metadata": label}))
        put = with_metadata(annotations={"acme.io/put": str(suspend)})
        check_accepted(await user.replace_now(job, put))
    applied = job_on("TrainingRuntime", "torch", team.namespace, suspend=True)
    check_accepted(await user.apply(applied))


async def test_only_new_errors_are_rejected_on_update(user: AdmissionClient, team: Team) -> None:
    multikueue = "kueue.x-k8s.io/multikueue"
    job = await start(team, user, suspend=True, managedBy=multikueue, **DATASET)
    await edit_runtime(team, user, torch())
    is_denied = EXISTING_ERROR + expected(NO_INITIALIZER, "TrainingRuntime", "torch")
    await wait_until_denied(user, job, is_denied)
    outcome = await user.patch(job, {"spec": {"trainer": {"env": [{"name": "PET_NNODES"}]}}})
    assert outcome.denial == (
        'spec.trainer.env: Invalid value: ["PET_NNODES"]: must not have reserved envs, invalid '
        "envs configured: [PET_NNODES]"
    )
    assert outcome.warnings == [is_denied]
    check_accepted(await user.patch(job, {"spec": {"initializer": None}}))


async def test_train_job_can_be_deleted_after_its_runtime_changed(
    user: AdmissionClient, team: Team
) -> None:
    job = await start(team, user, **DATASET)
    hold = {"metadata": {"finalizers": ["acme.io/hold", "acme.io/other"]}}
    check_accepted(await user.patch(job, hold))
    await remove_runtime(team)
    await team.delete("TrainJob")
    stored = await team.get("TrainJob")
    assert "deletionTimestamp" in stored["metadata"]
    # Also with what would be refused if it were to stay.
    changes = {"trainer": {"env": [{"name": "PET_NNODES"}]}}
    check_accepted(await user.patch(job, {"spec": changes}))
    check_accepted(await user.patch(job, {"metadata": {"finalizers": ["acme.io/other"]}}))
    check_accepted(await user.replace_now(job, with_metadata(finalizers=[])))
    assert await team.find("TrainJob") is None


@pytest.mark.parametrize("kind", KINDS)
async def test_a_runtime_and_its_train_job_can_be_created_at_once(
    kind: str, user: AdmissionClient, namespace: str
) -> None:
    for number in range(30):
        name = f"{namespace}-{number}"
        job = job_on(kind, name, namespace, name=f"train-{number}", suspend=True)
        check_accepted(await user.create(placed(torch(), kind, name, namespace)))
        check_accepted(await user.create(job))


async def test_train_job_is_admitted_immediately_after_its_runtime_is_fixed(
    user: AdmissionClient, team: Team
) -> None:
    """The cache may still have it without the job that fetches the dataset."""
    job = job_on("TrainingRuntime", "torch", team.namespace, suspend=True, **DATASET)
    runtime = placed(torch(), "TrainingRuntime", "torch", team.namespace)
    check_accepted(await user.create(runtime))
    for _ in range(10):
        await edit_runtime(team, user, BOTH)
        check_accepted(await user.create(job, dry_run=True))
        await edit_runtime(team, user, torch())


async def test_train_job_can_be_created_immediately_after_its_priority_class(
    user: AdmissionClient, team: Team
) -> None:
    name = team.namespace
    priority = {
        "apiVersion": "scheduling.k8s.io/v1",
        "kind": "PriorityClass",
        "metadata": {"name": name},
        "value": 7,
    }
    critical = job_with("other", None, pod={"priorityClassName": "system-node-critical"})
    node = job_with(pod={"priorityClassName": name, "schedulerName": "volcano"})
    runtime = torch(critical, node)
    runtime["spec"]["podGroupPolicy"] = {"volcano": {}}
    check_accepted(
        await user.create(placed(runtime, "TrainingRuntime", "torch", team.namespace)),
        "spec.podGroupPolicy.volcano: the pods of other have no schedulerName and may not start "
        "together: set schedulerName: volcano",
    )
    job = job_on("TrainingRuntime", "torch", team.namespace, suspend=True)
    outcome = await user.create(job)
    missing = f'PriorityClass "{name}" doesn\'t exist'
    assert missing in outcome.denial
    check_accepted(await user.create(priority))
    check_accepted(await user.create(job))


async def test_resuming_a_train_job_warns_about_its_deprecated_runtime(
    user: AdmissionClient, team: Team
) -> None:
    job = await start(team, user, torch(), suspend=True)
    stored = await team.get("TrainingRuntime", "torch")
    labels = {"trainer.kubeflow.org/support": "deprecated"}
    message = (
        'TrainingRuntime "torch" is deprecated and will be removed in a future release of '
        f"Kubeflow Trainer. See runtime deprecation policy: {POLICY}"
    )
    check_accepted(await user.patch(stored, {"metadata": {"labels": labels}}), message)
    await wait_until_denied(user, job, f"Referenced {message}")
    resumed = {"spec": {"suspend": False}}
    check_accepted(await user.patch(job, resumed), f"Referenced {message}")
    check_accepted(await user.patch(job, {"metadata": {"labels": {"a": "b"}}}))
    check_accepted(await user.patch(stored, {"metadata": {"labels": {"a": "b"}}}))


async def test_runtime_being_deleted_is_not_validated(user: AdmissionClient, team: Team) -> None:
    runtime = placed(torch(), "TrainingRuntime", "torch", team.namespace)
    runtime["metadata"]["finalizers"] = ["acme.io/hold"]
    check_accepted(await user.create(runtime))
    await user.delete(runtime)
    spec = torch(job_with(replicas=2))["spec"]
    check_accepted(await user.replace_now(runtime, lambda now: {**now, "spec": spec}))
    check_accepted(await user.replace_now(runtime, with_metadata(finalizers=[])))
    assert await user.get(runtime) is None


async def test_updates_of_kueue_are_accepted(user: AdmissionClient, team: Team) -> None:
    job = await start(team, user, suspend=True)
    await team.wait_until_exists("JobSet")
    await team.set_jobset_status(rows=[ROW])
    await team.wait_for_jobs_status(ROW)
    override = {
        "targetJobs": NODE,
        "metadata": {
            "labels": {"kueue.x-k8s.io/podset": "node"},
            "annotations": {"kueue.x-k8s.io/workload": "w"},
        },
        "spec": {
            "nodeSelector": {"instance-type": "spot"},
            "tolerations": [{"key": "spot", "operator": "Exists", "effect": "NoSchedule"}],
            "schedulingGates": [{"name": "kueue.x-k8s.io/topology"}],
        },
    }
    admitted = with_spec(podTemplateOverrides=[override])
    at_once = with_spec(podTemplateOverrides=[override], suspend=False)
    check_accepted(await user.replace_now(job, at_once, dry_run=True))
    check_accepted(await user.replace_now(job, admitted))
    check_accepted(await user.patch(job, {"spec": {"suspend": False}}))

    async def placed_pods() -> bool:
        job_set = await team.get("JobSet")
        template = job_set["spec"]["replicatedJobs"][1]["template"]["spec"]["template"]
        return not job_set["spec"]["suspend"] and template["spec"].get("nodeSelector") == {
            "instance-type": "spot"
        }

    await until(placed_pods, within=TEST_TIMEOUT, what="the JobSet being as Kueue wants it")
    # It stops the job, and takes back what it wrote, in one request as well.
    evicted = with_spec(podTemplateOverrides=[], suspend=True)
    check_accepted(await user.replace_now(job, evicted, dry_run=True))
    check_accepted(await user.patch(job, {"spec": {"suspend": True}}))


@pytest.mark.parametrize("kind", KINDS)
async def test_the_managers_own_finalizer_passes(
    kind: str, user: AdmissionClient, team: Team
) -> None:
    name = team.namespace
    runtime = placed(torch(), kind, name, team.namespace)
    check_accepted(await user.create(runtime))
    job = job_on(kind, name, team.namespace, suspend=True)
    check_accepted(await user.create(job))

    async def is_in_use() -> bool:
        return IN_USE in finalizers(await user.get(runtime))

    await until(is_in_use, within=TEST_TIMEOUT, what="the runtime being in use")
    await user.delete(runtime)
    stored = await user.get(runtime)
    assert stored is not None
    assert "deletionTimestamp" in stored["metadata"]
    await team.delete("TrainJob")

    async def is_gone() -> bool:
        return await user.get(runtime) is None

    await until(is_gone, within=TEST_TIMEOUT, what="the end of the runtime")


async def test_existing_invalid_runtime_can_be_labelled_and_receives_its_finalizer(
    user: AdmissionClient, team: Team
) -> None:
    """Whatever is wrong with it, that was not the doing of who labels it."""
    broken: Object = {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "ClusterTrainingRuntime",
        "metadata": {"name": "old-unusable"},
    }
    check_accepted(await user.patch(broken, {"metadata": {"labels": {"team": team.namespace}}}))
    check_accepted(await user.patch(broken, {"metadata": {"finalizers": ["acme.io/hold"]}}))
    check_accepted(await user.patch(broken, {"metadata": {"finalizers": None}}))
    outcome = await user.patch(broken, {"spec": {"mlPolicy": {"numNodes": 7}}}, dry_run=True)
    assert outcome.accepted
    assert outcome.warnings[0].startswith(
        "the stored object already has this error: spec.template.spec.replicatedJobs[1]"
    )
    worse = {"spec": {"template": {"spec": {"replicatedJobs": None}}}}
    assert (await user.patch(broken, worse)).denial.startswith("spec.template.spec: Required")


async def test_many_at_once(user: AdmissionClient, team: Team) -> None:
    """The API server calls the webhook on several connections at once."""
    await start(team, user, runtime=torch())
    jobs = [
        job_on("TrainingRuntime", "torch", team.namespace, name=f"many-{number}")
        for number in range(60)
    ]
    for number, job in enumerate(jobs):
        if number % 2:
            job["spec"]["trainer"] = {"env": [{"name": "PET_NNODES"}]}
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(user.create(job, dry_run=True)) for job in jobs]
    assert [each.result().status for each in tasks] == [201, 403] * 30
