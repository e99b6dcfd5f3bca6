"""Starts programs so that none outlives this process."""

import sys
from collections.abc import Sequence
from pathlib import Path

KILL_WITH_PARENT = Path(__file__).with_name("kill_with_parent.py")


def killed_with_parent(argv: Sequence[str | Path]) -> list[str]:
    """Return the command that runs argv until it ends or its standard input closes."""
    return [sys.executable, "-I", "-S", str(KILL_WITH_PARENT), *map(str, argv)]
