"""Runs commands to completion in subprocesses."""

import asyncio
from dataclasses import dataclass
from pathlib import Path

from kftrainer.devcluster.waiting import until
from tests.support.managers import KFTRAINER

ENDS_WITHIN = 330.0  # `kftrainer purge` gives itself 300
FAILS_WITHIN = 120.0
# How a command reports that its last request failed.
UNREACHABLE = ("the API server does not respond", "the last attempt failed: ")


@dataclass(frozen=True, slots=True)
class Ended:
    """Exit code and output of a command."""

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


async def error_output(command: str, *arguments: str | Path) -> str:
    """Return the one-line error of `kftrainer` about the cluster.

    The command is retried if it timed out, as on a busy machine.
    """

    async def seen() -> str | None:
        ended = await kftrainer(command, *arguments)
        assert ended.code == 1
        [line] = ended.err
        return None if any(each in line for each in UNREACHABLE) else line

    line = await until(seen, within=FAILS_WITHIN, what=f"kftrainer {command} seeing to the end")
    return line.removeprefix(f"kftrainer {command}: ")
