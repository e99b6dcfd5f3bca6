from typing import Any

import pytest

from kftrainer.api.trainjob import TrainJob
from kftrainer.runtime.cluster_reader import GivenObjects
from kftrainer.runtime.errors import InvalidTrainJobError
from kftrainer.runtime.framework.extension_points import Observed
from kftrainer.runtime.plugins.jobset import JobSet
from tests.support.objects import Object, replicated_job, runtime
from tests.support.plans import (
    NAMESPACE,
    UID,
    container_of,
    findings,
    job_on,
    jobs_of,
    plan,
    pod_of,
)

DATASET, MODEL = "dataset-initializer", "model-initializer"
PLAIN = runtime(mlPolicy={"numNodes": 1})
FETCHING = runtime(
    jobs=[replicated_job(DATASET, DATASET), replicated_job(MODEL, MODEL), replicated_job()],
    mlPolicy={"numNodes": 1},
)


def jobset(status: Object | None = None, **spec: Any) -> Object:
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {
            "name": "demo",
            "namespace": NAMESPACE,
            "ownerReferences": [{"controller": True, "uid": UID}],
        },
        "spec": spec,
        "status": status or {},
    }


def test_the_jobset_belongs_to_the_job_and_has_its_name() -> None:
    assert plan(job_on(PLAIN), PLAIN)["JobSet"]["metadata"] == {
        "name": "demo",
        "namespace": NAMESPACE,
        "ownerReferences": [
            {
                "apiVersion": "trainer.kubeflow.org/v1alpha1",
                "kind": "TrainJob",
                "name": "demo",
                "uid": "11111111-2222-3333-4444-555555555555",
                "controller": True,
                "blockOwnerDeletion": True,
            }
        ],
    }


def test_fields_of_the_template_pass_through() -> None:
    document = runtime(mlPolicy={})
    document["spec"]["template"]["spec"] |= {
        "failurePolicy": {"maxRestarts": 3},
        "ttlSecondsAfterFinished": 60,
        "suspend": True,
    }
    spec = plan(job_on(document), document)["JobSet"]["spec"]
    assert {key: spec[key] for key in spec if key != "replicatedJobs"} == {
        "failurePolicy": {"maxRestarts": 3},
        "ttlSecondsAfterFinished": 60,
        "suspend": False,
    }


@pytest.mark.parametrize(
    ("suspend", "existing", "applied"),
    [
        (False, None, True),
        (True, None, True),
        (True, {"suspend": False}, True),
        (True, {"suspend": True}, True),
        (False, {"suspend": True}, True),
        (False, {"suspend": False}, False),
        (False, {}, False),
    ],
)
def test_running_jobset_is_not_modified(
    suspend: bool, existing: Object | None, applied: bool
) -> None:
    others = [] if existing is None else [jobset(**existing)]
    planned = plan(job_on(PLAIN, suspend=suspend), PLAIN, *others)
    assert ("JobSet" in planned) == applied
    if applied:
        assert planned["JobSet"]["spec"]["suspend"] is suspend


def test_trainer_fields_of_the_job_are_used() -> None:
    document = runtime(
        jobs=[replicated_job(command=["a"], args=["b"], image="c")], mlPolicy={"numNodes": 1}
    )
    trainer = {"image": "mine", "command": ["python"], "args": ["own"]}
    container = container_of(plan(job_on(document, trainer=trainer), document)["JobSet"])
    assert container == {"name": "node", **trainer}
    container = container_of(plan(job_on(document), document)["JobSet"])
    assert container == {"name": "node", "image": "c", "command": ["a"], "args": ["b"]}


