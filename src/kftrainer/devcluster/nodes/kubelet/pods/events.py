"""Events of pods and containers, with the reasons and messages of the kubelet."""

from typing import Protocol

from kftrainer.devcluster.nodes.kubelet.pods.states import Object, Role
from kftrainer.machinery.events.correlator import EventType

NORMAL: EventType = "Normal"
WARNING: EventType = "Warning"


class Recorder(Protocol):
    """Writes Events in the background."""

    def record(
        self,
        regarding: Object,
        type: EventType,  # noqa: A002  the field's name in an Event
        reason: str,
        message: str,
        field_path: str = "",
    ) -> None:
        """Queue an Event."""
        ...


def field_path(container: Object, role: Role) -> str:
    """Return the field of the pod that an Event about a container refers to."""
    field = "containers" if role is Role.MAIN else "initContainers"
    return f"spec.{field}{{{container['name']}}}"


class PodEvents:
    """Records Events about pods and their containers."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder

    def pod(self, pod: Object, reason: str, message: str) -> None:
        """Record a Warning about a pod."""
        self._recorder.record(_identified(pod), WARNING, reason, message)

    def container(
        self, pod: Object, container: Object, role: Role, reason: str, message: str
    ) -> None:
        """Record a normal Event about a container."""
        path = field_path(container, role)
        self._recorder.record(_identified(pod), NORMAL, reason, message, path)

    def warning(
        self, pod: Object, container: Object, role: Role, reason: str, message: str
    ) -> None:
        """Record a Warning about a container."""
        path = field_path(container, role)
        self._recorder.record(_identified(pod), WARNING, reason, message, path)


def _identified(pod: Object) -> Object:
    return {"apiVersion": "v1", "kind": "Pod", **pod}
