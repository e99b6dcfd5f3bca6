"""The volumes of a pod: folders and files of this machine that are mounted into its containers."""

import errno
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from kftrainer.devcluster.nodes.kubelet.environment import ConfigError, expand_all
from kftrainer.devcluster.nodes.kubelet.inputs.atomic_files import File, write_files
from kftrainer.devcluster.nodes.kubelet.inputs.downward_api import allocatable_of, containers_of
from kftrainer.devcluster.nodes.kubelet.inputs.errors import InputError
from kftrainer.devcluster.nodes.kubelet.inputs.folders import (
    check_host_path,
    create_folder,
    remove_tree,
    sub_path,
)
from kftrainer.devcluster.nodes.kubelet.inputs.kinds import (
    CLAIMS,
    CONFIG_MAPS,
    NODES,
    PERSISTENT_VOLUMES,
    SECRETS,
)
from kftrainer.devcluster.nodes.kubelet.inputs.payload import (
    DEFAULT_MODE,
    Files,
    clean_path,
    files_of_keys,
    files_of_pod,
)
from kftrainer.devcluster.nodes.kubelet.inputs.tokens import PodTokens
from kftrainer.devcluster.nodes.sandbox.protocol import Mount
from kftrainer.kube.client.client import Client, get_or_none
from kftrainer.kube.client.errors import KubeError
from kftrainer.kube.objects.resource import Manifest, ObjectKey, Resource, is_controlled_by
from kftrainer.machinery.manager.clock import Clock

PUBLIC_MODE = 0o777  # of emptyDir folders and of the folders that contain files
PVC_PROTECTION = "kubernetes.io/pvc-protection"
FULL = (errno.ENOSPC, errno.EDQUOT)
# Their files change when the objects change.
WITH_FILES = ("configMap", "secret", "projected", "downwardAPI")


class MountError(Exception):
    """A volume cannot be mounted; a retry may succeed. The message is that of a FailedMount."""


@dataclass(frozen=True, slots=True)
class _Prepared:
    """A volume that can be mounted."""

    path: Path
    read_only: bool