def test_initializers_get_the_fields_of_the_job_and_run_without_them() -> None:
    asset = {
        "storageUri": "hf://data",
        "env": [{"name": "SPLIT", "value": "train"}, {"name": "EMPTY"}],
        "secretRef": {"name": "token"},
    }
    planned_jobset = plan(job_on(FETCHING, initializer={"dataset": asset}), FETCHING)["JobSet"]
    assert container_of(planned_jobset, DATASET, DATASET) == {
        "name": DATASET,
        "image": "trainer",
        "env": [
            {"name": "STORAGE_URI", "value": "hf://data"},
            {"name": "SPLIT", "value": "train"},
            {"name": "EMPTY", "value": ""},
        ],
        "envFrom": [{"secretRef": {"name": "token"}}],
    }
    assert container_of(planned_jobset, MODEL, MODEL) == {"name": MODEL, "image": "trainer"}
    assert [jobs_of(planned_jobset)[step]["replicas"] for step in (DATASET, MODEL)] == [1, 1]


def test_storage_uri_has_precedence_over_a_variable_of_the_same_name() -> None:
    """Defect D19."""
    asset = {"storageUri": "hf://data", "env": [{"name": "STORAGE_URI", "value": "other"}]}
    planned_jobset = plan(job_on(FETCHING, initializer={"dataset": asset}), FETCHING)["JobSet"]
    assert container_of(planned_jobset, DATASET, DATASET)["env"] == [
        {"name": "STORAGE_URI", "value": "hf://data"}
    ]


def test_every_source_of_a_variable_is_preserved() -> None:
    """Defect D22."""
    sources = [
        {"fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.name"}},
        {"fileKeyRef": {"volumeName": "v", "path": "p", "key": "k"}},
        {"resourceFieldRef": {"resource": "limits.cpu", "divisor": "1m"}},
        {"secretKeyRef": {"name": "s", "key": "k", "optional": True}},
    ]
    env = [{"name": f"V{index}", "valueFrom": each} for index, each in enumerate(sources)]
    planned_jobset = plan(job_on(PLAIN, trainer={"env": env}), PLAIN)["JobSet"]
    assert container_of(planned_jobset)["env"] == env


@pytest.mark.parametrize(("kind", "config"), [("dataset", "dataset"), ("model", "model")])
def test_initializer_without_a_job_is_rejected(kind: str, config: str) -> None:
    with pytest.raises(InvalidTrainJobError) as raised:
        plan(job_on(PLAIN, initializer={kind: {"storageUri": "a"}}), PLAIN)
    (error,) = raised.value.errors
    assert (error.path, error.detail) == (
        "spec.runtimeRef",
        f"must have {kind}-initializer job when trainJob is configured with input {config}Config",
    )


def test_an_initializer_without_its_container_is_refused() -> None:
    other = replicated_job(DATASET, DATASET)
    other["template"]["spec"]["template"]["spec"]["containers"][0]["name"] = "other"
    document = runtime(jobs=[other, replicated_job()], mlPolicy={})
    with pytest.raises(InvalidTrainJobError) as raised:
        plan(job_on(document, initializer={"dataset": {}}), document)
    assert [error.detail for error in raised.value.errors] == [
        f"must have container with name - {DATASET} in the {DATASET} job"
    ]


def test_g14_a_job_of_the_right_name_without_the_label_is_pointed_out() -> None:
    document = runtime(jobs=[replicated_job(DATASET, None), replicated_job()])
    with pytest.raises(InvalidTrainJobError) as raised:
        plan(job_on(document, initializer={"dataset": {}}), document)
    assert raised.value.errors[0].detail == (
        f"must have {DATASET} job when trainJob is configured with input datasetConfig: the job "
        f"{DATASET} exists, but lacks the label trainer.kubeflow.org/trainjob-ancestor-step: "
        f"{DATASET}"
    )


