"""Admission of TrainJobs, and the uncached read before a denial."""

import asyncio
from dataclasses import replace
from typing import Any, ClassVar

import pytest
import structlog

from kftrainer.api.resources import JOB_SETS, TRAINING_RUNTIMES
from kftrainer.api.trainjob import TrainJob
from kftrainer.kube.client.errors import ForbiddenError, KubeError, TransportError
from kftrainer.kube.objects.field_errors import ValidationResult, forbidden
from kftrainer.kube.objects.resource import Manifest, ObjectKey, Resource, key_of
from kftrainer.machinery.webhook.admission import ALLOWED, AdmissionRequest, AdmissionResponse
from kftrainer.runtime.cluster_reader import ClusterReader, GivenObjects
from kftrainer.runtime.framework.extension_points import CustomValidation
from kftrainer.runtime.framework.framework import Framework
from kftrainer.runtime.framework.plugin_loader import load_framework
from kftrainer.runtime.info import Info
from kftrainer.runtime.runtimes import RuntimeKey, Runtimes
from kftrainer.webhooks import trainjob
from kftrainer.webhooks.live_reads import LiveReader
from kftrainer.webhooks.trainjob import TrainJobAdmission
from tests.support.live_objects import LiveObjects
from tests.support.objects import Object, runtime
from tests.support.plans import NAMESPACE, RUNTIMES, UID, in_namespace, job_on

PLAIN = in_namespace(runtime(mlPolicy={}))
BROKEN = in_namespace(runtime(mlPolicy={}, template={"spec": {}}))
JOB = job_on(PLAIN)
CLASSES = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "a"}}


def request(new: Object | None, old: Object | None = None, **more: Any) -> AdmissionRequest:
    fields: dict[str, Any] = {
        "uid": "1",
        "operation": "CREATE" if old is None else "UPDATE",
        "group": "trainer.kubeflow.org",
        "version": "v1alpha1",
        "kind": "TrainJob",
        "namespace": NAMESPACE,
        "name": "demo",
        "object": new,
        "old_object": old,
        "dry_run": False,
    }
    return AdmissionRequest(**{**fields, **more})


def answer(
    http_request: AdmissionRequest,
    *cached: Object,
    server: LiveObjects | None = None,
    runtimes: Runtimes = RUNTIMES,
    namespaces: tuple[str, ...] = (),
    existing: ClusterReader | None = None,
) -> AdmissionResponse:
    admission = TrainJobAdmission(
        runtimes,
        existing or GivenObjects(cached),
        server,  # type: ignore[arg-type]
        namespaces=namespaces,
    )
    response = asyncio.run(admission(http_request))
    return replace(response, warnings=tuple(response.warnings))


def changed(job: Object, **spec: Any) -> Object:
    return {**job, "spec": {**job["spec"], **spec}}


def with_metadata(job: Object, **metadata: Any) -> Object:
    return {**job, "metadata": {**job["metadata"], **metadata}}


def test_valid_trainjob_is_admitted() -> None:
    assert answer(request(JOB), PLAIN) == ALLOWED


def test_trainjob_without_its_runtime_is_denied() -> None:
    response = answer(request(JOB))
    assert (response.allowed, response.code, response.reason) == (False, 403, "Forbidden")
    assert response.message.startswith("spec.runtimeRef: Invalid value: ")
    assert response.message.endswith(
        'TrainingRuntime.trainer.kubeflow.org "runtime" not found: '
        "specified trainingRuntime must be created before the TrainJob is created"
    )
    assert response.details is not None
    assert response.details["causes"][0]["field"] == "spec.runtimeRef"


def test_warnings_are_returned_with_and_without_a_denial() -> None:
    labels = {"trainer.kubeflow.org/support": "deprecated"}
    old = with_metadata(PLAIN, labels=labels)
    bad = changed(JOB, podTemplateOverrides=[{"targetJobs": [{"name": "nod"}]}])
    for job, allowed in ((JOB, True), (bad, False)):
        response = answer(request(job), old)
        assert response.allowed == allowed
        assert ["is deprecated" in each for each in response.warnings] == [True]


