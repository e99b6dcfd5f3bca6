"""TrainJobs with resource claims: they wait for the templates, and follow JobSet's rules after."""

from typing import Any

from kftrainer.devcluster.client import Object
from kftrainer.devcluster.waiting import until
from tests.integration.controllers.team import JOB, Team, conditions_of
from tests.support.managers import ManagerProcess

TEMPLATES = "/apis/resource.k8s.io/v1/namespaces/{}/resourceclaimtemplates"
CLAIM = {"name": "gpu", "resourceClaimTemplateName": "gpus"}
REASON = "ResourceClaimTemplateNotFound"


def template(count: int = 2) -> Object:
    exactly = {"deviceClassName": "gpu.example.com", "count": count}
    devices = {"requests": [{"name": "gpu", "exactly": exactly}]}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": "gpus"},
        "spec": {"spec": {"devices": devices}},
    }


def pods(jobset: Object) -> Any:
    return jobset["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]


def processes(jobset: Object) -> list[str]:
    env = pods(jobset)["containers"][0]["env"]
    return [each["value"] for each in env if each["name"] == "PET_NPROC_PER_NODE"]


async def wait_for_suspension(team: Team, *, expected: bool) -> Object:
    async def reached() -> bool:
        return (await team.get("JobSet"))["spec"].get("suspend", False) is expected

    await until(reached, within=team.within, what=f"suspend: {expected} in the JobSet")
    return await team.get("JobSet")


async def test_train_job_waits_for_its_template(team: Team, manager: ManagerProcess) -> None:
    await team.create_runtime()
    await team.create_job(trainer={"resourceClaimsPerNode": [CLAIM]})
    job = await team.wait_for_condition("Blocked", REASON)
    assert conditions_of(job)["Blocked"]["message"] == (
        f"ResourceClaimTemplate gpus is not found in namespace {team.namespace}: pods cannot start "
        "without it (spec.trainer.resourceClaimsPerNode[0])"
    )
    assert await team.children() == []
    await team.create(template())
    jobset = await team.wait_until_exists("JobSet", JOB)
    await team.wait_until_condition_removed("Blocked", JOB)
    assert pods(jobset)["resourceClaims"] == [CLAIM]
    assert pods(jobset)["containers"][0]["resources"] == {"claims": [{"name": "gpu"}]}
    assert processes(jobset) == ["auto"]


async def test_deleted_template_prevents_only_resuming(team: Team, manager: ManagerProcess) -> None:
    await team.create_runtime()
    await team.create(template())
    await team.create_job(trainer={"resourceClaimsPerNode": [CLAIM]})
    begun = await team.wait_until_exists("JobSet", JOB)
    await team.api.delete(f"{TEMPLATES.format(team.namespace)}/gpus")
    await team.suspend(suspend=True)
    await wait_for_suspension(team, expected=True)
    await team.suspend(suspend=False)
    await team.wait_for_condition("Blocked", REASON)
    assert (await team.get("JobSet"))["spec"]["suspend"] is True
    await team.create(template(count=8))
    resumed = await wait_for_suspension(team, expected=False)
    await team.wait_until_condition_removed("Blocked", JOB)
    assert pods(resumed) == pods(begun)
    assert "JobSetKept" not in {each["reason"] for each in await team.all("Event")}
