"""The part of a large object that a cache holds: enough to index, count and enqueue it.

Users decide how large their objects are, so a cache of whole objects would have no upper bound. A
large object is read from the server when it is reconciled.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

import orjson

from kftrainer.kube.objects.resource import Manifest

KIB: Final = 1024
# Nearly all TrainJobs, JobSets and runtimes are smaller.
LARGE: Final = 16 * KIB
FIELD: Final = 512  # bytes of a metadata field that is held unchanged
STATUS: Final = 4 * KIB
TEXT: Final = 253  # characters of a string, bytes of a label or annotation
ITEMS: Final = 16  # entries of a list or an object
FEW: Final = 8  # labels, annotations or finalizers with our prefix
DEPTH: Final = 3
IDENTITY: Final = (
    "name",
    "namespace",
    "uid",
    "resourceVersion",
    "generation",
    "creationTimestamp",
    "deletionTimestamp",
)
MAPS: Final = ("labels", "annotations")
OMITTED: Final = "omitted"  # followed by a digest, so that changes of the omitted part are detected
CONDITION: Final = ("type", "status", "reason", "lastTransitionTime", "observedGeneration")


@dataclass(frozen=True, slots=True)
class Reduction:
    """Which part is held of objects whose JSON is longer than `above` bytes or cannot be encoded.

    The part is a few hundred bytes, and never more than 24 KiB.
    """

    above: int = LARGE
    spec: Sequence[str] = ()  # spec fields that are held
    status: Sequence[str] = ()  # status fields that are held in addition to the conditions
    prefix: str = ""  # of labels, annotations and finalizers that are always held

    def reduced(self, manifest: Manifest) -> Manifest:
        """Return the part of a large object that is held; fields keep their types."""
        head = {key: manifest[key] for key in ("apiVersion", "kind") if key in manifest}
        kept: dict[str, Any] = {**head, "metadata": self._metadata(manifest["metadata"])}
        spec, status = manifest.get("spec"), manifest.get("status")
        if isinstance(spec, Mapping):
            kept["spec"] = {key: _bounded(spec[key], KIB) for key in self.spec if key in spec}
        if isinstance(status, Mapping):
            kept["status"] = self._status(status)
        return kept

    def _metadata(self, metadata: Manifest) -> Manifest:
        kept: dict[str, Any] = {key: metadata[key] for key in IDENTITY if key in metadata}
        for field in MAPS:
            if value := metadata.get(field):
                kept[field] = self._map(value)
        if finalizers := metadata.get("finalizers"):
            kept["finalizers"] = self._finalizers(finalizers)
        if owners := metadata.get("ownerReferences"):
            kept["ownerReferences"] = _owners(owners)
        return kept

    def _map(self, value: Mapping[str, str]) -> Mapping[str, str]:
        encoded = orjson.dumps(value)
        if len(encoded) <= FIELD:
            return value
        ours = {key: each for key, each in value.items() if self._is_ours(key)}
        short = ((key, each) for key, each in ours.items() if len(each.encode()) <= TEXT)
        kept = dict(islice(short, FEW))
        return {**kept, OMITTED: _digest(encoded)}

    def _finalizers(self, value: Sequence[str]) -> Sequence[str]:
        encoded = orjson.dumps(value)
        if len(encoded) <= FIELD:
            return value
        ours = [each for each in value if self._is_ours(each)]
        return [*ours[:FEW], f"{OMITTED}/{_digest(encoded)}"]

    def _is_ours(self, name: str) -> bool:
        return bool(self.prefix) and name.startswith(self.prefix) and len(name) <= TEXT

    def _status(self, status: Manifest) -> Manifest:
        if _fits(status, STATUS):
            return status
        fields = {key: _bounded(status[key], STATUS) for key in self.status if key in status}
        conditions = status.get("conditions")
        if not isinstance(conditions, list):
            return fields
        few = [each for each in conditions[:ITEMS] if isinstance(each, Mapping)]
        slim = [_bounded(_condition(each), FIELD) for each in few]
        return {**fields, "conditions": slim}


def _encoded_or_none(value: Any) -> bytes | None:
    """Return the value as JSON; None if it is nested too deeply to be encoded."""
    try:
        return orjson.dumps(value)
    except TypeError:  # its decoder accepts 1024 levels, its encoder 254
        return None


def _condition(condition: Manifest) -> Manifest:
    return {key: condition[key] for key in CONDITION if key in condition}


def _owners(references: Sequence[Manifest]) -> Sequence[Manifest]:
    """Return the references if they are short, otherwise only the controller reference."""
    if _fits(references, FIELD):
        return references
    return [_bounded(each, KIB) for each in references if each.get("controller")][:1]


def _bounded(value: Any, most: int) -> Any:
    """Return the value, truncated if longer than `most` bytes, or empty if still too long."""
    if _fits(value, most):
        return value
    cut = _cut(value, DEPTH)
    return cut if _fits(cut, most) else type(value)()


def _fits(value: Any, most: int) -> bool:
    encoded = _encoded_or_none(value)
    return encoded is not None and len(encoded) <= most


def _cut(value: Any, depth: int) -> Any:
    """Return the value with long strings and lists truncated and deep nesting omitted."""
    if isinstance(value, str):
        return value[:TEXT]
    if isinstance(value, Mapping):
        items = list(value.items())[:ITEMS] if depth else ()
        return {key[:TEXT]: _cut(each, depth - 1) for key, each in items}
    if isinstance(value, list):
        return [_cut(each, depth - 1) for each in value[:ITEMS]] if depth else []
    return value


def _digest(encoded: bytes) -> str:
    return hashlib.blake2b(encoded, digest_size=12).hexdigest()
