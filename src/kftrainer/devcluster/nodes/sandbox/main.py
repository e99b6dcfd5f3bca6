"""Creates the sandbox's namespaces and starts the server as their process 1.

    client ──socket──> this process ──fork──> server (process 1) ──> shims ──> containers

When the client closes the socket or ends, this process kills the server, and the kernel kills all
processes of its PID namespace with it.
"""

import argparse
import os
import select
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from kftrainer.devcluster.nodes.sandbox import namespaces
from kftrainer.devcluster.nodes.sandbox.namespaces import (
    CLONE_NEWIPC,
    CLONE_NEWNET,
    CLONE_NEWNS,
    CLONE_NEWPID,
    CLONE_NEWUTS,
    MS_NODEV,
    MS_NOEXEC,
    MS_NOSUID,
    MS_PRIVATE,
    MS_REC,
)

CONTROL = 0  # the client's socket


def _options(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, required=True, help="temporary folder of the client")
    parser.add_argument("--hide", action="append", default=[], help="folder that pods do not see")
    return parser.parse_args(argv)


def _wait(pid: int) -> int:
    """Wait until the server ends, and kill it when the client ends."""
    server = os.pidfd_open(pid)
    poll = select.poll()
    poll.register(CONTROL, select.POLLRDHUP)
    poll.register(server, select.POLLIN)
    if server not in dict(poll.poll()):
        os.kill(pid, signal.SIGKILL)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return code if code >= 0 else 128 - code


def _serve(options: argparse.Namespace) -> None:
    """Run the server in this process, which is process 1 of its namespaces."""
    namespaces.die_with_parent(signal.SIGKILL)
    namespaces.mount("none", "/", "", MS_REC | MS_PRIVATE)
    with suppress(OSError):  # not permitted in a container with hidden parts of /proc
        namespaces.mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC)

    # Imported here, because the outer process does not need it.
    from kftrainer.devcluster.nodes.sandbox import server

    server.run(CONTROL, options.folder, options.hide)


def main(argv: Sequence[str]) -> int:
    """Run the sandbox until the client ends."""
    options = _options(argv)
    namespaces.new_user_namespace(
        CLONE_NEWPID | CLONE_NEWNS | CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS, 0, 0
    )
    pid = os.fork()
    if pid:
        return _wait(pid)
    _serve(options)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