class PodVolumes:
    """The volumes of one pod; those that live and end with it are in one folder.

    An emptyDir with the medium Memory is a folder on disk, too, and size limits are not enforced.
    `fsGroup` is ignored: all files belong to the user who runs the node, as do all processes.
    """

    def __init__(self, folder: Path, api: Client, clock: Clock) -> None:
        self._folder = folder
        self._api = api
        self._clock = clock
        self._tokens = PodTokens(api)
        self._prepared: dict[str, _Prepared] = {}

    async def prepare(self, pod: Manifest) -> None:
        """Create the volumes that containers mount; can be repeated.

        Raises MountError for the first volume that cannot be created.
        """
        for volume in _mounted_volumes(pod):
            await self._set_up(pod, volume)

    async def refresh(self, pod: Manifest) -> None:
        """Update the files from ConfigMaps, Secrets, tokens and the pod.

        Updates all volumes before it raises MountError for the first that failed.
        """
        errors = list[MountError]()
        for volume in _mounted_volumes(pod):
            if volume["name"] in self._prepared and _type_of(volume) in WITH_FILES:
                try:
                    await self._set_up(pod, volume)
                except MountError as error:
                    errors.append(error)
        if errors:
            raise errors[0]

    def mounts(
        self, pod: Manifest, container: Mapping[str, Any], env: Mapping[str, str]
    ) -> list[Mount]:
        """Return the mounts of a container, outer ones first, and create missing subPaths.

        Raises ConfigError if one is not possible.
        """
        known = {volume["name"] for volume in _mounted_volumes(pod)} & self._prepared.keys()
        found = [
            self._mount(container["name"], each, env, known)
            for each in container.get("volumeMounts") or ()
        ]
        return sorted(found, key=lambda mount: len(PurePosixPath(mount.target).parts))

    def remove(self) -> None:
        """Delete the folder of the pod's volumes; those of hostPaths and claims stay."""
        self._prepared.clear()
        remove_tree(self._folder)

    async def _set_up(self, pod: Manifest, volume: Manifest) -> None:
        failed = f'MountVolume.SetUp failed for volume "{volume["name"]}" : '
        try:
            self._prepared[volume["name"]] = await self._prepare(pod, volume)
        except (InputError, KubeError) as error:
            raise MountError(f"{failed}{error}") from error
        except OSError as error:
            raise MountError(f"{failed}{_in_words(error)}") from error

    async def _prepare(self, pod: Manifest, volume: Manifest) -> _Prepared:
        kind = _type_of(volume)
        source, own = volume.get(kind) or {}, self._folder / volume["name"]
        match kind:
            case "emptyDir":
                create_folder(own, PUBLIC_MODE)
                return _Prepared(own, read_only=False)
            case "configMap" | "secret" | "projected" | "downwardAPI":
                files = await self._files(pod, kind, source)
                create_folder(own, PUBLIC_MODE)
                write_files(own, files, self._clock.now())
                return _Prepared(own, read_only=True)
            case "hostPath":
                path = check_host_path(source["path"], source.get("type") or "")
                return _Prepared(path, read_only=False)
            case "persistentVolumeClaim":
                read_only = bool(source.get("readOnly"))
                return await self._claimed(pod, source["claimName"], read_only=read_only)
            case "ephemeral":
                name = f"{pod['metadata']['name']}-{volume['name']}"
                return await self._claimed(pod, name, read_only=False, is_ephemeral=True)
            case _:
                raise InputError(f"process nodes do not support volumes of type {kind}")

    async def _files(self, pod: Manifest, kind: str, source: Mapping[str, Any]) -> Files:
        mode = source.get("defaultMode")
        mode = DEFAULT_MODE if mode is None else mode
        sources: Sequence[Mapping[str, Any]] = (
            source.get("sources") or () if kind == "projected" else ({kind: source},)
        )
        files = Files()
        for each in sources:
            files |= await self._files_of(pod, each, mode)
        return files

    async def _files_of(self, pod: Manifest, source: Mapping[str, Any], mode: int) -> Files:
        """Return the files of one source of a projected volume."""
        match source:
            case {"configMap": found}:
                config_map = await self._get(CONFIG_MAPS, pod, found.get("name", ""))
                return files_of_keys("configmap", config_map, found, mode)
            case {"secret": found}:
                name = found.get("secretName") or found.get("name", "")
                return files_of_keys("secret", await self._get(SECRETS, pod, name), found, mode)
            case {"downwardAPI": found}:
                items = found.get("items") or ()
                return files_of_pod(pod, items, mode, await self._allocatable(pod, items))
            case {"serviceAccountToken": found}:
                text = await self._tokens.get(pod, found, self._clock.now())
                return {clean_path(found["path"]): File(text.encode(), mode)}
            case _:
                kind = _type_of(source)
                raise InputError(f"process nodes do not support the projected source {kind}")

    async def _allocatable(
        self, pod: Manifest, items: Sequence[Mapping[str, Any]]
    ) -> Mapping[str, str]:
        """Return the node's resources if one of the items needs them."""
        if not any("resourceFieldRef" in item for item in items):
            return {}
        node = ObjectKey("", pod["spec"].get("nodeName", ""))
        return allocatable_of(await self._api.get(NODES, node))

    async def _claimed(
        self, pod: Manifest, name: str, *, read_only: bool, is_ephemeral: bool = False
    ) -> _Prepared:
        """Return the folder of the PersistentVolume that is bound to the claim."""
        claim = await self._get(CLAIMS, pod, name)
        volume: Manifest | None = None
        if claim is not None and (bound := claim["spec"].get("volumeName")):
            volume = await get_or_none(self._api, PERSISTENT_VOLUMES, ObjectKey("", bound))
        path = path_of_claim(pod, name, claim, volume, is_ephemeral=is_ephemeral)
        return _Prepared(path, read_only)

    async def _get(self, resource: Resource[Manifest], pod: Manifest, name: str) -> Manifest | None:
        if not name:
            return None
        key = ObjectKey(pod["metadata"]["namespace"], name)
        return await get_or_none(self._api, resource, key)

    def _mount(
        self,
        container: str,
        mount: Mapping[str, Any],
        env: Mapping[str, str],
        known: Set[str],
    ) -> Mount:
        name = mount["name"]
        if name not in known:
            raise ConfigError(f'cannot find volume "{name}" to mount into container "{container}"')
        volume, relative = self._prepared[name], _relative_path(mount, env)
        path = volume.path
        if relative:
            about = f'subPath for volumeMount "{name}" of container "{container}"'
            try:
                path = sub_path(volume.path, relative)
            except OSError as error:
                raise ConfigError(f"failed to prepare {about}: {_in_words(error)}") from error
        target = str(PurePosixPath("/", mount["mountPath"]))
        return Mount(target, str(path), read_only=volume.read_only or bool(mount.get("readOnly")))


