"""Commands that come to an end, as people run them."""

import asyncio
from dataclasses import dataclass
from pathlib import Path

from tests.support.managers import KFTRAINER

ENDS_WITHIN = 150.0


@dataclass(frozen=True, slots=True)
class Ended:
    """How a command ended, and what it said."""

    code: int
    out: list[str]
    err: list[str]


async def kftrainer(*arguments: str | Path) -> Ended:
    """`kftrainer` with these arguments."""
    process = await asyncio.create_subprocess_exec(
        *KFTRAINER,
        *map(str, arguments),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(ENDS_WITHIN):
            out, err = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode is not None
    return Ended(process.returncode, out.decode().splitlines(), err.decode().splitlines())
