"""Plans all TrainJobs among the documents and collects all problems."""

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
    """The objects of one TrainJob in the order of applying, planned and as printed."""

    planned: Sequence[PlannedObject]
    manifests: Sequence[dict[str, Any]]
    explanation: Explanation  # empty unless requested

    def explained(self) -> Iterator[str]:
        """Yield a line per value that was set, and at least one per object except the JobSet."""
        for planned, manifest in zip(self.planned, self.manifests, strict=True):
            key = key_of(manifest)
            name = key.name if key.namespace == DEFAULT_NAMESPACE else key
            if planned.resource.group_kind == JOB_SETS.group_kind:
                lines: list[object] = [*self.explanation.settings()]
            else:
                lines = [*self.explanation.settings_of(planned, manifest)]
                lines = lines or [f"built by {self.explanation.builder_of(planned)}"]
            yield from (f"{manifest['kind']} {name}: {line}" for line in lines)


@dataclass(frozen=True, slots=True)
class Outcome:
    """The plans and all problems; the plans are complete only if there are no errors."""

    plans: Sequence[Plan]
    remarks: Sequence[DocumentProblem]
    no_train_job: bool = False

    @property
    def is_refused(self) -> bool:
        """Whether any document has errors."""
        return any(remark.severity == "error" for remark in self.remarks)


def plan_all(
    reading: Reading, framework: Framework, *, explain: bool = False, show_secrets: bool = False
) -> Outcome:
    """Plan every TrainJob, in the order of the documents."""
    court = OfflineAdmission(reading, framework, to_plan=True)
    court.judge()
    planner = _Planner(court, explain=explain, show_secrets=show_secrets)
    plans = [*planner.plans()]
    return Outcome(plans, court.remarks(), no_train_job=not any(court.of_kind(TRAIN_JOBS)))


class _Planner:
    """Plans the valid TrainJobs; problems are added to their cases."""

    def __init__(self, court: OfflineAdmission, *, explain: bool, show_secrets: bool) -> None:
        self._court = court
        self._explain = explain
        self._show_secrets = show_secrets

    def plans(self) -> Iterator[Plan]:
        """Yield the plans of all valid TrainJobs."""
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
            trace = explanation if self._explain else NO_TRACE
            planned = kind.new_objects(case.model, existing, trace)
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
        """Return the object as printed; raise PlanningError if it cannot be serialized."""
        mint = planned.mint if self._show_secrets else None
        try:
            manifest = _plain(mint() if mint else planned.manifest)
        except Exception as error:  # the object was built by a plugin
            noun = planned.resource.kind
            raise PlanningError(f"there is a {noun} that cannot be printed: {error!r}") from error
        if not self._show_secrets and planned.resource.group_kind == SECRETS.group_kind:
            _redact(manifest, planned.minted_keys)
        return manifest


def _plain(manifest: Manifest) -> dict[str, Any]:
    """Return a copy with JSON types only, and with the common fields first."""
    copy: dict[str, Any] = orjson.loads(orjson.dumps(manifest, default=dict))
    head = {key: copy[key] for key in ("apiVersion", "kind", "metadata")}
    return {**head, **copy}


def _redact(secret: dict[str, Any], minted_keys: Sequence[str]) -> None:
    if minted_keys:
        secret["data"] = {**(secret.get("data") or {}), **dict.fromkeys(minted_keys, "")}
    for name in ("data", "stringData"):
        if secret.get(name):
            secret[name] = dict.fromkeys(secret[name], REDACTED)
