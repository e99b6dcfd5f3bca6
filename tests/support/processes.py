"""Lists processes of this machine and runs programs to completion."""

import asyncio
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Ran:
    """Exit code and output of a program."""

    code: int
    printed: str
    error_output: str


async def ran(argv: Sequence[str], env: Mapping[str, str] | None = None) -> Ran:
    """Run the program to its end; it is killed on cancellation."""
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*argv, env=env, stdout=pipe, stderr=pipe)
    try:
        printed, error_output = await process.communicate()
    except asyncio.CancelledError:
        process.kill()
        await process.communicate()
        raise
    assert process.returncode is not None
    return Ran(process.returncode, printed.decode(), error_output.decode())


def processes_of(folder: Path | str) -> list[str]:
    """The command lines of all processes that mention the folder."""
    return [command for _, command in pids_of(folder)]


def pids_of(folder: Path | str) -> list[tuple[int, str]]:
    """The same with their process ids."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            except OSError:
                continue
            if str(folder) in command:
                found.append((int(entry.name), command))
    return found
