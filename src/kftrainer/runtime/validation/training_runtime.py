"""Validates runtimes at admission, before the first TrainJob uses them."""

from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace
from itertools import islice

from kftrainer.api import names
from kftrainer.kube.objects.field_errors import (
    ErrorType,
    FieldError,
    ValidationResult,
    forbidden,
    invalid,
)
from kftrainer.runtime.framework.framework import Framework
from kftrainer.runtime.info import AnyRuntime
from kftrainer.runtime.object_builders import thaw
from kftrainer.runtime.podset import NodeLayout
from kftrainer.runtime.resources.quantities import rewrite_quantities
from kftrainer.runtime.template import JOBS_PATH, STEPS, runtime_errors
from kftrainer.runtime.validation.jobset_names import jobset_rejections
from kftrainer.runtime.validation.names import name_limit
from kftrainer.runtime.validation.rules import Rule
from kftrainer.runtime.validation.runtime_jobs import RuntimeJob, whole_jobs
from kftrainer.runtime.validation.runtime_warnings import (
    TEMPLATE,
    deprecation,
    nodes_of,
    runtime_hints,
)

MOST_REJECTIONS = 200  # rejections by JobSet that are reported


def runtime_findings(framework: Framework, runtime: AnyRuntime) -> ValidationResult:
    """Return errors for a runtime that no TrainJob could use, and warnings for likely mistakes.

    Raises PluginFailedError.
    """
    findings = ValidationResult()
    layout, of_plugins = framework.layout(runtime), framework.validate_runtime(runtime)
    findings.add_errors(*_errors(runtime, layout, of_plugins.errors))
    if (deprecated := deprecation(runtime)) is not None:
        findings.add_warnings(deprecated)
    if not findings.errors:
        findings.add_warnings(*runtime_hints(runtime, layout), *of_plugins.warnings)
    findings.add_errors(*_jobset_errors(runtime, {error.path for error in findings.errors}))
    return findings


def _jobset_errors(runtime: AnyRuntime, reported: Collection[str]) -> Iterator[FieldError]:
    """Yield errors for names that JobSet would reject, except at paths that have an error."""
    template = runtime.spec.template if runtime.spec else None
    found = jobset_rejections((template and template.spec) or {})
    for rejection in islice(found, MOST_REJECTIONS):
        path = f"{TEMPLATE}.{rejection.path}"
        if path not in reported:
            detail = f"JobSet would reject every JobSet of the runtime: {rejection.message}"
            yield forbidden(path, detail, rule=Rule.RUNTIME_JOBSET_REFUSES)


def _errors(
    runtime: AnyRuntime, layout: NodeLayout, of_plugins: Iterable[FieldError]
) -> Iterator[FieldError]:
    """Yield all errors; if several rules concern the same field, only the first one's."""
    reported: set[str] = set()
    for errors in (_step_errors(runtime, layout), runtime_errors(runtime, layout), of_plugins):
        found = [*_unreported(errors, reported)]
        reported.update(error.path for error in found)
        yield from found
    if not reported:  # the following checks rely on a well-formed runtime
        yield from _quantity_errors(runtime)
        yield from _name_limit_errors(runtime, layout)


def _unreported(errors: Iterable[FieldError], reported: set[str]) -> Iterator[FieldError]:
    for error in errors:
        # The list of jobs can have several errors, one per missing job.
        if error.path not in reported or error.path == JOBS_PATH:
            yield error


def _step_errors(runtime: AnyRuntime, layout: NodeLayout) -> Iterator[FieldError]:
    """Yield errors for jobs of a step that have several replicas or lack its container."""
    for job in whole_jobs(runtime):
        if job.step not in STEPS:
            continue
        replicas = job.body.get("replicas")
        if replicas is not None and replicas != 1:
            where, rule = f"{job.path}.replicas", Rule.RUNTIME_REPLICAS
            yield invalid(where, replicas, "always must be 1", rule=rule)
        if not any(name in _accepted(job, layout) for name in job.containers):
            # Only the names: other fields of a container may be secret.
            containers = [{"name": name} for name in job.containers]
            detail = f"must contain the required container for the ancestor: {job.step}"
            where, rule = f"{job.pod_path}.containers", Rule.RUNTIME_STEP_CONTAINER
            yield invalid(where, containers, detail, rule=rule)


def _accepted(job: RuntimeJob, layout: NodeLayout) -> tuple[str, ...]:
    """Return the possible names of the container for the job's step."""
    if job.step == names.STEP_TRAINER:
        return layout.container_names(job.name)
    return (job.step or job.name,)


def _name_limit_errors(runtime: AnyRuntime, layout: NodeLayout) -> Iterator[FieldError]:
    """Yield an error if the runtime's names leave no room for a TrainJob's name."""
    jobs = whole_jobs(runtime)
    template = runtime.spec.template if runtime.spec else None
    spec = (template and template.spec) or {}
    limit = name_limit(spec, [_size(runtime, layout, job, jobs) for job in jobs])
    if limit.characters < 1:
        rule = Rule.RUNTIME_NAMES_TOO_LONG
        yield FieldError(limit.path, ErrorType.TOO_LONG, limit.no_name_fits, rule=rule)


def _size(
    runtime: AnyRuntime, layout: NodeLayout, job: RuntimeJob, jobs: list[RuntimeJob]
) -> tuple[int, int]:
    """Return the number of replicas of the job and of pods in each, from the runtime."""
    counts = (nodes_of(runtime, layout, job, jobs), job.job_spec.get("parallelism"), 1)
    replicas = job.body.get("replicas")
    return 1 if replicas is None else replicas, next(each for each in counts if each is not None)


def _quantity_errors(runtime: AnyRuntime) -> Iterator[FieldError]:
    for job in whole_jobs(runtime):
        for error in rewrite_quantities(thaw(job.pod), job.pod_path):
            yield replace(error, rule=Rule.RUNTIME_QUANTITY)
