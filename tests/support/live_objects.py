"""An in-memory API server for reads of single objects."""

import asyncio
from collections.abc import Callable
from typing import Any

import orjson

from kftrainer.kube.client.errors import KubeError, NotFoundError
from kftrainer.kube.objects.resource import Manifest, ObjectKey, Resource, key_of
from tests.support.objects import Object


class LiveObjects:
    """Stands in for a client; decodes JSON for each read, and records what was read."""

    def __init__(
        self, *objects: Object, failing: Callable[[Resource[Any]], KubeError | None] | None = None
    ) -> None:
        self._bodies = {(each["kind"], key_of(each)): orjson.dumps(each) for each in objects}
        self._failing = failing or (lambda _: None)
        self.requests: list[str] = []

    async def get(self, resource: Resource[Any], key: ObjectKey) -> Manifest:
        """Return the object, a pass of the event loop later."""
        self.requests.append(f"{resource.kind} {key}")
        await asyncio.sleep(0)
        if error := self._failing(resource):
            raise error
        if (body := self._bodies.get((resource.kind, key))) is None:
            raise NotFoundError(404, "NotFound", "not found")
        manifest: Manifest = orjson.loads(body)
        return manifest
