"""A controller on one page: creates a greeting for every ConfigMap with the label `greet`."""

import asyncio

from kftrainer import machinery
from kftrainer.machinery import DONE, Cache, Client, Request, Result

CONFIG_MAPS = machinery.Resource(
    "", "v1", "ConfigMap", "configmaps", namespaced=True, decode=machinery.unstructured
)


class Greeter:
    """Applies a second ConfigMap, owned by the first, that contains the greeting."""

    def __init__(self, client: Client, cache: Cache) -> None:
        self._client, self._cache = client, cache

    async def reconcile(self, request: Request) -> Result:
        """Apply the greeting unless it is up to date."""
        source = self._cache.get(CONFIG_MAPS, request)
        greeted = source and source["metadata"].get("labels", {}).get("greet")
        if not source or not greeted:
            return DONE
        owner = {"apiVersion": "v1", "kind": "ConfigMap", "controller": True}
        owner |= {key: source["metadata"][key] for key in ("name", "uid")}
        name, data = f"{request.name}-greeting", {"text": f"Hello, {greeted}!"}
        existing = self._cache.get(CONFIG_MAPS, Request(request.namespace, name))
        if existing is None or existing.get("data") != data:
            metadata = {"name": name, "namespace": request.namespace, "ownerReferences": [owner]}
            greeting = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}
            await self._client.apply(CONFIG_MAPS, greeting, field_manager="greeter")
        return DONE


async def main() -> None:
    """Start the manager; SIGTERM or SIGINT stops it."""
    clock, connection = machinery.SystemClock(), await machinery.load_connection()
    transport = machinery.HttpTransport(connection, user_agent="greeter")
    client, cache = Client(transport), Cache()
    config_maps = machinery.Informer(client, CONFIG_MAPS, clock=clock)
    cache.add(config_maps)
    controller = machinery.Controller("greeter", Greeter(client, cache), clock=clock)
    controller.watch(config_maps, machinery.enqueue_self)
    controller.watch(config_maps, machinery.enqueue_owner(CONFIG_MAPS))
    parts = machinery.Parts(caches=[cache], controllers=[controller])
    await machinery.run_until_signalled(machinery.Manager(parts, clock=clock))
    await transport.close()


if __name__ == "__main__":
    asyncio.run(main())
