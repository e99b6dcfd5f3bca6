"""Plans for all TrainJobs among the documents, and all that is wrong with them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from kftrainer.api import names
from kftrainer.api.resources import (
    CLUSTER_TRAINING_RUNTIMES,
    JOB_SETS,
    SECRETS,
    TRAIN_JOBS,
    TRAINING_RUNTIMES,
)
from kftrainer.api.trainjob import TrainJob
from kftrainer.cli.documents import Reading
from kftrainer.cli.given import DEFAULT_NAMESPACE, Entry, Sorted, sort
from kftrainer.kube.resource import Manifest, ObjectKey, key_of
from kftrainer.runtime.errors import (
    InvalidRuntimeError,
    InvalidTrainJobError,
    PlanningError,
    RuntimeNotFoundError,
)
from kftrainer.runtime.existing import Given
from kftrainer.runtime.explain import Explanation
from kftrainer.runtime.framework import Framework
from kftrainer.runtime.planned import Planned
from kftrainer.runtime.runtimes import Runtimes
from kftrainer.runtime.tape import SILENCE
from kftrainer.runtime.template import runtime_errors

REDACTED = "<redacted>"


@dataclass(frozen=True, slots=True)
class Plan:
    """The objects of one TrainJob in the order of applying, and as they are printed."""

    planned: Sequence[Planned]
    manifests: Sequence[dict[str, Any]]
    explanation: Explanation  # empty unless it was asked for

    def explained(self) -> Iterator[str]:
        """A line for each value that was set, and at least one for each object but the JobSet."""
        for planned, manifest in zip(self.planned, self.manifests, strict=True):
            key = key_of(manifest)
            name = key.name if key.namespace == DEFAULT_NAMESPACE else key
            if planned.resource.group_kind == JOB_SETS.group_kind:
                lines: list[object] = [*self.explanation.settings()]
            else:
                lines = [*self.explanation.settings_of(planned, manifest)]
                lines = lines or [f"built by {self.explanation.maker(planned)}"]
            yield from (f"{manifest['kind']} {name}: {line}" for line in lines)


@dataclass(slots=True)
class Outcome:
    """What came of all documents; the plans are complete only if there are no problems."""

    plans: list[Plan] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


def plan_all(
    reading: Reading, framework: Framework, *, explain: bool = False, show_secrets: bool = False
) -> Outcome:
    """Plan for every TrainJob, in the order of the documents."""
    known = [watch.resource for watch in framework.watches()]
    found = sort(reading.documents, known)
    planner = _Planner(found, Runtimes(framework), explain=explain, show_secrets=show_secrets)
    unread = [*reading.problems, *found.problems]
    nameless = any(entry.key is None for entry in found.entries)
    outcome = Outcome([*planner.plans(complete=not unread and not nameless)], unread)
    for entry in found.entries:
        outcome.problems += map(entry.told, entry.problems)
        outcome.warnings += map(entry.told, entry.warnings)
    if not outcome.problems and not any(found.of_kind(TRAIN_JOBS)):
        outcome.warnings.append("there is no TrainJob in the documents")
    return outcome


class _Planner:
    """Plans with what was given; what goes wrong is said at the entry whose fault it is."""

    def __init__(
        self, found: Sorted, runtimes: Runtimes, *, explain: bool, show_secrets: bool
    ) -> None:
        self._found = found
        self._runtimes = runtimes
        self._explain = explain
        self._show_secrets = show_secrets

    def plans(self, *, complete: bool) -> Iterator[Plan]:
        """The plans that could be made; `complete` if a runtime that is not here is nowhere."""
        for entry in self._found.of_kind(TRAINING_RUNTIMES, CLUSTER_TRAINING_RUNTIMES):
            if not entry.problems:
                entry.refuse(*runtime_errors(entry.model))
        sound = [entry.content for entry in self._found.entries if not entry.problems]
        existing = Given([*sound, *self._found.others])
        for entry in self._found.of_kind(TRAIN_JOBS):
            runtime = None if entry.problems else self._runtime_of(entry.model)
            if entry.problems or (runtime.problems if runtime else not complete):
                continue
            yield from self._plan(entry, runtime, existing)

    def _runtime_of(self, job: TrainJob) -> Entry | None:
        for kind in (TRAINING_RUNTIMES, CLUSTER_TRAINING_RUNTIMES):
            reference = job.spec.runtime_ref
            if (reference.kind, reference.api_group) == (kind.kind, kind.group):
                namespace = job.metadata.namespace or "" if kind.namespaced else ""
                key = ObjectKey(namespace, reference.name)
                return next((each for each in self._found.of_kind(kind) if each.key == key), None)
        return None

    def _plan(self, entry: Entry, runtime: Entry | None, existing: Given) -> Iterator[Plan]:
        explanation = Explanation()
        try:
            kind = self._runtimes.of(entry.model)
            tape = explanation if self._explain else SILENCE
            planned = kind.new_objects(entry.model, existing, tape)
            manifests = [self._printed(each) for each in planned]
        except InvalidRuntimeError as error:
            (runtime or entry).refuse(*_told(error))
        except RuntimeNotFoundError as error:
            entry.refuse(f"spec.runtimeRef.name: {error}")
        except InvalidTrainJobError as error:
            entry.refuse(*_told(error))
            self._validate(entry, existing)
        except PlanningError as error:
            entry.refuse(*_told(error))
        else:
            self._validate(entry, existing)
            if (manager := entry.model.spec.managed_by) != names.MANAGED_BY_US:
                entry.warn(f"spec.managedBy: {manager} does: nothing would be applied for it here")
            if not planned:
                entry.warn("there is nothing to apply: its JobSet runs already")
            yield Plan(planned, manifests, explanation)

    def _validate(self, entry: Entry, existing: Given) -> None:
        """Warn of what admission would say, but not of what has been said already."""
        try:
            findings = self._runtimes.of(entry.model).validate_objects(None, entry.model, existing)
        except PlanningError as error:
            entry.refuse(*_told(error))
            return
        news = [error for error in findings.errors if str(error) not in entry.problems]
        entry.warn(*(f"admission refuses: {error}" for error in news))
        entry.warn(*findings.warnings)

    def _printed(self, planned: Planned) -> dict[str, Any]:
        """The object as it is printed; raises PlanningError if it cannot be."""
        mint = planned.mint if self._show_secrets else None
        try:
            manifest = _plain(mint() if mint else planned.manifest)
        except Exception as error:  # somebody else's code made it
            noun = planned.resource.kind
            raise PlanningError(f"there is a {noun} that cannot be printed: {error!r}") from error
        if not self._show_secrets and planned.resource.group_kind == SECRETS.group_kind:
            _redact(manifest, planned.minted_keys)
        return manifest


def _told(error: PlanningError) -> Sequence[object]:
    return error.errors or [error]


def _plain(manifest: Manifest) -> dict[str, Any]:
    """A copy made of what JSON has, with what every object has first."""
    copy: dict[str, Any] = orjson.loads(orjson.dumps(manifest, default=dict))
    head = {key: copy[key] for key in ("apiVersion", "kind", "metadata")}
    return {**head, **copy}


def _redact(secret: dict[str, Any], minted_keys: Sequence[str]) -> None:
    if minted_keys:
        secret["data"] = {**(secret.get("data") or {}), **dict.fromkeys(minted_keys, "")}
    for name in ("data", "stringData"):
        if secret.get(name):
            secret[name] = dict.fromkeys(secret[name], REDACTED)
