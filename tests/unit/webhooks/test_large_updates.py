"""Updates of TrainJobs and runtimes that exceed a limit: what may change, and what may not."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from kftrainer.api import limits
from kftrainer.api.limits import exceeded
from kftrainer.api.resources import JOB_SETS, TRAINING_RUNTIMES
from kftrainer.kube.client.errors import KubeError, NotFoundError, TransportError
from kftrainer.kube.objects.resource import Manifest, ObjectKey, Resource
from kftrainer.machinery.webhook.admission import ALLOWED, AdmissionRequest, AdmissionResponse
from kftrainer.runtime.cluster_reader import GivenObjects
from kftrainer.webhooks.training_runtime import RuntimeAdmission
from kftrainer.webhooks.trainjob import TrainJobAdmission
from tests.support.objects import Object, replicated_job, runtime
from tests.support.plans import NAMESPACE, RUNTIMES, UID, in_namespace, job_on

PLAIN = in_namespace(runtime(mlPolicy={}))
JOB = job_on(PLAIN)
ONLY = "it exceeded a limit before: only spec.suspend, labels and annotations can be changed"
NODE = [{"name": "node"}]
PLACED: Object = {"targetJobs": NODE, "spec": {"nodeSelector": {"zone": "a"}}}
LASTING: Object = {"targetJobs": NODE, "spec": {"serviceAccountName": "a"}}


def changed(job: Object, **spec: Any) -> Object:
    return {**job, "spec": {**job["spec"], **spec}}


def with_metadata(job: Object, **metadata: Any) -> Object:
    return {**job, "metadata": {**job["metadata"], **metadata}}


def env(count: int) -> Object:
    return {"env": [{"name": f"A{n}"} for n in range(count)]}


def annotations(count: int, length: int = 1) -> Object:
    return {f"a{n}": "x" * length for n in range(count)}


def nested(depth: int) -> Any:
    value: Any = "x"
    for _ in range(depth):
        value = [value]
    return value


BYTES = changed(JOB, trainer={"args": ["x" * 300_000]})
VALUES = changed(JOB, anything=[[0] * 100] * 40)
DEEP = changed(JOB, anything=nested(70))
QUANTITIES = changed(JOB, anything=[{"emptyDir": {"sizeLimit": "1"}}] * 501)
ITEMS = changed(JOB, trainer=env(513))
LARGE = {"bytes": BYTES, "values": VALUES, "depth": DEEP, "quantities": QUANTITIES, "items": ITEMS}


@pytest.fixture(params=LARGE.values(), ids=[*LARGE])
def large(request: pytest.FixtureRequest) -> Object:
    """A TrainJob that exceeds one limit."""
    job: Object = request.param
    assert exceeded(job) is not None
    return job


class Server:
    """An API server with one JobSet, or none; or one that fails."""

    def __init__(self, job_set: Object | None = None, error: KubeError | None = None) -> None:
        self._job_set = job_set
        self._error = error

    async def get(self, resource: Resource[Any], _key: ObjectKey) -> Manifest:
        if self._error is not None:
            raise self._error
        found = self._job_set if resource is JOB_SETS else PLAIN
        if found is None:
            raise NotFoundError(404, "NotFound", "not found")
        return found


def update(
    new: Object, old: Object, *cached: Object, server: Server | None = None
) -> AdmissionResponse:
    admission_request = AdmissionRequest(
        uid="1",
        operation="UPDATE",
        group="trainer.kubeflow.org",
        version="v1alpha1",
        kind="TrainJob",
        namespace=NAMESPACE,
        name=JOB["metadata"]["name"],
        object=new,
        old_object=old,
        dry_run=False,
    )
    admission = TrainJobAdmission(RUNTIMES, GivenObjects([PLAIN, *cached]), server)  # type: ignore[arg-type]
    response = asyncio.run(admission(admission_request))
    return replace(response, warnings=tuple(response.warnings))


def is_kept(response: AdmissionResponse) -> bool:
    [warning] = response.warnings or [""]
    return response.allowed and warning.startswith("the stored object already has this error: ")


def job_set(**status: Any) -> Object:
    owner = {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainJob",
        "name": JOB["metadata"]["name"],
        "uid": UID,
        "controller": True,
    }
    return {
        "apiVersion": JOB_SETS.api_version,
        "kind": JOB_SETS.kind,
        "metadata": {
            "name": JOB["metadata"]["name"],
            "namespace": NAMESPACE,
            "ownerReferences": [owner],
        },
        "spec": {"suspend": True, "replicatedJobs": []},
        "status": status,
    }


def test_large_trainjob_can_be_suspended_and_labelled(large: Object) -> None:
    assert is_kept(update(changed(large, suspend=True), large))
    assert is_kept(update(with_metadata(large, labels={"a": "b"}), large))
    assert is_kept(update(with_metadata(large, annotations=annotations(256)), large))


def test_large_trainjob_cannot_exceed_another_limit(large: Object) -> None:
    for other in LARGE.values():
        if other is not large:
            response = update(changed(large, **other["spec"]), large)
            assert (response.allowed, response.rules) == (False, ("too-large",))
            assert response.message.endswith(ONLY)


@pytest.mark.parametrize(
    ("old", "spec"),
    [
        (BYTES, {"trainer": {"args": ["x" * 300_001]}}),
        (VALUES, {"anything": [[0] * 101] * 40}),
        (DEEP, {"anything": nested(71)}),
        (QUANTITIES, {"anything": [{"emptyDir": {"sizeLimit": "1"}}] * 502}),
        (ITEMS, {"trainer": env(514)}),
    ],
    ids=LARGE,
)
def test_large_trainjob_cannot_grow_in_the_same_limit(old: Object, spec: Object) -> None:
    assert update(changed(old, **spec), old).rules == ("too-large",)


@pytest.mark.parametrize("field", ["labels", "annotations"])
def test_large_trainjob_cannot_have_too_many_labels(field: str, large: Object) -> None:
    assert not update(with_metadata(large, **{field: annotations(257)}), large).allowed
    many = with_metadata(large, **{field: annotations(300)})
    assert is_kept(update(with_metadata(large, **{field: annotations(299)}), many))


@pytest.mark.parametrize(
    "spec",
    [
        {"trainer": {"image": "other"}},
        {"initializer": {"model": {"storageUri": "hf://other/other"}}},
        {"runtimeRef": {"name": "other"}},
        {"managedBy": "kueue.x-k8s.io/multikueue"},
        {"labels": {"a": "b"}},
    ],
)
def test_content_of_a_large_trainjob_cannot_change_while_it_is_large(spec: Object) -> None:
    old = changed(VALUES, trainer={"image": "a"})
    assert update(changed(old, **spec), old).rules == ("too-large",)
    without_it = {key: each for key, each in old["spec"].items() if key != "trainer"}
    assert not update({**old, "spec": without_it}, old).allowed


def test_queue_can_remove_its_overrides_and_suspend_a_large_trainjob() -> None:
    old = changed(VALUES, podTemplateOverrides=[LASTING, PLACED])
    assert is_kept(update(changed(old, podTemplateOverrides=[LASTING], suspend=True), old))
    for overrides in ([PLACED], [], [LASTING, PLACED, PLACED], [PLACED, LASTING]):
        assert not update(changed(old, podTemplateOverrides=overrides, suspend=True), old).allowed
    placed = changed(VALUES, podTemplateOverrides=[PLACED])
    assert is_kept(update(changed(VALUES, suspend=True), placed))


def patch(metadata: Object | None = None, *, manager: str = "a.io/b", **spec: Any) -> Object:
    """A runtime patch of the job node; without content if there is no spec."""
    job = {"name": "node", "template": {"spec": {"template": {"spec": spec}}}}
    template: Object = {"spec": {"replicatedJobs": [job]} if spec else {}}
    if metadata is not None:
        template["metadata"] = metadata
    return {"manager": manager, "trainingRuntimeSpec": {"template": template}}


def test_queue_can_empty_its_patch_and_suspend_a_large_trainjob() -> None:
    lasting = patch(serviceAccountName="a")
    queue = patch({"labels": {"a": "b"}}, manager="queue.io/q", nodeSelector={"zone": "a"})
    old = changed(VALUES, runtimePatches=[lasting, queue])
    emptied = {**patch(manager="queue.io/q"), "time": "2026-01-01T00:00:00Z"}
    for patches in ([lasting, emptied], [lasting]):
        assert is_kept(update(changed(old, runtimePatches=patches, suspend=True), old))
    moved = patch(manager="queue.io/q", nodeSelector={"zone": "b"})
    renamed = patch(manager="queue.io/r")
    relabelled = patch({"labels": {"a": "c"}}, manager="queue.io/q")
    for changes in (
        [queue],
        [lasting, moved],
        [queue, lasting],
        [lasting, renamed],
        [lasting, relabelled],
    ):
        assert not update(changed(old, runtimePatches=changes, suspend=True), old).allowed


def test_patches_of_a_large_trainjob_follow_the_rules_when_it_is_reduced() -> None:
    def denial(old: Object, new: Object, *existing: Manifest) -> str:
        return update(changed(JOB, **new), changed(BYTES, **old), *existing).message

    gated, lasting = patch(schedulingGates=[{"name": "a"}]), patch(serviceAccountName="a")
    suspended: Object = {"suspend": True}
    while_running = "suspended before or after the update"
    assert while_running in denial({}, {"runtimePatches": [gated]})
    assert while_running in denial({"runtimePatches": [gated]}, {})
    timed = {**gated, "time": "2026-01-01T00:00:00Z"}
    assert while_running not in denial({"runtimePatches": [gated]}, {"runtimePatches": [timed]})
    assert denial(suspended, {"runtimePatches": [lasting], **suspended}) == ""
    after = denial(suspended, {"runtimePatches": [lasting], **suspended}, job_set())
    assert "spec.runtimePatches: Forbidden: cannot be changed after the JobSet was created" in after


def test_overrides_beyond_the_compared_number_cannot_change() -> None:
    old = changed(JOB, podTemplateOverrides=[PLACED] * 1_000)
    assert is_kept(update(changed(old, suspend=True), old))
    fewer = changed(old, podTemplateOverrides=[PLACED] * 999, suspend=True)
    assert not update(fewer, old).allowed


FINISHED = {
    "conditions": [
        {
            "type": "Complete",
            "status": "True",
            "reason": "AllJobsCompleted",
            "message": "",
            "lastTransitionTime": "2026-01-31T12:00:00Z",
        }
    ]
}


def test_large_trainjob_without_a_jobset_can_be_reduced() -> None:
    assert update(changed(JOB, trainer=env(3)), ITEMS) == ALLOWED
    assert update(changed(JOB, trainer=env(3)), ITEMS, server=Server()) == ALLOWED


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        ({"trainer": env(3)}, "spec.trainer.env"),
        ({"trainer": {**env(512), "image": "other"}}, "spec.trainer.image"),
        ({}, "spec.trainer.env"),
    ],
)
def test_content_of_a_large_trainjob_with_a_jobset_cannot_change(spec: Object, field: str) -> None:
    response = update(changed(JOB, **spec), ITEMS, job_set())
    assert f"{field}: Forbidden: cannot be changed after the JobSet was created" in response.message
    done = {**changed(JOB, **spec), "status": FINISHED}
    response = update(done, {**ITEMS, "status": FINISHED})
    assert f"{field}: Forbidden: cannot be changed after the TrainJob has fini" in response.message


def test_jobset_of_a_large_trainjob_is_read_from_the_server() -> None:
    """The cache may not have it yet."""
    new = changed(JOB, trainer=env(3))
    assert update(new, ITEMS, server=Server(job_set())).rules == ("change-after-jobset",)
    lost = Server(error=TransportError("lost"))
    assert update(new, ITEMS, server=lost).rules == ("jobset-unreadable",)


def test_large_trainjob_with_a_jobset_can_lose_its_annotations() -> None:
    old = with_metadata(JOB, annotations=annotations(300))
    assert update(JOB, old, job_set()) == ALLOWED


def test_overrides_of_a_suspended_large_trainjob_can_be_reduced() -> None:
    many = changed(JOB, podTemplateOverrides=[LASTING, *[PLACED] * 100])
    few = changed(JOB, podTemplateOverrides=[LASTING, PLACED])
    assert update(few, many).rules == ("override-while-running",)
    assert update(changed(few, suspend=True), many).allowed
    assert update(changed(few, suspend=True), many, job_set()).allowed
    rows = [{"name": "node", "active": 1}]
    running = update(changed(few, suspend=True), many, job_set(replicatedJobsStatus=rows))
    assert running.rules == ("override-while-active",)
    none = changed(JOB, podTemplateOverrides=[PLACED], suspend=True)
    assert update(none, many, job_set()).rules == ("override-after-jobset",)


async def test_large_runtime_can_only_be_reduced() -> None:
    def jobs(count: int, **spec: Any) -> Object:
        template_jobs = [replicated_job(f"job-{n}", None) for n in range(count)]
        return in_namespace(runtime(jobs=template_jobs, **spec))

    async def reviewed(new: Object, old: Object) -> AdmissionResponse:
        request = AdmissionRequest(
            uid="1",
            operation="UPDATE",
            group="trainer.kubeflow.org",
            version="v1alpha1",
            kind="TrainingRuntime",
            namespace=NAMESPACE,
            name="runtime",
            object=new,
            old_object=old,
            dry_run=False,
        )
        return await RuntimeAdmission(TRAINING_RUNTIMES, RUNTIMES.framework)(request)

    old = jobs(limits.REPLICATED_JOBS + 2)
    assert (await reviewed(jobs(limits.REPLICATED_JOBS + 1), old)).rules == ("too-large",)
    assert (await reviewed(jobs(limits.REPLICATED_JOBS + 3), old)).rules == ("too-large",)
    more: Object = {"podGroupPolicy": {"volcano": {}}}
    assert (await reviewed(changed(old, **more), old)).rules == ("too-large",)
    assert (await reviewed(jobs(1), old)).rules != ("too-large",)
    assert (await reviewed(with_metadata(old, labels={"a": "b"}), old)).allowed
