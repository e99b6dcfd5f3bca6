"""The snippets of docs/devcluster.md, run as they are."""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from kftrainer.devcluster import cache_paths
from kftrainer.devcluster.controlplane import ControlPlane
from tests.support import doc_snippets
from tests.support.example_plugin import environment, install

CACHE = cache_paths.cache_home()
COMMANDS = Path(sys.executable).parent
DOCUMENT = "devcluster.md"
SETUP = ("kftrainer crds > crds.yaml", 'echo "devcluster_crds = crds.yaml" >> pytest.ini')
WITHIN = 300.0


@pytest.fixture
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which the documented plugin is installed."""
    source, target = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("installed")
    install(source, target)
    return target


@pytest.fixture
def project(control_plane: ControlPlane, tmp_path: Path) -> Path:
    """A folder with the documented files."""
    assert control_plane  # the binaries are there
    doc_snippets.write(DOCUMENT, tmp_path)
    return tmp_path


def run(
    folder: Path, *command: str, env: Mapping[str, str] = os.environ
) -> subprocess.CompletedProcess[str]:
    """Run a command with the commands of this virtual environment."""
    path = f"{COMMANDS}{os.pathsep}{env['PATH']}"
    return subprocess.run(
        command,
        cwd=folder,
        env={**env, "PATH": path, "XDG_CACHE_HOME": str(CACHE.parent)},
        capture_output=True,
        text=True,
        timeout=WITHIN,
        check=False,
    )


def test_documented_tests_pass(project: Path, packages: Path) -> None:
    documented = (doc_snippets.DOCS / DOCUMENT).read_text()
    for command in SETUP:
        assert f"$ {command}\n" in documented
        done = run(project, "sh", "-c", command)
        assert done.returncode == 0, done.stderr
    flags = ("-q", "-p", "no:cacheprovider")
    done = run(project, "python", "-m", "pytest", *flags, env=environment(packages))
    assert (done.returncode, "3 passed" in done.stdout) == (0, True), done.stdout + done.stderr


def test_documented_test_of_a_plugin_is_short() -> None:
    assert len(doc_snippets.files(DOCUMENT)["test_plugin.py"].splitlines()) <= 20


def test_documented_script_runs(project: Path) -> None:
    done = run(project, "python", "play.py")
    assert (done.returncode, "is in https://127.0.0.1:" in done.stdout) == (0, True), done.stderr
