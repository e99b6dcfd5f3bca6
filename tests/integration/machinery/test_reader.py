import asyncio

from kftrainer.devcluster.client import ApiClient
from kftrainer.devcluster.controlplane import ControlPlane
from kftrainer.kube.client.client import Client
from kftrainer.kube.client.credentials import load_connection
from kftrainer.kube.client.transport import HttpTransport
from kftrainer.kube.objects.resource import ObjectKey, Resource, as_it_is
from kftrainer.machinery.cache.cache import Cache
from kftrainer.machinery.cache.informer import Informer
from kftrainer.machinery.manager.clock import SystemClock
from kftrainer.machinery.reader import Reader

CONFIG_MAPS = Resource("", "v1", "ConfigMap", "configmaps", namespaced=True, decode=as_it_is)
SECRETS = Resource("", "v1", "Secret", "secrets", namespaced=True, decode=as_it_is)


async def test_reads_go_to_the_cache_where_it_keeps_the_kind_and_live_where_not_or_when_asked(
    control_plane: ControlPlane, api: ApiClient, namespace: str
) -> None:
    asked: list[str] = []

    def on_response(_code: str, method: str, _host: str, _seconds: float) -> None:
        asked.append(method)

    for kind in ("ConfigMap", "Secret"):
        metadata = {"name": "a", "namespace": namespace}
        await api.create({"apiVersion": "v1", "kind": kind, "metadata": metadata})
    key, missing = ObjectKey(namespace, "a"), ObjectKey(namespace, "missing")
    connection = await load_connection(control_plane.kubeconfig)
    async with HttpTransport(connection, user_agent="x/1", on_response=on_response) as transport:
        client, cache, stop = Client(transport), Cache(), asyncio.Event()
        informer = Informer(client, CONFIG_MAPS, clock=SystemClock(), namespace=namespace)
        cache.add(informer)
        reader = Reader(cache, client)
        async with asyncio.TaskGroup() as group:
            group.create_task(cache.run(lambda: None, stop))
            await informer.wait_synced()
            asked.clear()

            assert await reader.get(CONFIG_MAPS, key)
            assert await reader.get(CONFIG_MAPS, missing) is None
            assert len(await reader.list(CONFIG_MAPS, namespace)) == 1
            assert asked == [], "all of this came from the cache"

            assert await reader.get(CONFIG_MAPS, key, live=True)
            assert await reader.get(SECRETS, key)
            assert await reader.get(SECRETS, missing) is None
            assert len(await reader.list(SECRETS, namespace)) == 1
            assert len(asked) == 4, "all of this came from the server"
            stop.set()