def test_trainjob_in_an_unwatched_namespace_is_admitted() -> None:
    assert answer(request(JOB), namespaces=("other",)) == ALLOWED
    assert not answer(request(JOB), namespaces=("other", NAMESPACE)).allowed


def test_missing_metadata_is_copied_from_the_request() -> None:
    bare = {"metadata": {}, "spec": JOB["spec"]}
    assert answer(request(bare), PLAIN) == ALLOWED
    nameless = {"metadata": {"generateName": "demo-", "name": "", "namespace": ""}}
    assert answer(request({**bare, **nameless}, name=""), PLAIN) == ALLOWED


def test_request_without_an_object_is_admitted() -> None:
    assert answer(request(None)) == ALLOWED


# Updates that must always be accepted.


def test_update_of_a_trainjob_being_deleted_is_admitted() -> None:
    """G7."""
    is_deleted = with_metadata(changed(JOB, podTemplateOverrides=3), deletionTimestamp="2026-01-01")
    assert answer(request(is_deleted, JOB)) == ALLOWED
    assert not answer(request(is_deleted)).allowed


def test_change_of_bookkeeping_fields_is_not_validated() -> None:
    """G7."""
    malformed = changed(JOB, trainer={"numNodes": "three"})
    kept = with_metadata(malformed, finalizers=["a"], managedFields=[{}], resourceVersion="7")
    assert answer(request(kept, malformed)) == ALLOWED


def test_labels_can_change_when_the_runtime_is_invalid() -> None:
    """G7."""
    assert answer(request(with_metadata(JOB, labels={"a": "b"}), JOB)) == ALLOWED
    assert answer(request(with_metadata(JOB, annotations={"a": "b"}), JOB), BROKEN) == ALLOWED


def test_trainjob_can_be_suspended_when_the_runtime_is_invalid() -> None:
    for existing in ((), (BROKEN,)):
        response = answer(request(changed(JOB, suspend=True), JOB), *existing)
        assert response.allowed
        assert response.warnings[0].startswith("the stored object already has this error: ")


class Rooted(CustomValidation):
    name: ClassVar[str] = "rooted"

    def validate_train_job(
        self, info: Info, old: TrainJob | None, new: TrainJob
    ) -> ValidationResult:
        moved = old is not None and old.metadata.labels != new.metadata.labels
        return ValidationResult([forbidden("metadata.labels", "stay")] if moved else [])


def test_plugin_rule_about_labels_is_checked_on_label_changes() -> None:
    runtimes = Runtimes(Framework([*load_framework().plugins, Rooted()]))
    moved = with_metadata(JOB, labels={"a": "b"})
    assert answer(request(moved, JOB), PLAIN, runtimes=runtimes).message == (
        "metadata.labels: Forbidden: stay"
    )


def test_undecodable_stored_trainjob_can_be_fixed() -> None:
    malformed = changed(JOB, trainer={"numNodes": "three"})
    assert answer(request(JOB, malformed), PLAIN).allowed
    assert not answer(request(changed(JOB, suspend=True), malformed)).allowed


OWNER = {"kind": "TrainJob", "name": "demo", "uid": UID, "controller": True}
JOB_SET = {
    "apiVersion": JOB_SETS.api_version,
    "kind": "JobSet",
    "metadata": {"name": "demo", "namespace": NAMESPACE, "ownerReferences": [OWNER]},
    "spec": {},
}
EDITED = changed(JOB, trainer={"image": "new"})


def test_change_of_a_field_that_is_fixed_by_the_jobset_is_denied() -> None:
    """G20."""
    response = answer(request(EDITED, JOB), PLAIN, JOB_SET)
    assert response.message.startswith("spec.trainer.image: Forbidden: cannot be changed after")


