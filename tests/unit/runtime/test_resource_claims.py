"""`spec.trainer.resourceClaimsPerNode`: claims in the pods, and the devices that they request."""

from typing import Any

import pytest

from kftrainer.api.resources import RESOURCE_CLAIM_TEMPLATES
from kftrainer.api.trainjob import TrainJob
from kftrainer.kube.objects.resource import ObjectKey
from kftrainer.runtime.cluster_reader import GivenObjects
from kftrainer.runtime.errors import (
    ClaimTemplateNotFoundError,
    InvalidTrainJobError,
    NotInstalledError,
)
from kftrainer.runtime.explain import Explanation
from kftrainer.runtime.plugins.jobset import waiting_for_template
from tests.support.objects import Object, replicated_job, runtime
from tests.support.plans import (
    NAMESPACE,
    RUNTIMES,
    UID,
    container_of,
    findings,
    in_namespace,
    job_on,
    plan,
    planned,
    pod_of,
)

PATH = "spec.trainer.resourceClaimsPerNode"
COUNT = "trainer.kubeflow.org/claimed-devices"
MISSING = (
    "ResourceClaimTemplate gpus is not found in namespace team: pods cannot start without it "
    f"({PATH}[0])"
)


def template(name: str = "gpus", count: int = 2, request: str = "gpu") -> Object:
    devices = {"requests": [{"name": request, "exactly": {"count": count}}]}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {"spec": {"devices": devices}},
    }


def claim(name: str = "gpu", template: str = "gpus") -> Object:
    return {"name": name, "resourceClaimTemplateName": template}


def claiming(document: Object, *claims: Object, **trainer: Any) -> Object:
    return job_on(document, trainer={"resourceClaimsPerNode": [*claims] or [claim()], **trainer})


def mpi(*, launcher_is_node: bool = False) -> Object:
    jobs = [replicated_job("node", step=None), replicated_job("launcher")]
    policy = {"runLauncherAsNode": launcher_is_node}
    return runtime(jobs=jobs, mlPolicy={"numNodes": 1, "mpi": policy})


def processes(jobset: Object) -> str:
    env = container_of(jobset)["env"]
    [found] = [each["value"] for each in env if each["name"] == "PET_NPROC_PER_NODE"]
    value: str = found
    return value


def live(*, suspend: bool = True, **annotations: str) -> Object:
    owner = {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainJob",
        "name": "demo",
        "uid": UID,
        "controller": True,
    }
    metadata = {"name": "demo", "namespace": NAMESPACE, "uid": "2", "ownerReferences": [owner]}
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {**metadata, "annotations": annotations},
        "spec": {"suspend": suspend, "replicatedJobs": []},
    }


def test_claims_reach_the_pods_and_the_container_that_trains() -> None:
    document = runtime(
        jobs=[
            replicated_job(
                resources={"limits": {"cpu": "2"}, "claims": [{"name": "own", "request": "a"}]}
            ),
            replicated_job("other", step=None),
        ]
    )
    pod = document["spec"]["template"]["spec"]["replicatedJobs"][0]["template"]["spec"]
    own = {"name": "own", "resourceClaimName": "shared"}
    pod["template"]["spec"]["resourceClaims"] = [own]
    claims = [claim(), claim("nic", "nics")]
    job = claiming(document, *claims, resourcesPerNode={"limits": {"memory": "1Gi"}})
    nics = template("nics", request="nic")
    jobset = plan(job, document, template(), nics)["JobSet"]
    assert pod_of(jobset)["resourceClaims"] == [own, *claims]
    assert container_of(jobset)["resources"] == {
        "limits": {"cpu": "2", "memory": "1Gi"},
        "claims": [{"name": "own", "request": "a"}, {"name": "gpu"}, {"name": "nic"}],
    }
    assert "resourceClaims" not in pod_of(jobset, "other")
    assert jobset["metadata"]["annotations"] == {COUNT: "2"}


def test_without_claims_nothing_is_added() -> None:
    document = runtime()
    jobset = plan(job_on(document, trainer={}), document)["JobSet"]
    assert "annotations" not in jobset["metadata"]
    assert "resourceClaims" not in pod_of(jobset)


