"""The shape of answers: all mistakes at once, each once, in words for people and for programs."""

from typing import Any

import orjson
import pytest
import pytest_asyncio

from tests.integration.webhooks.cases import job_with, placed, reference, torch
from tests.support.objects import Object, train_job
from tests.support.webhooks import AdmissionClient

pytestmark = pytest.mark.integration

TRAIN_JOBS = "validator.trainjob.trainer.kubeflow.org"
RUNTIMES = {
    "TrainingRuntime": "validator.trainingruntime.trainer.kubeflow.org",
    "ClusterTrainingRuntime": "validator.clustertrainingruntime.trainer.kubeflow.org",
}
RESERVED = (
    'spec.trainer.env: Invalid value: ["PET_NNODES"]: must not have reserved envs, invalid envs '
    "configured: [PET_NNODES]"
)
NO_STEP = "must have {0}-initializer job when trainJob is configured with input {0}Config"


@pytest_asyncio.fixture
async def here(user: AdmissionClient, namespace: str) -> str:
    """A namespace with a runtime `torch`."""
    outcome = await user.create(placed(torch(), "TrainingRuntime", "torch", namespace))
    assert outcome.accepted
    return namespace


def job_in(namespace: str, name: str = "train", **spec: Any) -> Object:
    """A TrainJob on that runtime."""
    job = train_job(name, runtimeRef=reference("TrainingRuntime", "torch"), **spec)
    job["metadata"]["namespace"] = namespace
    return job


async def test_a_denial(user: AdmissionClient, here: str) -> None:
    outcome = await user.create(job_in(here, trainer={"env": [{"name": "PET_NNODES"}]}))
    assert outcome.body == {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "code": 403,
        "reason": "Forbidden",
        "message": f'admission webhook "{TRAIN_JOBS}" denied the request: {RESERVED}',
        "details": {
            "name": "train",
            "group": "trainer.kubeflow.org",
            "kind": "TrainJob",
            "causes": [
                {
                    "reason": "FieldValueInvalid",
                    "message": RESERVED,
                    "field": "spec.trainer.env",
                }
            ],
        },
    }


@pytest.mark.parametrize(("kind", "webhook"), RUNTIMES.items())
async def test_a_denial_of_a_runtime(
    kind: str, webhook: str, user: AdmissionClient, namespace: str
) -> None:
    outcome = await user.create(placed(torch(job_with(replicas=2)), kind, namespace, namespace))
    assert outcome.message == (
        f'admission webhook "{webhook}" denied the request: '
        "spec.template.spec.replicatedJobs[0].replicas: Invalid value: 2: always must be 1"
    )
    assert outcome.body["details"]["kind"] == kind


async def test_all_errors_are_reported_together(user: AdmissionClient, here: str) -> None:
    """Also those that are found at different stages: overrides, plugins, the name."""
    job = job_in(
        here,
        "x" * 49,
        initializer={"dataset": {"storageUri": "hf://a/b"}, "model": {"secretRef": {}}},
        trainer={
            "env": [{"name": "PET_NNODES"}],
            "resourcesPerNode": {"limits": {"cpu": "-1"}},
        },
        podTemplateOverrides=[{"targetJobs": [{"name": "nodes"}]}],
    )
    outcome = await user.create(job)
    causes = {cause["field"]: cause["message"] for cause in outcome.body["details"]["causes"]}
    assert sorted(causes) == [
        "metadata.name",
        "spec.initializer.model.secretRef.name",
        "spec.podTemplateOverrides[0].targetJobs[0].name",
        "spec.runtimeRef",
        "spec.trainer.env",
        "spec.trainer.resourcesPerNode.limits[cpu]",
    ]
    for step in ("dataset", "model"):
        assert NO_STEP.format(step) in outcome.denial
    assert outcome.denial.startswith("[")


