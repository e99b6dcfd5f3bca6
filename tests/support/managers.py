"""Runs managers as processes that end with the test."""

import json
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from kftrainer.devcluster import cache_paths
from kftrainer.devcluster.client import ApiClient, UnreachableError
from kftrainer.devcluster.errors import ApiError
from kftrainer.devcluster.processes.ports import LOOPBACK, PortReservations
from kftrainer.devcluster.processes.process import ManagedProcess, tail
from kftrainer.devcluster.waiting import until

KFTRAINER = (sys.executable, "-m", "kftrainer.cli.main")
ROOT = Path(__file__).parents[2]
FAST = (  # and how many times faster
    *(sys.executable, "-c"),
    f"import sys; sys.path.insert(0, {str(ROOT)!r}); "
    "from tests.support.fast_manager import run; sys.exit(run(sys.argv[1:]))",
)
READY_WITHIN = 60.0
# A manager that receives SIGTERM has thirty seconds to finish.
STOPPED_WITHIN = 35.0
LINES_SHOWN = 60
# What a controller logs when a reconciler raised; without `exception` if it is a ReconcileError.
RAISED_OUT = ("reconcile_failed", "reconcile_failed_terminally")


class ManagerProcess:
    """`kftrainer manager`, running; `manager_process` makes them."""

    def __init__(self, process: ManagedProcess, health_url: str) -> None:
        self._process = process
        self.health_url = health_url
        self._entries: list[dict[str, Any]] = []
        self._read = 0  # bytes of the log

    async def wait_ready(self) -> None:
        """Return when its caches have synced; it may not be the leader yet."""
        async with ApiClient(self.health_url, None) as probes:

            async def ready() -> bool:
                self._process.check()
                try:
                    await probes.fetch("GET", "/readyz")
                except (ApiError, UnreachableError):
                    return False
                return True

            await until(ready, within=READY_WITHIN, what="the manager being ready")

    def kill(self) -> None:
        """End it now, as SIGKILL does."""
        self._process.kill()

    async def stop(self) -> None:
        """Stop it with SIGTERM, and wait until it has exited."""
        await self._process.stop(STOPPED_WITHIN)

    def start(self) -> None:
        """Start it again after it has ended; its log is appended."""
        self._process.start()

    @property
    def pid(self) -> int:
        """The process that was started: its wrapper, whose only child is the manager."""
        return self._process.pid or 0

    def is_alive(self) -> bool:
        """Whether it runs."""
        return self._process.alive()

    def ending(self) -> str:
        """How it ended, in words: `exit code 0`, `killed by SIGKILL`."""
        return self._process.ending()

    def log_text(self) -> str:
        """All output."""
        log = self._process.log
        return log.read_text() if log.exists() else ""

    def log_entries(self, event: str | None = None) -> list[dict[str, Any]]:
        """Its log as entries: all, or those of one event."""
        if self._process.log.exists():
            with self._process.log.open("rb") as log:
                log.seek(self._read)
                complete_lines, _, _ = log.read().rpartition(b"\n")
            lines = complete_lines.splitlines(keepends=True)
            self._entries += [json.loads(line) for line in lines if line.startswith(b"{")]
            self._read += len(complete_lines) + 1 if complete_lines else 0
        return [each for each in self._entries if event in (None, each["event"])]

    def check_no_reconcile_raised(self) -> None:
        """Fail if a reconciler raised an unexpected error; failed API calls are expected."""
        raised = [
            each for event in RAISED_OUT for each in self.log_entries(event) if "error" not in each
        ]
        assert not raised, f"reconciles that raised: {raised}"


@asynccontextmanager
async def manager_process(
    kubeconfig: Path, *flags: str, program: Sequence[str] = KFTRAINER
) -> AsyncIterator[ManagerProcess]:
    """A manager that has been started; at the end of the block no reconcile may have raised."""
    ports = PortReservations(cache_paths.ports(cache_paths.cache_home()))
    address = f"{LOOPBACK}:{ports.reserve()}"
    argv = (
        *program,
        *("manager", "--kubeconfig", str(kubeconfig)),
        *("--metrics-bind-address", "0", "--health-probe-bind-address", address),
        *("--webhook-port", "0"),
        *flags,
    )
    try:
        async with started(argv, f"http://{address}") as manager:
            yield manager
    finally:
        ports.release_all()


@asynccontextmanager
async def started(argv: Sequence[str], health_url: str) -> AsyncIterator[ManagerProcess]:
    """A manager started by its whole command line, with its health address."""
    with TemporaryDirectory(prefix="manager-") as home:
        process = ManagedProcess("manager", argv, Path(home) / "manager.log", Path(home))
        process.start()
        manager = ManagerProcess(process, health_url)
        try:
            yield manager
            manager.check_no_reconcile_raised()
        except BaseException as error:
            error.add_note(f"log of the manager:\n{tail(process.log, LINES_SHOWN)}")
            raise
        finally:
            process.kill()
