"""Memory of large objects that were just worked on."""

import gc
from typing import Final

RECENT: Final = 1  # the generations of objects that have outlived few collections


def collect_recent() -> None:
    """Free what was allocated a moment ago and refers to itself.

    Python does that after a number of allocations, however many bytes they have: a few plans of
    large objects would stay in memory until then. Older objects are not looked at, so that it
    takes about a millisecond.
    """
    gc.collect(RECENT)