async def test_all_errors_of_a_runtime_are_reported_together(
    user: AdmissionClient, namespace: str
) -> None:
    manifest = torch(
        job_with("dataset-initializer", "dataset-initializer", replicas=2),
        job_with("model-initializer", "model-initializer", container={"name": "other"}),
        job_with(replicas=3),
        job_with("other", None, spec={"parallelism": -1}),
    )
    outcome = await user.create(placed(manifest, "TrainingRuntime", "torch", namespace))
    jobs = "spec.template.spec.replicatedJobs"
    fields = [cause["field"] for cause in outcome.body["details"]["causes"]]
    assert fields == [
        f"{jobs}[0].replicas",
        f"{jobs}[1].template.spec.template.spec.containers",
        f"{jobs}[2].replicas",
        f"{jobs}[3].template.spec.parallelism",
    ]


async def test_each_error_is_reported_once(user: AdmissionClient, here: str) -> None:
    twice = [{"name": "node"}, {"name": "node"}]
    override = {"targetJobs": twice, "spec": {"containers": [{"name": "typo"}]}}
    outcome = await user.create(job_in(here, podTemplateOverrides=[override]))
    assert outcome.denial == (
        'spec.podTemplateOverrides[0].spec.containers[0].name: Invalid value: "typo": must not '
        "have container that doesn't exist in the runtime job node"
    )


async def test_number_of_reported_errors_is_limited_to_a_hundred(
    user: AdmissionClient, here: str
) -> None:
    overrides = [
        {"targetJobs": [{"name": f"job-{number}"}, {"name": f"other-{number}"}]}
        for number in range(75)
    ]
    outcome = await user.create(job_in(here, podTemplateOverrides=overrides))
    assert len(outcome.body["details"]["causes"]) == 100
    assert outcome.denial.count("must not have targetJob") == 100


async def test_denial_contains_its_warnings(user: AdmissionClient, here: str) -> None:
    trainer = {
        "env": [{"name": "PET_NNODES"}],
        "numProcPerNode": 2,
        "resourcesPerNode": {"limits": {"nvidia.com/gpu": 1}},
    }
    outcome = await user.create(job_in(here, trainer=trainer))
    assert outcome.denial == RESERVED
    assert outcome.warnings == [
        "spec.trainer.numProcPerNode: 2 processes on each node share 1 accelerator: run 1, or "
        "request more in spec.trainer.resourcesPerNode"
    ]


async def test_long_values_are_cut(user: AdmissionClient, here: str) -> None:
    name = f"PET_{'X' * 200}"
    override = {
        "targetJobs": [{"name": "node"}],
        "spec": {"containers": [{"name": "node", "env": [{"name": name, "value": "hunter2"}]}]},
    }
    outcome = await user.create(job_in(here, podTemplateOverrides=[override]))
    assert f'["PET_{"X" * 114}…: must not have envs for the' in outcome.denial
    assert "hunter2" not in outcome.message


async def test_generated_name_is_validated(user: AdmissionClient, here: str) -> None:
    """The API server adds five characters before it calls the webhook."""
    job = job_in(here)
    for prefix, is_accepted in (("x" * 43, True), ("x" * 44, False)):
        job["metadata"] = {"generateName": prefix, "namespace": here}
        outcome = await user.create_nameless(job)
        assert outcome.accepted is is_accepted
    assert outcome.denial.startswith(f'metadata.name: Invalid value: "{"x" * 44}')
    assert "must be no more than 48 characters: each pod of the job node" in outcome.denial


@pytest.mark.parametrize(
    ("spec", "expected_message"),
    [
        ({"trainer": {"numNodes": 0}}, "should be greater than or equal to 1"),
        (
            {"trainer": {"numProcPerNode": "many"}},
            "NumProcPerNode must be equal to auto, cpu, gpu, or int value",
        ),
        ({"managedBy": "me"}, "ManagedBy must be trainer.kubeflow.org/trainjob-controller or"),
        (
            {
                "podTemplateOverrides": [{"targetJobs": [{"name": "node"}]}],
                "podSpecOverrides": [{"targetJobs": [{"name": "node"}]}],
            },
            "podSpecOverrides is the old name of podTemplateOverrides: only one can be set",
        ),
    ],
)
async def test_schema_errors_are_reported_by_the_api_server(
    spec: Object, expected_message: str, user: AdmissionClient, here: str
) -> None:
    outcome = await user.create(job_in(here, **spec))
    assert (outcome.status, outcome.body["reason"], outcome.denial) == (422, "Invalid", "")
    assert expected_message in outcome.message


