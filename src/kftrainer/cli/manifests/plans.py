"""Plans TrainJobs without a cluster."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from kftrainer.api import names
from kftrainer.api.resources import JOB_SETS, SECRETS, TRAIN_JOBS
from kftrainer.cli.manifests.checked_object import CheckedObject
from kftrainer.cli.manifests.identification import DEFAULT_NAMESPACE
from kftrainer.cli.manifests.offline_validation import OfflineAdmission, internal_error
from kftrainer.kube.objects.resource import Manifest, key_of
from kftrainer.runtime.cluster_reader import GivenObjects
from kftrainer.runtime.errors import InvalidRuntimeError, PlanningError
from kftrainer.runtime.explain import Explanation
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
class PlanOptions:
    """What to include in the plans."""

    explain: bool = False
    show_secrets: bool = False


def plan_train_jobs(admission: OfflineAdmission, options: PlanOptions) -> Iterator[Plan]:
    """Yield the plans of all valid TrainJobs; problems are added to the checked objects."""
    cluster = admission.existing()
    for checked in admission.of_kind(TRAIN_JOBS):
        if checked.model is None or checked.is_invalid:
            continue
        runtime = admission.runtime_of(checked.model)
        if runtime is not None and not runtime.is_invalid:
            yield from _plan(checked, runtime, admission, cluster, options)


def _plan(
    checked: CheckedObject,
    runtime: CheckedObject,
    admission: OfflineAdmission,
    cluster: GivenObjects,
    options: PlanOptions,
) -> Iterator[Plan]:
    explanation = Explanation()
    try:
        kind = admission.runtimes.of(checked.model)
        trace = explanation if options.explain else NO_TRACE
        planned = kind.new_objects(checked.model, cluster, trace)
        manifests = [_printed(each, show_secrets=options.show_secrets) for each in planned]
    except InvalidRuntimeError as error:
        runtime.add_errors(*error.errors)
    except PlanningError as error:
        checked.add_errors(*(error.errors or [internal_error(error)]))
    else:
        if (manager := checked.model.spec.managed_by) != names.MANAGED_BY_US:
            checked.add_warnings(
                f"spec.managedBy: {manager} manages this TrainJob: kftrainer would apply nothing"
            )
        if not planned:
            checked.add_warnings("nothing to apply: its JobSet is running already")
        yield Plan(planned, manifests, explanation)


def _printed(planned: PlannedObject, *, show_secrets: bool) -> dict[str, Any]:
    """Return the object as printed; raise PlanningError if it cannot be serialized."""
    generate = planned.generate if show_secrets else None
    try:
        manifest = _plain(generate() if generate else planned.manifest)
    except Exception as error:  # the object was built by a plugin
        noun = planned.resource.kind
        raise PlanningError(f"failed to print a {noun}: {error!r}") from error
    if not show_secrets and planned.resource.group_kind == SECRETS.group_kind:
        _redact(manifest, planned.generated_keys)
    return manifest


def _plain(manifest: Manifest) -> dict[str, Any]:
    """Return a copy with JSON types only, and with the common fields first."""
    copy: dict[str, Any] = orjson.loads(orjson.dumps(manifest, default=dict))
    head = {key: copy[key] for key in ("apiVersion", "kind", "metadata")}
    return {**head, **copy}


def _redact(secret: dict[str, Any], generated_keys: Sequence[str]) -> None:
    if generated_keys:
        secret["data"] = {**(secret.get("data") or {}), **dict.fromkeys(generated_keys, "")}
    for name in ("data", "stringData"):
        if secret.get(name):
            secret[name] = dict.fromkeys(secret[name], REDACTED)