def test_edit_is_denied_if_only_the_api_server_has_the_jobset() -> None:
    server = LiveObjects(PLAIN, JOB_SET)
    response = answer(request(EDITED, JOB), PLAIN, server=server)
    assert response.message.startswith("spec.trainer.image: Forbidden: cannot be changed after")
    assert server.requests[0] == f"JobSet {NAMESPACE}/demo"


def test_edit_is_accepted_if_the_server_has_no_jobset() -> None:
    server = LiveObjects(PLAIN)
    assert answer(request(EDITED, JOB), PLAIN, server=server) == ALLOWED
    assert server.requests == [f"JobSet {NAMESPACE}/demo"]


def test_edit_is_accepted_if_the_jobset_belongs_to_another_trainjob() -> None:
    other_owner = {**OWNER, "uid": "other"}
    metadata = {**JOB_SET["metadata"], "ownerReferences": [other_owner]}
    server = LiveObjects(PLAIN, {**JOB_SET, "metadata": metadata})
    assert answer(request(EDITED, JOB), PLAIN, server=server) == ALLOWED


@pytest.mark.parametrize(
    "error", [ForbiddenError(403, "Forbidden", "no"), TransportError("reset")], ids=["403", "reset"]
)
def test_edit_is_denied_while_the_jobset_cannot_be_read(error: KubeError) -> None:
    server = LiveObjects(PLAIN, failing=lambda _: error)
    response = answer(request(EDITED, JOB), PLAIN, server=server)
    assert (response.allowed, response.code, response.reason, response.rules) == (
        False,
        503,
        "ServiceUnavailable",
        ("jobset-unreadable",),
    )


def test_edit_is_denied_for_its_own_errors_while_the_jobset_cannot_be_read() -> None:
    server = LiveObjects(PLAIN, failing=lambda _: TransportError("reset"))
    bad = changed(JOB, suspend=True, podTemplateOverrides=[{"targetJobs": [{"name": "nod"}]}])
    assert "override-unknown-job" in answer(request(bad, JOB), PLAIN, server=server).rules


@pytest.mark.parametrize(
    "change", [{"suspend": True}, {"labels": {"a": "b"}}, {"annotations": {"a": "b"}}], ids=str
)
def test_change_of_mutable_fields_needs_no_live_read(change: Object) -> None:
    server = LiveObjects(PLAIN)
    assert answer(request(changed(JOB, **change), JOB), PLAIN, server=server) == ALLOWED
    assert server.requests == []


# Objects that are none.


@pytest.mark.parametrize(
    ("malformed", "message"),
    [
        ({"spec": {}}, "spec.runtimeRef: is required"),
        ({"spec": "hunter2"}, "spec: must be an object"),
        ({**JOB, "metadata": ["hunter2"]}, "metadata: must be an object"),
        (changed(JOB, trainer={"numNodes": "hunter2"}), "spec.trainer.numNodes: must be an integ"),
        (
            changed(JOB, trainer={"env": [7, "hunter2"]}),
            "spec.trainer.env[0]: must be an object; spec.trainer.env[1]: must be an object",
        ),
        (
            changed(
                JOB,
                podTemplateOverrides=[{"targetJobs": [{"name": "node"}], "spec": {"volumes": 3}}],
            ),
            "spec.podTemplateOverrides[0].spec.volumes: must be a list",
        ),
    ],
)
def test_undecodable_trainjob_is_a_bad_request(malformed: Object, message: str) -> None:
    response = answer(request(malformed), PLAIN)
    assert (response.allowed, response.code, response.reason) == (False, 400, "BadRequest")
    assert response.rules == ("schema",)
    assert message in response.message
    assert "hunter2" not in response.message


def test_number_of_reported_problems_is_limited() -> None:
    response = answer(request(changed(JOB, podTemplateOverrides=[{}] * 100)), PLAIN)
    assert response.message.endswith("; and 90 more")
    assert len(response.message) < 1000


