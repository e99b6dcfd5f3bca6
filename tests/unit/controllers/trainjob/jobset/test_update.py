import copy
from typing import Any

from kftrainer.api.resources import CONFIG_MAPS, JOB_SETS
from kftrainer.api.trainjob import TrainJob
from kftrainer.controllers.trainjob.jobset.update import (
    ANNOTATION_BEGUN_AS,
    ANNOTATION_WHOLE,
    ApplicablePlan,
    applicable_plan,
    needs_suspension,
)
from kftrainer.runtime.cluster_reader import GivenObjects
from kftrainer.runtime.planned_object import PlannedObject
from tests.support.objects import Object, runtime
from tests.support.plans import container_of, job_on, plan, pod_of
from tests.support.runtimes import SHIPPED

TORCH, MPI = runtime("torch"), SHIPPED[2]
SUSPENDED = job_on(TORCH, suspend=True)


def as_planned(job: Object, on: Object) -> list[PlannedObject]:
    kinds = {"JobSet": JOB_SETS, "ConfigMap": CONFIG_MAPS}
    return [
        PlannedObject(kinds[kind], jobset)
        for kind, jobset in plan(job, on).items()
        if kind in kinds
    ]


def fit(job: Object, on: Object, *there: Object) -> ApplicablePlan:
    return applicable_plan(as_planned(job, on), TrainJob.parse(job), GivenObjects(there))


def job_set_in(fit: ApplicablePlan) -> Any:
    [jobset] = [each.manifest for each in fit.objects if each.resource is JOB_SETS]
    return jobset


def stored(job: Object, on: Object, *, suspended: bool = True) -> Object:
    """The JobSet as it stands in the cluster, with what JobSet has filled in."""
    jobset: Object = copy.deepcopy(job_set_in(fit(job, on)))
    jobset["spec"]["suspend"] = suspended
    jobset["spec"].setdefault("successPolicy", {"operator": "All"})
    for each in jobset["spec"]["replicatedJobs"]:
        each["groupName"] = "default"
    return jobset


def edited(on: Object, **container: Any) -> Object:
    changed = copy.deepcopy(on)
    [job, *_] = changed["spec"]["template"]["spec"]["replicatedJobs"]
    job["template"]["spec"]["template"]["spec"]["containers"][0].update(container)
    return changed


def marks(job_set: Object) -> set[str]:
    return {*job_set["metadata"]["annotations"]}


def test_new_job_set_is_as_planned_with_a_digest_of_its_immutable_part() -> None:
    [planned] = as_planned(SUSPENDED, TORCH)
    jobset = job_set_in(fit(SUSPENDED, TORCH))
    assert jobset["spec"] == planned.manifest["spec"]
    assert marks(jobset) == {ANNOTATION_BEGUN_AS}


def test_job_set_with_the_planned_immutable_part_follows_the_plan() -> None:
    there = stored(SUSPENDED, TORCH)
    override = {
        "targetJobs": [{"name": "node"}],
        "metadata": {"labels": {"a": "b"}, "annotations": {"c": "d"}},
        "spec": {"nodeSelector": {"zone": "a"}, "schedulingGates": [{"name": "wait"}]},
    }
    resumed = job_on(TORCH, podTemplateOverrides=[override])
    found = fit(resumed, TORCH, there)
    [planned] = as_planned(resumed, TORCH)
    assert found.kept is None
    assert job_set_in(found)["spec"] == planned.manifest["spec"]
    assert job_set_in(found)["metadata"]["annotations"] == there["metadata"]["annotations"]


def test_immutable_fields_are_kept_and_others_follow() -> None:
    """Defect D35."""
    there = stored(job_on(TORCH), TORCH, suspended=False)
    tolerations = [{"key": "team", "operator": "Exists"}]
    override = {
        "targetJobs": [{"name": "node"}],
        "metadata": {"labels": {"a": "b"}},
        "spec": {"nodeSelector": {"zone": "a"}, "tolerations": tolerations},
    }
    job = job_on(TORCH, suspend=True, podTemplateOverrides=[override])
    found = fit(job, edited(TORCH, image="other"), there)
    kept = job_set_in(found)
    assert found.kept is not None
    assert found.kept.manifest == kept
    expected = copy.deepcopy(there["spec"])
    expected["suspend"] = True
    [pod] = [each["template"]["spec"]["template"] for each in expected["replicatedJobs"]]
    pod["metadata"] = {"labels": {"a": "b"}}
    pod["spec"].update({"nodeSelector": {"zone": "a"}, "tolerations": tolerations})
    assert kept["spec"] == expected
    assert marks(kept) == {ANNOTATION_BEGUN_AS, ANNOTATION_WHOLE}