async def test_a_gang_cannot_wait_for_less_than_no_time(
    user: AdmissionClient, namespace: str
) -> None:
    manifest = torch(job_with(pod={"schedulerName": "gangs"}))
    for seconds, is_accepted in ((0, True), (-1, False)):
        policy = {"coscheduling": {"scheduleTimeoutSeconds": seconds}}
        manifest["spec"]["podGroupPolicy"] = policy
        place = placed(manifest, "TrainingRuntime", "gangs", namespace)
        assert (await user.create(place, dry_run=True)).accepted is is_accepted


def sizes(count: int) -> list[Object]:
    """Overrides with volumes of distinct sizes, no list of which is too long."""
    return [
        {
            "targetJobs": [{"name": "node"}],
            "spec": {
                "volumes": [
                    {"name": f"v{n}-{'x' * 20}", "emptyDir": {"sizeLimit": f"{n + 1}e991"}}
                    for n in range(start, start + 125)
                ]
            },
        }
        for start in range(0, count, 125)
    ]


async def test_trainjob_beyond_the_limits_is_denied(user: AdmissionClient, here: str) -> None:
    """The API server's own limits do not see it: all its lists are short."""
    large = job_in(here, podTemplateOverrides=sizes(12_000))
    assert len(orjson.dumps(large)) > 800_000
    outcome = await user.create(large, dry_run=True)
    assert outcome.denial == "<root>: Too long: may not have more than 3000 fields and items"


async def test_too_long_list_is_rejected_by_the_schema(user: AdmissionClient, here: str) -> None:
    long = job_in(here, trainer={"env": [{"name": f"A{n}"} for n in range(513)]})
    outcome = await user.create(long)
    assert outcome.denial == ""
    assert "spec.trainer.env: Too many: 513: must have at most 512 items" in outcome.message


async def test_too_long_text_is_rejected_by_the_schema(user: AdmissionClient, here: str) -> None:
    """The schema counts characters, the webhook bytes of the whole TrainJob."""
    outcome = await user.create(job_in(here, trainer={"args": ["x" * 131_073]}))
    assert (outcome.status, outcome.denial) == (422, "")
    assert "spec.trainer.args[0]: Too long" in outcome.message
    outcome = await user.create(job_in(here, trainer={"args": ["é" * 131_072]}))
    assert outcome.denial.startswith("<root>: Too long: may not be more than 262144 bytes as JSON")
    outcome = await user.create(job_in(here, trainer={"args": ["x" * 131_072]}), dry_run=True)
    assert outcome.accepted


def in_zones(count: int) -> Object:
    """An override with a long list of a type of Kubernetes."""
    zones = {"key": "zone", "operator": "In", "values": [f"z{n}" for n in range(count)]}
    terms = {"nodeSelectorTerms": [{"matchExpressions": [zones]}]}
    node = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}
    return {"targetJobs": [{"name": "node"}], "spec": {"affinity": node}}


async def test_too_long_list_of_kubernetes_is_rejected_by_the_schema(
    user: AdmissionClient, here: str
) -> None:
    most = job_in(here, podTemplateOverrides=[in_zones(1_024)])
    assert (await user.create(most, dry_run=True)).accepted
    outcome = await user.create(job_in(here, podTemplateOverrides=[in_zones(1_025)]))
    assert (outcome.status, outcome.denial) == (422, "")
    assert "matchExpressions[0].values: Too many: 1025: must have at most 1024" in outcome.message


async def test_quantity_beyond_the_range_of_the_api_is_denied(
    user: AdmissionClient, here: str
) -> None:
    limits = {"cpu": "1e991", "memory": "10e18"}
    outcome = await user.create(
        job_in(here, trainer={"resourcesPerNode": {"limits": limits}}), dry_run=True
    )
    assert 'limits[memory]: Invalid value: "10e18": must be at most 9223372036854775807' in (
        outcome.denial
    )
    assert "'1e991' has more than 256 digits or decimal places" in outcome.denial
