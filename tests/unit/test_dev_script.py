"""`make dev` before it has a cluster: its arguments, and who may run the manager."""

import os
from collections.abc import Iterator
from pathlib import Path

import dev
import pytest

from kftrainer.devcluster.errors import DevClusterError


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "kftrainer"


def test_arguments_other_than_the_name_are_passed_to_the_manager() -> None:
    assert dev.arguments(["--name", "other", "--namespace", "team", "--qps=5"]) == (
        "other",
        ["--namespace", "team", "--qps=5"],
    )
    assert dev.arguments([]) == ("default", [])


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
