"""Kinds of objects and where the API server serves them: pure names and paths."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Generic, NamedTuple, TypeVar, cast

Manifest = Mapping[str, Any]  # an object as it is on the wire; nobody writes into one that was read
T = TypeVar("T")


class ObjectKey(NamedTuple):
    """Which object of a kind; the namespace of a cluster-scoped one is empty.

    A tuple, because queues and caches do little else than hash and compare these.
    """

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}" if self.namespace else self.name


def key_of(manifest: Manifest) -> ObjectKey:
    """The key of an object that has a name."""
    metadata = manifest["metadata"]
    return ObjectKey(metadata.get("namespace", ""), metadata["name"])


def as_it_is(manifest: Manifest) -> Manifest:
    """Decode nothing: for kinds that are read as plain mappings."""
    return manifest


@dataclass(frozen=True, slots=True)
class Resource(Generic[T]):
    """A kind of object, and how to make our own type of one from its manifest."""

    group: str  # empty for the core group
    version: str
    kind: str
    plural: str
    namespaced: bool
    decode: Callable[[Manifest], T]
    partial: bool = False  # read as metadata only
    is_rare: bool = False  # so few, and so often read, that caches keep them decoded

    def only_metadata(self) -> "Resource[Manifest]":
        """The same kind, of which the server sends the metadata only; it cannot be written to.

        To a cache it is a kind of its own. Annotations are metadata: what `kubectl apply` was
        given is among them, the data of a Secret too.
        """
        return replace(cast("Resource[Manifest]", self), decode=as_it_is, partial=True)

    @property
    def api_version(self) -> str:
        """As it stands in manifests: `group/version`, or the bare version of the core group."""
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def group_kind(self) -> str:
        """As controller-runtime writes it: `Kind.group`, or the bare kind of the core group."""
        return f"{self.kind}.{self.group}" if self.group else self.kind

    def collection_path(self, namespace: str | None = None) -> str:
        """Where objects are listed: in a namespace, or everywhere if it is None, and only then."""
        root = f"/apis/{self.api_version}" if self.group else f"/api/{self.version}"
        inside = f"/namespaces/{namespace}" if self.namespaced and namespace is not None else ""
        return f"{root}{inside}/{self.plural}"

    def object_path(self, key: ObjectKey, subresource: str | None = None) -> str:
        """Where one object is, or a subresource of it such as `status`."""
        path = f"{self.collection_path(key.namespace or None)}/{key.name}"
        return f"{path}/{subresource}" if subresource else path
