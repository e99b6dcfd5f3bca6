"""A manager that writes to the API server again and again, while it leads.

    python elector.py KUBECONFIG NAMESPACE IDENTITY LEASE_DURATION

Each write is a ConfigMap of its own, which records writer and time. SIGTERM ends it cleanly;
SIGUSR1 makes its event loop stall for good.
"""

import asyncio
import signal
import sys
import time
from pathlib import Path

from kftrainer.kube.client.client import Client
from kftrainer.kube.client.credentials import load_connection
from kftrainer.kube.client.transport import HttpTransport
from kftrainer.kube.objects.resource import Manifest, Resource, unstructured
from kftrainer.machinery.cache.cache import Cache
from kftrainer.machinery.cache.informer import Informer
from kftrainer.machinery.controller.controller import Controller
from kftrainer.machinery.controller.handlers import enqueue_self
from kftrainer.machinery.controller.reconcile import Request, Result
from kftrainer.machinery.manager.clock import SystemClock
from kftrainer.machinery.manager.leader_election import LeaderElector
from kftrainer.machinery.manager.manager import Manager, Parts, run_until_signalled

CONFIG_MAPS: Resource[Manifest] = Resource(
    "", "v1", "ConfigMap", "configmaps", namespaced=True, decode=unstructured
)
HEARTBEAT = "beat"  # the object that is reconciled
EVERY = 0.02


class Writer:
    """A reconciler that always has something more to write."""

    def __init__(self, client: Client, identity: str) -> None:
        self._client = client
        self._identity = identity

    async def reconcile(self, request: Request) -> Result:
        """Write once; a name that the server chooses makes each write another object."""
        # Not the machinery's clock, which is what is on trial.
        at = time.clock_gettime(time.CLOCK_MONOTONIC)
        metadata = {"generateName": f"{self._identity}-", "namespace": request.namespace}
        data = {"by": self._identity, "at": str(at)}
        await self._client.create(CONFIG_MAPS, {"metadata": metadata, "data": data})
        return Result(requeue_after=EVERY)


def manager_of(
    transport: HttpTransport, namespace: str, identity: str, lease_duration: float
) -> Manager:
    """A whole manager, with all that keeps one that has lost its lease from writing."""
    clock, cache = SystemClock(), Cache()
    election = LeaderElector(
        Client(transport, lane="lease"),
        clock=clock,
        lease_name="lock",
        lease_namespace=namespace,
        identity=identity,
        lease_duration=lease_duration,
        renew_deadline=lease_duration * 2 / 3,
        retry_period=1,
    )
    client = Client(transport, write_guard=lambda: election.is_leading)
    heartbeat_selector = f"metadata.name={HEARTBEAT}"
    informer = Informer(
        client, CONFIG_MAPS, clock=clock, namespace=namespace, field_selector=heartbeat_selector
    )
    cache.add(informer)
    controller = Controller("writer", Writer(client, identity), clock=clock)
    controller.watch(informer, enqueue_self)
    return Manager(Parts(caches=[cache], controllers=[controller]), clock=clock, election=election)


async def main(kubeconfig: str, namespace: str, identity: str, lease_duration: str) -> None:
    """Run for election, and lead, until stopped."""
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, time.sleep, 600)
    connection = await load_connection(Path(kubeconfig))
    async with HttpTransport(connection, user_agent="elector/1") as transport:
        manager = manager_of(transport, namespace, identity, float(lease_duration))
        await run_until_signalled(manager)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
