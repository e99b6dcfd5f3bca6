"""Which content of its runtime a TrainJob is planned from and validated against."""

from collections.abc import Iterable
from typing import Any

import pytest

from kftrainer.api.resources import TRAINING_RUNTIMES
from kftrainer.api.runtime_revisions import content_of, revision_manifest, revision_name
from kftrainer.api.trainjob import TrainJob
from kftrainer.kube.objects.resource import Manifest
from kftrainer.runtime.cluster_reader import GivenObjects
from kftrainer.runtime.errors import PlanningError, RevisionLostError, RuntimeNotFoundError
from tests.support.objects import Object, replicated_job, runtime, train_job
from tests.support.plans import NAMESPACE, RUNTIMES, container_of


def with_image(image: str) -> Object:
    manifest = runtime(jobs=[replicated_job(image=image)])
    return {**manifest, "metadata": {**manifest["metadata"], "namespace": NAMESPACE}}


def revision_of(manifest: Object, name: str | None = None) -> Manifest:
    content = content_of(TRAINING_RUNTIMES.decode(manifest))
    return revision_manifest(content, NAMESPACE, name or revision_name(content), 1)


FIRST, SECOND = with_image("first"), with_image("second")
REVISION = revision_of(FIRST)
OTHER = revision_of(with_image("other"))


def job(recorded: str | None, **spec: Any) -> TrainJob:
    reference = {"kind": "TrainingRuntime", "name": "runtime"}
    manifest = train_job("train", runtimeRef=reference, **spec)
    manifest["metadata"] = {"name": "train", "namespace": NAMESPACE, "uid": "u"}
    if recorded is not None:
        manifest["status"] = {"runtimeRevision": recorded, "jobSet": {"uid": "j"}}
    return TrainJob.parse(manifest)


BEGUN = job(REVISION["metadata"]["name"])


def image_of(begun: TrainJob, existing: Iterable[Manifest]) -> str | type[PlanningError]:
    try:
        planned = RUNTIMES.of(begun).new_objects(begun, GivenObjects(existing))
    except PlanningError as error:
        return type(error)
    found: str = container_of(planned[-1].manifest)["image"]
    return found


JOB_SET = {
    "apiVersion": "jobset.x-k8s.io/v1alpha2",
    "kind": "JobSet",
    "metadata": {
        "name": "train",
        "namespace": NAMESPACE,
        "uid": "j",
        "ownerReferences": [{"uid": "u", "controller": True}],
    },
    "spec": {"suspend": True},
}
FORGED = {**REVISION, "data": OTHER["data"]}
OF_ANOTHER = revision_of({**FIRST, "metadata": {"name": "another", "namespace": NAMESPACE}})


@pytest.mark.parametrize(
    ("existing", "expected"),
    [
        ([FIRST], "first"),  # from files: the revision is not known
        ([SECOND], "second"),
        ([FIRST, OTHER], "first"),  # the revision is missing, but the runtime is unchanged
        ([FIRST, REVISION], "first"),
        ([SECOND, REVISION], "first"),
        ([REVISION], "first"),
        ([SECOND, OTHER], RevisionLostError),
        ([SECOND, FORGED], RevisionLostError),
        ([OTHER], RevisionLostError),
        ([SECOND, OTHER, JOB_SET], "second"),  # its immutable part is kept later
        ([OTHER, JOB_SET], RevisionLostError),
        ([], RuntimeNotFoundError),
    ],
)
def test_job_that_has_begun_is_planned_from_the_recorded_content(
    existing: list[Manifest], expected: str | type[PlanningError]
) -> None:
    begun = job(REVISION["metadata"]["name"], suspend=True)
    assert image_of(begun, existing) == expected


def test_revision_of_another_runtime_is_not_used() -> None:
    begun = job(OF_ANOTHER["metadata"]["name"])
    assert image_of(begun, [FIRST, OF_ANOTHER]) is RevisionLostError


def test_job_that_has_not_begun_is_planned_from_the_runtime() -> None:
    assert image_of(job(None), [SECOND, REVISION]) == "second"


def test_all_jobs_of_a_content_share_one_runtime_object() -> None:
    existing = GivenObjects([SECOND, REVISION])
    one, other = (RUNTIMES.of(BEGUN).source(BEGUN, existing).runtime for _ in range(2))
    assert one is other


def test_update_is_validated_against_the_recorded_content() -> None:
    """The override names a job that only the first runtime has."""
    first = with_image("first")
    first["spec"] = runtime(jobs=[replicated_job(), replicated_job("extra", None)])["spec"]
    revision = revision_of(first)
    overrides = [{"targetJobs": [{"name": "extra"}], "spec": {"nodeSelector": {"a": "b"}}}]
    old, new = (
        job(revision["metadata"]["name"], suspend=True, **more)
        for more in ({}, {"podTemplateOverrides": overrides})
    )
    found = [
        bool(RUNTIMES.validate(old, new, GivenObjects(existing)).errors)
        for existing in ([SECOND, revision], [SECOND])
    ]
    assert found == [False, True]


def test_update_without_the_recorded_content_is_admitted_with_a_warning() -> None:
    existing = GivenObjects([SECOND, OTHER])
    old, new = job(REVISION["metadata"]["name"]), job(REVISION["metadata"]["name"], suspend=True)
    result = RUNTIMES.validate(old, new, existing)
    assert result.errors == []
    assert any("ControllerRevision team/" in each for each in result.warnings)
