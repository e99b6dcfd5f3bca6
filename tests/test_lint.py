"""Linters, type checker and import contracts pass, and the documented example is current."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
TOOLS = Path(sys.executable).parent


@pytest.mark.parametrize(
    "command",
    [
        ["ruff", "check", "."],
        ["ruff", "format", "--check", "."],
        ["mypy"],
        ["lint-imports"],
    ],
    ids=" ".join,
)
def test_tool_reports_no_findings(command: list[str]) -> None:
    done = subprocess.run(
        [TOOLS / command[0], *command[1:]], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_example_in_the_documents_is_the_one_that_runs() -> None:
    example = (ROOT / "examples" / "greeter.py").read_text()
    assert example in (ROOT / "docs" / "machinery.md").read_text()
    assert len(example.splitlines()) < 60
