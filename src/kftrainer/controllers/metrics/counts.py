"""A book of all TrainJobs, kept up at every change, so that counting them takes no time: pure.

Of a TrainJob that has ended it holds its key, and a reference to what it has in common with others.
"""

import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal, Protocol

from kftrainer.controllers.metrics.state import ENDED, JobFacts, State
from kftrainer.kube.objects.resource import ObjectKey
from kftrainer.machinery.metrics.bounded_labels import OTHER, BoundedLabels

MOST_NAMESPACES, MOST_RUNTIMES = 500, 100
MOST_PLACES = 2000  # of a namespace and a runtime: with all states, 12,000 series
# What durations are told of instead of a TrainingRuntime: whoever may make these may make many, as
# CI does, and each would have series for ever.
NAMESPACED = "_namespaced"
# Of these no condition tells since when they are so: that is known only from seeing it.
UNTOLD: frozenset[State] = frozenset(("Pending", "Running"))

Awaited = Literal["JobSet", "pod"]


class Observer(Protocol):
    """Who is told, once for each TrainJob, how long something took, counted from its creation."""

    def taken_over(self, runtime: str) -> None:
        """It had its JobSet before anything was told of it; its end may still come."""
        ...

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

    uid: str
    group: Group
    measured_as: str  # its runtime, where durations are told
    created: float
    since: float  # in its state
    awaits_job_set: bool
    awaits_pod: bool

    def learn(self, facts: JobFacts) -> None:
        """What it says itself has happened, and nobody has told us when."""
        self.awaits_job_set = self.awaits_job_set and not facts.has_rows
        self.awaits_pod = self.awaits_pod and not facts.has_had_pods


class JobBook:
    """Counts TrainJobs, and tells the durations of what it saw happen.

    So who had a JobSet, running pods or an end when it was entered is counted, but its duration is
    not told: who kept the book when it happened has done that, and what happened while nobody kept
    one is told by nobody.
    """

    def __init__(
        self,
        observer: Observer,
        *,
        most_namespaces: int = MOST_NAMESPACES,
        most_runtimes: int = MOST_RUNTIMES,
        most_places: int = MOST_PLACES,
    ) -> None:
        self._observer = observer
        self._namespaces = BoundedLabels(most_namespaces)
        self._runtimes = BoundedLabels(most_runtimes)
        self._places = BoundedLabels(most_places)
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
        if known is not None and known.uid == facts.uid:
            self._update(key, known, facts, now)
            return
        group = self._enter(key, facts)
        self.remove(key)  # another of the same name, or itself in an earlier state
        own_key = ObjectKey(sys.intern(key.namespace), key.name)
        if facts.state in ENDED:
            self._ended[own_key] = group
            return
        known = _Open(
            uid=facts.uid,
            group=group,
            measured_as=NAMESPACED if facts.has_namespaced_runtime else facts.runtime,
            created=facts.created,
            # One that waits for pods again does not since its creation; nobody tells since when.
            since=now if facts.state == "Pending" and facts.has_had_pods else facts.since,
            awaits_job_set=not (facts.has_rows or has_job_set()),
            awaits_pod=not facts.has_had_pods,
        )
        self._open[own_key] = known
        if not known.awaits_job_set:
            self._observer.taken_over(known.measured_as)

    def remove(self, key: ObjectKey) -> None:
        """The TrainJob is gone, or was never there."""
        known = self._open.pop(key, None)
        group = known.group if known is not None else self._ended.pop(key, None)
        if group is not None:
            self._leave(group)

    def awaiting(self, key: ObjectKey, what: Awaited) -> str | None:
        """The uid of the TrainJob, if this is still to come in its life."""
        known = self._open.get(key)
        if known is None:
            return None
        is_to_come = known.awaits_job_set if what == "JobSet" else known.awaits_pod
        return known.uid if is_to_come else None

    def job_set_made(self, key: ObjectKey, now: float | None) -> None:
        """The TrainJob has got its JobSet; some time ago if no time is given."""
        known = self._open.get(key)
        if known is not None and known.awaits_job_set:
            known.awaits_job_set = False
            if now is not None:
                self._observer.job_set_made(known.measured_as, max(0.0, now - known.created))

    def pod_runs(self, key: ObjectKey, now: float | None) -> None:
        """A pod of the TrainJob runs; since some time ago if no time is given."""
        known = self._open.get(key)
        if known is not None and known.awaits_pod:
            known.awaits_pod = False
            if now is not None:
                self._observer.pod_runs(known.measured_as, max(0.0, now - known.created))

    def _update(self, key: ObjectKey, known: _Open, facts: JobFacts, now: float) -> None:
        known.learn(facts)
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
                self._observer.ended(known.measured_as, facts.state, seconds)

    def _enter(self, key: ObjectKey, facts: JobFacts) -> Group:
        """The group that the TrainJob belongs to, with it."""
        namespace, runtime = self._place(key.namespace, facts.runtime)
        group = self._groups.get((namespace, runtime, facts.state))
        if group is None:
            group = Group(namespace, runtime, facts.state)
            self._groups[namespace, runtime, facts.state] = group
            self._namespaces.hold(namespace)
            self._runtimes.hold(runtime)
            self._places.hold(_pair(namespace, runtime))
        group.jobs += 1
        return group

    def _place(self, namespace: str, runtime: str) -> tuple[str, str]:
        """The labels of a namespace and a runtime, for which there may be no room."""
        place = self._namespaces.label(namespace), self._runtimes.label(runtime)
        has_room = self._places.label(_pair(*place)) != OTHER
        return place if has_room else (OTHER, OTHER)

    def _leave(self, group: Group) -> None:
        group.jobs -= 1
        if not group.jobs:
            del self._groups[group.namespace, group.runtime, group.state]
            self._namespaces.release(group.namespace)
            self._runtimes.release(group.runtime)
            self._places.release(_pair(group.namespace, group.runtime))


def _pair(namespace: str, runtime: str) -> str:
    return OTHER if namespace == runtime == OTHER else f"{namespace}/{runtime}"
