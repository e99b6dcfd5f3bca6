"""Runs Python's garbage collector after work on large objects.

Objects in the cluster are deleted with their owners by Kubernetes: `runtime.object_builders` sets
the owner references.
"""

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
