"""Some namespaces of the real API server, read by a user without access to others."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from kftrainer.devcluster.client import ApiClient
from kftrainer.devcluster.controlplane import ControlPlane
from kftrainer.devcluster.waiting import until
from kftrainer.kube.client.client import Client
from kftrainer.kube.client.errors import ForbiddenError
from kftrainer.kube.objects.resource import Manifest, ObjectKey
from kftrainer.machinery.cache.cache import Cache
from kftrainer.machinery.cache.informer import Informer
from kftrainer.machinery.cache.multi_namespace import AnyInformer, in_namespaces
from kftrainer.machinery.controller.controller import Controller
from kftrainer.machinery.controller.handlers import enqueue_self
from kftrainer.machinery.controller.reconcile import DONE, Request, Result
from kftrainer.machinery.manager.clock import SystemClock
from tests.support.informers import CONFIG_MAPS, RecordingHandler, Server, connected, running

RBAC = "rbac.authorization.k8s.io"
CLOCK = SystemClock()


@pytest.fixture
async def servers(control_plane: ControlPlane, api: ApiClient) -> list[Server]:
    """Three namespaces, with an object each."""
    servers = [Server(api, await control_plane.create_namespace(api)) for _ in range(3)]
    for server in servers:
        await server.put("a", x="1")
    return servers


async def permit(api: ApiClient, user: str, namespace: str) -> None:
    """Grant the user access to ConfigMaps, and wait until the API server applies it."""
    role = {"apiVersion": f"{RBAC}/v1", "metadata": {"name": "reader", "namespace": namespace}}
    rule = {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["list", "watch"]}
    await api.apply({**role, "kind": "Role", "rules": [rule]})
    binding = {
        "roleRef": {"apiGroup": RBAC, "kind": "Role", "name": "reader"},
        "subjects": [{"apiGroup": RBAC, "kind": "User", "name": user}],
    }
    await api.apply({**role, "kind": "RoleBinding", **binding})
    requested = {"namespace": namespace, "resource": "configmaps", "verb": "watch"}
    question: dict[str, Any] = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SubjectAccessReview",
        "metadata": {},
        "spec": {"user": user, "resourceAttributes": requested},
    }

    async def known() -> bool:
        return bool((await api.create(question))["status"]["allowed"])

    await until(known, within=30, what=f"the right to watch {namespace}")


@pytest.fixture
async def client(control_plane: ControlPlane, servers: list[Server]) -> AsyncIterator[Client]:
    """A user who may read the first two namespaces."""
    user = f"reader-of-{servers[0].namespace}"
    for server in servers[:2]:
        await permit(server.api, user, server.namespace)
    async with connected(control_plane.kubeconfig_for(user)) as client:
        yield client


@pytest.fixture
def informer(client: Client, servers: list[Server]) -> AnyInformer[Manifest]:
    def new_informer(namespace: str | None) -> Informer[Manifest]:
        return Informer(client, CONFIG_MAPS, clock=CLOCK, namespace=namespace)

    return in_namespaces(CONFIG_MAPS, [each.namespace for each in servers[:2]], new_informer)


async def test_namespaced_permissions_suffice_and_other_namespaces_are_not_read(
    client: Client, informer: AnyInformer[Manifest], servers: list[Server]
) -> None:
    with pytest.raises(ForbiddenError):
        await client.list(CONFIG_MAPS)
    with pytest.raises(ForbiddenError):
        await client.list(CONFIG_MAPS, namespace=servers[2].namespace)
    witness = RecordingHandler()
    informer.add_handler(witness)
    keys = [server.key(name) for name in ("a", "b") for server in servers]
    async with running(informer), asyncio.timeout(60):
        await informer.wait_synced()
        assert [informer.get(key) is not None for key in keys[:3]] == [True, True, False]
        for server in reversed(servers):  # that which is not seen is written first
            await server.put("b", x="1")
        await servers[1].delete("a")
        there = {keys[0], keys[3], keys[4]}

        async def agree() -> bool:
            return set(witness.known) == there

        await until(agree, within=30, what="the changes in both namespaces")
        assert {_key(each) for each in informer.list()} == there
        assert {_key(each) for each in informer.list(servers[1].namespace)} == {keys[4]}
        assert informer.list(servers[2].namespace) == []
    assert witness.inconsistencies == []


def _key(manifest: Manifest) -> ObjectKey:
    return ObjectKey(manifest["metadata"]["namespace"], manifest["metadata"]["name"])


class Recording:
    """Records the requests, and whether the cache holds their objects."""

    def __init__(self, cache: Cache) -> None:
        self._cache = cache
        self.recorded: dict[Request, bool] = {}

    async def reconcile(self, request: Request) -> Result:
        self.recorded[request] = self._cache.get(CONFIG_MAPS, request) is not None
        return DONE


async def test_controller_watches_it_like_any_informer(
    informer: AnyInformer[Manifest], servers: list[Server]
) -> None:
    cache = Cache()
    cache.add(informer)
    reconciler = Recording(cache)
    controller = Controller("noting", reconciler, clock=CLOCK)
    controller.watch(informer, enqueue_self)
    async with running(cache), running(controller):
        await servers[0].put("b", x="1")
        wanted = [servers[0].key("a"), servers[0].key("b"), servers[1].key("a")]

        async def all_recorded() -> bool:
            return reconciler.recorded == dict.fromkeys(wanted, True)

        await until(all_recorded, within=20, what="the objects of both namespaces")
