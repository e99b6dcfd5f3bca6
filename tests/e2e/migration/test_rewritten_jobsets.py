"""JobSets that an admission policy rewrites when they are created, or when they are changed."""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest
import pytest_asyncio

from kftrainer.devcluster.client import Object
from kftrainer.devcluster.controlplane import ControlPlane
from kftrainer.devcluster.errors import ApiError
from kftrainer.devcluster.waiting import until
from tests.integration.controllers.team import a_runtime, conditions_of
from tests.support.kubelet import end_pods
from tests.support.managers import ManagerProcess
from tests.support.plans import jobs_of, pod_of
from tests.support.trainjobs import (
    COMPLETES_LATE,
    END_TO_END_TIMEOUT,
    ClusterTeam,
    pods_with,
    summary,
)
from tests.support.webhooks import admitting_manager

ADMISSION = "admissionregistration.k8s.io/v1"
POD = "/spec/replicatedJobs/{}/template/spec/template"
MIRROR = "mirror.example.org/"
INJECTED = {"injected": "true"}
SIDECAR = {"name": "proxy", "image": "proxy:1"}
# What the manager logs when it has changed an object.
CHANGES = ("object_created", "object_updated", "jobset_suspended")
NODE = {"kubernetes.io/hostname": "kwok-2"}
PASSWORD = "tr0ub4dor"  # noqa: S105


def mirrored(job: int) -> str:
    """Pull the image from a mirror."""
    path = f"{POD.format(job)}/spec/containers/0/image"
    image = f"object.spec.replicatedJobs[{job}].template.spec.template.spec.containers[0].image"
    return f'JSONPatch{{op: "replace", path: "{path}", value: "{MIRROR}" + {image}}}'


def with_sidecar(job: int) -> str:
    """Add a container."""
    path = f"{POD.format(job)}/spec/containers/-"
    value = f'{{"name": "{SIDECAR["name"]}", "image": "{SIDECAR["image"]}"}}'
    return f'JSONPatch{{op: "add", path: "{path}", value: {value}}}'


def with_init_sidecar(job: int) -> str:
    """Add init containers where there are none."""
    path = f"{POD.format(job)}/spec/initContainers"
    name, image = SIDECAR["name"], SIDECAR["image"]
    value = f'[{{"name": "{name}", "image": "{image}", "restartPolicy": "Always"}}]'
    return f'JSONPatch{{op: "add", path: "{path}", value: {value}}}'


def labelled(job: int) -> str:
    """Label the pods, which is one of the things that JobSet lets others change later."""
    path = f"{POD.format(job)}/metadata/labels"
    return f'JSONPatch{{op: "add", path: "{path}", value: {{"injected": "true"}}}}'


@dataclass(frozen=True, slots=True)
class Rewrite:
    """What a policy does to each job, and how a pod shows it."""

    runtime: str
    jobs: Sequence[str]
    patch: Callable[[int], str]
    is_done: Callable[[Mapping[str, Any]], bool]  # by the pod or the pod template

    @property
    def expression(self) -> str:
        """The policy's CEL expression."""
        return f"[{', '.join(self.patch(job) for job in range(len(self.jobs)))}]"


def _is_mirrored(pod: Mapping[str, Any]) -> bool:
    image: str = pod["spec"]["containers"][0]["image"]
    return image.startswith(MIRROR)


def _has_sidecar(pod: Mapping[str, Any]) -> bool:
    return [each["image"] for each in pod["spec"]["containers"][1:]] == [SIDECAR["image"]]


def _has_init_sidecar(pod: Mapping[str, Any]) -> bool:
    return [each["name"] for each in pod["spec"].get("initContainers", ())] == [SIDECAR["name"]]


def _is_labelled(pod: Mapping[str, Any]) -> bool:
    return INJECTED.items() <= pod["metadata"]["labels"].items()


REWRITES = {
    "mirror": Rewrite("torch", ["node"], mirrored, _is_mirrored),
    "sidecar": Rewrite("torch", ["node"], with_sidecar, _has_sidecar),
    "init sidecar": Rewrite("torch", ["node"], with_init_sidecar, _has_init_sidecar),
    "pod label": Rewrite("torch", ["node"], labelled, _is_labelled),
    "mirror of MPI": Rewrite("mpi", ["node", "launcher"], mirrored, _is_mirrored),
}


