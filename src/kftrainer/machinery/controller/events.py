"""Watch events that informers pass to their handlers: an object's old and new state.

Kubernetes Events, which are API objects, are in `machinery.events`.
"""

from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from kftrainer.kube.objects.resource import Manifest, ObjectKey

T_co = TypeVar("T_co", covariant=True)


class ObservedObject(Protocol[T_co]):
    """A snapshot of an object; its typed form is decoded only on access."""

    @property
    def metadata(self) -> Manifest:
        """The object's metadata, without managedFields."""
        ...

    @property
    def manifest(self) -> Manifest:
        """The object as received, without managedFields; cheaper than the typed form."""
        ...

    @property
    def is_reduced(self) -> bool:
        """Whether only a part of a large object is held."""
        ...

    @property
    def object(self) -> T_co:
        """The object as decoded by `Resource.decode`."""
        ...


@dataclass(frozen=True, slots=True)
class ObjectEvent(Generic[T_co]):
    """An object was added (old is None), deleted (new is None) or updated."""

    key: ObjectKey
    old: ObservedObject[T_co] | None
    new: ObservedObject[T_co] | None
    initial: bool = False  # from the first list, or replayed to a handler that was added later
    # The delete was missed by the watch, so `old` may not be the last state.
    final_state_unknown: bool = False