def path_of_claim(
    pod: Manifest,
    name: str,
    claim: Manifest | None,
    volume: Manifest | None,
    *,
    is_ephemeral: bool = False,
) -> Path:
    """Return the folder of a claim's PersistentVolume; InputError if the claim is not usable."""
    where = f"{pod['metadata']['namespace']}/{name}"
    try:
        claim = _bound(name, claim)
        path = _path_of_volume(claim, volume)
    except InputError as error:
        raise InputError(f"error processing PVC {where}: {error}") from None
    if is_ephemeral and not is_controlled_by(claim["metadata"], pod["metadata"]["uid"]):
        owner = f"{pod['metadata']['namespace']}/{pod['metadata']['name']} (pod is not owner)"
        raise InputError(f"PVC {where} was not created for pod {owner}")
    return path


def _bound(name: str, claim: Manifest | None) -> Manifest:
    if claim is None:
        missing = f'persistentvolumeclaims "{name}" not found'
        raise InputError(f"failed to fetch PVC from API server: {missing}")
    metadata = claim["metadata"]
    is_protected = PVC_PROTECTION in (metadata.get("finalizers") or ())
    if "deletionTimestamp" in metadata and not is_protected:
        raise InputError("PVC is being deleted")
    if (claim.get("status") or {}).get("phase") != "Bound":
        raise InputError("PVC is not bound")
    if not claim["spec"].get("volumeName"):
        raise InputError("PVC has empty pvc.Spec.VolumeName")
    return claim


def _path_of_volume(claim: Manifest, volume: Manifest | None) -> Path:
    name, uid = claim["spec"]["volumeName"], claim["metadata"]["uid"]
    if volume is None:
        missing = f'persistentvolumes "{name}" not found'
        raise InputError(f"failed to fetch PV {name} from API server: {missing}")
    spec = volume["spec"]
    holder = (spec.get("claimRef") or {}).get("uid")
    if holder != uid:
        wrong = f"its pv.Spec.ClaimRef.UID {holder} does not point to claim.UID {uid}"
        raise InputError(f"found PV object {name} but {wrong}")
    if spec.get("volumeMode") == "Block":
        raise InputError("process nodes do not support block devices as volumes")
    match spec:
        case {"hostPath": source}:
            return check_host_path(source["path"], source.get("type") or "")
        case {"local": source}:
            return check_host_path(source["path"], "Directory")
        case _:
            only = "of the types hostPath and local only"
            raise InputError(f"process nodes support PersistentVolumes {only}")


def _mounted_volumes(pod: Manifest) -> Iterator[Manifest]:
    """Yield the volumes that a container mounts; others are not created."""
    mounted = {
        each["name"]
        for container in containers_of(pod)
        for field in ("volumeMounts", "volumeDevices")
        for each in container.get(field) or ()
    }
    volumes = pod["spec"].get("volumes") or ()
    yield from (volume for volume in volumes if volume["name"] in mounted)


def _type_of(volume: Mapping[str, Any]) -> str:
    return next((field for field in volume if field != "name"), "emptyDir")


def _relative_path(mount: Mapping[str, Any], env: Mapping[str, str]) -> str:
    """Return the path in the volume that is mounted; empty for the whole volume."""
    relative = mount.get("subPath") or ""
    if expression := mount.get("subPathExpr"):
        relative = expand_all(expression, env)
    if relative.startswith("/"):
        raise ConfigError(f"error SubPath `{relative}` must not be an absolute path")
    if ".." in relative.split("/"):
        raise ConfigError(f"unable to provision SubPath `{relative}`: must not contain '..'")
    return relative


def _in_words(error: OSError) -> str:
    if error.errno in FULL:
        return f"the disk is full ({error.filename or error.strerror})"
    return f"{error.filename}: {error.strerror}" if error.filename else str(error)
