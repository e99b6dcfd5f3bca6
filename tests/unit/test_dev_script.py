"""`make dev` before it has a cluster: its arguments, and who may run the manager."""

import os
from argparse import Namespace
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import dev
import pytest

from kftrainer.devcluster.errors import DevClusterError
from kftrainer.devcluster.named_control_plane import Part, State


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "kftrainer"


def test_arguments_that_are_not_options_are_passed_to_the_manager() -> None:
    given = ["--name", "other", "--process-nodes=2", "--namespace", "team", "--qps=5"]
    assert dev.arguments(given) == (
        Namespace(name="other", process_nodes=2),
        ["--namespace", "team", "--qps=5"],
    )
    assert dev.arguments([]) == (Namespace(name="default", process_nodes=0), [])


@pytest.mark.parametrize("part", ["kwok", "kubelet"])
def test_control_plane_without_process_nodes_is_refused(part: str) -> None:
    state = State("ready", parts=(Part("etcd", 1, ""), Part(part, 2, "")))
    with nullcontext() if part == "kubelet" else pytest.raises(DevClusterError, match="dev down"):
        dev.check_process_nodes("default", state)


def test_pods_are_simulated_without_an_image_if_process_nodes_are_unavailable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(dev.kubelet, "unavailable", lambda: "No user namespaces.")
    assert dev.node_options(2) == ["--process-nodes", "2"]


def test_second_manager_of_a_control_plane_is_refused_with_its_holder(
    cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with dev.only_manager("other", cache):
        assert dev.main(["--name", "other"]) == 1
    printed = capsys.readouterr().err
    assert f"`make dev` (process {os.getpid()}) already runs the manager" in printed
    assert "the control plane other" in printed
    assert "`make dev NAME=another-name`" in printed


def test_managers_of_two_control_planes_run_side_by_side(cache: Path) -> None:
    with dev.only_manager("one", cache), dev.only_manager("two", cache):
        pass
    with dev.only_manager("one", cache), pytest.raises(DevClusterError):  # noqa: SIM117
        with dev.only_manager("one", cache):
            pass


def test_name_that_cannot_be_one_is_refused(
    cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert dev.main(["--name", "No/Name"]) == 1
    assert capsys.readouterr().err.startswith("dev: 'No/Name' cannot be the name")