class Crashing(CustomValidation):
    name: ClassVar[str] = "crashing"

    def validate_train_job(
        self, info: Info, old: TrainJob | None, new: TrainJob
    ) -> ValidationResult:
        raise KeyError("oops")


def test_denial_names_a_plugin_that_fails() -> None:
    runtimes = Runtimes(Framework([*load_framework().plugins, Crashing()]))
    with structlog.testing.capture_logs() as logs:
        response = answer(request(JOB), PLAIN, runtimes=runtimes)
    assert (response.allowed, response.code, response.reason) == (False, 500, "InternalError")
    assert response.rules == ("plugin-failed",)
    assert response.message == "plugin crashing failed: KeyError: 'oops'"
    assert [each["event"] for each in logs] == ["admission_plugin_failed"]


class Malformed(GivenObjects):
    def get(self, resource: Resource[Any], key: ObjectKey) -> Any:
        raise RuntimeError("a bug of ours")


def test_internal_error_is_raised() -> None:
    with pytest.raises(RuntimeError, match="a bug of ours"):
        answer(request(JOB), existing=Malformed())


# The second look.


def test_runtime_missing_in_the_cache_is_read_live() -> None:
    server = LiveObjects(PLAIN)
    assert answer(request(JOB), server=server) == ALLOWED
    assert server.requests == [f"TrainingRuntime {NAMESPACE}/runtime"]


def test_stale_runtime_is_read_live() -> None:
    assert answer(request(JOB), BROKEN, server=LiveObjects(PLAIN)) == ALLOWED
    assert not answer(request(JOB), BROKEN, server=LiveObjects(BROKEN)).allowed


def test_priority_class_missing_in_the_cache_is_read_live() -> None:
    gang = in_namespace(runtime(mlPolicy={}, podGroupPolicy={"volcano": {}}))
    (job,) = gang["spec"]["template"]["spec"]["replicatedJobs"]
    job["template"]["spec"]["template"]["spec"]["priorityClassName"] = "new"
    made = {**CLASSES, "metadata": {"name": "new"}}
    assert not answer(request(JOB), gang, CLASSES).allowed
    assert not answer(request(JOB), gang, CLASSES, server=LiveObjects(gang)).allowed
    assert answer(request(JOB), gang, CLASSES, server=LiveObjects(gang, made)).allowed


def test_admitted_trainjob_causes_no_live_reads() -> None:
    server = LiveObjects(PLAIN)
    assert answer(request(JOB), PLAIN, server=server).allowed
    assert server.requests == []


def test_runtime_missing_on_the_api_server_is_reported() -> None:
    response = answer(request(JOB), server=LiveObjects())
    assert "must be created before the TrainJob is created" in response.message


@pytest.mark.parametrize(
    "error", [ForbiddenError(403, "Forbidden", "no"), TransportError("gone"), None]
)
def test_failed_live_read_keeps_the_first_result(
    error: KubeError | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trainjob, "READ_TIMEOUT", 0.01 if error is None else 60.0)

    class Failing(LiveObjects):
        async def get(self, resource: Resource[Any], key: ObjectKey) -> Manifest:
            if error is None:
                await asyncio.Event().wait()  # for ever
            raise error or AssertionError

    with structlog.testing.capture_logs() as logs:
        response = answer(request(JOB), server=Failing())
    assert "must be created before the TrainJob is created" in response.message
    event = "admission_read_timeout" if error is None else "admission_read_failed"
    assert [(each["log_level"], each["event"]) for each in logs] == [("warning", event)]


