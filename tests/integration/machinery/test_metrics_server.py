"""Scraping over HTTPS with the tokens of service accounts, on a real API server."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp

from kftrainer.devcluster.client import ApiClient
from kftrainer.devcluster.controlplane import ControlPlane
from kftrainer.devcluster.waiting import until
from kftrainer.kube.client.client import Client
from kftrainer.kube.client.credentials import load_connection
from kftrainer.kube.client.transport import HttpTransport
from kftrainer.machinery.certs.serving import self_signed
from kftrainer.machinery.manager.clock import SystemClock
from kftrainer.machinery.manager.lifetime import Budget, running
from kftrainer.machinery.metrics.authorization import Authorization
from kftrainer.machinery.metrics.registry import Metrics
from kftrainer.machinery.metrics.server import metrics_server

RBAC = "rbac.authorization.k8s.io"


async def token_of(api: ApiClient, namespace: str, name: str) -> str:
    """The token of a new service account."""
    metadata = {"namespace": namespace, "name": name}
    await api.create({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata})
    request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{name}/token"
    token: str = (await api.request("POST", path, body=request))["status"]["token"]
    return token


async def permit(api: ApiClient, namespace: str, name: str) -> None:
    """Allow the service account to scrape, and wait until the API server applies it."""
    role = {"apiVersion": f"{RBAC}/v1", "metadata": {"name": f"scraper-{namespace}"}}
    rules = [{"nonResourceURLs": ["/metrics"], "verbs": ["get"]}]
    await api.apply({**role, "kind": "ClusterRole", "rules": rules})
    await api.apply(
        {
            **role,
            "kind": "ClusterRoleBinding",
            "roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": role["metadata"]["name"]},  # type: ignore[index]
            "subjects": [{"kind": "ServiceAccount", "namespace": namespace, "name": name}],
        }
    )
    question = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SubjectAccessReview",
        "metadata": {},
        "spec": {
            "user": f"system:serviceaccount:{namespace}:{name}",
            "nonResourceAttributes": {"path": "/metrics", "verb": "get"},
        },
    }

    async def is_allowed() -> bool:
        return bool((await api.create(question))["status"]["allowed"])

    await until(is_allowed, within=30, what="the permission to scrape")


@asynccontextmanager
async def serving(kubeconfig: Path, metrics: Metrics) -> AsyncIterator[str]:
    """A metrics server that uses this kubeconfig."""
    clock = SystemClock()
    connection = await load_connection(kubeconfig)
    async with HttpTransport(
        connection, user_agent="test/1", on_response=metrics.observe_request
    ) as transport:
        server = metrics_server(
            metrics,
            "127.0.0.1:0",
            tls=self_signed(clock.now()),
            authorization=Authorization(Client(transport), clock=clock),
        )
        async with running(server, budget=Budget(clock, 5)):
            yield f"https://127.0.0.1:{server.port}"


async def scrape(url: str, token: str | None = None) -> tuple[int, str]:
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"{url}/metrics", headers=headers, ssl=False) as response,
    ):
        return response.status, await response.text()


async def test_metrics_are_served_to_authorized_users_only(
    control_plane: ControlPlane, api: ApiClient, namespace: str
) -> None:
    permitted = await token_of(api, namespace, "prometheus")
    other = await token_of(api, namespace, "other")
    await permit(api, namespace, "prometheus")
    metrics = Metrics()
    metrics.for_controller("trainjob")
    async with serving(control_plane.kubeconfig, metrics) as url:
        status, body = await scrape(url, permitted)
        assert status == 200
        assert 'controller_runtime_reconcile_total{controller="trainjob",result="error"} 0' in body
        user = f"system:serviceaccount:{namespace}:other"
        assert await scrape(url, other) == (403, f"Authorization denied for user {user}\n")
        assert await scrape(url) == (401, "Unauthorized\n")
        assert await scrape(url, "not-a-token") == (401, "Unauthorized\n")


async def test_second_scrape_uses_the_cached_authorization(
    control_plane: ControlPlane, api: ApiClient, namespace: str
) -> None:
    token = await token_of(api, namespace, "prometheus")
    await permit(api, namespace, "prometheus")
    metrics = Metrics()

    def reviews_sent() -> list[str]:
        lines = metrics.render().decode().splitlines()
        return [line for line in lines if line.startswith("rest_client_requests_total")]

    async with serving(control_plane.kubeconfig, metrics) as url:
        assert (await scrape(url, token))[0] == 200
        before = reviews_sent()
        assert before[0].endswith(" 2")  # whose is it, and may they
        assert (await scrape(url, token))[0] == 200
        assert reviews_sent() == before


async def test_manager_without_permission_for_reviews_reports_failure(
    control_plane: ControlPlane, api: ApiClient, namespace: str
) -> None:
    token = await token_of(api, namespace, "prometheus")
    kubeconfig = control_plane.kubeconfig_for(f"nobody-{namespace}")
    async with serving(kubeconfig, Metrics()) as url:
        assert await scrape(url, token) == (500, "Authentication failed\n")
