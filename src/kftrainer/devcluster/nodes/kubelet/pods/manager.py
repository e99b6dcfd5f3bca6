"""Starts a worker for each pod of a node, and passes changes of pods to the workers."""

import asyncio
from collections.abc import Callable

import structlog

from kftrainer.devcluster.nodes.kubelet.pods.context import NodeContext
from kftrainer.devcluster.nodes.kubelet.pods.states import Object
from kftrainer.devcluster.nodes.kubelet.pods.worker import PodWorker
from kftrainer.kube.objects.resource import Manifest
from kftrainer.machinery.controller.events import ObjectEvent

log = structlog.get_logger(__name__)

RESTART_AFTER = 10.0  # seconds after a worker failed unexpectedly


class PodManager:
    """The workers of all nodes, by the UID of the pod."""

    def __init__(self, nodes: dict[str, NodeContext]) -> None:
        self._nodes = nodes
        self._workers: dict[str, PodWorker] = {}
        self._pods: dict[str, Object] = {}  # that exist in the API server
        self._new: asyncio.Queue[str] = asyncio.Queue()

    def on_change(self, change: ObjectEvent[Manifest]) -> None:
        """Take a change of a pod that is assigned to one of the nodes."""
        old = change.old.manifest if change.old is not None else None
        new = change.new.manifest if change.new is not None else None
        if old is not None and (new is None or _uid(new) != _uid(old)):
            self._remove(_uid(old))
        if new is not None:
            self._update(new)

    def _remove(self, uid: str) -> None:
        self._pods.pop(uid, None)
        if (worker := self._workers.get(uid)) is not None:
            worker.remove()

    def _update(self, pod: Object) -> None:
        uid = _uid(pod)
        is_new = uid not in self._pods
        self._pods[uid] = pod
        if is_new:
            self._new.put_nowait(uid)
        elif (worker := self._workers.get(uid)) is not None:
            worker.update(pod)

    def find(self, namespace: str, name: str) -> PodWorker | None:
        """Return the worker of a pod."""
        for worker in self._workers.values():
            metadata = worker.pod["metadata"]
            if (metadata["namespace"], metadata["name"]) == (namespace, name):
                return worker
        return None

    def pods_of(self, node: str) -> list[Object]:
        """Return the pods of a node."""
        return [each for each in self._pods.values() if each["spec"].get("nodeName") == node]

    async def run(self) -> None:
        """Run the workers until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            while True:
                uid = await self._new.get()
                tasks.create_task(self._work(uid), name=f"pod {uid}")

    async def _work(self, uid: str) -> None:
        while (pod := self._pods.get(uid)) is not None:
            node = self._nodes[pod["spec"]["nodeName"]]
            try:
                worker = self._workers[uid] = PodWorker(node, pod)
                await worker.run()
            except Exception as error:  # one failing pod must not end the others
                if is_cancelled():
                    raise asyncio.CancelledError from error
                log.exception("pod_worker_failed", pod=pod["metadata"]["name"])
                await node.clock.sleep(RESTART_AFTER)
            finally:
                self._workers.pop(uid, None)


def is_cancelled() -> bool:
    """Return whether this task is to end; a failing TaskGroup hides its cancellation."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _uid(pod: Object) -> str:
    return str(pod["metadata"]["uid"])


def is_assigned_to(nodes: frozenset[str]) -> Callable[[Manifest], bool]:
    """Return a predicate for pods of these nodes."""
    return lambda pod: pod["spec"].get("nodeName") in nodes
