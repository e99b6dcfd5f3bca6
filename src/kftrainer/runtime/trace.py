"""Where plugins say from which field a value comes; mostly nobody listens."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

from kftrainer.runtime.planned_object import PlannedObject


class Trace(Protocol):
    """Listens to what is set while a TrainJob is planned."""

    def attend(self, jobset: Mapping[str, Any]) -> None:
        """This is the JobSet's metadata and spec, which will be changed in place."""
        ...

    def turn(self, plugin: str) -> AbstractContextManager[None]:
        """A block in which this plugin does what it does."""
        ...

    def note(self, path: str, source: str) -> None:
        """The plugin sets what is at this path of the JobSet, because of this field."""
        ...

    def made(self, planned: Sequence[PlannedObject]) -> None:
        """The plugin whose turn it is has made these objects."""
        ...


_NOTHING = nullcontext()


class NoTrace:
    """A tape that keeps nothing: for when nobody will ask."""

    def attend(self, jobset: Mapping[str, Any]) -> None:
        """Nothing to look at."""

    def turn(self, plugin: str) -> AbstractContextManager[None]:
        """Nothing to keep."""
        return _NOTHING

    def note(self, path: str, source: str) -> None:
        """Nothing to keep."""

    def made(self, planned: Sequence[PlannedObject]) -> None:
        """Nothing to keep."""


NO_TRACE = NoTrace()
