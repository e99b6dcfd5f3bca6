"""Runs one command and kills it when the process that started it ends, for any reason.

This file is run as a script, not imported, and uses only the standard library:

    owner ──pipe──> wrapper (this file) ──> etcd, kube-apiserver, go build, …

The owner holds the write end of a pipe that is the wrapper's standard input. The kernel closes it
when the owner ends, even by SIGKILL, and then the wrapper kills the command's process group. If the
wrapper itself is killed, the kernel kills the command (PR_SET_PDEATHSIG, where available). Setting
that signal in the owner instead would tie the command to the *thread* that started it.
"""

import ctypes
import os
import select
import signal
import sys
from contextlib import suppress
from types import FrameType

PR_SET_PDEATHSIG = 1
COMMAND_NOT_FOUND = 127


def note_signal(_signum: int, _frame: FrameType | None) -> None:
    """Do nothing: the wake-up pipe carries the signal into the select loop."""


def become(argv: list[str], wrapper_pid: int) -> None:
    """Replace the forked child by the command; return only on failure."""
    os.setpgid(0, 0)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != wrapper_pid:  # the wrapper ended before prctl was called
        return
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    try:
        os.execvp(argv[0], argv)  # noqa: S606
    except OSError as error:
        os.write(2, f"cannot run {argv[0]}: {error.strerror}\n".encode())


def hold(pid: int, owner: int, wakeups: int) -> int:
    """Wait for the command or its owner to end; return the command's exit code."""
    watched = [owner, wakeups]
    while True:
        ready, _, _ = select.select(watched, [], [])
        if owner in ready and not os.read(owner, 1):
            watched.remove(owner)
            with suppress(ProcessLookupError):  # it may have ended just now
                os.killpg(pid, signal.SIGKILL)
        if wakeups in ready:
            for signum in os.read(wakeups, 64):
                if signum != signal.SIGCHLD:
                    with suppress(ProcessLookupError):
                        os.kill(pid, signum)
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                code = os.waitstatus_to_exitcode(status)
                return code if code >= 0 else 128 - code


def main(argv: list[str]) -> int:
    """Run argv until it ends or standard input is closed."""
    owner = os.dup(0)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    wakeups, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake)
    for signum in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT):
        signal.signal(signum, note_signal)

    wrapper_pid = os.getpid()
    pid = os.fork()
    if pid == 0:
        become(argv, wrapper_pid)
        os._exit(COMMAND_NOT_FOUND)
    with suppress(PermissionError, ProcessLookupError):  # the child may have done this already
        os.setpgid(pid, pid)
    return hold(pid, owner, wakeups)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
