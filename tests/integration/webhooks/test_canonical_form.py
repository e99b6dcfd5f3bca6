"""TrainJobs are stored as Go clients write them back, which then change nothing."""

from collections.abc import Iterator
from copy import deepcopy
from datetime import UTC, datetime
from typing import Any

import pytest
import pytest_asyncio

from kftrainer.api.schema.creation import creation_errors
from kftrainer.devcluster.client import Object
from kftrainer.devcluster.controlplane import ControlPlane
from kftrainer.devcluster.waiting import until
from kftrainer.kube.client.credentials import load_connection
from kftrainer.kube.client.transport import HttpTransport
from kftrainer.kube.objects.resource import Manifest
from kftrainer.runtime.canonical_form import canonical_train_job
from tests.integration.cli.test_validate import BAD_REQUEST, CREATED, INVALID, answer_of
from tests.integration.webhooks.cases import job_on, placed, torch
from tests.support.go_clients import written_by_go
from tests.support.objects import train_job
from tests.support.other_releases import KUEUE_ENTRY
from tests.support.random_objects import mutants
from tests.support.webhooks import AdmissionClient

pytestmark = pytest.mark.integration

SEED, MUTANTS = 17, 400
FORBIDDEN = 403

KIND = "TrainingRuntime"
# As the SDK sends it, and as people write it in YAML.
FROM_CLIENTS: Object = {
    "suspend": True,
    "trainer": {
        "numNodes": 2,
        "args": [],
        "env": [
            {
                "name": "CPUS",
                "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu", "divisor": 1}},
            }
        ],
        "resourcesPerNode": {
            "limits": {"cpu": 4.0, "nvidia.com/gpu": 1, "memory": "1024Mi"},
            "requests": {"cpu": 0.5},
        },
    },
    "runtimePatches": [KUEUE_ENTRY],
    "labels": {},
}
TRAINER: Object = {
    "numNodes": 2,
    "env": [
        {
            "name": "CPUS",
            "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu", "divisor": "1"}},
        }
    ],
    "resourcesPerNode": {
        "limits": {"cpu": "4", "nvidia.com/gpu": "1", "memory": "1Gi"},
        "requests": {"cpu": "500m"},
    },
}


@pytest_asyncio.fixture
async def namespace_with_runtime(user: AdmissionClient, namespace: str) -> str:
    await user.apply(placed(torch(), KIND, "torch", namespace))
    return namespace


async def created(user: AdmissionClient, namespace: str, **spec: Any) -> Object:
    """The TrainJob as it is stored."""
    job = job_on(KIND, "torch", namespace, **deepcopy({**FROM_CLIENTS, **spec}))

    async def stored() -> Object | None:
        outcome = await user.create(job)
        assert outcome.status in (201, 403), outcome
        return await user.get(job)

    return await until(stored, within=30.0, what="the runtime being cached")


async def test_job_is_stored_in_canonical_form(
    user: AdmissionClient, namespace_with_runtime: str
) -> None:
    spec = (await created(user, namespace_with_runtime))["spec"]
    [patch] = spec["runtimePatches"]
    assert patch.pop("time").endswith("Z")
    assert patch == KUEUE_ENTRY
    assert spec["trainer"] == TRAINER
    assert "labels" not in spec


async def test_job_that_a_go_client_writes_back_is_unchanged(
    user: AdmissionClient, namespace_with_runtime: str
) -> None:
    stored = await created(user, namespace_with_runtime)
    outcome = await user.replace_now(stored, written_by_go)
    assert outcome.status == 200, outcome
    after = await user.read(stored)
    assert (after["metadata"]["generation"], after["spec"]) == (1, stored["spec"])


async def test_applying_the_same_manifest_again_changes_nothing(
    user: AdmissionClient, namespace_with_runtime: str
) -> None:
    stored = await created(user, namespace_with_runtime)
    job = job_on(KIND, "torch", namespace_with_runtime, **deepcopy(FROM_CLIENTS))
    for _ in range(2):  # the first apply adds a field manager
        assert (await user.apply(job)).status == 200
    after = await user.read(stored)
    assert (after["metadata"]["generation"], after["spec"]) == (1, stored["spec"])


async def test_kueue_admits_a_job_with_its_patch(
    user: AdmissionClient, namespace_with_runtime: str
) -> None:
    stored = await created(user, namespace_with_runtime)
    pod = {"spec": {"nodeSelector": {"pool": "a"}, "tolerations": []}}
    job = {"name": "node", "template": {"spec": {"template": pod}}}

    def admitted(read: Object) -> Object:
        written = written_by_go(read)
        [entry] = written["spec"]["runtimePatches"]
        entry["trainingRuntimeSpec"]["template"]["spec"] = {"replicatedJobs": [job]}
        entry["time"] = "2020-01-01T00:00:00Z"
        return written

    assert (await user.replace_now(stored, admitted)).status == 200
    [now] = (await user.read(stored))["spec"]["runtimePatches"]
    assert now["time"] >= stored["spec"]["runtimePatches"][0]["time"]
    [changed] = now["trainingRuntimeSpec"]["template"]["spec"]["replicatedJobs"]
    assert changed["template"]["spec"]["template"] == {"spec": {"nodeSelector": {"pool": "a"}}}
    # Resumed, with another time: the patch is the same.
    await user.patch(stored, {"spec": {"suspend": False}})
    assert (await user.replace_now(stored, admitted)).status == 200
    assert (await user.read(stored))["spec"]["runtimePatches"] == [now]


async def test_jobs_beyond_a_limit_are_rejected_by_the_validator(
    user: AdmissionClient, namespace_with_runtime: str
) -> None:
    annotations = {f"a{number}": "x" * 1000 for number in range(256)}
    large = job_on(KIND, "torch", namespace_with_runtime, annotations=annotations, labels={})
    large["spec"]["podTemplateOverrides"] = [
        {"targetJobs": [{"name": "node"}], "metadata": {"annotations": {"a": "x" * 10_000}}}
    ]
    outcome = await user.create(large)
    assert outcome.status == 403
    assert "may not be more than 262144 bytes as JSON" in outcome.message


def submitted() -> Iterator[Object]:
    """TrainJobs with random changes, and with values that only the mutating webhook makes valid."""
    for amount in (4.0, 0.5, 1e3, 1e-9, "0.5", -0.5, 1.5e300, True, None, [], "x"):
        yield train_job(trainer={"resourcesPerNode": {"limits": {"cpu": amount}}})
    yield train_job(trainer={"unknown": []})
    for _, document in mutants(SEED, MUTANTS):
        if document.get("kind") == "TrainJob":
            yield document


def mutated(manifest: Manifest) -> Manifest:
    return canonical_train_job(None, manifest, datetime(2026, 1, 1, tzinfo=UTC))


async def test_schema_errors_are_those_found_offline(
    user: AdmissionClient, plane: ControlPlane, namespace: str
) -> None:
    connection = await load_connection(plane.kubeconfig)
    differences, statuses = [], set()
    async with HttpTransport(connection, user_agent="kftrainer-tests/1") as transport:
        for document in submitted():
            answer = await answer_of(transport, document, namespace)
            statuses.add(answer.status)
            errors = creation_errors(document, mutated)
            if (answer.status in (BAD_REQUEST, INVALID)) != bool(errors):
                differences.append((answer, [*map(str, errors)], document))
    assert not differences, differences[0]
    assert statuses <= {CREATED, BAD_REQUEST, FORBIDDEN, INVALID}
    assert {BAD_REQUEST, FORBIDDEN, INVALID} <= statuses