def test_failed_live_read_does_not_affect_other_reads() -> None:
    gang = in_namespace(runtime(mlPolicy={}, podGroupPolicy={"volcano": {}}))
    (job,) = gang["spec"]["template"]["spec"]["replicatedJobs"]
    job["template"]["spec"]["template"]["spec"]["priorityClassName"] = "new"

    def failing(resource: Resource[Any]) -> KubeError | None:
        return ForbiddenError(403, "", "no") if resource.kind == "PriorityClass" else None

    server = LiveObjects(PLAIN, failing=failing)
    assert answer(request(JOB), gang, CLASSES, server=server).allowed
    kinds = sorted(each.split()[0] for each in server.requests)
    assert kinds == ["PriorityClass", "TrainingRuntime"]


class Counted(Runtimes):
    """Counts validations."""

    def __init__(self) -> None:
        super().__init__(load_framework())
        self.validations = 0

    def validate(
        self, old: TrainJob | None, new: TrainJob, existing: ClusterReader
    ) -> ValidationResult:
        self.validations += 1
        return super().validate(old, new, existing)


def versioned(obj: Object, version: int, generation: int = 1, **metadata: Any) -> Object:
    numbers = {"uid": "u", "resourceVersion": str(version), "generation": generation}
    return with_metadata(obj, **numbers, **metadata)


def validations(
    http_request: AdmissionRequest, cached: list[Object], server: list[Object]
) -> tuple[bool, int]:
    """Whether it is allowed, and after how many validations."""
    runtimes = Counted()
    response = answer(http_request, *cached, server=LiveObjects(*server), runtimes=runtimes)
    return response.allowed, runtimes.validations


UNKNOWN_JOB = changed(JOB, podTemplateOverrides=[{"targetJobs": [{"name": "nod"}]}])
AS_CACHED = versioned(PLAIN, 1)


@pytest.mark.parametrize(
    ("cached", "live", "expected"),
    [
        (AS_CACHED, AS_CACHED, 1),
        (AS_CACHED, versioned(PLAIN, 2, finalizers=["a"]), 1),
        (AS_CACHED, versioned(PLAIN, 2, labels={"a": "b"}), 2),
        (AS_CACHED, versioned(PLAIN, 2, annotations={"a": "b"}), 2),
        (AS_CACHED, versioned(PLAIN, 2, generation=2), 2),
        (AS_CACHED, with_metadata(AS_CACHED, uid="other"), 2),
        (PLAIN, PLAIN, 2),  # of unknown versions
    ],
    ids=["same", "finalizer", "label", "annotation", "spec", "recreated", "unknown"],
)
def test_rejected_trainjob_is_validated_again_only_if_its_runtime_differs(
    cached: Object, live: Object, expected: int
) -> None:
    assert validations(request(UNKNOWN_JOB), [cached], [live]) == (False, expected)


def test_trainjob_of_a_missing_runtime_is_validated_once() -> None:
    assert validations(request(JOB), [], []) == (False, 1)


def test_edit_of_a_fixed_field_is_validated_once() -> None:
    live = versioned(JOB_SET, 1)
    assert validations(request(EDITED, JOB), [AS_CACHED], [AS_CACHED]) == (True, 1)
    assert validations(request(EDITED, JOB), [AS_CACHED], [AS_CACHED, live]) == (False, 1)
    assert validations(request(EDITED, JOB), [AS_CACHED, live], [AS_CACHED, live]) == (False, 1)
    assert validations(request(EDITED, JOB), [AS_CACHED, live], [AS_CACHED]) == (True, 1)


def test_runtime_that_was_read_again_is_decoded_once() -> None:
    decoded, decode = [], TRAINING_RUNTIMES.decode

    def counting(manifest: Manifest) -> Any:
        decoded.append(manifest["metadata"]["resourceVersion"])
        return decode(manifest)

    counted = replace(TRAINING_RUNTIMES, decode=counting)
    read = LiveReader(GivenObjects(), {(counted, key_of(PLAIN)): versioned(PLAIN, 2)})
    first, again = (read.get(counted, key_of(PLAIN)) for _ in range(2))
    assert first is again
    assert decoded == ["2"]


