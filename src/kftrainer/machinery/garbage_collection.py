"""Garbage collection after work on large objects."""

import gc
from typing import Final

RECENT: Final = 1  # generations of objects that have survived few collections


def collect_recent() -> None:
    """Free recently allocated objects that are part of reference cycles.

    Python collects after a number of allocations, regardless of their size: the plans of a few
    large objects would stay in memory until then. Older objects are not scanned, so this takes
    about a millisecond.
    """
    gc.collect(RECENT)
