"""A book of all TrainJobs, kept up at every change, so that counting them takes no time: pure.

Of a TrainJob that has ended it holds its key, and a reference to what it has in common with others.
"""

import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal, Protocol

from kftrainer.controllers.job_state import ENDED, JobFacts, State
from kftrainer.kube.resource import ObjectKey
from kftrainer.machinery.bounded_labels import BoundedLabels

MOST_NAMESPACES, MOST_RUNTIMES = 500, 100
# Of these no condition tells since when they are so: that is known only from seeing it.
UNTOLD: frozenset[State] = frozenset(("Pending", "Running"))

Awaited = Literal["JobSet", "pod", "nothing"]


class Observer(Protocol):
    """Who is told, once for each TrainJob, how long something took, counted from its creation."""

    def job_set_made(self, runtime: str, seconds: float) -> None:
        """Until its JobSet was there."""
        ...

    def pod_runs(self, runtime: str, seconds: float) -> None:
        """Until the first of its pods ran."""
        ...

    def ended(self, runtime: str, result: State, seconds: float) -> None:
        """Until it ended."""
        ...


@dataclass(slots=True, eq=False)
class Group:
    """The TrainJobs of one namespace and runtime that are in one state."""

    namespace: str
    runtime: str
    state: State
    jobs: int = 0


@dataclass(slots=True, eq=False)
class _Open:
    """A TrainJob that has not ended."""

    group: Group
    created: float
    since: float  # in its state
    awaited: Awaited  # next in its life


class JobBook:
    """Counts TrainJobs, and tells the durations of what it saw happen.

    So who had a JobSet, running pods or an end when it was entered is counted, but its duration is
    not told: whoever kept the book before did that.
    """

    def __init__(
        self,
        observer: Observer,
        *,
        most_namespaces: int = MOST_NAMESPACES,
        most_runtimes: int = MOST_RUNTIMES,
    ) -> None:
        self._observer = observer
        self._namespaces = BoundedLabels(most_namespaces)
        self._runtimes = BoundedLabels(most_runtimes)
        self._groups: dict[tuple[str, str, State], Group] = {}
        self._open: dict[ObjectKey, _Open] = {}
        self._ended: dict[ObjectKey, Group] = {}

    def groups(self) -> Iterable[Group]:
        """All groups that somebody is in."""
        return self._groups.values()

    def oldest(self) -> dict[tuple[str, State], float]:
        """By namespace and state, since when the one is in it that has been so longest.

        Looks at those that have not ended, which are small and decoded: 10,000 take a millisecond.
        """
        found: dict[tuple[str, State], float] = {}
        for job in self._open.values():
            place = job.group.namespace, job.group.state
            since = found.get(place)
            if since is None or job.since < since:
                found[place] = job.since
        return found

    def put(
        self, key: ObjectKey, facts: JobFacts, now: float, has_job_set: Callable[[], bool]
    ) -> None:
        """A TrainJob is like this now; whether it has a JobSet is asked if it is a new one."""
        known = self._open.get(key)
        if known is not None and known.created == facts.created:
            self._update(key, known, facts, now)
            return
        group = self._enter(key, facts)
        self.remove(key)  # another of the same name, or itself in an earlier state
        own_key = ObjectKey(sys.intern(key.namespace), key.name)
        if facts.state in ENDED:
            self._ended[own_key] = group
            return
        awaited: Awaited = "pod" if facts.has_rows or has_job_set() else "JobSet"
        self._open[own_key] = _Open(
            group=group,
            created=facts.created,
            since=facts.since,
            awaited="nothing" if facts.has_had_pods else awaited,
        )

    def remove(self, key: ObjectKey) -> None:
        """The TrainJob is gone, or was never there."""
        known = self._open.pop(key, None)
        group = known.group if known is not None else self._ended.pop(key, None)
        if group is not None:
            self._leave(group)

    def awaits(self, key: ObjectKey, what: Awaited) -> bool:
        """Whether this is what comes next in the TrainJob's life."""
        known = self._open.get(key)
        return known is not None and known.awaited == what

    def job_set_made(self, key: ObjectKey, now: float) -> None:
        """The TrainJob has got its JobSet."""
        known = self._open.get(key)
        if known is not None and known.awaited == "JobSet":
            known.awaited = "pod"
            self._observer.job_set_made(known.group.runtime, max(0.0, now - known.created))

    def pod_runs(self, key: ObjectKey, now: float | None) -> None:
        """A pod of the TrainJob runs; since some time ago if no time is given."""
        known = self._open.get(key)
        if known is not None and known.awaited == "pod":
            known.awaited = "nothing"
            if now is not None:
                self._observer.pod_runs(known.group.runtime, max(0.0, now - known.created))

    def _update(self, key: ObjectKey, known: _Open, facts: JobFacts, now: float) -> None:
        if facts.state in UNTOLD:
            known.since = known.since if facts.state == known.group.state else now
        else:
            known.since = facts.since
        if facts.state == known.group.state:
            return
        before, known.group = known.group, self._enter(key, facts)
        self._leave(before)
        if facts.state in ENDED:
            del self._open[key]
            self._ended[ObjectKey(sys.intern(key.namespace), key.name)] = known.group
            if not facts.never_began:
                seconds = max(0.0, facts.since - facts.created)
                self._observer.ended(known.group.runtime, facts.state, seconds)

    def _enter(self, key: ObjectKey, facts: JobFacts) -> Group:
        """The group that the TrainJob belongs to, with it."""
        namespace = self._namespaces.label(key.namespace)
        runtime = self._runtimes.label(facts.runtime)
        group = self._groups.get((namespace, runtime, facts.state))
        if group is None:
            group = Group(namespace, runtime, facts.state)
            self._groups[namespace, runtime, facts.state] = group
            self._namespaces.hold(namespace)
            self._runtimes.hold(runtime)
        group.jobs += 1
        return group

    def _leave(self, group: Group) -> None:
        group.jobs -= 1
        if not group.jobs:
            del self._groups[group.namespace, group.runtime, group.state]
            self._namespaces.release(group.namespace)
            self._runtimes.release(group.runtime)
