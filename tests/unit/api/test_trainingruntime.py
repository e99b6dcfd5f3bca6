import pytest

from kftrainer.api.trainingruntime import ClusterTrainingRuntime, MPIPolicy, TrainingRuntime
from kftrainer.kube.objects.model import InvalidDocumentError
from tests.support.objects import runtime


def test_an_mpi_policy_has_the_defaults_of_the_crd() -> None:
    policy = MPIPolicy.parse({})
    assert policy.num_proc_per_node == 1
    assert policy.mpi_implementation == "OpenMPI"
    assert policy.ssh_auth_mount_path == "/root/.ssh"
    assert policy.run_launcher_as_node is False


def test_the_template_is_not_walked() -> None:
    document = runtime(kind="ClusterTrainingRuntime")
    parsed = ClusterTrainingRuntime.parse(document)
    assert parsed.spec is not None
    assert parsed.spec.template is not None
    assert parsed.spec.template.spec is document["spec"]["template"]["spec"]
    assert parsed.dump() == document


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        ({"torch": {"numProcPerNode": "many"}}, "spec.mlPolicy.torch.numProcPerNode: must be auto"),
        ({"mpi": {"numProcPerNode": 0}}, "spec.mlPolicy.mpi.numProcPerNode: must be at least 1"),
        (
            {"mpi": {"mpiImplementation": "LAM"}},
            "spec.mlPolicy.mpi.mpiImplementation: must be one",
        ),
        ({"numNodes": "2"}, "spec.mlPolicy.numNodes: must be an integer"),
        ({"torch": []}, "spec.mlPolicy.torch: must be an object"),
    ],
)
def test_invalid_policy_is_reported_with_its_path(policy: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidDocumentError) as raised:
        TrainingRuntime.parse(runtime(mlPolicy=policy))
    assert str(raised.value).startswith(message)