def test_mutable_pod_fields_that_are_not_planned_are_removed() -> None:
    """Defect D35."""
    override = {"targetJobs": [{"name": "node"}], "spec": {"nodeSelector": {"zone": "a"}}}
    there = stored(job_on(TORCH, suspend=True, podTemplateOverrides=[override]), TORCH)
    assert "nodeSelector" in pod_of(there)
    kept = job_set_in(fit(SUSPENDED, edited(TORCH, image="other"), there))
    assert "nodeSelector" not in pod_of(kept)


def test_field_removed_from_the_runtime_counts_as_a_change() -> None:
    """Defect D35."""
    there = stored(SUSPENDED, edited(TORCH, stdin=True))
    kept = fit(SUSPENDED, TORCH, there)
    assert kept.kept is not None
    assert container_of(job_set_in(kept))["stdin"] is True


def test_applicable_plan_of_its_own_result_is_unchanged() -> None:
    """Defect D35."""
    other = edited(TORCH, image="other")
    once = job_set_in(fit(SUSPENDED, other, stored(SUSPENDED, TORCH)))
    assert job_set_in(fit(SUSPENDED, other, once)) == once


def test_other_objects_of_a_kept_job_set_are_only_recreated() -> None:
    """Defect D35."""
    job = job_on(MPI, suspend=True, trainer={"numNodes": 2})
    job_set = stored(job, MPI)
    hostfile = plan(job, MPI)["ConfigMap"]
    more = job_on(MPI, suspend=True, trainer={"numNodes": 3})
    kinds = [each.resource for each in fit(more, MPI, job_set, hostfile).objects]
    assert kinds == [JOB_SETS]
    kinds = [each.resource for each in fit(more, MPI, job_set).objects]
    assert kinds == [CONFIG_MAPS, JOB_SETS]
    kinds = [each.resource for each in fit(job, MPI, job_set, hostfile).objects]
    assert kinds == [CONFIG_MAPS, JOB_SETS]


def test_job_set_that_was_applied_whole_is_always_applied_whole() -> None:
    """Defect D35."""
    there = stored(SUSPENDED, TORCH)
    kept = job_set_in(fit(SUSPENDED, edited(TORCH, image="other"), there))
    again = fit(job_on(TORCH), TORCH, kept)
    assert again.kept is None
    assert job_set_in(again)["spec"] == {**there["spec"], "suspend": False}
    assert marks(job_set_in(again)) == {ANNOTATION_BEGUN_AS, ANNOTATION_WHOLE}


def test_plan_is_unchanged_without_an_own_job_set() -> None:
    job = TrainJob.parse(SUSPENDED)
    assert applicable_plan([], job, GivenObjects([stored(SUSPENDED, TORCH)])).objects == []
    foreign = stored(SUSPENDED, TORCH)
    foreign["metadata"]["ownerReferences"][0]["uid"] = "another"
    assert fit(SUSPENDED, edited(TORCH, image="other"), foreign).kept is None


def test_only_a_running_jobset_of_a_suspended_trainjob_needs_suspension() -> None:
    running = stored(job_on(TORCH), TORCH, suspended=False)
    assert needs_suspension(TrainJob.parse(SUSPENDED), GivenObjects([running])) == running
    stopped = {**running, "spec": {**running["spec"], "suspend": True}}
    assert needs_suspension(TrainJob.parse(SUSPENDED), GivenObjects([stopped])) is None
    assert needs_suspension(TrainJob.parse(job_on(TORCH)), GivenObjects([running])) is None
    assert needs_suspension(TrainJob.parse(SUSPENDED), GivenObjects([])) is None


def without_marks(job_set: Object) -> Object:
    """The JobSet as another implementation would have created it."""
    unmarked = copy.deepcopy(job_set)
    del unmarked["metadata"]["annotations"][ANNOTATION_BEGUN_AS]
    return unmarked


