"""Starting other programs such that none of them outlives us."""

import sys
from collections.abc import Sequence
from pathlib import Path

LEASH = Path(__file__).with_name("leash.py")


def leashed(argv: Sequence[str | Path]) -> list[str]:
    """The command line that runs argv until it ends or its standard input, our pipe, closes."""
    return [sys.executable, "-I", "-S", str(LEASH), *map(str, argv)]
