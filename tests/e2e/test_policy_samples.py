"""The sample admission policies of docs/security.md: what violates one is rejected, no more."""

from collections.abc import AsyncIterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import yaml

from kftrainer.devcluster.client import ApiClient, Object
from kftrainer.devcluster.components.jobset import PROBE as JOB_SET
from kftrainer.devcluster.errors import ApiError
from kftrainer.devcluster.waiting import until
from tests.support import doc_snippets
from tests.support.objects import train_job

FOLDER = Path(__file__).parents[2] / "examples" / "policies"
SAMPLES = sorted(each.stem for each in FOLDER.glob("*.yaml"))
TENANT = {"metadata": {"labels": {"training.example.com/tenant": "true"}}}
MERGE = "application/merge-patch+json"
WITHIN = 30.0
NODE = [{"name": "node"}]


def job_set(**pod: Any) -> Object:
    """A JobSet whose pods have these fields; those of the container are given as `container`."""
    manifest = deepcopy(JOB_SET)
    container = pod.pop("container", {})
    spec = manifest["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
    spec["containers"][0] |= container
    spec |= pod
    return {**manifest, "metadata": {"name": "train"}}


def with_volume(**source: Any) -> Object:
    return job_set(volumes=[{"name": "volume", **source}])


def with_env(**source: Any) -> Object:
    return job_set(container={"env": [{"name": "KEY", "valueFrom": source}]})


def overridden(**spec: Any) -> Object:
    return train_job("train", podTemplateOverrides=[{"targetJobs": NODE, "spec": spec}])


VIOLATIONS: dict[str, list[Object]] = {
    "service-accounts": [
        job_set(serviceAccountName="admin"),
        overridden(serviceAccountName="admin"),
        train_job("train", podSpecOverrides=[{"targetJobs": NODE, "serviceAccountName": "admin"}]),
    ],
    "host-access": [
        with_volume(hostPath={"path": "/"}),
        job_set(hostNetwork=True),
        job_set(hostPID=True),
        job_set(container={"securityContext": {"privileged": True}}),
        job_set(
            initContainers=[
                {"name": "init", "image": "init", "securityContext": {"privileged": True}}
            ]
        ),
    ],
    "secrets": [
        with_volume(secret={"secretName": "database"}),
        with_volume(projected={"sources": [{"secret": {"name": "database"}}]}),
        with_volume(secret={"secretName": "other-mpi-ssh-auth"}),
        with_env(secretKeyRef={"name": "database", "key": "password"}),
        job_set(container={"envFrom": [{"secretRef": {"name": "database"}}]}),
    ],
    "runtimes": [
        train_job("train", runtimeRef={"kind": "TrainingRuntime", "name": "own"}),
        train_job("train", trainer={"image": "docker.io/anybody/miner"}),
    ],
}
ORDINARY: dict[str, list[Object]] = {
    "service-accounts": [
        job_set(serviceAccountName="default"),
        overridden(nodeSelector={"a": "b"}),
    ],
    "host-access": [
        with_volume(emptyDir={}),
        job_set(container={"securityContext": {"privileged": False}}),
    ],
    "secrets": [
        with_volume(secret={"secretName": "training-data"}),
        with_volume(secret={"secretName": "train-mpi-ssh-auth"}),
        with_env(secretKeyRef={"name": "training-token", "key": "token"}),
        with_env(fieldRef={"fieldPath": "metadata.name"}),
    ],
    "runtimes": [train_job("train", trainer={"image": "registry.example.com/ml/trainer:1"})],
}


def test_every_sample_has_cases() -> None:
    assert SAMPLES == sorted(VIOLATIONS) == sorted(ORDINARY)


@pytest_asyncio.fixture
async def tenant(api: ApiClient, namespace: str) -> str:
    """A namespace that the samples apply to."""
    path = f"/api/v1/namespaces/{namespace}"
    await api.request("PATCH", path, body=TENANT, content_type=MERGE)
    return namespace


@pytest_asyncio.fixture(params=SAMPLES)
async def sample(request: pytest.FixtureRequest, api: ApiClient) -> AsyncIterator[str]:
    """The name of a sample that is applied."""
    documents = [*yaml.safe_load_all((FOLDER / f"{request.param}.yaml").read_text())]
    for each in documents:
        await api.create(each)
    yield request.param
    for each in documents:
        await api.delete(await api.path_of(each))


async def denial(api: ApiClient, manifest: Object, namespace: str) -> str:
    """Why a dry run is rejected; empty if it is not."""
    plural = {"JobSet": "jobsets", "TrainJob": "trainjobs"}[manifest["kind"]]
    path = f"/apis/{manifest['apiVersion']}/namespaces/{namespace}/{plural}"
    try:
        await api.request("POST", path, query={"dryRun": "All"}, body=manifest)
    except ApiError as error:
        return str(error)
    return ""


async def test_sample_policy_rejects_violations_and_nothing_else(
    sample: str, api: ApiClient, tenant: str
) -> None:
    violations = VIOLATIONS[sample]

    async def is_in_force() -> bool:
        return all([await denial(api, each, tenant) for each in violations])

    await until(is_in_force, within=WITHIN, what=f"the policy {sample} rejecting all violations")
    for each in violations:
        assert "ValidatingAdmissionPolicy" in await denial(api, each, tenant)
        assert await denial(api, each, "default") == ""
    ordinary = [train_job("train"), job_set(), *ORDINARY[sample]]
    assert [await denial(api, each, tenant) for each in ordinary] == [""] * len(ordinary)


async def test_quota_and_limit_range_of_the_documentation_are_accepted(
    api: ApiClient, namespace: str
) -> None:
    [text] = doc_snippets.snippets("security.md", "yaml")
    for each in yaml.safe_load_all(text):
        metadata = {**each["metadata"], "namespace": namespace}
        created = await api.create({**each, "metadata": metadata})
        assert created["spec"] == each["spec"] or created["kind"] == "LimitRange"
