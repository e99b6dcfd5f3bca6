"""What an informer tells its handlers: how one object was, and how it is."""

from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from kftrainer.kube.objects.resource import Manifest, ObjectKey

T_co = TypeVar("T_co", covariant=True)


class ObservedObject(Protocol[T_co]):
    """An object as it was seen at one moment; its own type is made only when asked for."""

    @property
    def metadata(self) -> Manifest:
        """The object's metadata, without managedFields."""
        ...

    @property
    def manifest(self) -> Manifest:
        """The object as it came, without managedFields; cheaper than its own type."""
        ...

    @property
    def is_reduced(self) -> bool:
        """Whether a part of a large object is all that is held."""
        ...

    @property
    def object(self) -> T_co:
        """The object as `Resource.decode` makes it."""
        ...


@dataclass(frozen=True, slots=True)
class ObjectEvent(Generic[T_co]):
    """One object has come (old is None), gone (new is None) or changed."""

    key: ObjectKey
    old: ObservedObject[T_co] | None
    new: ObservedObject[T_co] | None
    initial: bool = False  # it was there when we came, or nothing about it has changed since
    # It was removed while nobody watched, so that `old` need not be its last state.
    final_state_unknown: bool = False
