"""The dashboard as the chart brings it to Grafana's sidecar."""

import json
from pathlib import Path

from tests.support.helm import CHART, WITHOUT_CRDS, named, render

NAME = "kubeflow-trainer-dashboard"


def test_it_is_in_a_config_map_that_the_sidecar_finds(helm_program: Path) -> None:
    values = {**WITHOUT_CRDS, "metrics": {"dashboard": {"enabled": True}}}
    found = named(render(helm_program, values), "ConfigMap", NAME)
    assert found["metadata"]["labels"]["grafana_dashboard"] == "1"
    assert json.loads(found["data"]["kftrainer.json"]) == json.loads(
        (CHART / "files" / "dashboard.json").read_text()
    )


def test_dashboard_namespace_and_labels_are_configurable(helm_program: Path) -> None:
    requested = {
        "enabled": True,
        "namespace": "monitoring",
        "labels": {"grafana_dashboard": None, "find": "me"},
        "annotations": {"grafana_folder": "Training"},
    }
    values = {**WITHOUT_CRDS, "metrics": {"dashboard": requested}}
    metadata = named(render(helm_program, values), "ConfigMap", NAME)["metadata"]
    assert metadata["namespace"] == "monitoring"
    assert metadata["labels"]["find"] == "me"
    assert "grafana_dashboard" not in metadata["labels"]
    assert metadata["annotations"]["grafana_folder"] == "Training"