@asynccontextmanager
async def rewriting(
    team: ClusterTeam, rewrite: Rewrite, operations: Sequence[str] = ("CREATE",)
) -> AsyncIterator[None]:
    """Have the API server rewrite new JobSets of the namespace for the length of the block."""
    name = {"name": f"{team.namespace}.example.org"}
    rule = {
        "apiGroups": ["jobset.x-k8s.io"],
        "apiVersions": ["*"],
        "operations": [*operations],
        "resources": ["jobsets"],
    }
    here = {"matchLabels": {"kubernetes.io/metadata.name": team.namespace}}
    policy = {
        "apiVersion": ADMISSION,
        "kind": "MutatingAdmissionPolicy",
        "metadata": name,
        "spec": {
            "failurePolicy": "Fail",
            "reinvocationPolicy": "Never",
            "matchConstraints": {"resourceRules": [rule], "namespaceSelector": here},
            "mutations": [
                {"patchType": "JSONPatch", "jsonPatch": {"expression": rewrite.expression}}
            ],
        },
    }
    binding = {
        "apiVersion": ADMISSION,
        "kind": "MutatingAdmissionPolicyBinding",
        "metadata": name,
        "spec": {"policyName": name["name"]},
    }
    objects = [await team.api.create(each) for each in (policy, binding)]
    try:
        await wait_until_enforced(team, rewrite)
        yield
    finally:
        for each in reversed(objects):
            await team.api.delete(await team.api.path_of(each))


async def wait_until_enforced(team: ClusterTeam, rewrite: Rewrite) -> None:
    """Wait until the API server rewrites JobSets."""
    container = {"name": "node", "image": "trainer"}
    template = {"metadata": {"labels": {"own": "label"}}, "spec": {"containers": [container]}}
    jobs = [{"name": name, "template": {"spec": {"template": template}}} for name in rewrite.jobs]
    probe = {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": "probe"},
        "spec": {"replicatedJobs": jobs},
    }

    async def enforced() -> bool:
        path, query = team.path("JobSet"), {"dryRun": "All"}
        try:
            created = await team.api.request("POST", path, body=probe, query=query)
        except ApiError as error:
            # The API server serves the schema of a kind some time after its definition.
            if "There can be a delay" in str(error):
                return False
            raise
        return is_rewritten(created, rewrite)

    await until(enforced, within=END_TO_END_TIMEOUT, what="the policy being enforced")


def is_rewritten(job_set: Object, rewrite: Rewrite) -> bool:
    """Whether every pod template of the JobSet is as the policy made it."""
    templates = [each["template"]["spec"]["template"] for each in jobs_of(job_set).values()]
    return all(map(rewrite.is_done, templates))


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def manager(full_control_plane: ControlPlane) -> AsyncIterator[ManagerProcess]:
    """The manager of the module."""
    async with admitting_manager(full_control_plane, "--log-level", "debug") as manager:
        yield manager


async def wait_until_idle(team: ClusterTeam) -> None:
    """Wait until the TrainJob is suspended, with its JobSet and without pods."""
    await team.wait_until_children_deleted("train", ["Pod"])
    job = await team.wait_for_condition("Suspended", "Suspended")
    assert summary(job) == {"Suspended": "True/Suspended"}
    assert (await team.get("JobSet"))["spec"]["suspend"] is True


def changes(manager: ManagerProcess, namespace: str) -> int:
    """How often the manager has changed objects of the namespace."""
    return sum(
        each["namespace"] == namespace for event in CHANGES for each in manager.log_entries(event)
    )


async def wait_until_settled(team: ClusterTeam, manager: ManagerProcess) -> None:
    """Wait until a reconcile changes nothing; the first one after the creation may."""

    async def settled() -> bool:
        before = changes(manager, team.namespace)
        await team.touch(manager)
        return changes(manager, team.namespace) == before > 0

    await until(settled, within=END_TO_END_TIMEOUT, what="a reconcile that changes nothing")


