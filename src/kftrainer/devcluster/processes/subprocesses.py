"""Starts programs so that none outlives this process."""

import sys
from collections.abc import Sequence
from pathlib import Path

LEASH = Path(__file__).with_name("leash.py")


def leashed(argv: Sequence[str | Path]) -> list[str]:
    """Return the command that runs argv until it ends or its standard input closes."""
    return [sys.executable, "-I", "-S", str(LEASH), *map(str, argv)]
