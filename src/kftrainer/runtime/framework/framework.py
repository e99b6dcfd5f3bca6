"""Plugin framework: groups plugins by extension point and runs the phases in order."""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Self, TypeVar

from kftrainer.api import names
from kftrainer.api.configuration import DEFAULT, Admission
from kftrainer.api.trainjob import TrainJob
from kftrainer.kube.objects.field_errors import FieldError, ValidationResult, forbidden, invalid
from kftrainer.runtime.cluster_reader import NO_OBJECTS, ClusterReader
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
    NodeLayoutExtension,
    Observed,
    Plugin,
    PodNetwork,
    PolicyExtension,
    RBACExtension,
    RBACRule,
    RuntimeValidation,
    TrainJobStatus,
    Watch,
    WatchExtension,
)
from kftrainer.runtime.framework.policies import Policy
from kftrainer.runtime.info import AnyRuntime, Info
from kftrainer.runtime.planned_object import PlannedObject, apply_order
from kftrainer.runtime.podset import TRAINER_ONLY, NodeLayout
from kftrainer.runtime.template import new_info, subject_of
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
    """Run the phases of planning and validation; within a phase, in the order of `plugins`.

    `disabled` plugins do not run: they only declare which policies cannot be used, and the layout
    of runtimes with these policies.
    """

    def __init__(
        self,
        plugins: Iterable[Plugin],
        *,
        disabled: Iterable[Plugin] = (),
        admission: Admission = DEFAULT.admission,
    ) -> None:
        self.plugins = tuple(plugins)
        self.disabled = tuple(disabled)
        self.admission = admission
        _require_unique_names(self.plugins)
        self._ml_policies = [each for each in self.plugins if isinstance(each, EnforceMLPolicy)]
        self._group_policies = [
            each for each in self.plugins if isinstance(each, EnforcePodGroupPolicy)
        ]
        self._networks = [each for each in self.plugins if isinstance(each, PodNetwork)]
        self._builders = [each for each in self.plugins if isinstance(each, ComponentBuilder)]
        self._validations = [each for each in self.plugins if isinstance(each, CustomValidation)]
        self._runtime_validations = [
            each for each in self.plugins if isinstance(each, RuntimeValidation)
        ]
        self._layouts = [
            each
            for each in (*self.plugins, *self.disabled)
            if isinstance(each, NodeLayoutExtension)
        ]
        self._rbac = [each for each in self.plugins if isinstance(each, RBACExtension)]
        self._watching = [each for each in self.plugins if isinstance(each, WatchExtension)]
        self._status = _only_status(self.plugins)
        self._policies = dict(_declared_policies(self.plugins))
        self._unserved = [*_unserved(self.plugins, self.disabled, self._policies.values())]

    def layout(self, runtime: AnyRuntime) -> NodeLayout:
        """Return which jobs of the runtime train; raises PluginFailedError."""
        with _PluginCalls() as calls:
            for each in calls.each(self._layouts):
                if (found := each.node_layout(runtime)) is not None:
                    return _checked(NodeLayout, found)
        return TRAINER_ONLY

    def new_info(
        self,
        job: TrainJob,
        runtime: AnyRuntime,
        existing: ClusterReader = NO_OBJECTS,
        trace: Trace = NO_TRACE,
    ) -> Info:
        """Return the Info that phase 1 receives; raises PlanningError."""
        return new_info(job, runtime, existing, trace, self.layout(runtime))

    def plan(self, info: Info, job: TrainJob) -> list[PlannedObject]:
        """Run the planning phases and return the objects in the order to apply them.

        Raises PlanningError.
        """
        if self._unserved:  # usually empty
            self._require_plugins(info.runtime)
        self.enforce(info, job)
        return self.build(info, job)

    def _require_plugins(self, runtime: AnyRuntime) -> None:
        """Raise InvalidRuntimeError if the runtime has the policy of a disabled plugin."""
        for name, policy in self._unserved:
            if policy.is_set(runtime):
                detail = f"needs the plugin {name}, which is disabled"
                error = forbidden(policy.path, detail, rule=Rule.PLUGIN_OFF)
                raise InvalidRuntimeError(subject_of(runtime), error)

    def enforce(self, info: Info, job: TrainJob) -> None:
        """Run phases 1 to 3, which change `info` in place."""
        with _PluginCalls() as calls:
            for ml_policy in calls.each(self._ml_policies, info.trace):
                ml_policy.enforce_ml_policy(info, job)
            for group_policy in calls.each(self._group_policies, info.trace):
                group_policy.enforce_pod_group_policy(info, job)
            for network in calls.each(self._networks, info.trace):
                network.identify_pod_network(info, job)

    def build(self, info: Info, job: TrainJob) -> list[PlannedObject]:
        """Run phase 4: return the objects in the order to apply them."""
        planned: list[PlannedObject] = []
        with _PluginCalls() as calls:
            for builder in calls.each(self._builders, info.trace):
                built = _all(PlannedObject, builder.build_components(info, job))
                info.trace.built(built)
                planned += built
        return sorted(planned, key=apply_order)

    def validate(self, info: Info, old: TrainJob | None, new: TrainJob) -> ValidationResult:
        """Return the errors and warnings of all CustomValidation plugins."""
        findings = ValidationResult()
        with _PluginCalls() as calls:
            for validation in calls.each(self._validations):
                findings.add(_found(validation, info, old, new))
        return findings

    def validate_runtime(self, runtime: AnyRuntime) -> ValidationResult:
        """Return the errors of the policies, and the results of RuntimeValidation plugins.

        A plugin that declares a policy validates only the runtimes that have it.
        """
        findings = ValidationResult()
        with _PluginCalls() as calls:
            for plugin in calls.each(each for each in self.plugins if each.name in self._policies):
                findings.add_errors(*self._policies[plugin.name].errors(runtime))
            validations = [
                each
                for each in calls.each(self._runtime_validations)
                if each.name not in self._policies or self._policies[each.name].is_set(runtime)
            ]
        if not validations:
            return findings
        try:
            info = self.new_info(_plain_job(runtime), runtime)
        except InvalidRuntimeError:
            info = None
        with _PluginCalls() as calls:
            for validation in calls.each(validations):
                findings.add(_found_in_runtime(validation, runtime, info))
        return findings

    def observe(self, job: TrainJob, existing: ClusterReader) -> Observed | None:
        """Run phase 5: return the observed status; None if there is nothing to observe yet."""
        with _PluginCalls(self._status):
            return self._status.observe_status(job, existing)

    def watches(self) -> list[Watch]:
        """Return the watches that plugins declare."""
        return _declared(Watch, self._watching, lambda plugin: plugin.declare_watches())

    def rbac_rules(self) -> list[RBACRule]:
        """Return the permissions that plugins declare."""
        return _declared(RBACRule, self._rbac, lambda plugin: plugin.declare_rbac_rules())


