"""Kinds of objects, object keys and API paths. Pure."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Generic, NamedTuple, TypeVar, cast

Manifest = Mapping[str, Any]  # an object as received; must not be modified
T = TypeVar("T")


class ObjectKey(NamedTuple):
    """Namespace and name of an object; the namespace is empty if cluster-scoped.

    A tuple, because queues and caches hash and compare keys all the time.
    """

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}" if self.namespace else self.name


def key_of(manifest: Manifest) -> ObjectKey:
    """Return the key of an object that has a name."""
    metadata = manifest["metadata"]
    return ObjectKey(metadata.get("namespace", ""), metadata["name"])


def controller_of(metadata: Manifest) -> Manifest | None:
    """Return the controller reference of the object with this metadata, or None.

    The API server accepts at most one.
    """
    owners = metadata.get("ownerReferences") or ()
    return next((each for each in owners if each.get("controller")), None)


def is_controlled_by(metadata: Manifest, owner: str | None) -> bool:
    """Whether the owner with this UID controls the object with this metadata."""
    controller = controller_of(metadata)
    return controller is not None and controller.get("uid") == owner


def unstructured(manifest: Manifest) -> Manifest:
    """Return the manifest unchanged: for kinds without a type of their own."""
    return manifest


@dataclass(frozen=True, slots=True)
class Resource(Generic[T]):
    """A kind of object, and the function that decodes its manifests."""

    group: str  # empty for the core group
    version: str
    kind: str
    plural: str
    namespaced: bool
    decode: Callable[[Manifest], T]
    partial: bool = False  # read as metadata only
    keep_decoded: bool = False  # few and often read, so caches keep them decoded

    def is_referred_to_by(self, reference: Manifest) -> bool:
        """Whether this is the kind in an owner reference, in any version.

        The object may have been created by an older controller.
        """
        group, _, _ = str(reference.get("apiVersion") or "").rpartition("/")
        return (group, reference.get("kind")) == (self.group, self.kind)

    def only_metadata(self) -> "Resource[Manifest]":
        """Return the same kind, read as metadata only; it cannot be written.

        A cache treats it as a separate kind. Annotations are metadata: those of `kubectl apply`
        contain the applied object, including the data of a Secret.
        """
        return replace(cast("Resource[Manifest]", self), decode=unstructured, partial=True)

    @property
    def api_version(self) -> str:
        """`group/version`, or only the version for the core group, as in manifests."""
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def group_kind(self) -> str:
        """`Kind.group`, or only the kind for the core group, as in controller-runtime."""
        return f"{self.kind}.{self.group}" if self.group else self.kind

    def collection_path(self, namespace: str | None = None) -> str:
        """Return the path of a list: in one namespace, or in all if it is None."""
        root = f"/apis/{self.api_version}" if self.group else f"/api/{self.version}"
        inside = f"/namespaces/{namespace}" if self.namespaced and namespace is not None else ""
        return f"{root}{inside}/{self.plural}"

    def object_path(self, key: ObjectKey, subresource: str | None = None) -> str:
        """Return the path of one object, or of a subresource such as `status`."""
        path = f"{self.collection_path(key.namespace or None)}/{key.name}"
        return f"{path}/{subresource}" if subresource else path
