"""`kftrainer dev` without a control plane; the integration tests start one."""

import argparse
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from kftrainer.cli.commands import dev
from kftrainer.cli.commands.dev import _how_to_use
from kftrainer.cli.main import main
from kftrainer.devcluster.cluster_options import FULL
from kftrainer.devcluster.errors import DevClusterError
from kftrainer.devcluster.named_control_plane import NamedPlane, State


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "kftrainer"


def test_status_without_control_plane_names_the_start_command(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["dev", "status"]) == 1
    assert "default is not running; start it with `kftrainer dev up`." in capsys.readouterr().out


def test_down_without_control_plane_is_not_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["dev", "down"]) == 0
    assert capsys.readouterr().out == "default was not running.\n"


def test_stale_state_file_is_ignored(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    NamedPlane("default", cache).write(State("ready", url="https://127.0.0.1:1"))
    assert main(["dev", "status"]) == 1
    assert "its processes were killed" in capsys.readouterr().out
    assert main(["dev", "down"]) == 0
    assert "was not running" in capsys.readouterr().out


def test_damaged_state_file_is_ignored(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = NamedPlane("default", cache)
    place.write(State("ready"))
    (place.folder / "state.json").write_text('{"phase": "rea')
    assert main(["dev", "status"]) == 1
    assert "start it with `kftrainer dev up`" in capsys.readouterr().out


def test_status_reports_why_it_is_down(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    NamedPlane("default", cache).write(State("failed", reason="etcd ended by itself."))
    assert main(["dev", "status"]) == 1
    assert capsys.readouterr().out == "default is not running: etcd ended by itself.\n"


def test_up_while_another_process_starts_it_is_reported(
    cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = NamedPlane("default", cache)
    assert place.lock.try_acquire()
    place.write(State("starting"))
    assert main(["dev", "up"]) == 1
    assert "another process is starting or stopping" in capsys.readouterr().err
    place.lock.release()


@pytest.mark.parametrize("command", [["kubeconfig"], ["logs"]])
def test_commands_without_control_plane_name_the_start_command(
    command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["dev", *command]) == 1
    output = capsys.readouterr().err
    assert output.startswith("kftrainer: default ")
    assert "start it with `kftrainer dev up`." in output


def test_logs_are_there_after_the_end(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = NamedPlane("default", cache).folder / "logs"
    folder.mkdir(parents=True)
    (folder / "etcd.log").write_text("1\n2\n3\n")
    assert main(["dev", "logs", "etcd", "--tail", "2"]) == 0
    assert capsys.readouterr().out == f"==> etcd ({folder / 'etcd.log'})\n2\n3\n"
    assert main(["dev", "logs", "etc"]) == 1
    assert "has no log of etc; available logs: etcd" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["", "../up", "A", "-a", "a" * 33])
def test_invalid_name_is_rejected(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["dev", "up", f"--name={name}"]) == 1
    assert "cannot be the name of a control plane" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("--port=0", "0 is not between 1 and 65535"),
        ("--port=http", "invalid number value: 'http'"),
        ("--nodes=-1", "-1 is not between 0 and 5000"),
    ],
)
def test_invalid_number_is_rejected(
    option: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["dev", "up", option])
    assert stopped.value.code == 2
    assert message in capsys.readouterr().err


def test_a_crd_file_that_is_not_there_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["dev", "up", "--crd", "nonesuch.yaml"]) == 1
    assert "nonesuch.yaml is not a file" in capsys.readouterr().err


def test_unwritable_cache_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main(["dev", "up", "--bare"]) == 1
    assert capsys.readouterr().err.startswith("kftrainer: Not a directory")


def test_state_round_trips(cache: Path) -> None:
    place = NamedPlane("other", cache)
    state = State("ready", url="u", kubeconfig="k")
    place.write(state)
    assert place.read() == state
    assert json.loads((place.folder / "state.json").read_text())["phase"] == "ready"


@pytest.mark.parametrize("action", ["status", "kubeconfig", "logs"])
@pytest.mark.parametrize("state", [None, State("ready")], ids=["never up", "killed"])
def test_suggested_commands_name_the_control_plane(
    action: str, state: State | None, cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if state is not None:
        NamedPlane("other", cache).write(state)
    assert main(["dev", action, "--name", "other"]) == 1
    printed = "".join(capsys.readouterr())
    assert "start it with `kftrainer dev up --name other`." in printed


def test_suggestion_to_stop_names_the_control_plane(
    cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = NamedPlane("other", cache)
    assert place.lock.try_acquire()
    assert main(["dev", "up", "--name", "other"]) == 1
    assert "or run `kftrainer dev down --name other`." in capsys.readouterr().err
    place.lock.release()


def test_suggested_export_is_quoted_for_the_shell() -> None:
    state = State("ready", url="https://127.0.0.1:1", kubeconfig="/home/ada l/kubeconfig")
    assert _how_to_use(state).endswith("export KUBECONFIG='/home/ada l/kubeconfig'")


def parsed(*arguments: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    dev.add_parser(parser.add_subparsers())
    return parser.parse_args(["dev", "up", *arguments])


def test_process_nodes_replace_the_simulated_ones(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(dev, "unavailable", lambda: None)
    image, gpus = f"team/*={tmp_path}", "nvidia.com/gpu=8"
    options = ("--process-nodes", "2", "--image", image, "--node-resource", gpus)
    shape = dev._with_nodes(FULL, parsed(*options))
    assert shape == replace(
        FULL,
        nodes=0,
        process_nodes=2,
        images={"team/*": tmp_path},
        process_node_resources={"nvidia.com/gpu": "8"},
    )


def test_pods_are_simulated_where_process_nodes_cannot_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(dev, "unavailable", lambda: "User namespaces are disabled.")
    shape = dev._with_nodes(FULL, parsed("--process-nodes", "2"))
    assert (shape.nodes, shape.process_nodes) == (2, 0)
    assert capsys.readouterr().err == (
        "kftrainer: User namespaces are disabled. Pods are simulated on 2 nodes.\n"
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--image", "a=/nowhere"), "--image a: /nowhere is not a folder"),
        (("--node-resource", "gpu=many"), "--node-resource gpu: "),
        (("--bare", "--process-nodes", "1"), "--bare has no controllers"),
    ],
)
def test_wrong_options_of_process_nodes_are_errors(options: tuple[str, ...], message: str) -> None:
    with pytest.raises(DevClusterError, match=message):
        dev._check(parsed(*options))
