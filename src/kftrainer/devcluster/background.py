"""Bringing a named control plane up and down from a program that does not stay."""

import asyncio
import contextlib
import json
import os
import signal
import sys
from pathlib import Path

from kftrainer.devcluster.controlplane import gather_supplies
from kftrainer.devcluster.errors import DevClusterError, NotReadyError
from kftrainer.devcluster.named import NamedPlane, State
from kftrainer.devcluster.progress import Progress
from kftrainer.devcluster.shape import Shape
from kftrainer.devcluster.waiting import until

DOWN_WITHIN = 60.0
KEEPER = (sys.executable, "-m", "kftrainer.devcluster.keeper")


async def up(place: NamedPlane, shape: Shape, cache: Path, progress: Progress) -> State:
    """Bring it up and leave it to its keeper; interrupted, nothing is left running."""
    await gather_supplies(shape, cache, progress)  # here, where a person sees the builds go on
    request = {"name": place.name, "cache": str(cache), "shape": shape.to_json()}
    keeper = await asyncio.create_subprocess_exec(
        *KEEPER,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        start_new_session=True,  # Ctrl-C is ours to pass on
    )
    assert keeper.stdin and keeper.stdout  # noqa: S101, PT018
    kept = False
    try:
        keeper.stdin.write((json.dumps(request) + "\n").encode())
        answer = json.loads(await keeper.stdout.readline() or '{"error": ""}')
        if "error" in answer:
            raise DevClusterError(answer["error"] or _died(place))
        keeper.stdin.write(b"keep\n")
        await keeper.stdin.drain()
        kept = True
    finally:
        keeper.stdin.close()
        if not kept:
            await keeper.wait()  # it takes down what it has started
    state = place.read()
    if state is None:
        raise DevClusterError(_died(place))
    return state


def _died(place: NamedPlane) -> str:
    return f"The keeper of {place.name} died; look at what it said above and try again."


async def down(place: NamedPlane, progress: Progress) -> None:
    """Take it down; return when nothing of it runs any more."""
    state = place.read()
    if not place.kept():
        return

    async def gone() -> bool:
        return not place.kept()

    with progress.step(f"stopping {place.name}"):
        if state is not None and state.keeper:
            with contextlib.suppress(ProcessLookupError):
                os.kill(state.keeper, signal.SIGTERM)
        try:
            await until(gone, within=DOWN_WITHIN, what=f"{place.name} stopping")
        except NotReadyError:
            if state is None or not state.keeper:
                raise
            os.kill(state.keeper, signal.SIGKILL)  # the leashes see to the rest
            await until(gone, within=DOWN_WITHIN, what=f"{place.name} being killed")
