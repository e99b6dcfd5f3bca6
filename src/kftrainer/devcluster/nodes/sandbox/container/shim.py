"""The process between the sandbox's server and one container, as containerd-shim.

It joins the namespaces of the pod, starts the container's main process, writes its output into the
log, and runs further commands in the container. Messages are JSON objects, one per line, on its
standard input, a socket:

    server ── {"root": …, "steps": […], "argv": […], …} and the pod's namespaces ──> shim
    server <── {"started": …} or {"failed": …} ────────────────────────────────────── shim
    server ── {"signal": 15}, {"exec": 1, "argv": […]}, {"kill": 1} ───────────────> shim
    server <── {"exec": 1, "code": …, "output": …}, {"warning": …}, {"exited": …} ─── shim

Standard library only: every container has such a process, so it must be small and start quickly.
"""

import ctypes  # noqa: F401 - loaded before the shim changes namespaces
import json
import os
import selectors
import signal
import socket
import stat
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

from kftrainer.devcluster.nodes.sandbox import namespaces
from kftrainer.devcluster.nodes.sandbox.container import rootfs
from kftrainer.devcluster.nodes.sandbox.container.cri_log import MOST_BYTES, LineSplitter, LogFile
from kftrainer.devcluster.nodes.sandbox.namespaces import (
    CLONE_NEWIPC,
    CLONE_NEWNET,
    CLONE_NEWNS,
    CLONE_NEWPID,
    CLONE_NEWUSER,
    CLONE_NEWUTS,
)

MOST_OUTPUT = 10 * 1024  # of a command that is run by exec
MOST_MESSAGE = 4 * 1024 * 1024
READ = 64 * 1024
CANNOT_RUN = 126
NOT_FOUND = 127


class StartError(Exception):
    """The command cannot be executed."""


def find_program(name: str, path: str) -> str:
    """Return the file that a command names; errors are worded as by runc."""
    if "/" in name:
        return _checked(name, name)
    denied = False
    for folder in path.split(":"):
        candidate = os.path.join(folder or ".", name)
        try:
            return _checked(name, candidate)
        except PermissionError:
            denied = True
        except StartError:
            continue
    if denied:
        raise StartError(f'exec: "{name}": permission denied')
    raise StartError(f'exec: "{name}": executable file not found in $PATH')


def _checked(name: str, candidate: str) -> str:
    try:
        status = os.stat(candidate)
    except OSError as error:
        reason = f"stat {candidate}: {(error.strerror or '').lower()}"
        raise StartError(f'exec: "{name}": {reason}') from None
    if stat.S_ISDIR(status.st_mode):
        raise StartError(f'exec: "{name}": is a directory')
    if not os.access(candidate, os.X_OK):
        raise PermissionError(f'exec: "{name}": permission denied')
    return candidate


