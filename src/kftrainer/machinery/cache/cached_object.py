"""One cached object, held compactly.

Decided by measuring, on 10,000 objects of 1 and 2.3 KB of JSON: as dicts they take 5 to 7 times
their JSON in memory, as encoded bytes 1.2 and 1.1 times. Decoding costs some microseconds, and as
everybody is given a copy of their own, nobody can spoil the cache. Only kinds of few objects, in a
type that nobody writes into, are decoded once: a TrainingRuntime is read for each of its TrainJobs.

Of a large object only a part is held, see `reduction`.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from typing import Generic, TypeVar

import orjson

from kftrainer.kube.objects.resource import Manifest, ObjectKey, Resource, key_of
from kftrainer.machinery.cache.reduction import Reduction
from kftrainer.machinery.controller.events import ObservedObject

T = TypeVar("T")

Transform = Callable[[Manifest], Manifest]
Keep = Callable[[Manifest], bool]
IndexFunction = Callable[[ObservedObject[T]], Iterable[str]]

# JSON of objects that are kept decoded, which takes up to 20 times as much memory.
MOST_DECODED = 2 * 2**20


class CachedObject(Generic[T]):
    """An object as it was seen at one moment; it never changes.

    `whole_size` is the length of its JSON, of which a reduced entry holds a part.
    """

    __slots__ = (
        "_decode",
        "_metadata",
        "_rest",
        "index_values",
        "is_reduced",
        "key",
        "resource_version",
        "whole_size",
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
        # Apart, because most handlers look at the metadata only.
        metadata = _encoded(manifest["metadata"], without="managedFields")
        rest = _encoded(manifest, without="metadata")
        self.whole_size = len(metadata) + len(rest)
        self.is_reduced = reduction is not None and self.whole_size > reduction.above
        if reduction is not None and self.is_reduced:
            part = reduction.reduced(manifest)
            metadata = _encoded(part["metadata"], without="managedFields")
            rest = _encoded(part, without="metadata")
        # Copies: what orjson returns sits in a buffer with much room to spare, and would keep it.
        self._metadata, self._rest = bytes(memoryview(metadata)), bytes(memoryview(rest))
        self.index_values: tuple[tuple[str, ...], ...] = ()

    @property
    def metadata(self) -> Manifest:
        """The object's metadata, without managedFields."""
        metadata: Manifest = orjson.loads(self._metadata)
        return metadata

    @property
    def manifest(self) -> Manifest:
        """The object as it came, without managedFields; of a reduced one, the part held."""
        return {**orjson.loads(self._rest), "metadata": self.metadata}

    @property
    def object(self) -> T:
        """The object as `Resource.decode` makes it, made anew each time."""
        return self._decode(self.manifest)

    @property
    def uid(self) -> str:
        """Which object of this name it is."""
        uid: str = self.metadata.get("uid", "")
        return uid

    @property
    def size(self) -> int:
        """How many bytes it is held in."""
        return len(self._metadata) + len(self._rest)


class Decoded(Generic[T]):
    """The decoded objects of a kind that were used last; how many depends on their size."""

    def __init__(self, most: int = MOST_DECODED) -> None:
        self._most = most
        self._held: OrderedDict[int, tuple[CachedObject[T], T]] = OrderedDict()
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._held)

    def of(self, entry: CachedObject[T], decode: Callable[[], T]) -> T:
        """Return the decoded object of the entry; the same one as before if it is still held."""
        # An entry that is held here is alive, so that no other one has its id.
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


class IndexedCachedObject(CachedObject[T]):
    """An object of a kind that is kept decoded for as long as it is used: all are given the same.

    The objects that were used longest ago are decoded anew when they are used again.
    """

    __slots__ = ("decoded",)

    decoded: Decoded[T]

    @property
    def object(self) -> T:
        """The object as `Resource.decode` makes it, made when somebody asks for it first."""
        return self.decoded.of(self, lambda: self._decode(self.manifest))


class _Unpacked(Generic[T]):
    """An object as it came over the wire, for index functions: nothing is decoded a second time."""

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
        """The object as `Resource.decode` makes it."""
        return self._decode(self.manifest)


def _encoded(part: Manifest, *, without: str) -> bytes:
    return orjson.dumps({name: value for name, value in part.items() if name != without})


class CachedObjectFactory(Generic[T]):
    """Makes entries of one kind: transforms, strips and encodes what came over the wire.

    Only what is to be kept is shown to the transform and the index functions. These are given
    whole objects, also where the entry is reduced.
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

    def keeps(self, manifest: Manifest) -> bool:
        """Whether there is to be an entry of this object."""
        return self._keep is None or self._keep(manifest)

    def make(self, manifest: Manifest) -> CachedObject[T]:
        """The entry of an object; an exception of the transform or an index is the caller's."""
        key, version = key_of(manifest), manifest["metadata"].get("resourceVersion", "")
        kept = self._transform(manifest) if self._transform else manifest
        entry = self._entry(key, version, kept)
        if self._functions:
            seen = _Unpacked(kept, self._resource.decode)
            entry.index_values = tuple(tuple(set(each(seen))) for each in self._functions)
        return entry

    def _entry(self, key: ObjectKey, version: str, manifest: Manifest) -> CachedObject[T]:
        decode, reduction = self._resource.decode, self._reduction
        if not self._resource.is_rare:
            return CachedObject(key, version, manifest, decode, reduction)
        rare = IndexedCachedObject(key, version, manifest, decode, reduction)
        rare.decoded = self._decoded
        return rare
