import pytest

from kftrainer.api.trainjob import TrainJob
from kftrainer.kube.objects.model import InvalidDocumentError
from tests.support.objects import train_job


def test_defaults_are_those_that_the_api_server_fills_in() -> None:
    spec = TrainJob.parse(train_job()).spec
    assert (spec.runtime_ref.api_group, spec.runtime_ref.kind) == (
        "trainer.kubeflow.org",
        "ClusterTrainingRuntime",
    )
    assert spec.managed_by == "trainer.kubeflow.org/trainjob-controller"
    assert spec.suspend is False
    assert list(spec.overrides()) == []


@pytest.mark.parametrize("value", [1, 8, "auto", "cpu", "gpu"])
def test_processes_per_node_is_an_integer_or_a_keyword(value: object) -> None:
    job = TrainJob.parse(train_job(trainer={"numProcPerNode": value}))
    assert job.spec.trainer is not None
    assert job.spec.trainer.num_proc_per_node == value


@pytest.mark.parametrize("value", [0, -1, "4", "", True, 1.5, ["auto"]])
def test_other_processes_per_node_are_refused_by_their_path(value: object) -> None:
    with pytest.raises(InvalidDocumentError, match=r"^spec\.trainer\.numProcPerNode: must be"):
        TrainJob.parse(train_job(trainer={"numProcPerNode": value}))


def test_overrides_of_release_2_0_are_read_as_those_of_2_1() -> None:
    flat = {
        "targetJobs": [{"name": "node"}],
        "serviceAccountName": "trainer",
        "containers": [{"name": "node", "volumeMounts": [{"name": "v", "mountPath": "/v"}]}],
    }
    document = train_job(podSpecOverrides=[flat])
    job = TrainJob.parse(document)
    [override] = job.spec.overrides()
    assert override.dump() == {
        "targetJobs": [{"name": "node"}],
        "spec": {key: value for key, value in flat.items() if key != "targetJobs"},
    }
    assert job.dump() == document


def test_the_spec_of_an_override_is_not_walked() -> None:
    patch = {"containers": [{"name": "node"}], "tolerations": [{"operator": "Exists"}]}
    override = {"targetJobs": [{"name": "node"}], "spec": patch}
    job = TrainJob.parse(train_job(podTemplateOverrides=[override]))
    assert next(iter(job.spec.overrides())).spec is patch


def test_a_job_without_a_spec_is_refused() -> None:
    document = train_job()
    del document["spec"]
    with pytest.raises(InvalidDocumentError, match=r"^spec: is required$"):
        TrainJob.parse(document)


def test_another_kind_is_refused() -> None:
    with pytest.raises(InvalidDocumentError, match=r"^kind: must be one of 'TrainJob'$"):
        TrainJob.parse({**train_job(), "kind": "Job"})