@pytest.mark.parametrize(
    ("launcher_is_node", "jobs"), [(False, {"node"}), (True, {"node", "launcher"})]
)
def test_mpi_nodes_get_the_claims(launcher_is_node: bool, jobs: set[str]) -> None:
    document = mpi(launcher_is_node=launcher_is_node)
    objects = plan(claiming(document, numNodes=2), document, template(count=4))
    found = {
        name
        for name in ("node", "launcher")
        if "resourceClaims" in pod_of(objects["JobSet"], name)
        and container_of(objects["JobSet"], name, name)["resources"]["claims"]
    }
    assert found == jobs
    slots = {line.split()[1] for line in objects["ConfigMap"]["data"]["hostfile"].splitlines()}
    assert slots == {"slots=4"}


@pytest.mark.parametrize(
    ("request_name", "value"), [("gpu", "auto"), ("nic", "1")], ids=["accelerator", "other"]
)
def test_torchrun_counts_claimed_accelerators_itself(request_name: str, value: str) -> None:
    document = runtime()
    jobset = plan(claiming(document), document, template(request=request_name))["JobSet"]
    assert processes(jobset) == value


@pytest.mark.parametrize(("count", "recipe"), [(1, "single_device"), (2, "distributed")])
def test_torchtune_recipe_follows_the_claimed_devices(count: int, recipe: str) -> None:
    document = runtime()
    annotation = {"trainer.kubeflow.org/torchtune-model": "llama3_2/1B"}
    document["metadata"]["annotations"] = annotation
    policy = {"numProcPerNode": "gpu"}
    document["spec"]["mlPolicy"]["torch"] = policy
    job = claiming(document, command=["tune", "run"])
    command = container_of(plan(job, document, template(count=count))["JobSet"])["command"]
    assert f"full_finetune_{recipe}" in command


def test_more_processes_than_claimed_devices_cause_a_warning() -> None:
    document = runtime()
    job = claiming(document, numProcPerNode=4)
    warnings = findings(job, document, template()).warnings
    assert any("4 processes on each node share 2 accelerators" in each for each in warnings)


@pytest.mark.parametrize(
    ("trainer", "messages"),
    [
        (
            {"resourcesPerNode": {"claims": [{"name": "x"}]}},
            [
                "spec.trainer.resourcesPerNode.claims: Forbidden: cannot be set together with "
                "spec.trainer.resourceClaimsPerNode"
            ],
        ),
        (
            {"resourceClaimsPerNode": [claim(), claim("gpu", "others")]},
            [f'{PATH}[1].name: Duplicate value: "gpu"'],
        ),
        (
            {"resourceClaimsPerNode": [claim(template="No")]},
            [
                f'{PATH}[0].resourceClaimTemplateName: Invalid value: "No": '
                "must be lower-case letters, digits, - and ., and each part between dots must "
                "start and end with a letter or digit"
            ],
        ),
        (
            {"resourceClaimsPerNode": [claim("own")]},
            [
                f'{PATH}[0].name: Invalid value: "own": is already the name of a resource claim of '
                "the job node of the runtime"
            ],
        ),
    ],
    ids=["resources", "twice", "template", "taken"],
)
def test_invalid_claims_are_rejected(trainer: Object, messages: list[str]) -> None:
    document = runtime()
    pod = document["spec"]["template"]["spec"]["replicatedJobs"][0]["template"]["spec"]
    pod["template"]["spec"]["resourceClaims"] = [{"name": "own"}]
    job = claiming(document, **trainer)
    result = findings(job, document, template())
    assert [*map(str, result.errors)] == messages
    assert {each.rule for each in result.errors} == {"resource-claims"}
    with pytest.raises(InvalidTrainJobError):
        plan(job, document, template())


def test_other_errors_are_reported_too() -> None:
    document = runtime()
    job = claiming(document, claim(), claim(), env=[{"name": "PET_NNODES"}])
    assert {each.rule for each in findings(job, document).errors} == {
        "resource-claims",
        "torch-reserved-env",
    }


def test_missing_template_blocks_the_train_job() -> None:
    document, other = runtime(), template("other")
    with pytest.raises(ClaimTemplateNotFoundError) as caught:
        plan(claiming(document), document, other)
    assert (str(caught.value), caught.value.reason) == (MISSING, "ResourceClaimTemplateNotFound")
    result = findings(claiming(document), document, other)
    assert result.errors == []
    assert f"the TrainJob cannot be planned yet: {MISSING}" in result.warnings


