"""The process that supervises a named control plane; started by `kftrainer dev up`.

    up ──── a line of JSON: what to start ───> supervisor
    up <─── a line of JSON: ready, or error ── supervisor
    up ──── "keep" ──────────────────────────> supervisor

If the pipe closes before "keep", `up` has ended, and the supervisor stops everything.
"""

import asyncio
import json
import os
import shutil
import signal
import sys
import traceback
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from kftrainer.devcluster.cluster_options import Shape
from kftrainer.devcluster.controlplane import ControlPlane, running
from kftrainer.devcluster.errors import DevClusterError, in_words
from kftrainer.devcluster.named_control_plane import NamedPlane, Part, State
from kftrainer.devcluster.processes.process import ManagedProcess
from kftrainer.devcluster.progress import Progress
from kftrainer.devcluster.waiting import until

STDIN, STDOUT, STDERR = 0, 1, 2
SIGNALS = (signal.SIGTERM, signal.SIGINT)
LOCK_WITHIN = 5.0
KEPT_WHEN_STOPPED = {"logs", "state.json"}


class PartEndedError(DevClusterError):
    """A process ended while the control plane was running."""


async def _watch(process: ManagedProcess) -> None:
    await process.ended()
    process.check()


async def _watch_all(plane: ControlPlane) -> None:
    """Wait until a process ends unexpectedly, and raise."""
    try:
        async with asyncio.TaskGroup() as watchers:
            for process in plane.processes:
                watchers.create_task(_watch(process))
    except* DevClusterError as died:
        raise PartEndedError(str(died.exceptions[0])) from None


def _answer(**document: object) -> None:
    os.write(STDOUT, (json.dumps(document) + "\n").encode())


def _detach(log: Path) -> None:
    """Detach from the terminal and from the pipes to `up`."""
    to_log = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    from_nowhere = os.open(os.devnull, os.O_RDONLY)
    os.dup2(from_nowhere, STDIN)
    os.dup2(to_log, STDOUT)
    os.dup2(to_log, STDERR)


async def _wait_for_keep() -> None:
    """Return when `up` sends "keep"; cancel the supervisor if `up` ends instead."""
    loop, me = asyncio.get_running_loop(), asyncio.current_task()
    kept = asyncio.Event()

    def read() -> None:
        if os.read(STDIN, 64):
            kept.set()
        elif me is not None:
            loop.remove_reader(STDIN)
            me.cancel()

    loop.add_reader(STDIN, read)
    try:
        await kept.wait()
    finally:
        loop.remove_reader(STDIN)


async def _keep(place: NamedPlane, shape: Shape, cache: Path) -> None:
    loop, me = asyncio.get_running_loop(), asyncio.current_task()
    assert me is not None  # noqa: S101  a running coroutine is in a task

    def stop() -> None:  # once: a second signal must not interrupt the cleanup
        for signum in SIGNALS:
            loop.add_signal_handler(signum, lambda: None)
        me.cancel()

    for signum in SIGNALS:
        loop.add_signal_handler(signum, stop)

    def on_pipe_closed() -> (
        None
    ):  # `up` sends nothing before we are ready, so this is the end of the pipe
        loop.remove_reader(STDIN)
        me.cancel()

    loop.add_reader(STDIN, on_pipe_closed)

    starting = State("starting")
    place.write(starting)
    async with running(
        shape, folder=place.folder, cache=cache, progress=Progress(sys.stderr)
    ) as plane:
        ready = replace(
            starting,
            phase="ready",
            url=plane.url,
            kubeconfig=str(plane.kubeconfig),
            parts=tuple(Part(p.name, p.pid or 0, str(p.log)) for p in plane.processes),
        )
        place.write(ready)
        loop.remove_reader(STDIN)
        try:
            _answer(ready=True)
            await _wait_for_keep()
            _detach(place.folder / "logs" / "supervisor.log")
            await _watch_all(plane)
        finally:
            place.write(replace(ready, phase="stopping"))


def _clear(folder: Path) -> None:
    for path in folder.iterdir() if folder.exists() else ():
        if path.name not in KEPT_WHEN_STOPPED:
            shutil.rmtree(path) if path.is_dir() else path.unlink()


async def _take_lock(place: NamedPlane) -> bool:
    async def taken() -> bool:  # a process that reads the status also holds it briefly
        return place.lock.try_acquire()

    try:
        return await until(taken, within=LOCK_WITHIN, what="the lock to be released")
    except DevClusterError:
        return False


def _why(error: Exception) -> str:
    match error:
        case DevClusterError():
            return str(error)
        case OSError():
            return in_words(error)
        case _:
            traceback.print_exception(error)
            return f"Unexpected error, please report it as a bug of kftrainer: {error!r}"


def main() -> int:
    """Run the control plane that a line of JSON on standard input describes."""
    request = json.loads(sys.stdin.readline())
    cache = Path(request["cache"])
    place = NamedPlane(request["name"], cache)
    if not asyncio.run(_take_lock(place)):
        _answer(error=f"Another process is starting or stopping {place.name}; try again shortly.")
        return 1
    shutil.rmtree(place.folder, ignore_errors=True)
    last = State("stopped")
    try:
        asyncio.run(_keep(place, Shape.from_json(request["shape"]), cache))
    except asyncio.CancelledError:
        pass
    except Exception as error:  # noqa: BLE001  process edge: every error is reported
        last = State("failed", reason=_why(error))
        if not isinstance(error, PartEndedError):  # then `up` still waits for the response
            _answer(error=last.reason)
    with suppress(OSError):  # on a full disk the last state cannot be written and is not needed
        _clear(place.folder)
        place.write(last)
    return 0 if last.phase == "stopped" else 1


if __name__ == "__main__":
    sys.exit(main())
