"""The default StorageClass of process nodes and its provisioner: one folder for each claim."""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from kftrainer.devcluster.nodes.kubelet.inputs.folders import create_folder, remove_tree
from kftrainer.devcluster.nodes.kubelet.inputs.kinds import (
    CLAIMS,
    PERSISTENT_VOLUMES,
    STORAGE_CLASSES,
)
from kftrainer.kube.client.client import Client, get_or_none
from kftrainer.kube.client.errors import (
    AlreadyExistsError,
    ConflictError,
    KubeError,
    NotFoundError,
)
from kftrainer.kube.objects.resource import Manifest, ObjectKey
from kftrainer.machinery.cache.cache import Cache
from kftrainer.machinery.cache.informer import Informer
from kftrainer.machinery.controller.controller import Controller
from kftrainer.machinery.controller.handlers import enqueue_self
from kftrainer.machinery.controller.reconcile import DONE, ReconcileError, Request, Result
from kftrainer.machinery.events.recorder import EventRecorder
from kftrainer.machinery.manager.clock import Clock, SystemClock
from kftrainer.machinery.manager.lifetime import Budget, running

PROVISIONER = "kftrainer.dev/folder"
STORAGE_CLASS: Final[Mapping[str, Any]] = {
    "apiVersion": "storage.k8s.io/v1",
    "kind": "StorageClass",
    "metadata": {
        "name": "local-folder",
        "annotations": {"storageclass.kubernetes.io/is-default-class": "true"},
    },
    "provisioner": PROVISIONER,
    "reclaimPolicy": "Delete",
    "volumeBindingMode": "Immediate",
}
# Set by kube-controller-manager on claims that need a provisioner.
PROVISIONER_ANNOTATIONS = (
    "volume.kubernetes.io/storage-provisioner",
    "volume.beta.kubernetes.io/storage-provisioner",
)
PROVISIONED_BY = "pv.kubernetes.io/provisioned-by"
RELEASED = "Released"
RETRY_WITHIN = 60.0
STOP_WITHIN = 5.0
FOLDER_MODE = 0o777


def is_ours(claim: Manifest) -> bool:
    """Whether the claim needs a PersistentVolume of this provisioner."""
    metadata = claim["metadata"]
    annotations = metadata.get("annotations") or {}
    return (
        any(annotations.get(each) == PROVISIONER for each in PROVISIONER_ANNOTATIONS)
        and not claim["spec"].get("volumeName")
        and "deletionTimestamp" not in metadata
    )


def refusal(claim: Manifest) -> str | None:
    """Return why the claim cannot be provisioned; None if it can."""
    spec = claim["spec"]
    if spec.get("volumeMode") == "Block":
        return "block devices are not supported; use volumeMode: Filesystem"
    if spec.get("selector"):
        return "claims with a selector are not supported"
    if spec.get("dataSource") or spec.get("dataSourceRef"):
        return "claims with a data source are not supported"
    return None


def volume_name(claim: Manifest) -> str:
    """Return the name of the claim's PersistentVolume, and of its folder."""
    return f"pvc-{claim['metadata']['uid']}"


def volume_for(claim: Manifest, storage_class: Manifest | None, root: Path) -> Manifest:
    """Return the PersistentVolume for the claim; its size is not enforced."""
    metadata, spec, name = claim["metadata"], claim["spec"], volume_name(claim)
    used = storage_class or STORAGE_CLASS
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": name, "annotations": {PROVISIONED_BY: PROVISIONER}},
        "spec": {
            "capacity": {"storage": spec["resources"]["requests"]["storage"]},
            "accessModes": spec["accessModes"],
            "volumeMode": "Filesystem",
            "storageClassName": spec.get("storageClassName") or "",
            "persistentVolumeReclaimPolicy": used.get("reclaimPolicy") or "Delete",
            "hostPath": {"path": str(root / name), "type": "Directory"},
            "claimRef": {
                "apiVersion": "v1",
                "kind": "PersistentVolumeClaim",
                "namespace": metadata["namespace"],
                "name": metadata["name"],
                "uid": metadata["uid"],
            },
        },
    }


def is_reclaimable(volume: Manifest) -> bool:
    """Whether the volume is of this provisioner, no longer claimed, and to be deleted."""
    metadata, spec = volume["metadata"], volume["spec"]
    return (
        (metadata.get("annotations") or {}).get(PROVISIONED_BY) == PROVISIONER
        and (volume.get("status") or {}).get("phase") == RELEASED
        and spec.get("persistentVolumeReclaimPolicy") == "Delete"
    )


