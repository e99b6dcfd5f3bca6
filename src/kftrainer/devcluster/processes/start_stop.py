"""Starts and stops named control planes from a short-lived program."""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import IO

from kftrainer.devcluster.cluster_options import Shape
from kftrainer.devcluster.controlplane import gather_supplies
from kftrainer.devcluster.errors import DevClusterError, NotReadyError
from kftrainer.devcluster.named_control_plane import NamedPlane, State
from kftrainer.devcluster.progress import Progress
from kftrainer.devcluster.waiting import until

DOWN_WITHIN = 60.0
# -P: modules in the current folder must not be imported.
SUPERVISOR = (sys.executable, "-P", "-m", "kftrainer.devcluster.processes.supervisor")
# Children that outlive `up`; Python warns about a dropped Popen whose process still runs.
_kept: list[subprocess.Popen[bytes]] = []


async def up(place: NamedPlane, shape: Shape, cache: Path, progress: Progress) -> State:
    """Start the control plane and its supervisor; if interrupted, nothing is left running."""
    await gather_supplies(shape, cache, progress)  # here, so that the progress of builds is visible
    request = {"name": place.name, "cache": str(cache), "shape": shape.to_json()}
    place.folder.parent.mkdir(parents=True, exist_ok=True)
    # Not asyncio's subprocess, which kills its child when the event loop ends.
    supervisor = subprocess.Popen(
        SUPERVISOR,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=place.folder.parent,
        start_new_session=True,  # Ctrl-C is passed on by this process
    )
    assert supervisor.stdin and supervisor.stdout  # noqa: S101, PT018
    with supervisor.stdin, supervisor.stdout:
        try:
            _send(supervisor.stdin, json.dumps(request))
            await _wait_until_ready(supervisor.stdout, place)
            _send(supervisor.stdin, "keep")
        except BaseException:
            supervisor.stdin.close()
            supervisor.wait()  # it stops what it has started
            raise
    _kept.append(supervisor)
    state = place.read()
    if state is None:
        raise DevClusterError(_died(place))
    return state


def _send(pipe: IO[bytes], line: str) -> None:
    with contextlib.suppress(BrokenPipeError):  # then the response, or its absence, is the reason
        pipe.write(f"{line}\n".encode())
        pipe.flush()


async def _wait_until_ready(pipe: IO[bytes], place: NamedPlane) -> None:
    loop, answered = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(pipe.fileno(), answered.set)
    try:
        await answered.wait()
    finally:
        loop.remove_reader(pipe.fileno())
    answer = json.loads(pipe.readline() or '{"error": ""}')
    if "error" in answer:
        raise DevClusterError(answer["error"] or _died(place))


def _died(place: NamedPlane) -> str:
    return f"The supervisor of {place.name} died: see its output above and try again."


async def down(place: NamedPlane, progress: Progress) -> None:
    """Stop the control plane; return when none of its processes runs."""
    if not place.kept():
        return
    signalled: set[int] = set()

    async def gone() -> bool:
        supervisor = place.supervisor()
        if supervisor and supervisor not in signalled:
            signalled.add(supervisor)
            _signal(supervisor, signal.SIGTERM)
        return supervisor is None

    with progress.step(f"stopping {place.name}"):
        try:
            await until(gone, within=DOWN_WITHIN, what=f"{place.name} to stop")
        except NotReadyError:
            _signal(place.supervisor() or 0, signal.SIGKILL)  # their wrappers stop the rest
            await until(gone, within=DOWN_WITHIN, what=f"{place.name} to be killed")


def _signal(pid: int, signum: signal.Signals) -> None:
    if pid:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signum)
