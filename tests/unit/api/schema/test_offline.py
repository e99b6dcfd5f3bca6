from kftrainer.api.schema.offline import schema_of, stored, with_defaults
from tests.support.objects import replicated_job, runtime, train_job


def test_a_train_job_gets_its_defaults() -> None:
    assert with_defaults(train_job())["spec"] == {
        "runtimeRef": {
            "name": "torch-distributed",
            "apiGroup": "trainer.kubeflow.org",
            "kind": "ClusterTrainingRuntime",
        },
        "suspend": False,
        "managedBy": "trainer.kubeflow.org/trainjob-controller",
    }


def test_the_jobs_of_a_runtime_get_those_of_job_set() -> None:
    jobs = [replicated_job(ports=[{"containerPort": 1}])]
    filled = with_defaults(runtime(jobs=jobs))
    [job] = filled["spec"]["template"]["spec"]["replicatedJobs"]
    wanted = replicated_job(ports=[{"containerPort": 1, "protocol": "TCP"}])
    assert job == {**wanted, "replicas": 1, "groupName": "default"}


def test_all_errors_of_the_server_are_returned() -> None:
    found = stored(train_job(trainer={"imagee": "x", "args": "y"}))
    assert found.document["spec"]["trainer"] == {"args": "y"}
    assert found.unknown == ["spec.trainer.imagee"]
    assert [str(problem) for problem in found.problems] == [
        "spec.trainer.args: must be a list: write each item on a line of its own, after a dash"
    ]


def test_definitions_are_read_once() -> None:
    assert schema_of("TrainJob") is schema_of("TrainJob")
