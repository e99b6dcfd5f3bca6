"""Admission of TrainJobs as a whole: the runtime, the plan, and what was so before an update."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import pytest

from kftrainer.api.resources import CONFIG_MAPS
from kftrainer.api.trainjob import TrainJob
from kftrainer.kube.objects.field_errors import ValidationResult, required
from kftrainer.runtime.cluster_reader import GivenObjects
from kftrainer.runtime.errors import InvalidTrainJobError, PlanningError, PluginFailedError
from kftrainer.runtime.framework.extension_points import (
    ComponentBuilder,
    CustomValidation,
    EnforceMLPolicy,
    Plugin,
)
from kftrainer.runtime.framework.framework import Framework
from kftrainer.runtime.framework.plugin_loader import load_framework
from kftrainer.runtime.info import Info
from kftrainer.runtime.planned_object import PlannedObject
from kftrainer.runtime.plugins.mpi.ssh_keys import new_key_pair
from kftrainer.runtime.runtimes import Runtimes
from tests.support.objects import Object, replicated_job, runtime
from tests.support.plans import NAMESPACE, RUNTIMES, UID, in_namespace, job_on
from tests.support.runtimes import SHIPPED

PLAIN = runtime(mlPolicy={})
TORCH = runtime()
CLUSTER = runtime("torch", kind="ClusterTrainingRuntime")
POLICY = (
    "https://www.kubeflow.org/docs/components/trainer/operator-guides/runtime/"
    "#runtime-deprecation-policy"
)


def found(
    new: Object, *existing: Object, old: Object | None = None, runtimes: Runtimes = RUNTIMES
) -> ValidationResult:
    before = None if old is None else TrainJob.parse(old)
    return runtimes.validate(before, TrainJob.parse(new), GivenObjects(map(in_namespace, existing)))


def refused(new: Object, *existing: Object, **more: Any) -> list[str]:
    return [str(error) for error in found(new, *existing, **more).errors]


def with_plugins(*plugins: Plugin) -> Runtimes:
    return Runtimes(Framework([*load_framework().plugins, *plugins]))


@pytest.mark.parametrize("document", SHIPPED, ids=lambda each: each["metadata"]["name"])
def test_trainjobs_of_bundled_runtimes_have_no_findings(document: Object) -> None:
    assert found(job_on(document), document) == ValidationResult()


def test_missing_cluster_training_runtime_is_rejected() -> None:
    assert refused(job_on(CLUSTER), PLAIN) == [
        'spec.runtimeRef: Invalid value: {"name":"torch","apiGroup":"trainer.kubeflow.org",'
        '"kind":"ClusterTrainingRuntime"}: '
        'ClusterTrainingRuntime.trainer.kubeflow.org "torch" not found: '
        "specified clusterTrainingRuntime must be created before the TrainJob is created"
    ]


def test_missing_training_runtime_is_rejected() -> None:
    elsewhere = {**PLAIN, "metadata": {"name": "runtime", "namespace": "elsewhere"}}
    assert refused(job_on(PLAIN), elsewhere, CLUSTER) == [
        'spec.runtimeRef: Invalid value: {"name":"runtime","apiGroup":"trainer.kubeflow.org",'
        '"kind":"TrainingRuntime"}: '
        'TrainingRuntime.trainer.kubeflow.org "runtime" not found: '
        "specified trainingRuntime must be created before the TrainJob is created"
    ]


@pytest.mark.parametrize(
    ("reference", "key"),
    [
        ({"kind": "Runtime"}, "Runtime.trainer.kubeflow.org"),
        ({"kind": "TrainingRuntime", "apiGroup": ""}, "TrainingRuntime"),
    ],
)
def test_unsupported_kind_is_rejected_with_the_supported_ones(reference: Object, key: str) -> None:
    job = job_on(PLAIN)
    job["spec"]["runtimeRef"] |= reference
    (error,) = found(job, PLAIN).errors
    assert error.path == "spec.runtimeRef"
    assert error.detail == (
        f"unsupported runtime: {key}: must be ClusterTrainingRuntime.trainer.kubeflow.org or "
        "TrainingRuntime.trainer.kubeflow.org"
    )
    assert refused({**job, "metadata": job["metadata"] | {"labels": {}}}, PLAIN, old=job) == []


@pytest.mark.parametrize("document", [PLAIN, CLUSTER], ids=lambda each: each["kind"])
def test_deprecated_runtime_causes_a_warning(document: Object) -> None:
    """G6."""
    metadata = document["metadata"] | {"labels": {"trainer.kubeflow.org/support": "deprecated"}}
    job, old = job_on(document), {**document, "metadata": metadata}
    warning = (
        f'Referenced {document["kind"]} "{metadata["name"]}" is deprecated and will be removed in '
        f"a future release of Kubeflow Trainer. See runtime deprecation policy: {POLICY}"
    )
    assert found(job, old) == ValidationResult(warnings=[warning])
    assert found(job | {"spec": job["spec"] | {"suspend": True}}, old, old=job).warnings == [
        warning
    ]
    metadata["labels"] = {"trainer.kubeflow.org/support": "alpha"}
    assert found(job, old) == ValidationResult()


def test_deprecation_warning_appears_beside_errors() -> None:
    document = {**PLAIN, "metadata": PLAIN["metadata"] | {"labels": {}}}
    document["metadata"]["labels"]["trainer.kubeflow.org/support"] = "deprecated"
    job = job_on(document, podTemplateOverrides=[{"targetJobs": [{"name": "nod"}]}])
    findings = found(job, document)
    assert (len(findings.errors), len(findings.warnings)) == (1, 1)


def test_invalid_runtime_is_rejected_with_its_errors() -> None:
    broken = runtime(template={"spec": {"replicatedJobs": []}})
    assert refused(job_on(broken), broken) == [
        'spec.runtimeRef: Invalid value: {"name":"runtime","apiGroup":"trainer.kubeflow.org",'
        f'"kind":"TrainingRuntime"}}: TrainingRuntime {NAMESPACE}/runtime: '
        "spec.template.spec.replicatedJobs: Required value: at least one job that runs the training"
    ]


def test_undecodable_runtime_is_rejected_with_its_problems() -> None:
    malformed = runtime(mlPolicy={"numNodes": "three"})
    (error,) = found(job_on(malformed), malformed).errors
    assert (error.path, error.detail) == (
        "spec.runtimeRef",
        "TrainingRuntime runtime: spec.mlPolicy.numNodes: Forbidden: must be an integer",
    )
    job = TrainJob.parse(job_on(malformed))
    with pytest.raises(PlanningError, match="must be an integer"):
        RUNTIMES.of(job).new_objects(job, GivenObjects([in_namespace(malformed)]))


@pytest.mark.parametrize(
    ("plugin", "spec"),
    [("Torch", {}), ("Volcano", {"mlPolicy": {}, "podGroupPolicy": {"volcano": {}}})],
)
def test_policy_of_a_disabled_plugin_is_rejected(plugin: str, spec: Object) -> None:
    document = runtime(**spec)
    (error,) = refused(
        job_on(document), document, runtimes=Runtimes(load_framework(disabled=[plugin]))
    )
    assert error.startswith("spec.runtimeRef: Invalid value: ")
    assert error.endswith(f"Forbidden: needs the plugin {plugin}, which is disabled")


def test_error_of_the_complete_plan_is_reported() -> None:
    mpi = next(each for each in SHIPPED if "mpi" in each["spec"]["mlPolicy"])
    assert refused(job_on(mpi, trainer={"numNodes": 40_000}), mpi) == [
        "spec.trainer.numNodes: Invalid value: 40000: "
        "the hostfile for this number of nodes does not fit into a ConfigMap"
    ]


def test_planning_for_admission_generates_no_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[None] = []

    def generate_key_pair() -> Any:
        drawn.append(None)
        return new_key_pair()

    monkeypatch.setattr("kftrainer.runtime.plugins.mpi.mpi.new_key_pair", generate_key_pair)
    mpi = next(each for each in SHIPPED if "mpi" in each["spec"]["mlPolicy"])
    assert refused(job_on(mpi), mpi) == []
    assert drawn == []


def test_plan_that_jobset_would_reject_is_rejected() -> None:
    document = runtime(mlPolicy={})
    document["spec"]["template"]["spec"]["successPolicy"] = {
        "operator": "All",
        "targetReplicatedJobs": ["nod"],
    }
    findings = found(job_on(document), document)
    assert findings.warnings == []
    (error,) = findings.errors
    assert (error.path, error.rule) == ("spec.runtimeRef", "jobset-refuses")
    assert error.detail.startswith("JobSet would reject the JobSet: spec.successPolicy")
    assert "nod" in error.detail
    assert error.detail.endswith(
        "; the field is spec.template.spec.successPolicy.targetReplicatedJobs[0] "
        "of TrainingRuntime runtime"
    )


def test_generated_name_is_validated_with_its_final_length() -> None:
    def generated(prefix: str) -> Object:
        job = job_on(PLAIN)
        return {**job, "metadata": {"generateName": prefix, "namespace": NAMESPACE}}

    assert refused(generated("a" * 43), PLAIN) == []
    for prefix in ("a" * 44, "a" * 200):
        (error,) = refused(generated(prefix), PLAIN)
        assert "must be no more than 48 characters" in error


@pytest.mark.parametrize("mpi", [False, True])
def test_name_limit_depends_on_the_nodes_of_the_trainjob(mpi: bool) -> None:
    jobs = [replicated_job("launcher"), replicated_job("node", None)] if mpi else None
    policy: Object = {"mpi": {"runLauncherAsNode": False}} if mpi else {"torch": {}}
    document = runtime(jobs=jobs, mlPolicy={"numNodes": 100_000, **policy})
    room = 63 - len("-launcher-0-0-abcde") if mpi else 63 - len("-node-0-0-abcde")
    fits = job_on(document, name="a" * room, trainer={"numNodes": 1})
    assert refused(fits, document) == []
    longer = job_on(document, name="a" * room, trainer={"numNodes": 100_001}, labels={"?": ""})
    errors = [each for each in refused(longer, document) if each.startswith("metadata.name")]
    tight = 63 - len("-node-0-100000-abcde")
    assert len(errors) == 1
    assert f"must be no more than {tight} characters" in errors[0]


@pytest.mark.parametrize(
    ("template", "path", "whose"),
    [
        (
            {"coordinator": {"replicatedJob": "node"}, "network": {"subdomain": "s" * 60}},
            "network.subdomain",
            "the coordinator's address",
        ),
        (
            {"replicatedJobs": [replicated_job(), replicated_job("x" * 60, None)]},
            "replicatedJobs[1].name",
            f"each pod of the job {'x' * 60}",
        ),
        (
            {"volumeClaimPolicies": [{"templates": [{"metadata": {"name": "c" * 62}}]}]},
            "volumeClaimPolicies[0].templates[0].metadata.name",
            f"each claim {'c' * 62}",
        ),
    ],
)
def test_runtime_that_leaves_no_room_for_a_name_is_reported_at_runtime_ref(
    template: Object, path: str, whose: str
) -> None:
    document = runtime(mlPolicy={})
    document["spec"]["template"]["spec"] |= template
    (error,) = found(job_on(document, name="a"), document).errors
    assert (error.path, error.detail) == (
        "spec.runtimeRef",
        f"spec.template.spec.{path} of TrainingRuntime runtime leaves no room for the name of a "
        f"TrainJob: {whose} is named after both, and such names must be no more than 63 characters",
    )


def test_trainjob_without_a_name_is_rejected() -> None:
    job = job_on(PLAIN)
    (error,) = refused({**job, "metadata": {"namespace": NAMESPACE}}, PLAIN)
    assert error.startswith('metadata.name: Invalid value: "": must be lower-case letters')


# Plugins from outside.


class Reserving(EnforceMLPolicy):
    name: ClassVar[str] = "reserving"

    def enforce_ml_policy(self, info: Info, job: TrainJob) -> None:
        info.reserved_env |= {"RUN", "EXPERIMENT"}


def test_variables_that_a_plugin_reserves_are_rejected() -> None:
    """G16."""
    env = [{"name": name, "value": "hunter2"} for name in ("RUN", "A", "EXPERIMENT")]
    job = job_on(PLAIN, trainer={"env": env})
    assert refused(job, PLAIN, runtimes=with_plugins(Reserving())) == [
        'spec.trainer.env: Invalid value: ["EXPERIMENT","RUN"]: '
        "must not have reserved envs, invalid envs configured: [EXPERIMENT RUN]"
    ]
    existing = GivenObjects([in_namespace(PLAIN)])
    found = with_plugins(Reserving()).validate(None, TrainJob.parse(job), existing)
    assert [error.rule for error in found.errors] == ["reserved-env"]
    assert refused(job, PLAIN) == []


class Failing(ComponentBuilder, CustomValidation):
    """Calls the given function in one phase, for TrainJobs that are not suspended."""

    name: ClassVar[str] = "failing"

    def __init__(
        self, fail: Callable[[], Any], *, early: bool = False, always: bool = False
    ) -> None:
        self._fail, self._early, self._always = fail, early, always

    def build_components(self, info: Info, job: TrainJob) -> Sequence[PlannedObject]:
        if not self._early:
            self._act(job)
        return ()

    def validate_train_job(
        self, info: Info, old: TrainJob | None, new: TrainJob
    ) -> ValidationResult:
        if self._early:
            self._act(new)
        return ValidationResult()

    def _act(self, job: TrainJob) -> None:
        if self._always or not job.spec.suspend:
            self._fail()


def crash() -> None:
    raise KeyError("oops")


def report() -> None:
    raise InvalidTrainJobError("TrainJob demo", required("spec.trainer.image"))


def warn() -> None:
    raise PlanningError("a LimitRange makes no sense")


RESUMED = job_on(PLAIN, suspend=False)
SUSPENDED = job_on(PLAIN, suspend=True)


@pytest.mark.parametrize("early", [False, True])
def test_plugin_failure_is_raised(early: bool) -> None:
    runtimes = with_plugins(Failing(crash, early=early))
    with pytest.raises(PluginFailedError, match="plugin failing failed: KeyError: 'oops'"):
        found(RESUMED, PLAIN, runtimes=runtimes)
    with pytest.raises(PluginFailedError):
        found(RESUMED, PLAIN, old=SUSPENDED, runtimes=runtimes)


def test_plugin_that_fails_for_the_stored_trainjob_does_not_block_suspension() -> None:
    runtimes = with_plugins(Failing(crash, always=True))
    assert found(SUSPENDED, PLAIN, old=RESUMED, runtimes=runtimes) == ValidationResult(
        warnings=[
            "the stored object already has this error: plugin failing failed: KeyError: 'oops'"
        ]
    )


def test_planning_error_of_a_plugin_is_reported() -> None:
    runtimes = with_plugins(Failing(report))
    assert refused(RESUMED, PLAIN, runtimes=runtimes) == ["spec.trainer.image: Required value"]
    assert refused(SUSPENDED, PLAIN, runtimes=runtimes) == []


def test_planning_error_of_other_objects_is_a_warning() -> None:
    assert found(RESUMED, PLAIN, runtimes=with_plugins(Failing(warn))) == ValidationResult(
        warnings=["the TrainJob cannot be planned yet: a LimitRange makes no sense"]
    )


class FailingValidation(CustomValidation):
    name: ClassVar[str] = "careless"

    def validate_train_job(
        self, info: Info, old: TrainJob | None, new: TrainJob
    ) -> ValidationResult:
        return ValidationResult(["spec: is wrong"])  # type: ignore[list-item]


def test_findings_of_the_wrong_type_are_a_plugin_failure() -> None:
    with pytest.raises(PluginFailedError, match="it returned a str instead of a FieldError"):
        found(RESUMED, PLAIN, runtimes=with_plugins(FailingValidation()))


# Several mistakes.

BAD = [{"targetJobs": [{"name": "gone"}], "spec": {"serviceAccountName": "me"}}]
RESERVED = [{"name": "PET_NNODES", "value": "7"}]


def paths(new: Object, *existing: Object, **more: Any) -> list[str]:
    return [error.path for error in found(new, *existing, **more).errors]


def test_errors_in_all_parts_are_reported_together() -> None:
    step = {"name": "node", "env": [{"name": "A", "value": "1"}]}
    job = job_on(
        TORCH,
        podTemplateOverrides=[
            *BAD,
            {"targetJobs": [{"name": "node"}], "spec": {"volumes": [{"emptyDir": {}}]}},
            {"targetJobs": [{"name": "node"}], "spec": {"containers": [step]}},
        ],
        labels={"not a key": ""},
        initializer={"dataset": {"storageUri": "hf://a/b"}},
        trainer={
            "env": RESERVED,
            "resourcesPerNode": {"limits": {"memory": "4GB", "cpu": 1}},
        },
    )
    assert sorted(paths(job, TORCH)) == [
        "spec.labels[not a key]",
        "spec.podTemplateOverrides[0].targetJobs[0].name",
        "spec.podTemplateOverrides[1].spec.volumes[0]",
        "spec.podTemplateOverrides[2].spec.containers[0].env",
        "spec.runtimeRef",
        "spec.trainer.env",
        "spec.trainer.resourcesPerNode.limits[memory]",
    ]


def test_overrides_under_both_names_do_not_hide_other_errors() -> None:
    both = {"podSpecOverrides": [{"targetJobs": [{"name": "node"}]}], "podTemplateOverrides": BAD}
    job = job_on(TORCH, trainer={"env": RESERVED}, **both)
    assert {"spec.podSpecOverrides", "spec.trainer.env"} <= {*paths(job, TORCH)}


def test_valid_resources_are_used_beside_invalid_ones() -> None:
    tune = next(each for each in SHIPPED if "llama3.2-1b" in each["metadata"]["name"])
    trainer = {
        "command": ["tune", "run"],
        "args": ["model.quantize_base=True"],
        "resourcesPerNode": {"limits": {"nvidia.com/gpu": 1, "memory": "4GB"}},
    }
    wrong = "spec.trainer.resourcesPerNode.limits[memory]"
    assert paths(job_on(tune, trainer=trainer), tune) == [wrong]


def test_stored_error_does_not_hide_new_ones() -> None:
    old = job_on(TORCH, suspend=True, podTemplateOverrides=BAD)
    new = job_on(TORCH, suspend=True, podTemplateOverrides=BAD, trainer={"env": RESERVED})
    assert paths(new, TORCH, old=old) == ["spec.trainer.env"]
    fixed = job_on(TORCH, suspend=True, trainer={"env": RESERVED})
    assert paths(fixed, TORCH, old=new) == []


# Labels and annotations for what is made.


@pytest.mark.parametrize(
    ("field", "key", "value", "path"),
    [
        ("labels", "bad key", "", "labels[bad key]"),
        ("labels", "Team/a", "", "labels[Team/a]"),
        ("labels", "team", "not so", "labels.team"),
        ("labels", "a.b/team", "x" * 64, "labels[a.b/team]"),
        ("annotations", "bad key", "hunter2", "annotations[bad key]"),
        ("annotations", "a", "hunter2" * 40_000, "annotations"),
    ],
)
def test_metadata_that_the_api_server_rejects_is_reported(
    field: str, key: str, value: str, path: str
) -> None:
    (error,) = found(job_on(PLAIN, **{field: {key: value}}), PLAIN).errors
    assert error.path == f"spec.{path}"
    assert "hunter2" not in str(error)
    override = {"targetJobs": [{"name": "node"}], "metadata": {field: {key: value}}}
    (error,) = found(job_on(PLAIN, podTemplateOverrides=[override]), PLAIN).errors
    assert error.path == f"spec.podTemplateOverrides[0].metadata.{path}"
    assert "hunter2" not in str(error)


def test_valid_metadata_is_accepted() -> None:
    metadata = {
        "labels": {"a.b/team": "Vision-1", "empty": ""},
        "annotations": {"A.b/note": "any text: {}", "x": ""},
    }
    override = {"targetJobs": [{"name": "node"}], "metadata": metadata}
    assert paths(job_on(PLAIN, podTemplateOverrides=[override], **metadata), PLAIN) == []


def test_number_of_reported_label_errors_is_limited() -> None:
    labels = {f"bad key {index}": "" for index in range(1000)}
    assert len(paths(job_on(PLAIN, labels=labels), PLAIN)) == 100


# Updates.


def test_error_of_the_stored_trainjob_is_a_warning() -> None:
    """G7."""
    old = job_on(PLAIN, suspend=True, podTemplateOverrides=BAD)
    new = job_on(PLAIN, suspend=False, podTemplateOverrides=BAD)
    assert found(new, PLAIN, old=old) == ValidationResult(
        warnings=[
            "the stored object already has this error: "
            'spec.podTemplateOverrides[0].targetJobs[0].name: Invalid value: "gone": '
            "must not have targetJob that doesn't exist in the runtime job template"
        ]
    )
    assert len(refused(new, PLAIN)) == 1


def test_deleted_runtime_does_not_block_suspension() -> None:
    """G7."""
    findings = found(SUSPENDED, old=RESUMED)
    assert findings.errors == []
    assert 'TrainingRuntime.trainer.kubeflow.org "runtime" not found' in findings.warnings[0]


def test_error_caused_by_the_update_is_rejected() -> None:
    old = job_on(PLAIN, suspend=True)
    new = job_on(PLAIN, suspend=True, podTemplateOverrides=BAD)
    assert len(refused(new, PLAIN, old=old)) == 1
    worse = job_on(PLAIN, suspend=True, podTemplateOverrides=[*BAD, *BAD])
    (error,) = refused(worse, PLAIN, old=new)
    assert error.startswith("spec.podTemplateOverrides[1]")


def job_set(**spec: Any) -> Object:
    owner = {"kind": "TrainJob", "name": "demo", "uid": UID, "controller": True}
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": "demo", "namespace": NAMESPACE, "ownerReferences": [owner]},
        "spec": spec,
    }


def test_update_rules_apply_when_the_runtime_is_missing() -> None:
    old, new = (job_on(PLAIN, trainer={"image": image}) for image in "ab")
    assert [each.split(": ")[0] for each in refused(new, job_set(), old=old)] == [
        "spec.trainer.image"
    ]


class Counting(ComponentBuilder):
    """Makes as many ConfigMaps as it sees, and one more."""

    name: ClassVar[str] = "counting"
    seen: ClassVar[list[Mapping[str, Any]]] = []

    def build_components(self, info: Info, job: TrainJob) -> Sequence[PlannedObject]:
        self.seen.extend(info.existing.list(CONFIG_MAPS, NAMESPACE))
        return ()


def test_running_trainjob_is_planned_as_if_it_were_new() -> None:
    own = {**job_set(), "apiVersion": "v1", "kind": "ConfigMap"}
    other = {**own, "metadata": {"name": "other", "namespace": NAMESPACE}}
    Counting.seen.clear()
    runtimes = with_plugins(Counting(), Failing(report))
    old = job_on(PLAIN, labels={"a": "b"})
    findings = found(RESUMED, PLAIN, job_set(suspend=False), own, other, old=old, runtimes=runtimes)
    # The JobSet runs: planned as it is, nothing would be built, and nothing found.
    assert [error.path for error in findings.errors] == []
    assert "spec.trainer.image: Required value" in findings.warnings[0]
    assert {each["metadata"]["name"] for each in Counting.seen} == {"other"}


def test_running_jobset_does_not_hide_rejections_by_jobset() -> None:
    document = runtime(mlPolicy={})
    document["spec"]["template"]["spec"]["successPolicy"] = {
        "operator": "All",
        "targetReplicatedJobs": ["nod"],
    }
    live = job_set(suspend=False)
    suspended = job_on(document, suspend=True)
    findings = found(suspended, document, live, old=job_on(document))
    assert findings.errors == []
    assert [each.partition(": spec")[0] for each in findings.warnings] == [
        "the stored object already has this error"
    ]
    assert "JobSet would reject the JobSet" in findings.warnings[0]
