"""One cached object, stored as encoded JSON.

Measured with 10,000 objects of 1 and 2.3 KB of JSON: dicts take 5 to 7 times the size of the JSON
in memory, encoded bytes 1.2 and 1.1 times. Decoding takes some microseconds, and each caller gets
its own copy, so no caller can modify the cache. Only kinds with few objects and an immutable type
are decoded once: a TrainingRuntime is read for each of its TrainJobs.

Only a part of a large object is stored, see `reduction`. The same applies to an object that is
nested too deeply to be encoded: the API server accepts 10,000 levels in fields without a schema.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Generic, TypeVar

import orjson
import structlog

from kftrainer.kube.objects.resource import Manifest, ObjectKey, Resource, key_of
from kftrainer.machinery.cache.reduction import Reduction
from kftrainer.machinery.controller.events import ObservedObject
from kftrainer.machinery.lru import Lru

log = structlog.get_logger(__name__)

T = TypeVar("T")

Transform = Callable[[Manifest], Manifest]
Keep = Callable[[Manifest], bool]
IndexFunction = Callable[[ObservedObject[T]], Iterable[str]]

# Total JSON bytes of the objects that are kept decoded; decoded they take up to 20 times as much.
MOST_DECODED = 2 * 2**20
# Applied to objects that cannot be encoded, also of kinds that are cached completely.
MINIMAL = Reduction()
MOST_REPORTED = 1_000


class CachedObject(Generic[T]):
    """An immutable snapshot of one object.

    `full_size` is the length of the object's full JSON, or None if it is nested too deeply to be
    encoded; a reduced entry holds only a part of it.
    """

    __slots__ = (
        "_decode",
        "_metadata",
        "_rest",
        "full_size",
        "index_values",
        "is_reduced",
        "key",
        "resource_version",
    )

    def __init__(
        self,
        key: ObjectKey,
        resource_version: str,
        manifest: Manifest,
        decode: Callable[[Manifest], T],
        reduction: Reduction | None = None,
    ) -> None:
        self.key = key
        self.resource_version = resource_version
        self._decode = decode
        # Stored separately because most handlers only read the metadata.
        whole = _encoded_or_none(manifest)
        self.full_size = None if whole is None else sum(map(len, whole))
        if whole is None or (reduction is not None and sum(map(len, whole)) > reduction.above):
            metadata, rest = _encoded((reduction or MINIMAL).reduced(manifest))
            self.is_reduced = True
        else:
            metadata, rest = whole
            self.is_reduced = False
        # Copied because the result of orjson keeps its oversized buffer allocated.
        self._metadata, self._rest = bytes(memoryview(metadata)), bytes(memoryview(rest))
        self.index_values: tuple[tuple[str, ...], ...] = ()

    @property
    def metadata(self) -> Manifest:
        """The object's metadata, without managedFields."""
        metadata: Manifest = orjson.loads(self._metadata)
        return metadata

    @property
    def manifest(self) -> Manifest:
        """The object as received, without managedFields; for a reduced object, the stored part."""
        return {**orjson.loads(self._rest), "metadata": self.metadata}

    @property
    def object(self) -> T:
        """The object as decoded by `Resource.decode`; decoded on each access."""
        return self._decode(self.manifest)

    @property
    def uid(self) -> str:
        """The object's UID."""
        uid: str = self.metadata.get("uid", "")
        return uid

    @property
    def size(self) -> int:
        """Number of bytes stored for this object."""
        return len(self._metadata) + len(self._rest)


class Decoded(Generic[T]):
    """The most recently used decoded objects of a kind, limited by their total JSON size."""

    def __init__(self, most: int = MOST_DECODED) -> None:
        self._most = most
        self._held: OrderedDict[int, tuple[CachedObject[T], T]] = OrderedDict()
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._held)

    def of(self, entry: CachedObject[T], decode: Callable[[], T]) -> T:
        """Return the decoded object of the entry, from this cache if it is still held."""
        # A held entry is alive, so no other entry can have the same id.
        if (found := self._held.get(id(entry))) is not None:
            self._held.move_to_end(id(entry))
            return found[1]
        decoded = decode()
        self._held[id(entry)] = entry, decoded
        self._bytes += entry.size
        while self._bytes > self._most:
            _, (oldest, _) = self._held.popitem(last=False)
            self._bytes -= oldest.size
        return decoded


