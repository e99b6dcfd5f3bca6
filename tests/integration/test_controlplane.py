"""The embedded control plane: who may do what in it, and that it comes and goes as it should."""

import os
import signal
import ssl
import subprocess
import sys
from pathlib import Path

import aiohttp
import pytest

from kftrainer.devcluster import cache_paths
from kftrainer.devcluster.artifacts import binaries
from kftrainer.devcluster.artifacts.versions import (
    APISERVER,
    COSCHEDULING_MANIFESTS,
    ETCD,
    KUBERNETES_VERSION,
    VOLCANO_MANIFESTS,
)
from kftrainer.devcluster.client import ApiClient
from kftrainer.devcluster.cluster_options import Shape
from kftrainer.devcluster.components.pki import client_tls
from kftrainer.devcluster.controlplane import ControlPlane, running
from kftrainer.devcluster.errors import ApiError, DevClusterError, PortTakenError, ProcessDiedError
from kftrainer.devcluster.progress import SILENT
from kftrainer.devcluster.waiting import until
from tests.support.processes import processes_of

START_AND_WAIT = """
import asyncio
from kftrainer.devcluster.controlplane import running

async def main():
    async with running() as plane:
        print(plane.folder, flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""


@pytest.mark.skipif("KUBEBUILDER_ASSETS" in os.environ, reason="the binaries are not ours")
async def test_the_server_is_the_pinned_kubernetes(api: ApiClient) -> None:
    assert (await api.get("/version"))["gitVersion"] == KUBERNETES_VERSION


async def test_admin_is_authorized_and_an_unbound_user_is_not(
    control_plane: ControlPlane, api: ApiClient, namespace: str
) -> None:
    path = f"/api/v1/namespaces/{namespace}/configmaps"
    assert (await api.get(path))["items"] == []
    async with control_plane.client("eve", ["nobodies"]) as eve:
        with pytest.raises(ApiError) as refused:
            await eve.get(path)
    assert refused.value.status == 403
    assert 'User "eve" cannot list resource "configmaps"' in str(refused.value)


async def test_a_binding_gives_a_user_exactly_the_rights_it_names(
    control_plane: ControlPlane, api: ApiClient, namespace: str
) -> None:
    # A role of the test's own: the role `view` is empty without a controller manager.
    rbac = "rbac.authorization.k8s.io"
    metadata = {"name": "reader", "namespace": namespace}
    rules = [{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["list"]}]
    role_ref = {"apiGroup": rbac, "kind": "Role", "name": "reader"}
    subjects = [{"apiGroup": rbac, "kind": "User", "name": "ada"}]
    role = {"apiVersion": f"{rbac}/v1", "kind": "Role", "metadata": metadata}
    binding = {"apiVersion": f"{rbac}/v1", "kind": "RoleBinding", "metadata": metadata}
    await api.create({**role, "rules": rules})
    await api.create({**binding, "roleRef": role_ref, "subjects": subjects})
    configmap = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "x", "namespace": namespace},
    }
    async with control_plane.client("ada") as ada:

        async def allowed() -> bool:  # the authorizer receives bindings by its own watch
            try:
                await ada.get(f"/api/v1/namespaces/{namespace}/configmaps")
            except ApiError:
                return False
            return True

        await until(allowed, within=30, what="ada's binding coming into force")
        with pytest.raises(ApiError, match='cannot create resource "configmaps"'):
            await ada.create(configmap)


async def test_without_a_certificate_nothing_is_served(control_plane: ControlPlane) -> None:
    async with aiohttp.ClientSession() as session:
        url = f"{control_plane.url}/api/v1/namespaces"
        async with session.get(url, ssl=False) as response:
            assert response.status == 403
            assert "system:anonymous" in await response.text()


async def test_etcd_rejects_clients_without_its_certificate(control_plane: ControlPlane) -> None:
    [etcd] = [
        command
        for command in processes_of(control_plane.folder)
        if "/kill_with_parent.py" in command and "--data-dir" in command
    ]
    url = next(word for word in etcd.split() if word.startswith("--listen-client-urls="))
    async with aiohttp.ClientSession() as session:
        with pytest.raises((aiohttp.ClientOSError, ssl.SSLError), match="certificate required"):
            await session.get(url.partition("=")[2] + "/version", ssl=False)


async def test_two_control_planes_do_not_touch_each_other(
    control_plane: ControlPlane, api: ApiClient
) -> None:
    async with running() as other:
        assert other.url != control_plane.url
        async with other.client() as other_api:
            name = await other.create_namespace(other_api, prefix="only-here-")
            assert await other_api.get_or_none(f"/api/v1/namespaces/{name}")
            assert await api.get_or_none(f"/api/v1/namespaces/{name}") is None
        # A certificate of one is nothing to the other, even for who trusts the other's server.
        ours = control_plane._environment.identity("kubernetes-admin", ("system:masters",))
        async with ApiClient(
            other.url, client_tls(other.certificate_authority, ours)
        ) as other_client:
            with pytest.raises(ApiError) as refused:
                await other_client.get("/api/v1/namespaces")
        assert refused.value.status == 401
        folder = other.folder
    assert processes_of(folder) == []
    assert not folder.exists()
    assert await api.get("/api/v1/namespaces/default")


async def test_killing_its_owner_leaves_nothing_behind() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", START_AND_WAIT], stdout=subprocess.PIPE, text=True
    ) as owner:
        assert owner.stdout
        folder = owner.stdout.readline().strip()
        assert any("kube-apiserver" in command for command in processes_of(folder))
        owner.send_signal(signal.SIGKILL)

    async def is_deleted() -> bool:
        return not processes_of(folder)

    await until(is_deleted, within=30, what=f"the end of all processes of {folder}")


async def test_component_that_exits_during_startup_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = await binaries.provide(
        [ETCD, APISERVER], cache=cache_paths.cache_home(), progress=SILENT
    )
    (tmp_path / "etcd").symlink_to(real["etcd"])
    failing_server = tmp_path / "kube-apiserver"
    # It answers as ready, and is gone when the CRDs are to be installed.
    failing_server.write_text(
        f'#!/bin/sh\n{real["kube-apiserver"]} "$@" & sleep 6; kill -9 $!; exit 255\n'
    )
    failing_server.chmod(0o755)
    crd = tmp_path / "crd.yaml"
    crd.write_text("---\n".join(WIDGETS.replace("x.y", f"x{n}.y") for n in range(400)))
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(tmp_path))
    with pytest.raises(ProcessDiedError, match=r"kube-apiserver .*\(exit code 255\)"):
        async with running(Shape(crd_files=(crd,))):
            raise AssertionError("it started without an API server")


async def test_a_file_without_crds_is_refused(tmp_path: Path) -> None:
    crd = tmp_path / "crd.yaml"
    for text, message in (
        ("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: x}\n", "contains no CustomResource"),
        ("just a text\n", "contains a document that is not a Kubernetes object"),
        ("kind: [\n", "is not valid YAML"),
    ):
        crd.write_text(text)
        with pytest.raises(DevClusterError, match=message):
            async with running(Shape(crd_files=(crd,))):
                raise AssertionError("it started with a file of no use")


async def test_kinds_of_other_projects_are_served_on_request(tmp_path: Path) -> None:
    crd = tmp_path / "crd.yaml"
    crd.write_text(WIDGETS)
    shape = Shape(crds=(COSCHEDULING_MANIFESTS, VOLCANO_MANIFESTS), crd_files=(crd,))
    async with running(shape) as plane, plane.client() as api:
        served = {}
        for group in ("scheduling.x-k8s.io/v1alpha1", "scheduling.volcano.sh/v1beta1", "x.y/v1"):
            resources = (await api.get(f"/apis/{group}"))["resources"]
            served[group] = {each["kind"] for each in resources}
    assert "PodGroup" in served["scheduling.x-k8s.io/v1alpha1"]
    assert "PodGroup" in served["scheduling.volcano.sh/v1beta1"]
    assert "Widget" in served["x.y/v1"]


async def test_taken_port_is_reported_before_anything_starts(
    control_plane: ControlPlane,
) -> None:
    port = int(control_plane.url.rpartition(":")[2])
    with pytest.raises(PortTakenError, match=f"Port {port} on 127.0.0.1 is in use"):
        async with running(Shape(port=port)):
            raise AssertionError("it started on a taken port")


async def test_api_server_that_exits_at_startup_is_reported_with_its_last_output(
    control_plane: ControlPlane, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing_server = tmp_path / "kube-apiserver"
    failing_server.write_text("#!/bin/sh\necho 'no such luck' >&2\nexit 9\n")
    failing_server.chmod(0o755)
    found = await binaries.provide([ETCD], cache=cache_paths.cache_home(), progress=SILENT)
    (tmp_path / "etcd").symlink_to(found["etcd"])
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(tmp_path))
    with pytest.raises(ProcessDiedError, match=r"kube-apiserver .*\(exit code 9\)") as died:
        async with running():
            raise AssertionError("it started without an API server")
    assert "no such luck" in str(died.value)


WIDGETS = """
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata:
  name: widgets.x.y
spec:
  group: x.y
  names: {kind: Widget, plural: widgets}
  scope: Namespaced
  versions:
    - name: v1
      served: true
      storage: true
      schema:
        openAPIV3Schema: {type: object}
"""
