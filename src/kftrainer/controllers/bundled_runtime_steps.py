"""Decides whether to apply, delete or keep a runtime that ships with the operator. Pure."""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from kftrainer.api import names
from kftrainer.kube.objects.meta import ObjectMeta
from kftrainer.kube.objects.resource import Manifest

NOT_OURS = (
    "another client created it: to let the manager replace it by the one in its folder, label it "
    f"{names.LABEL_MANAGED_BY}={names.MANAGED_BY_KFTRAINER}"
)


@dataclass(frozen=True, slots=True)
class BundledRuntime:
    """A runtime to apply; its mark is the hash of the document that it comes from."""

    name: str
    manifest: Manifest
    mark: str


@dataclass(frozen=True, slots=True)
class Apply:
    """Apply the runtime."""

    runtime: BundledRuntime
    why: str


@dataclass(frozen=True, slots=True)
class Delete:
    """Delete the runtime if it has not changed since it was read."""

    uid: str | None
    resource_version: str | None


@dataclass(frozen=True, slots=True)
class Leave:
    """Do not modify the runtime, and log the reason."""

    event: str
    why: str


Step = Apply | Delete | Leave


def bundled_runtime(document: Manifest) -> BundledRuntime:
    """Return the runtime of a document, with our label and the hash of the document."""
    content = orjson.dumps(document, option=orjson.OPT_SORT_KEYS)
    metadata: dict[str, Any] = {**document["metadata"]}
    name = str(metadata["name"])
    mark = f"{name}/{hashlib.sha256(content).hexdigest()}"
    labels = {names.LABEL_MANAGED_BY: names.MANAGED_BY_KFTRAINER}
    annotations = {names.ANNOTATION_SHIPPED_HASH: mark}
    metadata["labels"] = {**(metadata.get("labels") or {}), **labels}
    metadata["annotations"] = {**(metadata.get("annotations") or {}), **annotations}
    return BundledRuntime(name, {**document, "metadata": metadata}, mark)


def next_step(
    wanted: BundledRuntime | None, live: ObjectMeta | None, kept_because: str | None = None
) -> Step | None:
    """Return the next step for the runtime of one name; None if there is nothing to do. Pure.

    A runtime that is no longer wanted is kept if `kept_because` gives a reason. A runtime that a
    user created is not modified until it gets our label; one that a user changed by hand is
    not modified until the document changes. A runtime that is being deleted is not modified; if it
    is wanted, it is created again after the deletion.
    """
    if live is None:
        return Apply(wanted, "it does not exist") if wanted is not None else None
    if live.deletion_timestamp is not None:
        return None
    if wanted is not None:
        return _step_to(wanted, live)
    if not is_bundled(live):
        return None
    if kept_because is not None:
        return Leave("shipped_runtime_kept", kept_because)
    return Delete(live.uid, live.resource_version)


def _step_to(wanted: BundledRuntime, live: ObjectMeta) -> Step | None:
    if _mark(live) == wanted.mark:
        return None
    if _is_marked(live):
        return Apply(wanted, "its file has changed")
    if _is_labelled(live):
        return Apply(wanted, "another client created it and has labelled it for this manager")
    return Leave("shipped_runtime_not_managed", NOT_OURS)


def replacement(
    bundled: BundledRuntime, live: Manifest, field_manager: str
) -> list[dict[str, Any]]:
    """Return the JSON patch that turns a live runtime into the bundled one. Pure.

    The spec is replaced as a whole: a merge would keep fields that other field managers have
    added. Finalizers, and labels and annotations of other field managers, are kept. Labels and
    annotations that our field manager owns and that are no longer in the document are removed. The
    patch fails with a conflict if the runtime has changed since it was read.
    """
    metadata = live["metadata"]
    operations = [{"op": "add", "path": "/spec", "value": bundled.manifest.get("spec") or {}}]
    for field in ("labels", "annotations"):
        set_before = _owned_keys(metadata.get("managedFields") or (), field, field_manager)
        found = metadata.get(field) or {}
        others = {key: value for key, value in found.items() if key not in set_before}
        merged = {**others, **bundled.manifest["metadata"][field]}
        operations.append({"op": "add", "path": f"/metadata/{field}", "value": merged})
    version = metadata["resourceVersion"]
    return [*operations, {"op": "add", "path": "/metadata/resourceVersion", "value": version}]


def _owned_keys(
    managed_fields: Iterable[Mapping[str, Any]], field: str, field_manager: str
) -> frozenset[str]:
    """Return the keys of the labels or annotations that the field manager owns."""
    entries = (each for each in managed_fields if each.get("manager") == field_manager)
    metadata = ((each.get("fieldsV1") or {}).get("f:metadata") or {} for each in entries)
    keys = (key for each in metadata for key in each.get(f"f:{field}") or {})
    return frozenset(key.removeprefix("f:") for key in keys if key.startswith("f:"))


def is_bundled(live: ObjectMeta) -> bool:
    """Whether the manager applied the runtime, and its label was not removed since.

    A copy under another name has the label, but its mark contains the original name.
    """
    return _is_labelled(live) and _is_marked(live)


def _is_labelled(live: ObjectMeta) -> bool:
    return (live.labels or {}).get(names.LABEL_MANAGED_BY) == names.MANAGED_BY_KFTRAINER


def _is_marked(live: ObjectMeta) -> bool:
    return _mark(live).startswith(f"{live.name}/")


def _mark(live: ObjectMeta) -> str:
    return (live.annotations or {}).get(names.ANNOTATION_SHIPPED_HASH, "")
