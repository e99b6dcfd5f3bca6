"""Virtual environments with packages of PyPI, which take the place of images."""

import hashlib
import shlex
import shutil
import sys
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from kftrainer.devcluster import cache_paths
from kftrainer.devcluster.processes.locks import exclusively
from kftrainer.devcluster.progress import Progress
from tests.support.processes import ran

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
    done = await ran(list(command))
    if done.code:
        raise RuntimeError(f"{shlex.join(command)}: {done.error_output}")
