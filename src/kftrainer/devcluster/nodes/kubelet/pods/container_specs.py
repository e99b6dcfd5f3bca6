"""What is started for a container: its command, environment, mounts and user."""

import hashlib
from collections.abc import Mapping

from kftrainer.devcluster.client import Object as Json
from kftrainer.devcluster.client import UnreachableError
from kftrainer.devcluster.errors import ApiError
from kftrainer.devcluster.nodes.kubelet.environment import (
    ConfigError,
    Sources,
    container_environment,
    expand,
    references,
)
from kftrainer.devcluster.nodes.kubelet.images import SelectedImage
from kftrainer.devcluster.nodes.kubelet.network import hosts
from kftrainer.devcluster.nodes.kubelet.pods.context import NodeContext, PodFolder, Volumes
from kftrainer.devcluster.nodes.kubelet.pods.states import Object
from kftrainer.devcluster.nodes.sandbox.protocol import ContainerSpec

PROBES = ("startupProbe", "livenessProbe", "readinessProbe")


def container_id(pod: Object, container: Object, attempt: int, moment: float) -> str:
    """Return a new ID for an attempt to run a container."""
    text = f"{pod['metadata']['uid']}/{container['name']}/{attempt}/{moment}"
    return hashlib.sha256(text.encode()).hexdigest()


async def read_sources(node: NodeContext, pod: Object) -> Sources:
    """Read the ConfigMaps and Secrets that the pod refers to; missing ones are left out."""
    wanted, namespace = references(pod), pod["metadata"]["namespace"]

    async def read(plural: str, names: frozenset[str]) -> dict[str, Json]:
        found = {}
        for name in sorted(names):
            path = f"/api/v1/namespaces/{namespace}/{plural}/{name}"
            try:
                stored = await node.api.get_or_none(path)
            except (ApiError, UnreachableError) as error:
                raise ConfigError(f"failed to read {plural} {name!r}: {error}") from error
            if stored is not None:
                found[name] = stored
        return found

    return Sources(
        config_maps=await read("configmaps", wanted.config_maps),
        secrets=await read("secrets", wanted.secrets),
        services=node.services(),
    )


def command(container: Object, image_command: tuple[str, ...], env: Mapping[str, str]) -> list[str]:
    """Return the command line with $(NAME) replaced; empty if there is no command."""
    own = [expand(each, env) for each in container.get("command") or ()]
    arguments = [expand(each, env) for each in container.get("args") or ()]
    return [*(own or image_command), *arguments]


def user_and_group(pod: Object, container: Object) -> tuple[int | None, int | None]:
    """Return the user and group IDs of the security context; the container's come first."""
    contexts = {
        **(pod["spec"].get("securityContext") or {}),
        **(container.get("securityContext") or {}),
    }
    user = contexts.get("runAsUser")
    if contexts.get("runAsNonRoot") and not user:
        name, place = container["name"], pod["metadata"]
        where = f'(pod: "{place["name"]}_{place["namespace"]}({place["uid"]})", container: {name})'
        if user == 0:
            raise ConfigError(f"container's runAsUser breaks non-root policy {where}")
        raise ConfigError(f"container has runAsNonRoot and image will run as root {where}")
    return user, contexts.get("runAsGroup")


def check_probes(container: Object) -> None:
    """Raise ConfigError if a probe is not supported."""
    for name in PROBES:
        if "grpc" in (container.get(name) or {}):
            raise ConfigError(f"{name}: gRPC probes are not supported on process nodes")


async def container_spec(  # noqa: PLR0913  everything that determines a container
    node: NodeContext,
    pod: Object,
    container: Object,
    selected: SelectedImage,
    *,
    ip: str,
    attempt: int,
    folder: PodFolder,
    volumes: Volumes,
) -> ContainerSpec:
    """Return what is started; ConfigError or MountError if something is missing."""
    check_probes(container)
    user, group = user_and_group(pod, container)
    image = selected.image
    env = {
        "PATH": ":".join(image.path),
        "HOSTNAME": hosts.hostname(pod),
        "HOME": "/root" if not user else "/",
        **image.env,
        **container_environment(
            pod,
            container,
            await read_sources(node, pod),
            pod_ip=ip,
            host_ip=node.host_ip,
            node=node.node(),
        ),
    }
    return ContainerSpec(
        id=container_id(pod, container, attempt, node.clock.monotonic()),
        pod=pod["metadata"]["uid"],
        argv=command(container, tuple(image.command), env),
        env=env,
        cwd=container.get("workingDir") or "",
        mounts=(
            *folder.managed_mounts(container, attempt),
            *volumes.mounts(pod, container, env),
        ),
        image=image,
        log=str(folder.log(container["name"], attempt)),
        user=user,
        group=group,
    )