@pytest.mark.parametrize("rewrite", REWRITES.values(), ids=list(REWRITES))
async def test_rewritten_jobset_is_suspended_moved_resumed_and_completed(
    team: ClusterTeam, manager: ManagerProcess, rewrite: Rewrite
) -> None:
    """Row 1 (b): the policy does not rewrite what is applied to an existing JobSet."""
    count = len(rewrite.jobs)
    lasting = pods_with(*rewrite.jobs, annotations=COMPLETES_LATE, labels={"own": "label"})
    await team.create(a_runtime(rewrite.runtime))
    async with rewriting(team, rewrite):
        await team.create_job(
            runtime=rewrite.runtime, trainer={"numNodes": count}, podTemplateOverrides=lasting
        )
        pods = await team.wait_until_running("train", count)
        assert all(map(rewrite.is_done, pods))
        uid = (await team.get("JobSet"))["metadata"]["uid"]

        await team.suspend(suspend=True)
        await wait_until_idle(team)
        await wait_until_settled(team, manager)

        moved = [{**each, "spec": {"nodeSelector": NODE}} for each in lasting]
        await team.patch("TrainJob", "train", {"spec": {"podTemplateOverrides": moved}})
        await team.suspend(suspend=False)
        pods = await team.wait_until_running("train", count)
        await team.wait_for_condition("Suspended", "Resumed", "False")
        assert [each["spec"]["nodeName"] for each in pods] == ["kwok-2"] * count
        assert all(map(rewrite.is_done, pods))
        await wait_until_settled(team, manager)

    # The same without the policy, which JobSets outlive.
    await team.suspend(suspend=True)
    await wait_until_idle(team)
    await team.suspend(suspend=False)
    pods = await team.wait_until_running("train", count)
    job_set = await team.get("JobSet")
    assert job_set["metadata"]["uid"] == uid
    assert is_rewritten(job_set, rewrite)
    assert pod_of(job_set)["nodeSelector"] == NODE

    await end_pods(team.api, pods, "Succeeded")
    job = await team.wait_until_ended("train")
    assert summary(job) == {"Suspended": "False/Resumed", "Complete": "True/AllJobsCompleted"}
    await team.delete("TrainJob", policy="Foreground")
    await team.wait_until_deleted("TrainJob")
    await team.wait_until_deleted("JobSet")
    await team.wait_until_children_deleted("train")


async def test_rewritten_jobset_is_created_suspended_and_resumed(
    team: ClusterTeam, manager: ManagerProcess
) -> None:
    """Row 1 (b), for TrainJobs that a queue admits: they never ran before they are resumed."""
    rewrite = REWRITES["sidecar"]
    lasting = pods_with(annotations=COMPLETES_LATE, labels={"own": "label"})
    await team.create(a_runtime(rewrite.runtime))
    async with rewriting(team, rewrite):
        await team.create_job(suspend=True, podTemplateOverrides=lasting)
        await wait_until_idle(team)
        await wait_until_settled(team, manager)
        await team.suspend(suspend=False)
        pods = await team.wait_until_running("train", 1)
    assert all(map(rewrite.is_done, pods))
    job = await team.wait_for_condition("Suspended", "Resumed", "False")
    assert summary(job) == {"Suspended": "False/Resumed"}


async def test_values_of_a_jobset_are_in_no_report_of_its_rejection(
    team: ClusterTeam, manager: ManagerProcess
) -> None:
    """Row 12: JobSet's webhook rejects the rewritten change with all of its pod templates."""
    env = [{"name": "PASSWORD", "value": PASSWORD}]
    lasting = pods_with(annotations=COMPLETES_LATE)
    await team.create(a_runtime("torch"))
    await team.create_job(suspend=True, trainer={"env": env}, podTemplateOverrides=lasting)
    await wait_until_idle(team)
    await wait_until_settled(team, manager)
    assert PASSWORD in str(await team.get("JobSet"))
    async with rewriting(team, REWRITES["mirror"], ("CREATE", "UPDATE")):
        await team.suspend(suspend=False)
        job = await team.wait_for_condition("Blocked", "ResourcesCreationFailed")
        event = await team.wait_for_event("TrainJobResourcesCreationFailed")
    reports = {
        "log": manager.log_text(),
        "status": str(job["status"]),
        "Events": str(await team.all("Event")),
    }
    assert [report for report, text in reports.items() if PASSWORD in text] == []
    rejection = (
        'denied the request: JobSet.jobset.x-k8s.io "train" is invalid: spec.replicatedJobs: '
        "Invalid value: (omitted): field is immutable"
    )
    assert rejection in conditions_of(job)["Blocked"]["message"]
    assert rejection in event["message"]
    logged = [
        each["error"]
        for each in manager.log_entries("reconcile_failed")
        if each["namespace"] == team.namespace
    ]
    assert logged
    assert all(rejection in each for each in logged)
    await team.touch(manager)  # without the policy
    await team.wait_until_running("train", 1)
    await team.wait_until_condition_removed("Blocked")
