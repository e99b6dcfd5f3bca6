"""Explains why the manager's Deployment has no ready replica. Pure."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from kftrainer.kube.objects.resource import Manifest, ObjectKey, Resource, key_of, unstructured

DEPLOYMENTS: Resource[Manifest] = Resource(
    "apps", "v1", "Deployment", "deployments", namespaced=True, decode=unstructured
)
PODS: Resource[Manifest] = Resource("", "v1", "Pod", "pods", namespaced=True, decode=unstructured)
STARTING = ("ContainerCreating", "PodInitializing")
MAX_REASONS = 2


def ready_replicas(deployment: Manifest) -> tuple[int, int]:
    """Return the numbers of ready and of desired replicas."""
    wanted = (deployment.get("spec") or {}).get("replicas", 1)
    return (deployment.get("status") or {}).get("readyReplicas") or 0, wanted


def selector_of(deployment: Manifest) -> str:
    """Return the label selector of the Deployment's pods."""
    labels = deployment["spec"]["selector"].get("matchLabels") or {}
    return ",".join(f"{name}={value}" for name, value in labels.items())


def why_not_ready(deployment: Manifest, pods: Iterable[Manifest]) -> str | None:
    """Return why no replica is ready; None if at least one is."""
    ready, wanted = ready_replicas(deployment)
    if ready:
        return None
    key = key_of(deployment)
    if not wanted:
        return f"the manager is not running: Deployment {key} is scaled to 0 replicas"
    present = [pod for pod in pods if not pod["metadata"].get("deletionTimestamp")]
    reasons = dict.fromkeys(each for pod in present for each in _reasons(pod, key))
    if not present:
        reasons = dict.fromkeys([*_failures(deployment)] or ["it has no pods yet"])
    shown = "; ".join([*reasons][:MAX_REASONS]) or "its pods are starting"
    return (
        f"the manager is not running: Deployment {key} has 0 of {wanted} replicas ready: "
        f"{' '.join(shown.split())}"
    )


def _failures(deployment: Manifest) -> Iterator[str]:
    """Yield why pods are not created, for example because a quota is exceeded."""
    for condition in _conditions(deployment):
        if (condition.get("type"), condition.get("status")) == ("ReplicaFailure", "True"):
            yield str(condition.get("message"))


def _reasons(pod: Manifest, deployment: ObjectKey) -> Iterator[str]:
    name, status = pod["metadata"]["name"], pod.get("status") or {}
    for condition in _conditions(pod):
        if (condition.get("type"), condition.get("status")) == ("PodScheduled", "False"):
            yield f"pod {name} is not scheduled: {condition.get('message')}"
            return
    containers: Sequence[Mapping[str, Any]] = [
        *(status.get("initContainerStatuses") or ()),
        *(status.get("containerStatuses") or ()),
    ]
    for container in containers:
        where = f"pod {name}, container {container['name']}"
        match container.get("state") or {}:
            case {"waiting": {"reason": str(reason), **more}} if reason not in STARTING:
                message = f": {more['message']}" if more.get("message") else ""
                yield f"{where}: {reason}{message}{_last_end(container, name, deployment)}"
            case {"terminated": {"exitCode": int(code)}} if code:
                yield f"{where}: exited with code {code}; {_log(name, deployment)}"
            case {"running": _} if not container.get("ready"):
                yield f"{where}: is running but not ready; {_log(name, deployment)}"


def _last_end(container: Mapping[str, Any], pod: str, deployment: ObjectKey) -> str:
    match container.get("lastState"):
        case {"terminated": {"exitCode": int(code)}}:
            return f" (exit code {code}); {_log(pod, deployment)} --previous"
        case _:
            return ""


def _log(pod: str, deployment: ObjectKey) -> str:
    return f"see kubectl -n {deployment.namespace} logs {pod}"


def _conditions(manifest: Manifest) -> Sequence[Mapping[str, Any]]:
    return (manifest.get("status") or {}).get("conditions") or ()
