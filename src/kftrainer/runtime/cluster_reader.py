"""What is there already, for planning to look at."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from kftrainer.kube.objects.resource import Manifest, ObjectKey, Resource, key_of

T = TypeVar("T")


class ClusterReader(Protocol):
    """Reads that take no time and change nothing: a cache, or objects from files."""

    def knows(self, resource: Resource[Any]) -> bool:
        """Whether an object of this kind that is not found does not exist, as far as one can see.

        A kind whose definition is not installed is known: it has no objects.
        """
        ...

    def get(self, resource: Resource[T], key: ObjectKey) -> T | None:
        """The object of this key; None also where the kind is not known."""
        ...

    def list(self, resource: Resource[T], namespace: str | None = None) -> Sequence[T]:
        """All objects of the kind, or those of a namespace; none where the kind is not known."""
        ...

    def iterate(self, resource: Resource[T], namespace: str | None = None) -> Iterator[T]:
        """The same objects, each decoded when it is asked for: for kinds with many objects."""
        ...


class GivenObjects:
    """The objects that somebody gave us, and nothing else; of other kinds nothing is known."""

    def __init__(self, manifests: Iterable[Manifest] = ()) -> None:
        self._kinds: dict[tuple[str, str], dict[ObjectKey, Manifest]] = {}
        for manifest in manifests:
            kind = (manifest["apiVersion"], manifest["kind"])
            self._kinds.setdefault(kind, {})[key_of(manifest)] = manifest

    def knows(self, resource: Resource[Any]) -> bool:
        """Whether there is one of this kind among the given."""
        return (resource.api_version, resource.kind) in self._kinds

    def get(self, resource: Resource[T], key: ObjectKey) -> T | None:
        """The given object of this key."""
        found = self._of(resource).get(key)
        return None if found is None else resource.decode(found)

    def list(self, resource: Resource[T], namespace: str | None = None) -> Sequence[T]:
        """The given objects of the kind."""
        return [*self.iterate(resource, namespace)]

    def iterate(self, resource: Resource[T], namespace: str | None = None) -> Iterator[T]:
        """The same, each decoded when it is asked for."""
        for key, manifest in self._of(resource).items():
            if namespace is None or key.namespace == namespace:
                yield resource.decode(manifest)

    def _of(self, resource: Resource[Any]) -> Mapping[ObjectKey, Manifest]:
        return self._kinds.get((resource.api_version, resource.kind), {})


NO_OBJECTS = GivenObjects()
