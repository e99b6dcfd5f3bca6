"""Plans for all TrainJobs among the documents, and all that is wrong with them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from kftrainer.api import names
from kftrainer.api.resources import JOB_SETS, SECRETS, TRAIN_JOBS
from kftrainer.cli.manifests.cases import Case
from kftrainer.cli.manifests.documents import Reading
from kftrainer.cli.manifests.identification import DEFAULT_NAMESPACE
from kftrainer.cli.manifests.offline_validation import OfflineAdmission, internal_error
from kftrainer.cli.manifests.problems import DocumentProblem
from kftrainer.kube.objects.resource import Manifest, key_of
from kftrainer.runtime.cluster_reader import GivenObjects
from kftrainer.runtime.errors import InvalidRuntimeError, PlanningError
from kftrainer.runtime.explain import Explanation
from kftrainer.runtime.framework.framework import Framework
from kftrainer.runtime.planned_object import PlannedObject
from kftrainer.runtime.trace import NO_TRACE

REDACTED = "<redacted>"


@dataclass(frozen=True, slots=True)
class Plan:
    """The objects of one TrainJob in the order of applying, and as they are printed."""

    planned: Sequence[PlannedObject]
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


@dataclass(frozen=True, slots=True)
class Outcome:
    """The plans, which are complete only if nothing is refused, and all remarks."""

    plans: Sequence[Plan]
    remarks: Sequence[DocumentProblem]
    no_train_job: bool = False

    @property
    def is_refused(self) -> bool:
        """Whether something is wrong with any of the documents."""
        return any(remark.severity == "error" for remark in self.remarks)


def plan_all(
    reading: Reading, framework: Framework, *, explain: bool = False, show_secrets: bool = False
) -> Outcome:
    """Plan for every TrainJob, in the order of the documents."""
    court = OfflineAdmission(reading, framework, to_plan=True)
    court.judge()
    planner = _Planner(court, explain=explain, show_secrets=show_secrets)
    plans = [*planner.plans()]
    return Outcome(plans, court.remarks(), no_train_job=not any(court.of_kind(TRAIN_JOBS)))


class _Planner:
    """Plans for the TrainJobs that admission accepts; problems are added to their cases."""

    def __init__(self, court: OfflineAdmission, *, explain: bool, show_secrets: bool) -> None:
        self._court = court
        self._explain = explain
        self._show_secrets = show_secrets

    def plans(self) -> Iterator[Plan]:
        """The plans that could be made."""
        existing = self._court.existing()
        for case in self._court.of_kind(TRAIN_JOBS):
            if case.model is None or case.is_refused:
                continue
            runtime = self._court.runtime_of(case.model)
            if runtime is not None and not runtime.is_refused:
                yield from self._plan(case, runtime, existing)

    def _plan(self, case: Case, runtime: Case, existing: GivenObjects) -> Iterator[Plan]:
        explanation = Explanation()
        try:
            kind = self._court.runtimes.of(case.model)
            tape = explanation if self._explain else NO_TRACE
            planned = kind.new_objects(case.model, existing, tape)
            manifests = [self._printed(each) for each in planned]
        except InvalidRuntimeError as error:
            runtime.refuse(*error.errors)
        except PlanningError as error:
            case.refuse(*(error.errors or [internal_error(error)]))
        else:
            if (manager := case.model.spec.managed_by) != names.MANAGED_BY_US:
                case.warn(f"spec.managedBy: {manager} does: nothing would be applied for it here")
            if not planned:
                case.warn("there is nothing to apply: its JobSet runs already")
            yield Plan(planned, manifests, explanation)

    def _printed(self, planned: PlannedObject) -> dict[str, Any]:
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
