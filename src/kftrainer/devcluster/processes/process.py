"""One running component: a process with a log file that ends with its parent."""

import asyncio
import os
import re
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from kftrainer.devcluster.errors import PortTakenError, ProcessDiedError
from kftrainer.devcluster.processes.subprocesses import killed_with_parent

SIGNALLED = 128  # a wrapper reports death by signal as a shell does
GRACE = 5.0
LINES_SHOWN = 12
LINES_SEARCHED = 2000
FATAL = re.compile(r"F\d{4} |panic: |fatal error: ")
PORT_TAKEN = "address already in use"
DISK_FULL = "no space left on device"


def tail(log: Path, lines: int, start: int = 0) -> str:
    """Return the last lines of a log, read from the given byte."""
    if not log.exists() or lines == 0:
        return ""
    with log.open("rb") as file:
        file.seek(start)
        return "\n".join(file.read().decode(errors="replace").splitlines()[-lines:])


def log_tail(log: Path) -> str:
    """Return the end of a log, preceded by the fatal line that a goroutine dump may follow."""
    end = tail(log, LINES_SHOWN)
    fatal = [line for line in tail(log, LINES_SEARCHED).splitlines() if FATAL.match(line)]
    return "\n".join([*(line for line in fatal[-1:] if line not in end), end])


class ManagedProcess:
    """A process that is stopped with the program that started it."""

    def __init__(self, name: str, argv: Sequence[str | Path], log: Path, home: Path) -> None:
        self.name = name
        self.log = log
        self._argv = list(argv)
        self._home = home
        self._popen: subprocess.Popen[bytes] | None = None
        self._exit_pipe = -1  # at end of file when the process and its wrapper have ended

    def _environment(self) -> Mapping[str, str]:
        # Independent of the user's settings, such as KUBECONFIG or ~/.kwok.
        return {"PATH": os.environ.get("PATH", ""), "HOME": str(self._home)}

    def start(self) -> None:
        """Start or restart the process; its log is appended to."""
        self.log.parent.mkdir(parents=True, exist_ok=True)
        self._exit_pipe, write_end = os.pipe()
        with self.log.open("ab") as log:
            self._popen = subprocess.Popen(
                killed_with_parent(self._argv),
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env=self._environment(),
                cwd=self._home,
                pass_fds=(write_end,),
                start_new_session=True,
            )
        os.close(write_end)

    @property
    def pid(self) -> int | None:
        """The pid of the wrapper, which forwards signals and the exit code."""
        return self._popen.pid if self._popen else None

    def alive(self) -> bool:
        """Return whether it runs."""
        return self._popen is not None and self._popen.poll() is None

    def check(self) -> None:
        """Raise an error with the reason found in the log if the process has ended."""
        if self.alive():
            return
        last = log_tail(self.log)
        if PORT_TAKEN in last:
            raise PortTakenError(
                f"{self.name} could not start because another program listens on its port: "
                f"run this again; if you chose the port, choose another one.\n{last}"
            )
        if DISK_FULL in tail(self.log, LINES_SEARCHED):
            raise ProcessDiedError(
                f"{self.name} ended because the disk of {self._home} is full: "
                f"free some space and run this again."
            )
        raise ProcessDiedError(
            f"{self.name} ended by itself ({self.ending()}). Its log is {self.log}, which ends:\n"
            f"{last}"
        )

    def ending(self) -> str:
        """Describe how it ended."""
        code = self._popen.poll() if self._popen else None
        if code is None:
            return "not started" if self._popen is None else "running"
        if code < 0:
            return f"its wrapper was killed by {signal.Signals(-code).name}"
        if code - SIGNALLED in set(signal.Signals):
            return f"killed by {signal.Signals(code - SIGNALLED).name}"
        return f"exit code {code}"  # for example 255 by Kubernetes programs

    async def ended(self) -> None:
        """Return when it has ended for any reason; only one task may wait."""
        if not self.alive():
            return
        loop = asyncio.get_running_loop()
        ended = asyncio.Event()
        loop.add_reader(self._exit_pipe, ended.set)
        try:
            await ended.wait()
        finally:
            loop.remove_reader(self._exit_pipe)
        if self._popen is not None:
            self._popen.wait()  # its files close a moment before it can be waited for

    async def stop(self, grace: float = GRACE) -> None:
        """Stop it with SIGTERM, and kill it after the grace period."""
        if self._popen is None:
            return
        try:
            if self.alive():
                self._popen.send_signal(signal.SIGTERM)
                async with asyncio.timeout(grace):
                    await self.ended()
        except TimeoutError:
            pass
        finally:
            self.kill()

    def kill(self) -> None:
        """Kill it immediately."""
        if self._popen is None:
            return
        if self._popen.stdin:
            self._popen.stdin.close()  # the wrapper kills the process when this pipe closes
        self._popen.wait()
        if self._exit_pipe >= 0:
            os.close(self._exit_pipe)
            self._exit_pipe = -1
