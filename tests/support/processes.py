"""Which processes run on this machine."""

import os
from pathlib import Path


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