def test_g14_initializers_are_found_by_their_label_not_by_their_name() -> None:
    document = runtime(jobs=[replicated_job("fetch", DATASET), replicated_job()], mlPolicy={})
    pod = document["spec"]["template"]["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]
    pod["spec"]["containers"][0]["name"] = DATASET
    planned_jobset = plan(job_on(document, initializer={"dataset": {"storageUri": "a"}}), document)[
        "JobSet"
    ]
    assert container_of(planned_jobset, "fetch", DATASET)["env"] == [
        {"name": "STORAGE_URI", "value": "a"}
    ]


def test_name_that_jobset_would_reject_is_rejected_early() -> None:
    """Defect D45."""
    # <48 characters>-node-0-0-abcde has 63, which is what a pod's name may have.
    assert plan(job_on(PLAIN, name="a" * 48), PLAIN)
    with pytest.raises(InvalidTrainJobError) as raised:
        plan(job_on(PLAIN, name="a" * 49), PLAIN)
    (error,) = raised.value.errors
    assert (error.path, error.detail.split(":")[0]) == (
        "metadata.name",
        "must be no more than 48 characters",
    )
    assert findings(job_on(PLAIN, name="a" * 49), PLAIN).errors == [error]


@pytest.mark.parametrize(("nodes", "longest"), [(10, 48), (11, 47), (101, 46)])
def test_the_number_of_pods_takes_room_in_names(nodes: int, longest: int) -> None:
    """Defect D45."""
    trainer = {"numNodes": nodes}
    assert plan(job_on(PLAIN, name="a" * longest, trainer=trainer), PLAIN)
    with pytest.raises(InvalidTrainJobError):
        plan(job_on(PLAIN, name="a" * (longest + 1), trainer=trainer), PLAIN)


def test_longest_job_name_determines_the_limit() -> None:
    """Defect D45."""
    assert plan(job_on(FETCHING, name="a" * 33), FETCHING)
    with pytest.raises(InvalidTrainJobError, match="each pod of the job dataset-initializer"):
        plan(job_on(FETCHING, name="a" * 34), FETCHING)


def test_nothing_is_observed_without_a_jobset() -> None:
    job = TrainJob.parse(job_on(PLAIN))
    assert JobSet().observe_status(job, GivenObjects()) is None
    assert JobSet().observe_status(job, GivenObjects([jobset()])) == Observed(
        [], [], suspended=False
    )


def test_the_end_of_the_jobset_is_the_end_of_the_job() -> None:
    ended = {"reason": "R", "message": "M", "lastTransitionTime": "2026-01-01T00:00:00Z"}
    status = {
        "conditions": [
            {"type": "Suspended", "status": "False", **ended},
            {"type": "Completed", "status": "True", "observedGeneration": 3, **ended},
            {"type": "Failed", "status": "False", **ended},
        ],
        "replicatedJobsStatus": [
            {"name": "node", "ready": 1, "succeeded": 2, "failed": 3, "active": 4, "suspended": 5},
            {"name": "other"},
        ],
    }
    observed = JobSet().observe_status(
        TrainJob.parse(job_on(PLAIN)), GivenObjects([jobset(status)])
    )
    assert observed is not None
    assert [each.dump() for each in observed.conditions] == [
        {"type": "Complete", "status": "True", **ended}
    ]
    counts = ("ready", "succeeded", "failed", "active", "suspended")
    assert [each.dump() for each in observed.jobs] == [
        {"name": "node", "ready": 1, "succeeded": 2, "failed": 3, "active": 4, "suspended": 5},
        {"name": "other", **dict.fromkeys(counts, 0)},
    ]


def overridden(state: str, *gates: str) -> Object:
    spec = {"schedulingGates": [{"name": gate} for gate in gates]}
    overrides = [{"targetJobs": [{"name": "node"}], "spec": spec}] if gates else []
    return job_on(PLAIN, suspend=state == "suspended", podTemplateOverrides=overrides)


def test_overrides_change_only_while_the_job_is_suspended() -> None:
    path = "spec.podTemplateOverrides"
    errors = [
        str(e)
        for e in findings(overridden("running", "a"), PLAIN, old=overridden("running")).errors
    ]
    assert errors == [
        f"{path}: Forbidden: PodTemplateOverrides can only be modified when the TrainJob is "
        "suspended"
    ]
    assert not findings(overridden("suspended", "a"), PLAIN, old=overridden("running")).errors
    assert not findings(overridden("running", "a"), PLAIN, old=overridden("suspended", "a")).errors


def test_overrides_do_not_change_while_pods_are_still_there() -> None:
    rows = [{"name": "node", "active": 1}, {"name": "other", "active": 0}]
    live = jobset({"replicatedJobsStatus": rows})
    found = findings(overridden("suspended", "a"), PLAIN, live, old=overridden("suspended"))
    assert [error.detail for error in found.errors] == [
        "PodTemplateOverrides cannot be modified when the JobSet's ReplicatedJob node is still "
        "active"
    ]


def test_pods_of_all_jobs_are_counted_where_they_run() -> None:
    document = runtime(mlPolicy={"numNodes": 3})
    planned_jobset = jobs_of(plan(job_on(document), document)["JobSet"])["node"]
    job_spec = planned_jobset["template"]["spec"]
    assert (planned_jobset["replicas"], job_spec["parallelism"], job_spec["completions"]) == (
        1,
        3,
        3,
    )
    assert "restartPolicy" not in pod_of(plan(job_on(document), document)["JobSet"])


@pytest.mark.parametrize("name", ["Demo_1", "1demo", "de.mo", "demo-"])
def test_name_that_is_not_a_label_is_rejected(name: str) -> None:
    """Defect D45."""
    with pytest.raises(InvalidTrainJobError, match="must be lower-case letters, digits and -"):
        plan(job_on(PLAIN, name=name), PLAIN)


def test_replicas_take_room_in_names() -> None:
    """Defect D45."""
    other = replicated_job("other", None) | {"replicas": 11}
    document = runtime(jobs=[replicated_job(), other], mlPolicy={})
    assert plan(job_on(document, name="a" * 46), document)
    with pytest.raises(InvalidTrainJobError, match="each pod of the job other"):
        plan(job_on(document, name="a" * 47), document)


@pytest.mark.parametrize(("network", "longest"), [({}, 26), ({"subdomain": "sub"}, 48)])
def test_the_coordinators_address_must_fit_a_label(network: Object, longest: int) -> None:
    """Defect D45."""
    document = runtime(mlPolicy={})
    document["spec"]["template"]["spec"] |= {
        "coordinator": {"replicatedJob": "node"},
        "network": network,
    }
    assert plan(job_on(document, name="a" * longest), document)
    with pytest.raises(InvalidTrainJobError, match=r"metadata\.name"):
        plan(job_on(document, name="a" * (longest + 1)), document)


def test_names_of_claims_must_fit() -> None:
    """Defect D45."""
    document = runtime(mlPolicy={})
    claims = {"templates": [{"metadata": {"name": "c" * 30}}]}
    document["spec"]["template"]["spec"]["volumeClaimPolicies"] = [claims]
    assert plan(job_on(document, name="a" * 32), document)
    with pytest.raises(InvalidTrainJobError, match="each claim c"):
        plan(job_on(document, name="a" * 33), document)


def test_plan_shares_no_objects_with_the_job() -> None:
    job = TrainJob.parse(job_on(PLAIN, trainer={"env": [{"name": "A", "value": "a"}]}))
    container = container_of(plan(job.dump(), PLAIN)["JobSet"])
    container["env"][0]["value"] = "changed"
    assert job.spec.trainer is not None
    assert job.spec.trainer.env == [{"name": "A", "value": "a"}]


def test_a_secret_without_a_name_is_refused() -> None:
    asset = {"storageUri": "a", "secretRef": {}}
    with pytest.raises(InvalidTrainJobError) as raised:
        plan(job_on(FETCHING, initializer={"dataset": asset}), FETCHING)
    assert [error.path for error in raised.value.errors] == [
        "spec.initializer.dataset.secretRef.name"
    ]
