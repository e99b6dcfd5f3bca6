"""Finds the programs of a control plane, and builds those that are not there.

The order for each: `$KUBEBUILDER_ASSETS`, as with envtest; our cache; a build into our cache.
"""

import os
import platform
import re
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path

from kftrainer.devcluster import places
from kftrainer.devcluster.errors import MissingPartError
from kftrainer.devcluster.golang import Go, explain, find_or_install_go, run_on_leash
from kftrainer.devcluster.locks import exclusively
from kftrainer.devcluster.parts import GIB, KUBECTL, Binary
from kftrainer.devcluster.progress import Progress, Step

ASSETS = "KUBEBUILDER_ASSETS"
OLDEST_KUBECTL = (1, 35)


def cached_path(cache: Path, binary: Binary) -> Path:
    """Where a binary that we built lies; caches shared between machines keep them apart."""
    machine = f"{platform.system()}-{platform.machine()}".lower()
    return places.binaries(cache) / machine / f"{binary.name}-{binary.version}"


def _in_assets(binary: Binary, environ: Mapping[str, str]) -> Path | None:
    folder = environ.get(ASSETS)
    if not folder:
        return None
    if not Path(folder).is_dir():
        raise MissingPartError(
            f"{ASSETS} is set to {folder}, which is not a folder: correct it, or unset it to have "
            f"the binaries built."
        )
    path = Path(folder) / binary.name
    return path if os.access(path, os.X_OK) else None


async def _kubectl_on_path(environ: Mapping[str, str]) -> Path | None:
    found = shutil.which("kubectl", path=environ.get("PATH"))
    if found is None:
        return None
    argv = [found, "version", "--client"]
    _, output, _ = await run_on_leash(argv, cwd=Path.cwd(), env=environ)
    match = re.search(r"Client Version: v(\d+)\.(\d+)", output)
    new_enough = match is not None and (int(match[1]), int(match[2])) >= OLDEST_KUBECTL
    return Path(found) if new_enough else None


async def find(binary: Binary, cache: Path, environ: Mapping[str, str]) -> Path | None:
    """The binary if it is there already."""
    if (asset := _in_assets(binary, environ)) is not None:
        return asset
    built = cached_path(cache, binary)
    if built.exists():
        return built
    return await _kubectl_on_path(environ) if binary is KUBECTL else None


async def provide(
    wanted: Iterable[Binary],
    *,
    cache: Path,
    progress: Progress,
    environ: Mapping[str, str] = os.environ,
) -> dict[str, Path]:
    """Paths of the wanted binaries by name; those that are missing are built first."""
    wanted = tuple(wanted)
    found = {binary.name: await find(binary, cache, environ) for binary in wanted}
    for binary in wanted:
        if found[binary.name] is None:
            await _build_once(binary, cache, progress)
    return {binary.name: found[binary.name] or cached_path(cache, binary) for binary in wanted}


async def _build_once(binary: Binary, cache: Path, progress: Progress) -> None:
    async with exclusively(places.build_logs(cache) / f"building {binary.name}.lock", progress):
        if not cached_path(cache, binary).exists():  # another process may just have built it
            go = await find_or_install_go(cache, progress)
            _check_disk(binary, cache)
            await _build(go, binary, cache, progress)


def _check_disk(binary: Binary, cache: Path) -> None:
    free, needed = shutil.disk_usage(cache).free, binary.project.disk_needed
    if free < needed:
        raise MissingPartError(
            f"Building {binary.name} needs about {needed / GIB:.0f} GiB and the disk "
            f"of {cache} has {free / GIB:.1f} GiB free: free some space, or point XDG_CACHE_HOME "
            f"to a larger disk."
        )


class PackageCounter:
    """Reads what `go build -v` says and turns it into a note on how far it is."""

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
    log = places.build_logs(cache) / f"{binary.name}.log"
    ldflags = f"-s -w {binary.ldflags}".strip()
    build: list[str | Path] = [go.executable, "build", "-v", "-trimpath", "-ldflags", ldflags]
    # A build that is cut off leaves at most this file, which the next one overwrites.
    unfinished = target.with_name(f"{target.name}.unfinished")
    with progress.step(f"building {binary.name} {binary.version}") as step:
        code, _, said = await run_on_leash(
            [*build, "-o", unfinished, binary.package],
            cwd=binary.project.folder,
            env=go.environment(),
            on_line=PackageCounter(step),
        )
    log.write_text(said + "\n")
    if code != 0:
        raise explain(f"Building {binary.name} (full output in {log})", said)
    os.replace(unfinished, target)