def test_kind_that_is_not_served_blocks_the_train_job() -> None:
    document = runtime()
    with pytest.raises(NotInstalledError) as caught:
        plan(claiming(document), document)
    assert str(caught.value) == (
        "the kind ResourceClaimTemplate (resource.k8s.io/v1) is not installed in the cluster, or "
        "the manager may not read it: it needs Kubernetes 1.34 or later: enable resource.k8s.io/v1 "
        "or grant access; the TrainJob then continues automatically"
    )


def test_missing_template_causes_no_error_about_devices() -> None:
    document = runtime()
    annotation = {"trainer.kubeflow.org/torchtune-model": "llama3_2/1B"}
    document["metadata"]["annotations"] = annotation
    args = ["model.lora_attn_modules=[q_proj]", "model.quantize_base=True"]
    cpus = {"requests": {"cpu": "4"}}  # one process for each without accelerators
    job = claiming(document, command=["tune", "run"], args=args, resourcesPerNode=cpus)
    assert findings(job, document, template("other")).errors == []
    [error] = findings(job, document, template(count=2)).errors
    assert error.rule == "torchtune-qlora-devices"
    assert "the runtime sets it" not in error.detail


@pytest.mark.parametrize("others", [[], [template(count=8)]], ids=["deleted", "replaced"])
def test_existing_jobset_keeps_the_number_of_devices(others: list[Object]) -> None:
    """The environment of a JobSet is immutable, so the plan must not change either."""
    document = mpi()
    job = claiming(document, numNodes=2)
    job["spec"]["suspend"] = True
    objects = plan(job, document, live(**{COUNT: "4"}), *others)
    assert "slots=4" in objects["ConfigMap"]["data"]["hostfile"]
    assert objects["JobSet"]["metadata"]["annotations"][COUNT] == "4"


def test_resuming_needs_the_template() -> None:
    document = runtime()
    with pytest.raises(ClaimTemplateNotFoundError):
        plan(claiming(document), document, live(**{COUNT: "4"}), template("other"))


def test_running_jobset_is_not_planned_again() -> None:
    document = runtime()
    running = live(suspend=False, **{COUNT: "4"})
    assert planned(claiming(document), document, running, template("other")) == []


@pytest.mark.parametrize(
    "recorded", ["", "x", "²", "9" * 10], ids=["none", "word", "digit", "long"]
)
def test_unusable_record_of_an_existing_jobset_is_ignored(recorded: str) -> None:
    document = mpi()
    job = claiming(document, numNodes=2)
    job["spec"]["suspend"] = True
    marks = {COUNT: recorded} if recorded else {}
    objects = plan(job, document, live(**marks), template(count=3))
    assert "slots=3" in objects["ConfigMap"]["data"]["hostfile"]
    unknown = plan(job, document, live(**marks), template("other"))
    assert COUNT not in unknown["JobSet"]["metadata"].get("annotations", {})


def test_explain_names_the_claim() -> None:
    document = runtime()
    job, trace = TrainJob.parse(claiming(document)), Explanation()
    existing = GivenObjects([in_namespace(document), template()])
    RUNTIMES.of(job).new_objects(job, existing, trace)
    pods = "spec.replicatedJobs[node].template.spec.template.spec"
    assert {each.path: each.source for each in trace.settings() if "laim" in each.path} == {
        f"metadata.annotations[{COUNT}]": f"devices of {PATH}",
        f"{pods}.resourceClaims[gpu].resourceClaimTemplateName": f"{PATH}[0]",
        f"{pods}.containers[node].resources.claims[gpu]": f"{PATH}[0]",
    }


def test_changed_template_enqueues_waiting_train_jobs() -> None:
    document = runtime()
    jobs = {
        "claims": claiming(document),
        "another": claiming(document, claim(template="others")),
        "large": job_on(document),  # the cached part of a large TrainJob has no trainer
        "plain": job_on(document, trainer={}),
        "ended": claiming(document),
    }
    condition = {
        "type": "Complete",
        "status": "True",
        "reason": "AllJobsCompleted",
        "message": "",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }
    jobs["ended"]["status"] = {"conditions": [condition]}
    for name, job in jobs.items():
        job["metadata"] = {**job["metadata"], "name": name, "uid": name}
    found = waiting_for_template(template(), GivenObjects(jobs.values()))
    assert {each.name for each in found if each} == {"claims", "large"}
    elsewhere = {**template(), "metadata": {"name": "gpus", "namespace": "other"}}
    assert not any(waiting_for_template(elsewhere, GivenObjects(jobs.values())))