def in_one_line(error: BaseException) -> str:
    """Return the type and text of the exception on one line, shortened if too long."""
    text = _INPUT_VALUE.sub("input_value=(omitted)", " ".join(str(error)[:LONGEST_TEXT].split()))
    if len(text) > LONGEST_REASON:
        text = f"{text[:LONGEST_REASON]}…"
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _require_unique_names(plugins: Sequence[Plugin]) -> None:
    seen: set[str] = set()
    for plugin in plugins:
        if plugin.name in seen:
            raise FrameworkError(f"two plugins are named {plugin.name}")
        seen.add(plugin.name)


def _only_status(plugins: Sequence[Plugin]) -> TrainJobStatus:
    found = [each for each in plugins if isinstance(each, TrainJobStatus)]
    if not found:
        raise FrameworkError(
            "no plugin implements TrainJobStatus, which observes the status of TrainJobs"
        )
    if len(found) > 1:
        names_found = ", ".join(plugin.name for plugin in found)
        raise FrameworkError(f"too many TrainJobStatus plugins are registered: {names_found}")
    return found[0]


def _declared_policies(plugins: Iterable[Plugin]) -> Iterator[tuple[str, Policy[Any]]]:
    """Yield the names of the plugins that declare a policy, and the policies."""
    with _PluginCalls() as calls:
        for each in calls.each(each for each in plugins if isinstance(each, PolicyExtension)):
            policy: Policy[Any] = each.declare_policy()
            yield each.name, _checked(Policy, policy)  # type: ignore[type-abstract]


def _unserved(
    plugins: Sequence[Plugin], disabled: Sequence[Plugin], served: Iterable[Policy[Any]]
) -> Iterator[tuple[str, Policy[Any]]]:
    """Yield the names of disabled plugins whose policies no plugin serves, and these policies.

    A plugin of the same name, or with the same policy, replaces a disabled one.
    """
    running, paths = {each.name for each in plugins}, {each.path for each in served}
    for name, policy in _declared_policies(disabled):
        if name not in running and policy.path not in paths:
            yield name, policy


def _plain_job(runtime: AnyRuntime) -> TrainJob:
    """Return a TrainJob that sets only its runtimeRef."""
    reference = {"apiGroup": names.GROUP, "kind": runtime.kind, "name": "any"}
    return TrainJob.parse(
        {
            "apiVersion": names.API_VERSION,
            "kind": names.TRAIN_JOB,
            "metadata": {"name": "any"},
            "spec": {"runtimeRef": reference},
        }
    )


def _found_in_runtime(
    validation: RuntimeValidation, runtime: AnyRuntime, info: Info | None
) -> ValidationResult:
    """Return the plugin's result; an invalid-runtime error that it raises is part of it."""
    try:
        found = validation.validate_runtime(runtime, info)
        return ValidationResult(_all(FieldError, found.errors), _all(str, found.warnings))
    except InvalidRuntimeError as error:
        return ValidationResult([*error.errors])


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


def _declared(
    kind: type[T], plugins: Iterable[P], declare: Callable[[P], Iterable[object]]
) -> list[T]:
    """Return what all these plugins declare."""
    declared: list[T] = []
    with _PluginCalls() as calls:
        for each in calls.each(plugins):
            declared += _all(kind, declare(each))
    return declared


def _all(kind: type[T], given: Iterable[object]) -> list[T]:
    """Check the type of what a plugin returned; third-party code may not be type-checked."""
    return [_checked(kind, each) for each in given]


def _checked(kind: type[T], given: object) -> T:
    if not isinstance(given, kind):
        raise TypeError(f"it returned a {type(given).__name__} instead of a {kind.__name__}")
    return given


class _PluginCalls:
    """Context manager that adds the name of the failing plugin to its exception.

    It is a class, and one instance serves all plugins of a phase, because `contextmanager` or one
    instance per plugin would take longer than most plugins.
    """

    __slots__ = ("_plugin",)

    def __init__(self, plugin: Plugin | None = None) -> None:
        self._plugin = plugin

    def each(self, plugins: Iterable[P], trace: Trace = NO_TRACE) -> Iterator[P]:
        """Yield the plugins; each is responsible for errors until the next one is requested."""
        for plugin in plugins:
            self._plugin = plugin
            if trace is NO_TRACE:
                yield plugin
            else:
                with trace.changes_of(plugin.name):
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
            name = self._plugin.name
            raise PluginFailedError(f"plugin {name} failed: {in_one_line(error)}") from error
