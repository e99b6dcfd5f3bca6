"""Plugin framework: groups plugins by extension point and runs the phases in order."""

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Self, TypeVar

from kftrainer.api.configuration import DEFAULT, Admission
from kftrainer.api.trainingruntime import MPIPolicy, TorchPolicy
from kftrainer.api.trainjob import TrainJob
from kftrainer.kube.objects.field_errors import FieldError, ValidationResult, forbidden, invalid
from kftrainer.runtime.cluster_reader import ClusterReader
from kftrainer.runtime.errors import (
    InvalidRuntimeError,
    InvalidTrainJobError,
    PlanningError,
    PluginFailedError,
)
from kftrainer.runtime.framework.extension_points import (
    ComponentBuilder,
    CustomValidation,
    EnforceMLPolicy,
    EnforcePodGroupPolicy,
    Observed,
    Plugin,
    PodNetwork,
    TrainJobStatus,
    Watch,
    WatchExtension,
)
from kftrainer.runtime.info import Info
from kftrainer.runtime.planned_object import PlannedObject, apply_order
from kftrainer.runtime.template import subject_of
from kftrainer.runtime.trace import NO_TRACE, Trace
from kftrainer.runtime.validation.rules import Rule

T = TypeVar("T")
P = TypeVar("P", bound=Plugin)
LONGEST_REASON = 500  # characters of an exception's text that a message includes
LONGEST_TEXT = 20_000  # characters of an exception's text that are processed
# The input that pydantic quotes in its errors: a value of a pod template may be a secret.
_INPUT_VALUE = re.compile(r"input_value=.*?(?=, input_type=|$)")


class FrameworkError(Exception):
    """The plugins cannot be used together; the message gives the reason."""


class Framework:
    """Run the phases of planning and validation; within a phase, in the order of `plugins`."""

    def __init__(
        self, plugins: Iterable[Plugin], *, admission: Admission = DEFAULT.admission
    ) -> None:
        self.plugins = tuple(plugins)
        self.admission = admission
        _refuse_namesakes(self.plugins)
        self._ml_policies = [each for each in self.plugins if isinstance(each, EnforceMLPolicy)]
        self._group_policies = [
            each for each in self.plugins if isinstance(each, EnforcePodGroupPolicy)
        ]
        self._networks = [each for each in self.plugins if isinstance(each, PodNetwork)]
        self._builders = [each for each in self.plugins if isinstance(each, ComponentBuilder)]
        self._validations = [each for each in self.plugins if isinstance(each, CustomValidation)]
        self._watching = [each for each in self.plugins if isinstance(each, WatchExtension)]
        self._status = _only_status(self.plugins)

    def missing_for(self, info: Info) -> str | None:
        """Return the name of a disabled plugin that the runtime's policies need, else None."""
        groups = info.pod_group_policy
        needed = {
            "Torch": isinstance(info.policy, TorchPolicy),
            "MPI": isinstance(info.policy, MPIPolicy),
            "CoScheduling": groups is not None and groups.coscheduling is not None,
            "Volcano": groups is not None and groups.volcano is not None,
        }
        running = {plugin.name for plugin in self.plugins}
        missing = (name for name, is_needed in needed.items() if is_needed and name not in running)
        return next(missing, None)

    def plan(self, info: Info, job: TrainJob) -> list[PlannedObject]:
        """Run the planning phases and return the objects in the order to apply them.

        Raises PlanningError.
        """
        missing = self.missing_for(info)
        if missing is not None:
            detail = f"the plugin {missing}, which the runtime's policy needs, is switched off"
            error = forbidden("spec", detail, rule=Rule.PLUGIN_OFF)
            raise InvalidRuntimeError(subject_of(info.runtime), error)
        self.enforce(info, job)
        return self.build(info, job)

    def enforce(self, info: Info, job: TrainJob) -> None:
        """Run phases 1 to 3, which change `info` in place."""
        with _AnsweringFor() as answering:
            for ml_policy in answering.turns(self._ml_policies, info.trace):
                ml_policy.enforce_ml_policy(info, job)
            for group_policy in answering.turns(self._group_policies, info.trace):
                group_policy.enforce_pod_group_policy(info, job)
            for network in answering.turns(self._networks, info.trace):
                network.identify_pod_network(info, job)

    def build(self, info: Info, job: TrainJob) -> list[PlannedObject]:
        """Run phase 4: return the objects in the order to apply them."""
        planned: list[PlannedObject] = []
        with _AnsweringFor() as answering:
            for builder in answering.turns(self._builders, info.trace):
                made = _all(PlannedObject, builder.build_components(info, job))
                info.trace.made(made)
                planned += made
        return sorted(planned, key=apply_order)

    def validate(self, info: Info, old: TrainJob | None, new: TrainJob) -> ValidationResult:
        """Return the errors and warnings of all CustomValidation plugins."""
        findings = ValidationResult()
        with _AnsweringFor() as answering:
            for validation in answering.turns(self._validations):
                findings.add(_found(validation, info, old, new))
        return findings

    def observe(self, job: TrainJob, existing: ClusterReader) -> Observed | None:
        """Run phase 5: return the observed status; None if there is nothing to observe yet."""
        with _AnsweringFor(self._status):
            return self._status.observe_status(job, existing)

    def watches(self) -> list[Watch]:
        """Return the watches that plugins declare."""
        watches: list[Watch] = []
        with _AnsweringFor() as answering:
            for each in answering.turns(self._watching):
                watches += _all(Watch, each.declare_watches())
        return watches


