"""Virtual environments with packages of PyPI, which take the place of images."""

import asyncio
import hashlib
import shutil
import sys
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from kftrainer.devcluster import cache_paths
from kftrainer.devcluster.errors import MissingPartError
from kftrainer.devcluster.processes.locks import exclusively
from kftrainer.devcluster.progress import Progress

READY = ".ready"


def folder_of(name: str, *sources: bytes) -> Path:
    """Return the folder of an environment that is created from these sources."""
    digest = hashlib.sha256(b"\0".join([sys.version.encode(), *sources])).hexdigest()
    return cache_paths.cache_home() / "environments" / f"{name}-{digest[:12]}"


async def provide(
    folder: Path, what: str, create: Callable[[Path], Awaitable[None]], progress: Progress
) -> Path:
    """Create the environment unless it exists; return its folder."""
    name, _, _ = folder.name.rpartition("-")
    if not (folder / READY).exists():
        async with exclusively(folder.with_name(f"{name}.lock"), progress):
            if not (folder / READY).exists():
                with progress.step(f"installing {what} from PyPI"):
                    shutil.rmtree(folder, ignore_errors=True)
                    await create(folder)
                (folder / READY).touch()
    return folder


async def install(folder: Path, locks: Sequence[Path], *options: str) -> None:
    """Create a virtual environment with the packages of the lock files."""
    await _run(sys.executable, "-I", "-m", "venv", "--clear", str(folder))
    python = str(folder / "bin" / "python")
    requirements = [part for lock in locks for part in ("--requirement", str(lock))]
    pinned = ("--quiet", "--disable-pip-version-check", "--require-hashes", "--only-binary=:all:")
    await _run(python, "-I", "-m", "pip", "install", *pinned, *options, *requirements)


async def _run(*command: str) -> None:
    """Run a command that must succeed; it is killed on cancellation."""
    process = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    try:
        output, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode:
        lines = output.decode(errors="replace").strip().splitlines() or ["no output"]
        raise MissingPartError(
            f"Installing packages failed, which needs access to PyPI or to a mirror that is "
            f"configured for pip: {lines[-1]}"
        )
