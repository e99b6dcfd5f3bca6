from pathlib import Path

import pytest

from kftrainer.devcluster import controlplane
from kftrainer.devcluster.cluster_options import Shape
from kftrainer.devcluster.components import kubelet
from kftrainer.devcluster.errors import MissingPartError
from kftrainer.devcluster.nodes.kubelet.settings import Settings
from kftrainer.devcluster.progress import SILENT


def test_settings_round_trip_through_their_file(tmp_path: Path) -> None:
    settings = Settings(
        url="https://127.0.0.1:1",
        authority="ca",
        certificate="crt",
        key="key",
        serving_certificate="s.crt",
        serving_key="s.key",
        folder="pods",
        apiserver_port=1,
        ports=(2, 3),
        images={"a": "/env"},
    )
    settings.write(tmp_path / "kubelet.json")
    read = Settings.read(tmp_path / "kubelet.json")
    assert (read, read.nodes) == (settings, ("process-0", "process-1"))


def test_api_server_may_use_the_kubelet_api_and_the_kubelet_may_not_change_roles() -> None:
    bindings = {
        each["metadata"]["name"]: each["roleRef"]["name"]
        for each in kubelet.permissions()
        if each["kind"] == "ClusterRoleBinding"
    }
    assert bindings[kubelet.API_SERVER_USER] == "system:kubelet-api-admin"
    groups = {group for rule in kubelet.RULES for group in rule["apiGroups"]}
    assert "rbac.authorization.k8s.io" not in groups


def test_missing_packages_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kubelet, "PACKAGES", ("no_such_package",))
    assert kubelet.unavailable() == (
        "Process nodes need no_such_package: pip install 'kftrainer[nodes]'."
    )


async def test_process_nodes_are_a_missing_part_where_they_cannot_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(kubelet, "unavailable", lambda: "User namespaces are disabled.")
    with pytest.raises(MissingPartError, match=r"not available: User namespaces are disabled\."):
        await controlplane.gather_supplies(Shape(process_nodes=1), tmp_path, SILENT)
