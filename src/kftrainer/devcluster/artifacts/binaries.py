"""Finds the programs of a control plane and builds those that are missing.

The search order is `$KUBEBUILDER_ASSETS`, as with envtest, then the cache, then a build into it.
"""

import os
import platform
import re
import shutil
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from kftrainer.devcluster import cache_paths
from kftrainer.devcluster.artifacts.golang import Go, explain, find_or_install_go, run_command
from kftrainer.devcluster.artifacts.versions import BINARIES, GIB, KUBECTL, Binary
from kftrainer.devcluster.errors import MissingPartError
from kftrainer.devcluster.processes.locks import exclusively
from kftrainer.devcluster.progress import Progress, Step

ASSETS = "KUBEBUILDER_ASSETS"
OLDEST_KUBECTL = (1, 35)
DISK_FOR_ANOTHER = GIB // 2  # for another binary of a project whose packages are already compiled


def cached_path(cache: Path, binary: Binary) -> Path:
    """Return the path of a built binary; it contains the platform, as caches may be shared."""
    machine = f"{platform.system()}-{platform.machine()}".lower()
    return cache_paths.binaries(cache) / machine / f"{binary.name}-{binary.version}"


def _in_assets(binary: Binary) -> Path | None:
    folder = os.environ.get(ASSETS)
    if not folder:
        return None
    if not Path(folder).is_dir():
        raise MissingPartError(
            f"{ASSETS} is set to {folder}, which is not a folder: correct it, or unset it to have "
            f"the binaries built."
        )
    path = Path(folder) / binary.name
    return path if os.access(path, os.X_OK) else None


async def _kubectl_on_path() -> Path | None:
    found = shutil.which("kubectl")
    if found is None:
        return None
    argv = [found, "version", "--client"]
    _, output, _ = await run_command(argv, cwd=Path.cwd(), env=os.environ)
    match = re.search(r"Client Version: v(\d+)\.(\d+)", output)
    new_enough = match is not None and (int(match[1]), int(match[2])) >= OLDEST_KUBECTL
    return Path(found) if new_enough else None


async def find(binary: Binary, cache: Path) -> Path | None:
    """Return the binary if it exists."""
    if (asset := _in_assets(binary)) is not None:
        return asset
    built = cached_path(cache, binary)
    if built.exists():
        return built
    return await _kubectl_on_path() if binary is KUBECTL else None


async def provide(wanted: Iterable[Binary], *, cache: Path, progress: Progress) -> dict[str, Path]:
    """Return the paths of the wanted binaries by name; build missing ones first."""
    wanted = tuple(wanted)
    found = {binary.name: await find(binary, cache) for binary in wanted}
    for binary in wanted:
        if found[binary.name] is None:
            await _build_once(binary, cache, progress)
    return {binary.name: found[binary.name] or cached_path(cache, binary) for binary in wanted}


async def _build_once(binary: Binary, cache: Path, progress: Progress) -> None:
    async with exclusively(
        cache_paths.build_logs(cache) / f"building {binary.name}.lock", progress
    ):
        if not cached_path(cache, binary).exists():  # another process may have built it
            go = await find_or_install_go(cache, progress)
            await _check_disk(go, binary, cache)
            await _build(go, binary, cache, progress)


async def _check_disk(go: Go, binary: Binary, cache: Path) -> None:
    """Fail early if the disk is too small for the build."""
    siblings = [each for each in BINARIES if each.project == binary.project]
    first = not any(cached_path(cache, each).exists() for each in siblings)
    needed = binary.project.disk_needed if first else DISK_FOR_ANOTHER
    folders = await go.settings("GOMODCACHE", "GOCACHE")
    for folder in (cache, *map(Path, folders)):
        free = shutil.disk_usage(_existing(folder)).free
        if free < needed:
            raise MissingPartError(
                f"Building {binary.name} needs about {needed / GIB:.1f} GiB and the disk of "
                f"{folder} has {free / GIB:.1f} GiB free: free some space, or point "
                f"XDG_CACHE_HOME, GOMODCACHE and GOCACHE to a larger disk."
            )


def _existing(folder: Path) -> Path:
    return folder if folder.exists() else _existing(folder.parent)


class PackageCounter:
    """Updates the progress from the output of `go build -v`."""

    def __init__(self, step: Step) -> None:
        self._step = step
        self._compiled = 0

    def __call__(self, line: str) -> None:
        if line.startswith("go: downloading "):
            self._step.note(f"downloading {line.split()[2]}")
        else:
            self._compiled += 1
            self._step.note(f"{self._compiled} packages compiled")


async def _build(go: Go, binary: Binary, cache: Path, progress: Progress) -> None:
    target = cached_path(cache, binary)
    target.parent.mkdir(parents=True, exist_ok=True)
    log = cache_paths.build_logs(cache) / f"{binary.name}.log"
    ldflags = f"-s -w {binary.ldflags}".strip()
    build: list[str | Path] = [go.executable, "build", "-v", "-trimpath", "-ldflags", ldflags]
    if binary.tags:
        build += ["-tags", binary.tags]
    # An interrupted build leaves at most these, which the next build removes first.
    unfinished = target.with_name(f"{target.name}.unfinished")
    scratch = cache_paths.build_logs(cache) / f"{binary.name}.scratch"
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir()
    with progress.step(f"building {binary.name} {binary.version}") as step:
        code, _, output = await run_command(
            [*build, "-o", unfinished, binary.package],
            cwd=binary.project.folder,
            env={**go.environment(), "GOTMPDIR": str(scratch)},
            on_line=PackageCounter(step),
        )
    shutil.rmtree(scratch, ignore_errors=True)
    with suppress(OSError):  # the disk may be full, which is reported below
        log.write_text(output + "\n")
    if code != 0:
        raise explain(f"Building {binary.name} (full output in {log})", output)
    os.replace(unfinished, target)
