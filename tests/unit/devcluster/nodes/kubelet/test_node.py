from datetime import UTC, datetime

from kftrainer.devcluster.client import condition_is_true
from kftrainer.devcluster.nodes.kubelet.node import Machine, lease, node_object, node_status

NOW = datetime(2026, 1, 1, tzinfo=UTC)
MACHINE = Machine({"cpu": "2", "memory": "4Ki"}, "6.1", "Debian", "amd64", "machine", "boot")


def test_node_has_the_capacity_of_the_machine_and_declared_resources() -> None:
    resources = {"nvidia.com/gpu": "8", "cpu": "64"}
    status = node_status("process-0", MACHINE, resources, port=9, since=NOW, now=NOW)
    expected = {"cpu": "64", "memory": "4Ki", "nvidia.com/gpu": "8"}
    assert status["capacity"] == status["allocatable"] == expected


def test_node_is_ready_and_names_the_port_of_its_kubelet() -> None:
    status = node_status("process-0", MACHINE, {}, port=9, since=NOW, now=NOW)
    assert condition_is_true({"status": status}, "Ready")
    assert status["daemonEndpoints"] == {"kubeletEndpoint": {"Port": 9}}


def test_node_can_be_selected_by_its_type() -> None:
    labels = node_object("process-0", MACHINE)["metadata"]["labels"]
    assert (labels["type"], labels["kubernetes.io/hostname"]) == ("process", "process-0")


def test_lease_ends_with_its_node() -> None:
    found = lease("process-0", "uid", NOW)
    assert found["metadata"]["ownerReferences"][0]["uid"] == "uid"
    assert found["spec"]["renewTime"] == "2026-01-01T00:00:00.000000Z"
