"""Ctrl-C while a program is still importing its modules."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PYTHON = sys.executable
# Sends SIGINT to the process when it begins to import the module that the variable names.
INTERRUPT_AT_IMPORT = """
import os, signal, sys

class Interrupting:
    def find_spec(self, name, path=None, target=None):
        if name == os.environ["INTERRUPT_AT"]:
            sys.meta_path.remove(self)
            os.kill(os.getpid(), signal.SIGINT)
        return None

sys.meta_path.insert(0, Interrupting())
"""
ENTRIES = {
    "kftrainer": ([str(Path(PYTHON).with_name("kftrainer")), "--version"], "pydantic"),
    "kftrainer, at once": (["-m", "kftrainer.cli.main", "--version"], "argparse"),
    "kftrainer dev up": (["-m", "kftrainer.cli.main", "dev", "up"], "kftrainer.cli.commands.dev"),
    "kftrainer validate": (
        ["-m", "kftrainer.cli.main", "validate", "-f", "x"],
        "kftrainer.cli.manifests.offline_validation",
    ),
    "demo": (["hack/run.py", "demo"], "pydantic"),
    "dev": (["hack/run.py", "dev"], "pydantic"),
    "build_tools": (["hack/run.py", "build_tools"], "asyncio"),
    "generate": (["hack/run.py", "generate", "--check"], "pydantic"),
    "image": (["hack/run.py", "image"], "argparse"),
    "image.check": (["hack/run.py", "image.check"], "argparse"),
    "bench.parsing": (["hack/run.py", "bench.parsing"], "pydantic"),
}


@pytest.mark.parametrize(("arguments", "module"), ENTRIES.values(), ids=ENTRIES)
def test_interrupt_during_import_exits_with_130_and_one_line(
    arguments: list[str], module: str, tmp_path: Path
) -> None:
    (tmp_path / "sitecustomize.py").write_text(INTERRUPT_AT_IMPORT)
    path = os.pathsep.join(map(str, (tmp_path, ROOT)))
    done = subprocess.run(
        [PYTHON, *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": path, "INTERRUPT_AT": module},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    name = next(name for name, entry in ENTRIES.items() if entry[0] is arguments).split()[0]
    expected = (130, "", f"{name.strip(',')}: interrupted.\n")
    assert (done.returncode, done.stdout, done.stderr) == expected
