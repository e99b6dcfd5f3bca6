"""Volumes of pods on process nodes, against a real API server."""

import asyncio
import json
from base64 import urlsafe_b64decode
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from kftrainer.devcluster.client import ApiClient
from kftrainer.devcluster.controlplane import ControlPlane
from kftrainer.devcluster.nodes.kubelet.storage import (
    PROVISIONER,
    PROVISIONER_ANNOTATIONS,
    STORAGE_CLASS,
    run_provisioner,
)
from kftrainer.devcluster.nodes.kubelet.volumes import PodVolumes
from kftrainer.devcluster.waiting import until
from kftrainer.kube.client.client import MERGE_PATCH, Client
from kftrainer.machinery.manager.clock import SystemClock
from tests.support.informers import connected

pytestmark = pytest.mark.integration
Object = dict[str, Any]
VOLUMES = "/api/v1/persistentvolumes"


@pytest.fixture
async def client(control_plane: ControlPlane) -> AsyncIterator[Client]:
    async with connected(control_plane.kubeconfig) as client:
        yield client


async def create(api: ApiClient, kind: str, namespace: str, name: str, **fields: Any) -> Object:
    metadata = {"name": name, "namespace": namespace, **fields.pop("metadata", {})}
    return await api.create({"apiVersion": "v1", "kind": kind, "metadata": metadata, **fields})


async def test_files_come_from_the_api_and_follow_its_changes(
    api: ApiClient, client: Client, namespace: str, tmp_path: Path
) -> None:
    await create(api, "ServiceAccount", namespace, "trainer")
    await create(api, "ConfigMap", namespace, "settings", data={"a": "1"})
    await create(api, "Secret", namespace, "keys", stringData={"key": "2"})
    token = {"path": "token", "audience": "tests", "expirationSeconds": 600}
    sources = [
        {"serviceAccountToken": token},
        {"configMap": {"name": "settings"}},
        {"secret": {"name": "keys"}},
    ]
    container = {
        "name": "node",
        "image": "trainer",
        "volumeMounts": [{"name": "all", "mountPath": "/all"}],
    }
    spec = {
        "serviceAccountName": "trainer",
        "containers": [container],
        "volumes": [{"name": "all", "projected": {"sources": sources}}],
    }
    pod = await create(api, "Pod", namespace, "trainer", spec=spec)
    volumes = PodVolumes(tmp_path / "pod", client, SystemClock())
    await volumes.prepare(pod)

    folder = Path(volumes.mounts(pod, container, {})[0].source or "")
    payload = (folder / "token").read_text().split(".")[1]
    claims = json.loads(urlsafe_b64decode(payload + "=="))
    assert claims["aud"] == ["tests"]
    assert claims["sub"] == f"system:serviceaccount:{namespace}:trainer"
    assert claims["kubernetes.io"]["pod"]["uid"] == pod["metadata"]["uid"]
    assert [(folder / name).read_text() for name in ("a", "key")] == ["1", "2"]

    await api.request(
        "PATCH",
        f"/api/v1/namespaces/{namespace}/configmaps/settings",
        body={"data": {"a": None, "b": "3"}},
        content_type=MERGE_PATCH,
    )
    await volumes.refresh(pod)
    assert (folder / "b").read_text() == "3"
    assert not (folder / "a").exists()


@asynccontextmanager
async def provisioning(client: Client, folder: Path) -> AsyncIterator[None]:
    async with asyncio.TaskGroup() as group:
        task = group.create_task(run_provisioner(client, folder))
        yield
        task.cancel()


async def new_claim(api: ApiClient, namespace: str, provisioner: str = PROVISIONER) -> Object:
    """Create a claim as kube-controller-manager annotates it."""
    return await create(
        api,
        "PersistentVolumeClaim",
        namespace,
        f"data-{provisioner.partition('.')[0]}",
        metadata={"annotations": {PROVISIONER_ANNOTATIONS[0]: provisioner}},
        spec={
            "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": "1Gi"}},
        },
    )


async def release(api: ApiClient, path: str) -> None:
    """Set the status that kube-controller-manager sets when the claim is deleted."""
    await api.request(
        "PATCH", f"{path}/status", body={"status": {"phase": "Released"}}, content_type=MERGE_PATCH
    )


async def volume_of(api: ApiClient, claim: Object) -> Object:
    path = f"{VOLUMES}/pvc-{claim['metadata']['uid']}"
    return await until(
        lambda: api.get_or_none(path), within=30, what="the PersistentVolume of the claim"
    )


async def test_claim_gets_a_folder_that_is_deleted_with_the_volume(
    api: ApiClient, client: Client, namespace: str, tmp_path: Path
) -> None:
    await api.apply(STORAGE_CLASS)
    other = await new_claim(api, namespace, "other.example.com")
    async with provisioning(client, tmp_path):
        claim = await new_claim(api, namespace)
        volume = await volume_of(api, claim)
        folder = tmp_path / volume["metadata"]["name"]
        assert volume["spec"]["hostPath"]["path"] == str(folder)
        assert volume["spec"]["claimRef"]["uid"] == claim["metadata"]["uid"]
        (folder / "model").write_text("1")
        path = f"{VOLUMES}/{volume['metadata']['name']}"

        async def is_gone() -> bool:
            found = await api.get_or_none(path)
            return found is None or "deletionTimestamp" in found["metadata"]

        await release(api, path)
        await until(is_gone, within=30, what="the PersistentVolume being deleted")
        assert [entry.name for entry in tmp_path.iterdir()] == []
    assert await api.get_or_none(f"{VOLUMES}/pvc-{other['metadata']['uid']}") is None


async def test_folder_outside_of_the_root_is_not_deleted(
    api: ApiClient, client: Client, namespace: str, tmp_path: Path
) -> None:
    root, outside = tmp_path / "root", tmp_path / "outside"
    outside.mkdir()
    async with provisioning(client, root):
        volume = await volume_of(api, await new_claim(api, namespace))
        name = f"forged-{volume['metadata']['name']}"
        forged = {
            **volume,
            "metadata": {"name": name, "annotations": volume["metadata"]["annotations"]},
        }
        forged["spec"] = {**volume["spec"], "hostPath": {"path": str(outside)}}
        del forged["spec"]["claimRef"]
        await api.create(forged)
        await release(api, f"{VOLUMES}/{name}")

        async def is_reported() -> bool:
            found = await api.get("/api/v1/namespaces/default/events")
            return any(
                each["involvedObject"]["name"] == name and each["reason"] == "VolumeFailedDelete"
                for each in found["items"]
            )

        await until(is_reported, within=30, what="an Event about the forged volume")
    assert outside.is_dir()
    assert await api.get_or_none(f"{VOLUMES}/{name}") is not None
