"""A process that writes the time into a file again and again, while it leads.

    python elector.py KUBECONFIG NAMESPACE IDENTITY FILE

SIGTERM ends it cleanly; SIGUSR1 makes its event loop stall for good.
"""

import asyncio
import signal
import sys
import time
from pathlib import Path

from kftrainer.kube.client import Client
from kftrainer.kube.credentials import load_connection
from kftrainer.kube.transport import HttpTransport
from kftrainer.machinery.clock import SystemClock
from kftrainer.machinery.election import LeaderElection

TICK = 0.01


async def tick(election: LeaderElection, file: Path) -> None:
    """What only a leader does."""
    with file.open("a", buffering=1) as out:
        while True:
            if election.is_leading:
                out.write(f"{SystemClock().monotonic()}\n")
            await asyncio.sleep(TICK)


async def main(kubeconfig: str, namespace: str, identity: str, file: str) -> None:
    """Lead, if possible, until told to stop."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, stop.set)
    loop.add_signal_handler(signal.SIGUSR1, time.sleep, 600)
    connection = await load_connection(Path(kubeconfig))
    async with HttpTransport(connection, user_agent="elector/1") as transport:
        election = LeaderElection(
            Client(transport, lane="lease"),
            clock=SystemClock(),
            lease_name="lock",
            lease_namespace=namespace,
            identity=identity,
            lease_duration=3,
            renew_deadline=2,
            retry_period=0.5,
        )
        await election.acquire()
        async with asyncio.TaskGroup() as group:
            ticking = group.create_task(tick(election, Path(file)))
            await election.hold(stop)
            ticking.cancel()
        await election.release()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