def test_each_validation_after_a_read_waits_for_a_turn() -> None:
    turns: list[None] = []

    async def turn() -> None:
        turns.append(None)

    admission_request = request(UNKNOWN_JOB, turn=turn)
    newer = versioned(PLAIN, 2, generation=2)
    assert validations(admission_request, [AS_CACHED], [newer]) == (False, 2)
    assert len(turns) == 1


def test_secrets_are_never_read() -> None:
    mpi = in_namespace(runtime(mlPolicy={"mpi": {"runLauncherAsNode": True}}))
    env = [{"name": "OMPI_MCA_plm_rsh_args"}]
    server = LiveObjects(mpi)
    old = changed(JOB, trainer={"numNodes": 1})
    assert not answer(request(changed(JOB, trainer={"env": env}), old), mpi, server=server).allowed
    assert {each.split()[0] for each in server.requests} == {"TrainingRuntime", "JobSet"}


def test_trainjob_of_an_older_schema_can_be_suspended() -> None:
    """As with `numNodes: 0`, which Kubeflow Trainer stored."""
    old = changed(JOB, trainer={"numNodes": 0})
    response = answer(request(changed(old, suspend=True), old), PLAIN)
    assert response.allowed
    assert "spec.trainer.numNodes" in response.warnings[0]
    worse = changed(JOB, trainer={"numNodes": 0, "numProcPerNode": 0})
    assert answer(request(worse, old), PLAIN).code == 400


def test_large_runtime_is_read_live_before_validation() -> None:
    server = LiveObjects(PLAIN)
    kind, key = TRAINING_RUNTIMES, key_of(PLAIN)

    def reduced(
        job: ObjectKey, runtime: RuntimeKey | None, revision: ObjectKey | None
    ) -> list[RuntimeKey]:
        return [(kind, key)] if runtime == (kind, key) else []

    class Partial(GivenObjects):
        """A cache that must not be read for objects of which it holds only a part."""

        def get(self, resource: Resource[Any], key: ObjectKey) -> Any:
            assert resource is not TRAINING_RUNTIMES
            return super().get(resource, key)

    for admission_request, allowed in (
        (server, True),
        (LiveObjects(failing=lambda _: TransportError("lost")), False),
    ):
        admission = TrainJobAdmission(RUNTIMES, Partial(), admission_request, reduced=reduced)  # type: ignore[arg-type]
        response = asyncio.run(admission(request(JOB)))
        assert response.allowed is allowed, response
    assert response.code == 503, "it exists, so that it is not reported as missing"
    assert server.requests == [f"TrainingRuntime {key}"]


LARGE = changed(JOB, trainer={"env": [{"name": f"A{n}"} for n in range(513)]})
TOO_MANY = "spec.trainer.env: Too many: 513: must have at most 512 items"


class Unread(GivenObjects):
    """Fails if anything is read from it."""

    def get(self, resource: Resource[Any], key: ObjectKey) -> Any:
        raise AssertionError


def test_trainjob_beyond_a_limit_is_rejected_before_anything_is_read() -> None:
    response = answer(request(LARGE), existing=Unread())
    assert (response.code, response.message, response.rules) == (403, TOO_MANY, ("too-large",))
    assert response.details is not None
    assert response.details["causes"] == [
        {"reason": "FieldValueTooMany", "message": TOO_MANY, "field": "spec.trainer.env"}
    ]


def test_trainjob_that_exceeded_the_limit_before_can_be_suspended() -> None:
    response = answer(request(changed(LARGE, suspend=True), LARGE), existing=Unread())
    assert response.allowed
    assert response.warnings == (f"the stored object already has this error: {TOO_MANY}",)
    assert not answer(request(LARGE, JOB), PLAIN).allowed


def test_trainjob_that_exceeded_a_limit_before_can_be_reduced() -> None:
    assert answer(request(JOB, LARGE), PLAIN) == ALLOWED
