"""The objects of a TrainJob: applied where they differ from what is there, and never taken over."""

import hashlib
from collections.abc import Mapping
from typing import Any

import orjson
import structlog

from kftrainer.api import names
from kftrainer.api.trainjob import TrainJob
from kftrainer.controllers.view import View
from kftrainer.kube.client import Client
from kftrainer.kube.errors import ConflictError, NotFoundError
from kftrainer.kube.resource import Manifest, ObjectKey, Resource, key_of
from kftrainer.runtime.errors import PlanningError
from kftrainer.runtime.info import is_controlled_by
from kftrainer.runtime.planned import Planned

log = structlog.get_logger(__name__)

# What was planned when the object was last applied: so that a field that is no longer planned
# leads to an apply, which removes it, and a settled object to none, also after a restart.
ANNOTATION_PLAN = "trainer.kubeflow.org/applied-plan"
# An apply with a resourceVersion is refused if the object exists in another one, and creates it
# if it does not exist: with one that no object has, it can only create.
NO_VERSION = "1"


class ForeignObjectError(PlanningError):
    """An object that the TrainJob needs has a name that somebody else's object has."""

    reason = "NameTaken"


class NotInstalledError(PlanningError):
    """The kind of an object that the TrainJob needs is not installed."""

    def __init__(self, resource: Resource[Any]) -> None:
        super().__init__(
            f"the kind {resource.kind} ({resource.api_version}) is not installed in the cluster, "
            f"or not to be read by us: install it, and the TrainJob goes on by itself"
        )
        self.resource = resource


class Children:
    """Brings about what was planned."""

    def __init__(self, client: Client, view: View) -> None:
        self._client = client
        self._view = view

    async def bring_about(self, job: TrainJob, planned: Planned) -> bool:
        """Create or change the object, unless it is as planned; whether it was not."""
        key = key_of(planned.manifest)
        there = await self._read(planned.resource, key)
        if there is None:
            there = await self._create(planned)
            if there is None:
                return True
        if not is_controlled_by(there, job):
            raise ForeignObjectError(_taken(planned.resource, key, there))
        if planned.mint is not None or is_settled(planned.manifest, there):
            return False
        await self._change(planned, there)
        return True

    async def _read(self, resource: Resource[Any], key: ObjectKey) -> Manifest | None:
        """What is there: by the cache, or by the server for kinds that nobody watches."""
        if self._view.watches(resource):
            found: Manifest | None = self._view.get(resource, key)
            return found
        try:
            return await self._client.get(resource, key)
        except NotFoundError:
            return None

    async def _create(self, planned: Planned) -> Manifest | None:
        """Create the object; what is there instead, if there is something after all."""
        manifest = planned.mint() if planned.mint else planned.manifest
        marked = marked_with_plan(manifest, planned.manifest, resourceVersion=NO_VERSION)
        try:
            made = await self._client.apply(
                planned.resource, marked, field_manager=names.FIELD_MANAGER
            )
        except ConflictError:
            return await self._client.get(planned.resource, key_of(manifest))
        self._view.saw(planned.resource, made)
        log.info("trainjob.created_object", kind=planned.resource.kind, object=_name(made))
        return None

    async def _change(self, planned: Planned, there: Manifest) -> None:
        metadata = there["metadata"]
        if "deletionTimestamp" in metadata:
            return  # when it is gone we shall be told, and make a new one
        # With its uid, an apply does not bring back what was deleted meanwhile.
        marked = marked_with_plan(planned.manifest, planned.manifest, uid=metadata["uid"])
        made = await self._client.apply(planned.resource, marked, field_manager=names.FIELD_MANAGER)
        self._view.saw(planned.resource, made)
        log.info("trainjob.changed_object", kind=planned.resource.kind, object=_name(made))


def is_settled(planned: Manifest, there: Manifest) -> bool:
    """Whether applying the plan would change nothing."""
    marks = there["metadata"].get("annotations") or {}
    if marks.get(ANNOTATION_PLAN) != digest(planned):
        return False
    # Of some kinds only the metadata is known here.
    known = {field: value for field, value in planned.items() if field in there}
    return holds(known, there)


def holds(planned: Any, there: Any) -> bool:
    """Whether all that is planned is so; what others have added does not matter."""
    if isinstance(planned, Mapping):
        return isinstance(there, Mapping) and all(
            field in there and holds(value, there[field]) for field, value in planned.items()
        )
    if isinstance(planned, list):
        return (
            isinstance(there, list)
            and len(planned) == len(there)
            and all(map(holds, planned, there))
        )
    return bool(planned == there)


def digest(manifest: Manifest) -> str:
    """A short word for the whole manifest."""
    encoded = orjson.dumps(manifest, option=orjson.OPT_SORT_KEYS)
    return hashlib.blake2b(encoded, digest_size=12).hexdigest()


def marked_with_plan(manifest: Manifest, planned: Manifest, **metadata: str) -> Manifest:
    """The manifest as it is sent: with a mark of its plan, and conditions in its metadata."""
    annotations = {**(manifest["metadata"].get("annotations") or {})}
    annotations[ANNOTATION_PLAN] = digest(planned)
    return {
        **manifest,
        "metadata": {**manifest["metadata"], "annotations": annotations, **metadata},
    }


def _name(manifest: Manifest) -> str:
    return str(key_of(manifest))


def _taken(resource: Resource[Any], key: ObjectKey, there: Manifest) -> str:
    owners = there["metadata"].get("ownerReferences") or ()
    controller = next((each for each in owners if each.get("controller")), None)
    whose = (
        f"belongs to {controller['kind']} {controller['name']}"
        if controller
        else ("does not belong to this TrainJob")
    )
    return (
        f"{resource.kind} {key} is there already and {whose}: it is left alone. "
        "Delete or rename it, or give the TrainJob another name"
    )
