"""What every candidate measures of itself, so that the numbers can be compared."""

import asyncio
import gc
import resource
import sys
import time
from pathlib import Path

import orjson

PROBE_EVERY = 0.005


def rss() -> int:
    """Bytes of memory that this process holds now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


class Stalls:
    """The longest time for which the event loop was not free."""

    def __init__(self) -> None:
        self.longest = 0.0

    async def settle(self) -> float:
        """The longest stall, once the probe has had the time to notice the last one."""
        await asyncio.sleep(4 * PROBE_EVERY)
        return self.longest

    async def probe(self) -> None:
        """Look every few milliseconds, until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            before = loop.time()
            await asyncio.sleep(PROBE_EVERY)
            self.longest = max(self.longest, loop.time() - before - PROBE_EVERY)


class Start:
    """Where the measuring begins: after the imports."""

    def __init__(self) -> None:
        self.rss = rss()
        self.cpu = time.process_time()


def report(**numbers: float) -> None:
    """Report to the bench, with the CPU seconds so far: they do not depend on other processes."""
    cpu = time.process_time()
    gc.collect()
    sys.stdout.write(orjson.dumps({**numbers, "rss": rss(), "cpu": cpu}).decode() + "\n")
    sys.stdout.flush()
