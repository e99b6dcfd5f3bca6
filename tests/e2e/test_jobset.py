"""JobSet is really there: its webhooks refuse, its controller runs a JobSet on the fake nodes."""

from typing import Any

import pytest

from kftrainer.devcluster.client import ApiClient, Object, condition_is_true
from kftrainer.devcluster.errors import ApiError
from kftrainer.devcluster.waiting import until

JOBSETS = "/apis/jobset.x-k8s.io/v1alpha2/namespaces/{}/jobsets"
FAILS = {"pod-container-running-failed.stage.kwok.x-k8s.io": "true"}


def jobset(namespace: str, name: str, pod_labels: dict[str, str] | None = None) -> dict[str, Any]:
    pod = {
        "metadata": {"labels": pod_labels or {}},
        "spec": {
            "restartPolicy": "Never",
            "containers": [{"name": "node", "image": "trainer"}],
        },
    }
    job = {"parallelism": 2, "completions": 2, "backoffLimit": 0, "template": pod}
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"replicatedJobs": [{"name": "node", "template": {"spec": job}}]},
    }


async def finished(api: ApiClient, namespace: str, condition: str) -> Object:
    async def check() -> Object | None:
        found = await api.get(f"{JOBSETS.format(namespace)}/train")
        return found if condition_is_true(found, condition) else None

    return await until(check, within=120, what=f"JobSet train in {namespace} being {condition}")


async def test_webhook_rejects_names_that_are_too_long_for_pods(
    api: ApiClient, namespace: str
) -> None:
    with pytest.raises(ApiError) as refused:
        await api.create(jobset(namespace, "x" * 60))
    assert 'admission webhook "vjobset.kb.io" denied the request' in str(refused.value)
    assert (await api.get(JOBSETS.format(namespace)))["items"] == []


async def test_its_other_webhook_fills_in_defaults(api: ApiClient, namespace: str) -> None:
    created = await api.create(jobset(namespace, "train"))
    assert created["spec"]["successPolicy"] == {"operator": "All"}


async def test_a_jobset_runs_to_its_end_on_the_fake_nodes(api: ApiClient, namespace: str) -> None:
    await api.create(jobset(namespace, "train"))
    done = await finished(api, namespace, "Completed")
    assert done["status"]["replicatedJobsStatus"][0]["succeeded"] == 1
    pods = (await api.get(f"/api/v1/namespaces/{namespace}/pods"))["items"]
    assert [pod["status"]["phase"] for pod in pods] == ["Succeeded"] * 2
    nodes = (await api.get("/api/v1/nodes?labelSelector=type%3Dkwok"))["items"]
    assert {pod["spec"]["nodeName"] for pod in pods} <= {each["metadata"]["name"] for each in nodes}
    assert all(pod["spec"]["hostname"].startswith("train-node-0-") for pod in pods)


async def test_pods_that_fail_make_the_jobset_fail(api: ApiClient, namespace: str) -> None:
    await api.create(jobset(namespace, "train", FAILS))
    await finished(api, namespace, "Failed")


async def test_dependents_of_a_deleted_jobset_are_removed(api: ApiClient, namespace: str) -> None:
    await api.create(jobset(namespace, "train"))
    await finished(api, namespace, "Completed")
    await api.delete(f"{JOBSETS.format(namespace)}/train")

    async def collected() -> bool:
        jobs = await api.get(f"/apis/batch/v1/namespaces/{namespace}/jobs")
        pods = await api.get(f"/api/v1/namespaces/{namespace}/pods")
        return not jobs["items"] and not pods["items"]

    await until(collected, within=120, what="the garbage collector deleting Jobs and pods")
