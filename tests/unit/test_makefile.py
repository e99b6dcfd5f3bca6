"""The targets of the Makefile, and what `make help` lists."""

import os
import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]
MAKEFILE = (ROOT / "Makefile").read_text()


def make(*arguments: str) -> str:
    # The tests may run under make, whose variables would change what this one prints.
    env = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    done = subprocess.run(
        ["make", *arguments], cwd=ROOT, env=env, capture_output=True, text=True, check=True
    )
    return done.stdout


def test_help_lists_every_target() -> None:
    phony = re.findall(r"^\.PHONY: (.+)$", MAKEFILE, re.MULTILINE)
    targets = {target for line in phony for target in line.split()}
    listed = {line.split()[0] for line in make("help").splitlines()}
    assert listed == targets
    assert "test-e2e" in listed


def test_dev_passes_the_name_the_nodes_and_the_flags() -> None:
    planned = make("-n", "dev", "NAME=other", "PROCESS_NODES=2", "FLAGS=--log-level debug")
    passed = "--name other --process-nodes 2 --log-level debug"
    assert planned.splitlines()[-1].endswith(f"run.py dev {passed}")


def test_tools_of_the_folder_hack_run_with_handling_of_interrupts() -> None:
    recipes = [line for line in MAKEFILE.splitlines() if line.startswith("\t")]
    direct = [line for line in recipes if re.search(r"python (hack/|-m (?!pip|venv))", line)]
    assert direct == []
