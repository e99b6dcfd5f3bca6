"""The snippets of docs/devcluster.md, run as they are."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from kftrainer.devcluster import cache_paths
from kftrainer.devcluster.controlplane import ControlPlane
from tests.support import doc_snippets

CACHE = cache_paths.cache_home()
WITHIN = 300.0


@pytest.fixture
def project(control_plane: ControlPlane, tmp_path: Path) -> Path:
    """A folder with the documented files."""
    assert control_plane  # the binaries are there
    doc_snippets.write("devcluster.md", tmp_path)
    return tmp_path


def python(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env={**os.environ, "XDG_CACHE_HOME": str(CACHE.parent)},
        capture_output=True,
        text=True,
        timeout=WITHIN,
        check=False,
    )


def test_documented_tests_pass(project: Path) -> None:
    done = python(project, "-m", "pytest", "-q", "-p", "no:cacheprovider")
    assert (done.returncode, "3 passed" in done.stdout) == (0, True), done.stdout + done.stderr


def test_documented_script_runs(project: Path) -> None:
    done = python(project, "play.py")
    assert (done.returncode, "is in https://127.0.0.1:" in done.stdout) == (0, True), done.stderr
