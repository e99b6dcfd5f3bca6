"""Runtime patches of a TrainJob: what is written to its JobSet, and when nothing is."""

from copy import deepcopy

from tests.integration.controllers.team import JOB, Team, conditions_of
from tests.integration.controllers.test_writes import requests_since, working
from tests.support.fault_proxy import FaultProxy
from tests.support.objects import Object
from tests.support.other_releases import KUEUE_ADMISSION, KUEUE_ENTRY, SDK_PATCH
from tests.support.plans import jobs_of

APPLY, STATUS = f"PATCH jobsets/{JOB}", f"PATCH trainjobs/{JOB}/status"


async def test_each_change_of_a_patch_costs_one_apply_and_settled_ones_none(
    proxy: FaultProxy, team: Team
) -> None:
    await team.create_runtime()
    async with working(proxy, team) as manager:
        since = len(proxy.requests)
        await team.create_job(suspend=True, runtimePatches=[KUEUE_ENTRY, SDK_PATCH])
        await team.wait_for_condition("Suspended", "Suspended")
        await team.wait_until_in_use()
        since = len(proxy.requests)
        for patches, wanted in (
            ([KUEUE_ADMISSION, SDK_PATCH], {"flavor": "spot", "zone": "a"}),
            ([KUEUE_ENTRY, SDK_PATCH], {"zone": "a"}),
        ):
            stored = await team.patch("TrainJob", JOB, {"spec": {"runtimePatches": patches}})
            await team.wait_until_observed(manager, stored)
            job_set = await team.get("JobSet")
            pods = jobs_of(job_set)["node"]["template"]["spec"]["template"]
            assert pods["spec"]["nodeSelector"] == wanted
            labelled = "kueue.x-k8s.io/podset" in (pods.get("metadata", {}).get("labels") or {})
            assert labelled is ("flavor" in wanted)
        assert requests_since(proxy, since) == [APPLY, APPLY]

        timed = [{**deepcopy(each), "time": "2026-01-01T00:00:00Z"} for each in patches]
        stored = await team.patch("TrainJob", JOB, {"spec": {"runtimePatches": timed}})
        await team.wait_until_observed(manager, stored)
        await team.touch(manager)
        assert requests_since(proxy, since) == [APPLY, APPLY]

        at_once = {"runtimePatches": [KUEUE_ADMISSION, SDK_PATCH], "suspend": False}
        await team.patch("TrainJob", JOB, {"spec": at_once})
        job = await team.wait_for_condition("Suspended", "Resumed", "False")
        assert requests_since(proxy, since) == [APPLY, APPLY, APPLY, STATUS]
    assert set(conditions_of(job)) == {"Suspended"}
    resumed = await team.get("JobSet")
    assert resumed["metadata"]["uid"] == job_set["metadata"]["uid"]
    assert resumed["spec"]["suspend"] is False
    pod = jobs_of(resumed)["node"]["template"]["spec"]["template"]["spec"]
    assert pod["nodeSelector"] == {"flavor": "spot", "zone": "a"}


async def test_unknown_job_blocks_a_trainjob_that_was_stored_without_validation(
    proxy: FaultProxy, team: Team
) -> None:
    wrong = deepcopy(SDK_PATCH)
    [job] = wrong["trainingRuntimeSpec"]["template"]["spec"]["replicatedJobs"]
    job["name"] = "worker"
    await team.create_runtime()
    async with working(proxy, team):
        await team.create_job(runtimePatches=[wrong])
        blocked = await team.wait_for_condition("Blocked", "InvalidTrainJob")
        assert (
            "spec.runtimePatches[0].trainingRuntimeSpec.template.spec.replicatedJobs[0].name"
            in (conditions_of(blocked)["Blocked"]["message"])
        )
        await team.patch("TrainJob", JOB, {"spec": {"runtimePatches": [SDK_PATCH]}})
        await team.wait_until_condition_removed("Blocked")
        await team.wait_until_exists("JobSet")


async def test_last_labels_and_annotations_of_pods_are_removed(
    proxy: FaultProxy, team: Team
) -> None:
    """The API server rejects an apply that leaves a map empty."""
    await team.create_runtime()
    pods = {"labels": {"a": "1"}, "annotations": {"b": "2"}}
    async with working(proxy, team) as manager:
        await team.create_job(suspend=True, runtimePatches=[pod_metadata(**pods)])
        await team.wait_for_condition("Suspended", "Suspended")
        for kept in ({"annotations": pods["annotations"]}, {"labels": pods["labels"]}, {}):
            patches = [pod_metadata(**kept)] if kept else [KUEUE_ENTRY]
            stored = await team.patch("TrainJob", JOB, {"spec": {"runtimePatches": patches}})
            await team.wait_until_observed(manager, stored)
            template = jobs_of(await team.get("JobSet"))["node"]["template"]["spec"]["template"]
            metadata = template.get("metadata") or {}
            assert {field: each for field, each in metadata.items() if each} == kept
            assert set(conditions_of(await team.get("TrainJob"))) == {"Suspended"}


def pod_metadata(**metadata: Object) -> Object:
    job = {"name": "node", "template": {"spec": {"template": {"metadata": metadata}}}}
    template = {"spec": {"replicatedJobs": [job]}}
    return {"manager": "acme.io/tuner", "trainingRuntimeSpec": {"template": template}}
