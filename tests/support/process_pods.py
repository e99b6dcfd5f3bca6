"""Pods on process nodes, as tests create and observe them."""

import textwrap
from collections.abc import Callable, Sequence
from typing import Any

from kftrainer.devcluster.client import ApiClient, Object
from kftrainer.devcluster.waiting import until
from tests.support.trainjobs import Kubectl

WITHIN = 60.0
FINISHED = ("Succeeded", "Failed")


def shell(script: str, **fields: Any) -> Object:
    """A container that runs a shell script."""
    command = ["sh", "-c", textwrap.dedent(script)]
    return {"name": "main", "image": "trainer", "command": command, **fields}


def python(script: str, **fields: Any) -> Object:
    """A container that runs a Python script."""
    command = ["python3", "-uc", textwrap.dedent(script)]
    return {"name": "main", "image": "trainer", "command": command, **fields}


class Pods:
    """The pods of one namespace."""

    def __init__(self, api: ApiClient, namespace: str, kubectl: Kubectl) -> None:
        self.api = api
        self.namespace = namespace
        self.kubectl = kubectl

    async def create(self, name: str, *containers: Object, **spec: Any) -> None:
        """Create a pod that is not restarted, unless the specification differs."""
        labels = spec.pop("labels", {})
        full = {"restartPolicy": "Never", "containers": [*containers], **spec}
        await self.create_object("v1", "Pod", name, labels=labels, spec=full)

    async def create_object(
        self, api_version: str, kind: str, name: str, *, labels: Any = None, **fields: Any
    ) -> None:
        """Create any object in the namespace."""
        metadata = {"name": name, "namespace": self.namespace, "labels": labels or {}}
        await self.api.create(
            {"apiVersion": api_version, "kind": kind, "metadata": metadata, **fields}
        )

    async def get(self, name: str) -> Object:
        """The pod as the API server has it."""
        return await self.api.get(f"/api/v1/namespaces/{self.namespace}/pods/{name}")

    async def until(self, name: str, holds: Callable[[Object], bool], what: str) -> Object:
        """Wait until the pod's status fulfils a condition; return the status."""

        async def check() -> Object | None:
            status: Object = (await self.get(name)).get("status", {})
            return status if holds(status) else None

        return await until(check, within=WITHIN, what=f"pod {name}: {what}")

    async def end_of(self, name: str) -> Object:
        """Wait until the pod has finished; return its status."""
        return await self.until(name, lambda each: each.get("phase") in FINISHED, "finishing")

    async def run(self, name: str, *containers: Object, **spec: Any) -> str:
        """Run a pod to its end, which must be a success, and return its log."""
        await self.create(name, *containers, **spec)
        status = await self.end_of(name)
        printed = await self.logs(name)
        assert status["phase"] == "Succeeded", printed
        return printed

    async def running(self, name: str) -> Object:
        """Wait until all containers are ready."""
        return await self.until(name, is_ready, "becoming ready")

    async def logs(self, name: str, *arguments: str) -> str:
        """The log as kubectl prints it."""
        return await self.kubectl("logs", name, *arguments)

    async def until_logged(self, name: str, text: str) -> None:
        """Wait until the log contains a text."""

        async def check() -> bool:
            status = (await self.get(name)).get("status", {})
            has_log = (
                bool(container(status).get("containerID"))
                if status.get("containerStatuses")
                else False
            )
            return has_log and text in await self.logs(name)

        await until(check, within=WITHIN, what=f"{text!r} in the log of {name}")

    async def events(self, name: str) -> list[tuple[str, str]]:
        """The reasons and messages of the Events about the pod."""
        found = (await self.api.get(f"/api/v1/namespaces/{self.namespace}/events"))["items"]
        about = [each for each in found if each["involvedObject"]["name"] == name]
        return [(each["reason"], each["message"]) for each in about]

    async def until_event(self, name: str, reason: str, text: str = "") -> str:
        """Wait for an Event about the pod; return its message."""

        async def check() -> str | None:
            found = [m for r, m in await self.events(name) if r == reason and text in m]
            return found[0] if found else None

        return await until(check, within=WITHIN, what=f"{reason} of {name}")


def is_ready(status: Object) -> bool:
    """Whether the condition Ready is True."""
    found = {each["type"]: each["status"] for each in status.get("conditions") or ()}
    return found.get("Ready") == "True"


def container(status: Object, name: str = "main") -> Object:
    """The status of one container."""
    known: Sequence[Object] = (
        *(status.get("containerStatuses") or ()),
        *(status.get("initContainerStatuses") or ()),
    )
    return next(each for each in known if each["name"] == name)


def waiting_for(reason: str) -> Callable[[Object], bool]:
    """Whether the container waits with this reason."""

    def holds(status: Object) -> bool:
        if not status.get("containerStatuses"):
            return False
        return container(status)["state"].get("waiting", {}).get("reason") == reason

    return holds