def folder_of(volume: Manifest, root: Path) -> Path | None:
    """Return the folder of a volume; None unless it is the one that was created for it."""
    folder = root / volume["metadata"]["name"]
    path = (volume["spec"].get("hostPath") or {}).get("path")
    return folder if path == str(folder) and not folder.is_symlink() else None


class ClaimReconciler:
    """Creates a folder and a PersistentVolume for each claim."""

    def __init__(self, api: Client, cache: Cache, recorder: EventRecorder, root: Path) -> None:
        self._api = api
        self._cache = cache
        self._recorder = recorder
        self._root = root

    async def reconcile(self, request: Request) -> Result:
        """Provision the claim unless it is bound."""
        claim = self._cache.get(CLAIMS, request)
        name = None if claim is None else volume_name(claim)
        if claim is None or name is None or not is_ours(claim):
            return DONE
        if self._cache.get(PERSISTENT_VOLUMES, ObjectKey("", name)) is not None:
            return DONE
        if (reason := refusal(claim)) is not None:
            self._recorder.record(claim, "Warning", "ProvisioningFailed", reason)
            return DONE
        try:
            await self._provision(claim)
        except (KubeError, OSError) as error:
            message = f"failed to provision volume: {error}"
            self._recorder.record(claim, "Warning", "ProvisioningFailed", message)
            raise ReconcileError(message, max_delay=RETRY_WITHIN) from error
        return DONE

    async def _provision(self, claim: Manifest) -> None:
        storage_class = None
        if wanted := claim["spec"].get("storageClassName"):
            storage_class = await get_or_none(self._api, STORAGE_CLASSES, ObjectKey("", wanted))
        create_folder(self._root / volume_name(claim), FOLDER_MODE)
        try:
            volume = volume_for(claim, storage_class, self._root)
            await self._api.create(PERSISTENT_VOLUMES, volume)
        except AlreadyExistsError:
            return  # created by an attempt whose response was lost
        message = f"Successfully provisioned volume {volume_name(claim)}"
        self._recorder.record(claim, "Normal", "ProvisioningSucceeded", message)


class VolumeReconciler:
    """Deletes released PersistentVolumes and their folders."""

    def __init__(self, api: Client, cache: Cache, recorder: EventRecorder, root: Path) -> None:
        self._api = api
        self._cache = cache
        self._recorder = recorder
        self._root = root

    async def reconcile(self, request: Request) -> Result:
        """Reclaim the volume if it has been released."""
        cached = self._cache.get(PERSISTENT_VOLUMES, request)
        if cached is None or not is_reclaimable(cached):
            return DONE
        try:
            await self._reclaim(request)
        except (NotFoundError, ConflictError):
            return DONE  # deleted or changed meanwhile; a change is an event
        except KubeError as error:
            message = f"failed to delete volume {request.name}: {error}"
            raise ReconcileError(message, max_delay=RETRY_WITHIN) from error
        return DONE

    async def _reclaim(self, request: Request) -> None:
        volume = await self._api.get(PERSISTENT_VOLUMES, request)  # the cache may lag behind
        if not is_reclaimable(volume):
            return
        folder = folder_of(volume, self._root)
        if folder is None:
            message = f"the path is not {self._root / request.name}, so it is not deleted"
            self._recorder.record(volume, "Warning", "VolumeFailedDelete", message)
            return
        if not await asyncio.to_thread(remove_tree, folder):
            raise ReconcileError(f"failed to delete {folder}", max_delay=RETRY_WITHIN)
        metadata = volume["metadata"]
        await self._api.delete(PERSISTENT_VOLUMES, request, uid=metadata["uid"])


async def run_provisioner(api: Client, folder: Path, *, clock: Clock | None = None) -> None:
    """Provision claims with folders inside of `folder` until cancelled."""
    clock, root = clock or SystemClock(), folder.absolute()
    claims = Informer(api, CLAIMS, clock=clock)
    volumes = Informer(api, PERSISTENT_VOLUMES, clock=clock)
    cache = Cache()
    recorder = EventRecorder(api, clock=clock, component=PROVISIONER, hostname="localhost")
    for informer in (claims, volumes):
        cache.add(informer)
    claim_reconciler = ClaimReconciler(api, cache, recorder, root)
    volume_reconciler = VolumeReconciler(api, cache, recorder, root)
    provisioning = Controller("provision", claim_reconciler, clock=clock)
    provisioning.watch(claims, enqueue_self)
    reclaiming = Controller("reclaim", volume_reconciler, clock=clock)
    reclaiming.watch(volumes, enqueue_self)
    budget = Budget(clock, STOP_WITHIN)
    async with (
        running(recorder, cache, budget=budget),
        running(provisioning, reclaiming, budget=budget),
    ):
        await asyncio.Event().wait()