def with_container(job_set: Object, **fields: Any) -> Object:
    changed = copy.deepcopy(job_set)
    container_of(changed).update(fields)
    return changed


def test_unmarked_jobset_that_differs_is_applied_back_and_marked_without_event() -> None:
    there = without_marks(with_container(stored(SUSPENDED, TORCH), image="other"))
    found = fit(SUSPENDED, TORCH, there)
    assert job_set_in(found)["spec"] == there["spec"]
    assert marks(job_set_in(found)) == {ANNOTATION_BEGUN_AS, ANNOTATION_WHOLE}
    assert found.kept is None


def test_unmarked_jobset_with_more_fields_keeps_them() -> None:
    there = without_marks(with_container(stored(SUSPENDED, TORCH), stdin=True))
    assert container_of(job_set_in(fit(SUSPENDED, TORCH, there)))["stdin"] is True


def test_marked_jobset_rewritten_at_creation_is_applied_back_without_event() -> None:
    there = with_container(stored(SUSPENDED, TORCH), image="mirror.example.org/trainer:1")
    pod_of(there)["containers"].append({"name": "sidecar", "image": "proxy:1"})
    resumed = fit(job_on(TORCH), TORCH, there)
    assert job_set_in(resumed)["spec"] == {**there["spec"], "suspend": False}
    assert resumed.kept is None


def test_other_objects_of_a_rewritten_jobset_follow_the_plan() -> None:
    job = job_on(MPI, suspend=True, trainer={"numNodes": 2})
    job_set = with_container(stored(job, MPI), image="mirror.example.org/trainer:1")
    hostfile = plan(job, MPI)["ConfigMap"]
    kinds = [each.resource for each in fit(job, MPI, job_set, hostfile).objects]
    assert kinds == [CONFIG_MAPS, JOB_SETS]


def test_other_objects_of_a_differing_unmarked_jobset_are_not_modified() -> None:
    job = job_on(MPI, suspend=True, trainer={"numNodes": 2})
    job_set = without_marks(with_container(stored(job, MPI), image="other"))
    hostfile = plan(job, MPI)["ConfigMap"]
    kinds = [each.resource for each in fit(job, MPI, job_set, hostfile).objects]
    assert kinds == [JOB_SETS]


def test_jobset_with_a_queue_of_its_own_is_only_modified_to_suspend_it() -> None:
    there = stored(SUSPENDED, TORCH)
    there["metadata"]["labels"] = {"kueue.x-k8s.io/queue-name": "users"}
    resumed = job_on(TORCH)
    assert fit(resumed, TORCH, there).objects == []
    assert job_set_in(fit(SUSPENDED, TORCH, there))["spec"]["suspend"] is True
    resumed["metadata"]["labels"] = {"kueue.x-k8s.io/queue-name": "users"}
    assert job_set_in(fit(resumed, TORCH, there))["spec"]["suspend"] is False


def created_without(prefix: str, job: Object, on: Object) -> Object:
    """The JobSet of a release that did not set the variables with this prefix."""
    planned = copy.deepcopy(plan(job, on)["JobSet"])
    container = container_of(planned, "launcher")
    container["env"] = [each for each in container["env"] if not each["name"].startswith(prefix)]
    objects = [PlannedObject(JOB_SETS, planned)]
    jobset: Object = job_set_in(applicable_plan(objects, TrainJob.parse(job), GivenObjects([])))
    return jobset


def test_jobset_without_the_variables_of_open_mpi_5_is_resumed_as_planned() -> None:
    suspended = job_on(MPI, suspend=True, trainer={"numNodes": 2})
    there = created_without("PRTE_", suspended, MPI)
    resumed = job_on(MPI, trainer={"numNodes": 2})
    objects = plan(resumed, MPI, there)
    found = applicable_plan(
        [PlannedObject(JOB_SETS, objects["JobSet"])],
        TrainJob.parse(resumed),
        GivenObjects([there]),
    )
    assert (found.kept, found.is_as_planned) == (None, True)
    assert job_set_in(found)["spec"] == {**there["spec"], "suspend": False}
    assert marks(job_set_in(found)) == {ANNOTATION_BEGUN_AS}
