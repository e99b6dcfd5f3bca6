"""A controller on one page: every ConfigMap with the label `greet` gets a greeting beside it."""

import asyncio

from kftrainer.kube.client.client import Client
from kftrainer.kube.client.credentials import load_connection
from kftrainer.kube.client.transport import HttpTransport
from kftrainer.kube.objects.resource import Resource, as_it_is
from kftrainer.machinery.cache.cache import Cache
from kftrainer.machinery.cache.informer import Informer
from kftrainer.machinery.controller.controller import Controller
from kftrainer.machinery.controller.handlers import enqueue_owner, enqueue_self
from kftrainer.machinery.controller.reconcile import DONE, Request, Result
from kftrainer.machinery.manager.clock import SystemClock
from kftrainer.machinery.manager.manager import Manager, Parts, run_until_signalled

CONFIG_MAPS = Resource("", "v1", "ConfigMap", "configmaps", namespaced=True, decode=as_it_is)


class Greeter:
    """Keeps the greetings as their ConfigMaps want them."""

    def __init__(self, client: Client, cache: Cache) -> None:
        self._client, self._cache = client, cache

    async def reconcile(self, request: Request) -> Result:
        """Write the greeting, if it is not there or not as it should be."""
        source = self._cache.get(CONFIG_MAPS, request)
        whom = source and source["metadata"].get("labels", {}).get("greet")
        if not source or not whom:
            return DONE
        owner = {"apiVersion": "v1", "kind": "ConfigMap", "controller": True}
        owner |= {key: source["metadata"][key] for key in ("name", "uid")}
        name, data = f"{request.name}-greeting", {"text": f"Hello, {whom}!"}
        there = self._cache.get(CONFIG_MAPS, Request(request.namespace, name))
        if there is None or there.get("data") != data:
            metadata = {"name": name, "namespace": request.namespace, "ownerReferences": [owner]}
            greeting = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}
            await self._client.apply(CONFIG_MAPS, greeting, field_manager="greeter")
        return DONE


async def main() -> None:
    """Watch, reconcile, and stop on SIGTERM."""
    clock, transport = SystemClock(), HttpTransport(await load_connection(), user_agent="greeter")
    client, cache = Client(transport), Cache()
    config_maps = Informer(client, CONFIG_MAPS, clock=clock)
    cache.add(config_maps)
    controller = Controller("greeter", Greeter(client, cache), clock=clock)
    controller.watch(config_maps, enqueue_self)
    controller.watch(config_maps, enqueue_owner(CONFIG_MAPS))
    await run_until_signalled(Manager(Parts(caches=[cache], controllers=[controller]), clock=clock))
    await transport.close()


if __name__ == "__main__":
    asyncio.run(main())
