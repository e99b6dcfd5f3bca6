"""Trace: records for `--explain` from which field each value of a plan comes."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

from kftrainer.runtime.planned_object import PlannedObject


class Trace(Protocol):
    """Records the values that are set while a TrainJob is planned."""

    def start(self, jobset: Mapping[str, Any]) -> None:
        """Record the initial JobSet metadata and spec, which plugins will change in place."""
        ...

    def changes_of(self, plugin: str) -> AbstractContextManager[None]:
        """Return a context in which every change is attributed to this plugin."""
        ...

    def note(self, path: str, source: str) -> None:
        """Record that the value at this path of the JobSet comes from the field `source`."""
        ...

    def built(self, planned: Sequence[PlannedObject]) -> None:
        """Record that the current plugin has built these objects."""
        ...


_NOTHING = nullcontext()


class NoTrace:
    """Trace that records nothing; the default outside `--explain`."""

    def start(self, jobset: Mapping[str, Any]) -> None:
        """Do nothing."""

    def changes_of(self, plugin: str) -> AbstractContextManager[None]:
        """Return an empty context."""
        return _NOTHING

    def note(self, path: str, source: str) -> None:
        """Do nothing."""

    def built(self, planned: Sequence[PlannedObject]) -> None:
        """Do nothing."""


NO_TRACE = NoTrace()
