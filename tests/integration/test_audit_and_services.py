"""Audit log and Services of the control plane for installation tests."""

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from kftrainer.devcluster.client import ApiClient, Object
from kftrainer.devcluster.cluster_options import Shape
from kftrainer.devcluster.controlplane import ControlPlane, running
from kftrainer.devcluster.errors import ApiError
from kftrainer.devcluster.waiting import until
from tests.support.audit import (
    AuditedRequest,
    Permission,
    permissions_of,
    refused,
    requests_of,
    unused,
)

WITHIN = 30.0
CONFIG_MAP = {
    "apiVersion": "v1",
    "kind": "ConfigMap",
    "metadata": {"name": "x", "namespace": "default"},
}


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def plane(bare_control_plane: ControlPlane) -> AsyncIterator[ControlPlane]:
    """A control plane with both; the other one is requested so that programs are built."""
    async with running(Shape(audit=True, service_proxy=True)) as plane:
        yield plane


async def answered(plane: ControlPlane, user: str, requests: int) -> list[AuditedRequest]:
    """The user's requests, once there is this number of them."""

    async def recorded() -> list[AuditedRequest] | None:
        found = requests_of(plane.audit_log, user)
        return found if len(found) >= requests else None

    return await until(
        recorded, within=WITHIN, what=f"{requests} requests of {user} in the audit log"
    )


async def test_audit_log_contains_granted_and_denied_requests(plane: ControlPlane) -> None:
    async with plane.client("kubernetes-admin") as admin:
        start = plane.audit_log.stat().st_size
        await admin.apply(CONFIG_MAP)
        await admin.apply({**CONFIG_MAP, "data": {"a": "b"}})
    async with plane.client("eve") as eve:
        with pytest.raises(ApiError):
            await eve.get("/api/v1/namespaces/default/configmaps/x")
    [audited] = await answered(plane, "eve", 1)
    assert (audited.verb, audited.resource, audited.name, audited.code) == (
        "get",
        "configmaps",
        "x",
        403,
    )
    assert refused([audited]) == ["403 get /api/v1/namespaces/default/configmaps/x"]

    async def both() -> list[AuditedRequest] | None:
        found = requests_of(plane.audit_log, "kubernetes-admin", start=start)
        applied = [each for each in found if each.resource == "configmaps"]
        return applied if len(applied) > 1 else None

    applied = await until(both, within=WITHIN, what="what the administrator has applied")
    assert [each.verbs for each in applied] == [{"patch", "create"}, {"patch"}]


async def test_api_server_resolves_services_through_the_socket(
    plane: ControlPlane,
) -> None:
    requests: list[str] = []

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        requests.append((await reader.readline()).decode())
        writer.write(b"HTTP/1.1 502 Nobody\r\nContent-Length: 0\r\n\r\n")
        writer.close()

    async with (
        await asyncio.start_unix_server(refuse, plane.service_socket),
        plane.client() as api,
    ):
        address = (await api.apply(SERVICE))["spec"]["clusterIP"]
        await api.apply(WEBHOOK)

        async def is_called() -> bool:
            secret = {**CONFIG_MAP, "kind": "Secret"}
            try:
                await api.apply(secret)
            except ApiError as error:
                return "failed calling webhook" in str(error)
            return False

        await until(is_called, within=WITHIN, what="the API server calling the webhook")
        await _forget(api)
    assert set(requests) == {f"CONNECT {address}:443 HTTP/1.1\r\n"}


async def _forget(api: ApiClient) -> None:
    await api.delete(await api.path_of(WEBHOOK))


SERVICE: Object = {
    "apiVersion": "v1",
    "kind": "Service",
    "metadata": {"name": "webhook", "namespace": "default"},
    "spec": {"ports": [{"port": 443}]},
}
WEBHOOK: Object = {
    "apiVersion": "admissionregistration.k8s.io/v1",
    "kind": "ValidatingWebhookConfiguration",
    "metadata": {"name": "webhook"},
    "webhooks": [
        {
            "name": "secrets.example.com",
            "admissionReviewVersions": ["v1"],
            "sideEffects": "None",
            "clientConfig": {"service": {"name": "webhook", "namespace": "default"}},
            "rules": [
                {
                    "apiGroups": [""],
                    "apiVersions": ["v1"],
                    "resources": ["secrets"],
                    "operations": ["*"],
                }
            ],
        }
    ],
}


def test_rights_are_those_of_roles_that_are_bound_to_the_account() -> None:
    role = {
        "kind": "Role",
        "metadata": {"name": "own", "namespace": "home"},
        "rules": [
            {
                "apiGroups": [""],
                "resources": ["secrets"],
                "verbs": ["get", "patch"],
                "resourceNames": ["cert"],
            }
        ],
    }
    other_role = {**role, "metadata": {"name": "strange", "namespace": "home"}}

    def binding(of: Object, account: str) -> Object:
        return {
            "kind": "RoleBinding",
            "metadata": of["metadata"],
            "roleRef": {"kind": "Role", "name": of["metadata"]["name"]},
            "subjects": [{"kind": "ServiceAccount", "name": account, "namespace": "home"}],
        }

    objects = [role, other_role, binding(role, "we"), binding(other_role, "they")]
    rights = permissions_of(objects, "we", "home")
    assert rights == [
        Permission("Role own", "", "secrets", "get", "cert", "home"),
        Permission("Role own", "", "secrets", "patch", "cert", "home"),
    ]
    read = AuditedRequest("we", "get", "", "secrets", "home", "cert", 200, "/api/v1/…/cert")
    other = AuditedRequest(
        "we", "patch", "", "secrets", "home", "another", 200, "/api/v1/…/another"
    )
    assert unused(rights, [read, other]) == ["Role own: patch secrets.core cert"]
