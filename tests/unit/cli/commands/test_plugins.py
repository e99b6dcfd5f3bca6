"""What `kftrainer plugins` prints."""

import json
from importlib.metadata import version
from pathlib import Path

import pytest

from kftrainer.cli.main import main
from kftrainer.runtime.plugins import PLUGINS

NAMES = [plugin.name for plugin in PLUGINS]
CONFIGURATION = """
apiVersion: config.trainer.kubeflow.org/v1alpha1
kind: Configuration
plugins:
  disabled: [MPI]
"""


@pytest.fixture
def config(tmp_path: Path) -> str:
    """The path of a configuration file that disables MPI."""
    file = tmp_path / "config.yaml"
    file.write_text(CONFIGURATION)
    return str(file)


def test_table_lists_built_in_plugins_in_their_order(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plugins"]) == 0
    plugins, rules = capsys.readouterr().out.split("\n\n")
    rows = [line.split() for line in plugins.splitlines()]
    assert rows[0] == ["NAME", "STATE", "PACKAGE", "VERSION", "POLICY", "PHASES"]
    assert [row[0] for row in rows[1 : len(NAMES) + 1]] == NAMES
    assert rows[2] == [
        "Torch",
        "enabled",
        "kftrainer",
        version("kftrainer"),
        "spec.mlPolicy.torch",
        "EnforceMLPolicy,CustomValidation,RuntimeValidation,PolicyExtension",
    ]
    permissions = [line.split() for line in rules.splitlines()]
    assert permissions[0] == ["PLUGIN", "RESOURCE", "VERBS"]
    assert [
        "JobSet",
        "jobsets.jobset.x-k8s.io",
        "get,list,watch,create,patch,delete",
    ] in permissions
    assert ["MPI", "secrets", "create,patch"] in permissions


def test_json_has_rules_as_in_a_cluster_role(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plugins", "--output", "json"]) == 0
    found = {each["name"]: each for each in json.loads(capsys.readouterr().out)}
    assert found["JobSet"] == {
        "name": "JobSet",
        "state": "enabled",
        "package": "kftrainer",
        "version": version("kftrainer"),
        "phases": [
            "PodNetwork",
            "ComponentBuilder",
            "TrainJobStatus",
            "CustomValidation",
            "WatchExtension",
            "RBACExtension",
        ],
        "policy": None,
        "watches": ["JobSet.jobset.x-k8s.io", "ResourceClaimTemplate.resource.k8s.io"],
        "rbacRules": [
            {
                "apiGroups": ["jobset.x-k8s.io"],
                "resources": ["jobsets"],
                "verbs": ["get", "list", "watch", "create", "patch", "delete"],
            },
            {
                "apiGroups": ["resource.k8s.io"],
                "resources": ["resourceclaimtemplates"],
                "verbs": ["list", "watch"],
            },
        ],
    }


def test_disabled_plugin_is_listed_without_its_permissions(
    config: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plugins", "--config", config]) == 0
    plugins, rules = capsys.readouterr().out.split("\n\n")
    states = {line.split()[0]: line.split()[1] for line in plugins.splitlines()[1:]}
    assert {name: states[name] for name in NAMES} == {
        name: "disabled" if name == "MPI" else "enabled" for name in NAMES
    }
    assert "MPI" not in rules


def test_unknown_plugin_is_an_error(config: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path(config).write_text(CONFIGURATION.replace("MPI", "mpi"))
    assert main(["plugins", "--config", config]) == 1
    out, err = capsys.readouterr()
    assert (out, err.startswith("kftrainer: plugins.disabled: mpi: not built in")) == ("", True)


def test_missing_configuration_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plugins", "--config", str(tmp_path / "none.yaml")]) == 1
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