class SharedDecodedObject(CachedObject[T]):
    """An object of a kind that is kept decoded; all readers share the decoded object.

    The least recently used objects are dropped and decoded again on their next use.
    """

    __slots__ = ("decoded",)

    decoded: Decoded[T]

    @property
    def object(self) -> T:
        """The object as decoded by `Resource.decode`; decoded on first use."""
        return self.decoded.of(self, lambda: self._decode(self.manifest))


class _Unpacked(Generic[T]):
    """An object as received, passed to index functions so that it is not decoded twice."""

    __slots__ = ("_decode", "manifest")

    is_reduced = False

    def __init__(self, manifest: Manifest, decode: Callable[[Manifest], T]) -> None:
        self.manifest = manifest
        self._decode = decode

    @property
    def metadata(self) -> Manifest:
        """The object's metadata."""
        metadata: Manifest = self.manifest["metadata"]
        return metadata

    @property
    def object(self) -> T:
        """The object as decoded by `Resource.decode`."""
        return self._decode(self.manifest)


def _encoded(manifest: Manifest) -> tuple[bytes, bytes]:
    """Return the metadata and the rest as JSON; TypeError if they are nested too deeply."""
    metadata = _without(manifest["metadata"], "managedFields")
    return orjson.dumps(metadata), orjson.dumps(_without(manifest, "metadata"))


def _encoded_or_none(manifest: Manifest) -> tuple[bytes, bytes] | None:
    try:
        return _encoded(manifest)
    except TypeError:  # the decoder of orjson accepts 1024 levels, its encoder 254
        return None


def _without(part: Manifest, name: str) -> dict[str, Any]:
    return {key: value for key, value in part.items() if key != name}


class CachedObjectFactory(Generic[T]):
    """Create the cache entries of one kind: transform, strip and encode received objects.

    Objects that `keep` rejects are not passed to the transform and the index functions. Both get
    whole objects, even if the entry is reduced.
    """

    def __init__(
        self,
        resource: Resource[T],
        transform: Transform | None,
        indexes: Mapping[str, IndexFunction[T]],
        keep: Keep | None = None,
        reduction: Reduction | None = None,
    ) -> None:
        self._reduction = reduction
        self._decoded: Decoded[T] = Decoded()
        self._resource = resource
        self._transform = transform
        self._functions = tuple(indexes.values())
        self._keep = keep
        self._reported: Lru[ObjectKey, str] = Lru(MOST_REPORTED)  # UIDs

    def keeps(self, manifest: Manifest) -> bool:
        """Return whether this object is to be cached."""
        return self._keep is None or self._keep(manifest)

    def create(self, manifest: Manifest) -> CachedObject[T]:
        """Create the entry of an object; exceptions of the transform and indexes propagate."""
        key, version = key_of(manifest), manifest["metadata"].get("resourceVersion", "")
        kept = self._transform(manifest) if self._transform else manifest
        entry = self._entry(key, version, kept)
        if entry.full_size is None:
            self._report_once(entry)
        if self._functions:
            seen = _Unpacked(kept, self._resource.decode)
            entry.index_values = tuple(tuple(set(each(seen))) for each in self._functions)
        return entry

    def _report_once(self, entry: CachedObject[T]) -> None:
        if self._reported.get(entry.key) != entry.uid:
            self._reported.put(entry.key, entry.uid)
            kind = self._resource.group_kind
            log.warning("object_nested_too_deeply", kind=kind, object=str(entry.key))

    def _entry(self, key: ObjectKey, version: str, manifest: Manifest) -> CachedObject[T]:
        decode, reduction = self._resource.decode, self._reduction
        if not self._resource.keep_decoded:
            return CachedObject(key, version, manifest, decode, reduction)
        shared = SharedDecodedObject(key, version, manifest, decode, reduction)
        shared.decoded = self._decoded
        return shared