def _execute(argv: list[str], env: dict[str, str], cwd: str) -> None:
    """Replace this process by a command; return only by an exception."""
    os.makedirs(cwd, exist_ok=True)
    os.chdir(cwd)
    program = find_program(argv[0], env.get("PATH", ""))
    for signum in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        signal.signal(signum, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    try:
        os.execve(program, argv, env)  # noqa: S606 - the purpose of this process
    except OSError as error:
        reason = (error.strerror or "").lower()
        raise StartError(f'exec: "{argv[0]}": {reason}') from None


def _streams(stdout: int, stderr: int) -> None:
    null = os.open(os.devnull, os.O_RDONLY)
    for source, number in ((null, 0), (stdout, 1), (stderr, 2)):
        os.dup2(source, number)


def _in_child(work: Callable[[], None], report: int) -> None:
    """Run the part of a start that must end in execve, and report why it did not."""
    try:
        work()
    except BaseException as error:  # noqa: BLE001 - a forked process must not return to its caller
        text = str(error) if isinstance(error, StartError | PermissionError) else _words(error)
        os.write(report, text.encode()[:4000])
    os._exit(NOT_FOUND)


def _words(error: BaseException) -> str:
    if isinstance(error, OSError) and error.filename:
        return f"{error.strerror}: {error.filename}"
    if isinstance(error, OSError):
        return error.strerror or str(error)
    return f"{type(error).__name__}: {error}"


def _container(spec: dict[str, Any], stdout: int, stderr: int) -> None:
    """Build the root file system and become the container's main process."""
    os.setsid()
    namespaces.unshare(CLONE_NEWNS)
    rootfs.build(spec["root"], spec["steps"])
    # Containers cannot change their mounts and the network of their pod: their own user namespace
    # owns neither. It is also what gives them the user that they request.
    namespaces.new_user_namespace(0, spec["user"], spec["group"])
    namespaces.die_with_parent(signal.SIGKILL)
    namespaces.no_new_privileges()
    _streams(stdout, stderr)
    _execute(spec["argv"], spec["env"], spec["cwd"])


def _failure(report: int) -> str:
    """Return why a started process did not reach execve, or "" when it did."""
    with os.fdopen(report, "rb") as file:
        return file.read().decode(errors="replace")


class Command:
    """A command that runs in the container beside its main process."""

    def __init__(self, number: int, pid: int, pidfd: int, output: int) -> None:
        self.number = number
        self.pid = pid
        self.pidfd = pidfd
        self.output = output
        self.text = b""

    def read(self) -> bool:
        """Read available output; return whether there may be more."""
        with suppress(BlockingIOError):
            data = os.read(self.output, READ)
            self.text = (self.text + data)[:MOST_OUTPUT]
            return bool(data)
        return False


class Shim:
    """The container's state and the loop that serves it."""

    def __init__(self, control: socket.socket, spec: dict[str, Any]) -> None:
        self._control = control
        self._spec = spec
        self._received = b""
        self._selector = selectors.DefaultSelector()
        self._log = LogFile(spec["log"], time.time_ns, self._warn, spec.get("most", MOST_BYTES))
        self._commands: dict[int, Command] = {}
        self._pid = 0
        self._pidfd = -1
        self._open_streams = 0

    def _send(self, **message: object) -> None:
        self._control.sendall(json.dumps(message).encode() + b"\n")

    def _warn(self, text: str) -> None:
        self._send(warning=text)

    def start(self) -> bool:
        """Start the main process; return whether it runs."""
        out_read, out_write = os.pipe()
        err_read, err_write = os.pipe()
        report, report_write = os.pipe()
        namespaces.unshare(CLONE_NEWPID)
        pid = os.fork()
        if pid == 0:
            _in_child(lambda: _container(self._spec, out_write, err_write), report_write)
        for fd in (out_write, err_write, report_write):
            os.close(fd)
        failure = _failure(report)
        if failure:
            os.waitpid(pid, 0)
            self._send(failed=failure)
            return False
        self._pid = pid
        self._pidfd = os.pidfd_open(pid)
        self._register(self._pidfd, self._main_process_ended)
        for stream, fd in (("stdout", out_read), ("stderr", err_read)):
            self._pump(stream, fd)
        self._send(started=pid)
        return True

    def _register(self, fd: int, handler: Callable[[], None]) -> None:
        self._selector.register(fd, selectors.EVENT_READ, handler)

    def _pump(self, stream: str, fd: int) -> None:
        splitter = LineSplitter()
        self._open_streams += 1

        def read() -> None:
            data = os.read(fd, READ)
            if data:
                self._log.write(stream, splitter.feed(data))
                return
            self._log.write(stream, splitter.end())
            self._selector.unregister(fd)
            os.close(fd)
            self._open_streams -= 1

        self._register(fd, read)

    def _main_process_ended(self) -> None:
        """Wait for the process and all others of its PID namespace, which the kernel kills."""
        _, status = os.waitpid(self._pid, 0)
        code = os.waitstatus_to_exitcode(status)
        for fd in (self._pidfd, self._control.fileno()):
            self._selector.unregister(fd)
        while self._open_streams or self._commands:
            self._serve(self._ready())
        self._log.close()
        self._send(exited=code if code >= 0 else 128 - code, signal=max(-code, 0))
        raise SystemExit(0)

    def _ready(self) -> Iterator[Callable[[], None]]:
        for key, _ in self._selector.select():
            if key.fd in self._selector.get_map():  # an earlier handler may have closed it
                yield key.data

    def _serve(self, handlers: Iterator[Callable[[], None]]) -> None:
        for handler in handlers:
            handler()

    def run(self) -> None:
        """Serve until the container ends; the container ends with this process."""
        self._register(self._control.fileno(), self._receive)
        while True:
            self._serve(self._ready())

    def _receive(self) -> None:
        data = self._control.recv(READ)
        if not data:  # the server has ended
            raise SystemExit(1)
        *lines, self._received = (self._received + data).split(b"\n")
        if len(self._received) > MOST_MESSAGE:
            raise SystemExit(1)
        for line in lines:
            self._handle(json.loads(line))

    def _handle(self, message: dict[str, Any]) -> None:
        match message:
            case {"signal": int(signum)}:
                with suppress(ProcessLookupError):
                    os.kill(self._pid, signum)
            case {"exec": int(number), "argv": list(argv)}:
                self._exec(number, argv)
            case {"kill": int(number)} if number in self._commands:
                os.kill(self._commands[number].pid, signal.SIGKILL)

    def _exec(self, number: int, argv: list[str]) -> None:
        output, output_write = os.pipe()
        report, report_write = os.pipe()
        pid = os.fork()
        if pid == 0:
            _in_child(lambda: self._enter(argv, output_write, report_write), report_write)
        for fd in (output_write, report_write):
            os.close(fd)
        failure = _failure(report)
        if failure:
            os.waitpid(pid, 0)
            os.close(output)
            code = CANNOT_RUN if failure.endswith("permission denied") else NOT_FOUND
            self._send(exec=number, code=code, output=failure, started=False)
            return
        os.set_blocking(output, False)
        command = Command(number, pid, os.pidfd_open(pid), output)
        self._commands[number] = command
        self._register(command.output, lambda: self._command_output(command))
        self._register(command.pidfd, lambda: self._command_ended(command))

    def _enter(self, argv: list[str], output: int, report: int) -> None:
        """Join the container's namespaces and run a command there, as a child of this process."""
        kinds = {"pid": CLONE_NEWPID, "mnt": CLONE_NEWNS, "user": CLONE_NEWUSER}
        opened = [
            (os.open(f"/proc/{self._pid}/ns/{name}", os.O_RDONLY), kind)
            for name, kind in kinds.items()
        ]
        for fd, kind in opened:
            namespaces.setns(fd, kind)
        pid = os.fork()
        if pid == 0:
            os.setsid()
            namespaces.die_with_parent(signal.SIGKILL)
            namespaces.no_new_privileges()
            _streams(output, output)
            _execute(argv, self._spec["env"], self._spec["cwd"])
        # The command is in the PID namespace of the container and this process is not, so it
        # waits for it and passes its exit code on.
        os.close(report)
        os.close(output)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        os._exit(code if code >= 0 else 128 - code)

    def _command_output(self, command: Command) -> None:
        if not command.read():
            self._selector.unregister(command.output)

    def _command_ended(self, command: Command) -> None:
        code = os.waitstatus_to_exitcode(os.waitpid(command.pid, 0)[1])
        while command.output in self._selector.get_map() and command.read():
            pass
        for fd in (command.output, command.pidfd):
            with suppress(KeyError):
                self._selector.unregister(fd)
            os.close(fd)
        del self._commands[command.number]
        self._send(
            exec=command.number,
            code=code if code >= 0 else 128 - code,
            output=command.text.decode(errors="replace"),
            started=True,
        )


def _receive_spec(control: socket.socket) -> tuple[dict[str, Any], list[int]]:
    data, fds, _, _ = socket.recv_fds(control, READ, 8)
    while not data.endswith(b"\n"):
        more = control.recv(READ)
        if not more or len(data) > MOST_MESSAGE:
            raise SystemExit(1)
        data += more
    return json.loads(data), fds


def main() -> None:
    """Run one container."""
    control = socket.socket(fileno=os.dup(0))
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    spec, fds = _receive_spec(control)
    for fd, kind in zip(fds, (CLONE_NEWNET, CLONE_NEWIPC, CLONE_NEWUTS), strict=True):
        namespaces.setns(fd, kind)
        os.close(fd)
    try:
        shim = Shim(control, spec)
        started = shim.start()
    except OSError as error:
        control.sendall(json.dumps({"failed": _words(error)}).encode() + b"\n")
        return
    if started:
        shim.run()


# `python -I -S` has only the standard library; the first argument is where kftrainer is.
COMMAND = (
    sys.executable,
    "-I",
    "-S",
    "-c",
    "import sys; sys.path.insert(0, sys.argv[1]); "
    "from kftrainer.devcluster.nodes.sandbox.container.shim import main; main()",
)