def in_one_line(error: BaseException) -> str:
    """Return the type and text of the exception on one line, shortened if too long."""
    text = _INPUT_VALUE.sub("input_value=(omitted)", " ".join(str(error)[:LONGEST_TEXT].split()))
    if len(text) > LONGEST_REASON:
        text = f"{text[:LONGEST_REASON]}…"
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _refuse_namesakes(plugins: Sequence[Plugin]) -> None:
    seen: set[str] = set()
    for plugin in plugins:
        if plugin.name in seen:
            raise FrameworkError(f"there are two plugins named {plugin.name}")
        seen.add(plugin.name)


def _only_status(plugins: Sequence[Plugin]) -> TrainJobStatus:
    found = [each for each in plugins if isinstance(each, TrainJobStatus)]
    if not found:
        raise FrameworkError("no plugin tells the status of TrainJobs: JobSet is the one that does")
    if len(found) > 1:
        who = ", ".join(plugin.name for plugin in found)
        raise FrameworkError(f"too many TrainJobStatus plugins are registered: {who}")
    return found[0]


def _found(
    validation: CustomValidation, info: Info, old: TrainJob | None, new: TrainJob
) -> ValidationResult:
    """Return the plugin's result; an invalid-document error that it raises is part of it."""
    try:
        found = validation.validate_train_job(info, old, new)
        if not found.errors and not found.warnings:
            return found  # the common case: nothing to check
        return ValidationResult(_all(FieldError, found.errors), _all(str, found.warnings))
    except InvalidTrainJobError as error:
        return ValidationResult([*error.errors])
    except InvalidRuntimeError as error:
        reference, rule = new.spec.runtime_ref.dump(), Rule.RUNTIME_UNUSABLE
        return ValidationResult([invalid("spec.runtimeRef", reference, str(error), rule=rule)])


def _all(kind: type[T], given: Iterable[object]) -> list[T]:
    """Check the type of what a plugin returned; third-party code may not be type-checked."""
    checked = []
    for each in given:
        if not isinstance(each, kind):
            raise TypeError(f"it gave a {type(each).__name__} instead of a {kind.__name__}")
        checked.append(each)
    return checked


class _AnsweringFor:
    """Context manager that adds the name of the failing plugin to its exception.

    It is a class, and one instance serves all plugins of a phase, because `contextmanager` or one
    instance per plugin would take longer than most plugins.
    """

    __slots__ = ("_plugin",)

    def __init__(self, plugin: Plugin | None = None) -> None:
        self._plugin = plugin

    def turns(self, plugins: Iterable[P], trace: Trace = NO_TRACE) -> Iterator[P]:
        """Yield the plugins; each is responsible for errors until the next one is requested."""
        for plugin in plugins:
            self._plugin = plugin
            if trace is NO_TRACE:
                yield plugin
            else:
                with trace.turn(plugin.name):
                    yield plugin

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, error: BaseException | None, _where: object
    ) -> None:
        if error is None or self._plugin is None:
            return
        # SystemExit is included so that a plugin cannot end the process.
        if isinstance(error, Exception | SystemExit) and not isinstance(error, PlanningError):
            who = self._plugin.name
            raise PluginFailedError(f"plugin {who} failed: {in_one_line(error)}") from error