def test_running_train_job_is_not_enqueued() -> None:
    document = runtime()
    given = GivenObjects([claiming(document), live(suspend=False)])
    assert [*waiting_for_template(template(), given)] == [None]


def test_trainer_without_effect_includes_claims() -> None:
    document = runtime(jobs=[replicated_job(step=None)])
    job = claiming(document)
    warnings = findings(job, document).warnings
    assert any("spec.trainer: resourceClaimsPerNode: no effect" in each for each in warnings)
    assert "resourceClaims" not in pod_of(plan(job, document)["JobSet"])


def test_kind_of_templates() -> None:
    assert RESOURCE_CLAIM_TEMPLATES.group_kind == "ResourceClaimTemplate.resource.k8s.io"
    reader = GivenObjects(complete=[RESOURCE_CLAIM_TEMPLATES])
    assert reader.is_complete(RESOURCE_CLAIM_TEMPLATES)
    assert reader.get(RESOURCE_CLAIM_TEMPLATES, ObjectKey("a", "b")) is None


def test_claim_that_selects_a_request_is_kept() -> None:
    selected = {"name": "gpu", "request": "one"}
    job = replicated_job("node", resources={"claims": [selected]})
    jobset = plan(claiming(runtime(jobs=[job])), runtime(jobs=[job]), template())["JobSet"]
    assert container_of(jobset)["resources"]["claims"] == [selected]


def test_missing_template_does_not_hide_errors_of_the_plan() -> None:
    policy = {"successPolicy": {"operator": "All", "targetReplicatedJobs": ["none"]}}
    document = runtime()
    document["spec"]["template"]["spec"] |= policy
    with_template = findings(claiming(document), document, template())
    without = findings(claiming(document), document)
    assert [str(each) for each in without.errors] == [str(each) for each in with_template.errors]
    assert any("cannot be planned yet" in each for each in without.warnings)


def test_claim_in_resources_that_the_pods_do_not_have_is_rejected() -> None:
    document = runtime()
    pod = document["spec"]["template"]["spec"]["replicatedJobs"][0]["template"]["spec"]
    pod["template"]["spec"]["resourceClaims"] = [{"name": "own"}]
    resources = {"claims": [{"name": "own"}, {"name": "gpu", "request": "a"}]}
    result = findings(job_on(document, trainer={"resourcesPerNode": resources}), document)
    assert [*map(str, result.errors)] == [
        'spec.trainer.resourcesPerNode.claims[1].name: Invalid value: "gpu": is not the name of a '
        "resource claim of the pods: the API server would reject them"
    ]


def test_claims_in_resources_are_not_for_a_launcher_that_is_not_a_node() -> None:
    document = mpi()
    worker, launcher = document["spec"]["template"]["spec"]["replicatedJobs"]
    for job in (worker, launcher):
        pod = job["template"]["spec"]["template"]["spec"]
        pod["resourceClaims"] = [{"name": "net"}, {"name": "gpu"}]
        pod["containers"][0]["resources"] = {"claims": [{"name": "net"}]}
    resources = {"claims": [{"name": "gpu"}]}
    trainer = {"resourcesPerNode": resources, "numNodes": 2}
    jobset = plan(job_on(document, trainer=trainer), document)["JobSet"]
    found = {
        name: [each["name"] for each in container_of(jobset, name, name)["resources"]["claims"]]
        for name in ("node", "launcher")
    }
    assert found == {"node": ["net", "gpu"], "launcher": ["net"]}


def test_name_of_a_claim_that_a_patch_has_set_is_reported_with_its_path() -> None:
    document = runtime()
    pods = {"resourceClaims": [{"name": "gpu", "resourceClaimName": "shared"}]}
    job = {"name": "node", "template": {"spec": {"template": {"spec": pods}}}}
    patched = {"template": {"spec": {"replicatedJobs": [job]}}}
    job_with_both = claiming(document)
    job_with_both["spec"]["runtimePatches"] = [
        {"manager": "acme.io/tuner", "trainingRuntimeSpec": patched}
    ]
    result = findings(job_with_both, document, template())
    [error] = map(str, result.errors)
    assert error == (
        f'{PATH}[0].name: Invalid value: "gpu": is already the name of a resource claim of the job '
        "node of spec.runtimePatches[0].trainingRuntimeSpec.template.spec.replicatedJobs[0]"
        ".template.spec.template.spec.resourceClaims"
    )
