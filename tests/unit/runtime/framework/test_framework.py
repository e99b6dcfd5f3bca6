"""The framework: order of phases and plugins, and unchanged input documents."""

import inspect
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import pytest
from pydantic import BaseModel, ValidationError

from kftrainer.api.resources import CONFIG_MAPS, JOB_SETS, SECRETS, VOLCANO_POD_GROUPS
from kftrainer.api.trainingruntime import TrainingRuntime
from kftrainer.api.trainjob import TrainJob
from kftrainer.kube.objects.field_errors import ValidationResult, forbidden, invalid, required
from kftrainer.kube.objects.resource import Resource, unstructured
from kftrainer.runtime.cluster_reader import NO_OBJECTS, ClusterReader
from kftrainer.runtime.errors import (
    InvalidRuntimeError,
    InvalidTrainJobError,
    PlanningError,
    PluginFailedError,
)
from kftrainer.runtime.framework.extension_points import (
    EXTENSION_POINTS,
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
from kftrainer.runtime.framework.framework import Framework, FrameworkError, in_one_line
from kftrainer.runtime.framework.policies import AnnotationPolicy, PolicyModel
from kftrainer.runtime.info import AnyRuntime, Info
from kftrainer.runtime.planned_object import PlannedObject
from kftrainer.runtime.plugins import PLUGINS
from kftrainer.runtime.podset import TRAINER_ONLY, NodeLayout
from kftrainer.runtime.template import new_info
from tests.support.objects import runtime, train_job

JOB = TrainJob.parse(train_job())
RUNTIME = TrainingRuntime.parse(runtime())
SERVICES = Resource("", "v1", "Service", "services", namespaced=True, decode=unstructured)


class Recorder:
    """Appends each call to a list, and calls `act`."""

    def __init__(self, name: str, log: list[str], act: Callable[[], Any] = lambda: None) -> None:
        self.name = name  # type: ignore[misc]
        self._log, self._act = log, act

    def _report(self, default: Any = None) -> Any:
        self._log.append(f"{self.name}.{inspect.stack()[1].function}")
        return self._act() or default


class Planner(
    Recorder,
    EnforceMLPolicy,
    EnforcePodGroupPolicy,
    PodNetwork,
    ComponentBuilder,
    CustomValidation,
    RuntimeValidation,
    NodeLayoutExtension,
    WatchExtension,
    RBACExtension,
):
    """Is in every phase but the status."""

    name: ClassVar[str]

    def enforce_ml_policy(self, info: Info, job: TrainJob) -> None:
        self._report()

    def enforce_pod_group_policy(self, info: Info, job: TrainJob) -> None:
        self._report()

    def identify_pod_network(self, info: Info, job: TrainJob) -> None:
        self._report()

    def build_components(self, info: Info, job: TrainJob) -> Sequence[PlannedObject]:
        return self._report(())

    def validate_train_job(
        self, info: Info, old: TrainJob | None, new: TrainJob
    ) -> ValidationResult:
        return self._report(ValidationResult())

    def validate_runtime(self, runtime: AnyRuntime, info: Info | None) -> ValidationResult:
        return self._report(ValidationResult())

    def node_layout(self, runtime: AnyRuntime) -> NodeLayout | None:
        return self._report()

    def declare_watches(self) -> Sequence[Watch]:
        return self._report(())

    def declare_rbac_rules(self) -> Sequence[RBACRule]:
        return self._report(())


class Status(Recorder, TrainJobStatus):
    """Is in the one phase that has but one plugin."""

    name: ClassVar[str]

    def observe_status(self, job: TrainJob, existing: ClusterReader) -> Observed | None:
        return self._report()


def framework(*plugins: Plugin) -> Framework:
    return Framework([*plugins, Status("status", [])])


def info() -> Info:
    return new_info(JOB, RUNTIME)


# What the rest of the operator calls, by the phases that run in it.
CALLS: dict[str, Callable[[Framework], Any]] = {
    "enforce": lambda framework: framework.enforce(info(), JOB),
    "build": lambda framework: framework.build(info(), JOB),
    "validate": lambda framework: framework.validate(info(), None, JOB),
    "observe": lambda framework: framework.observe(JOB, NO_OBJECTS),
    "validate_runtime": lambda framework: framework.validate_runtime(RUNTIME),
    "layout": lambda framework: framework.layout(RUNTIME),
    "watches": lambda framework: framework.watches(),
    "rbac_rules": lambda framework: framework.rbac_rules(),
}


def call_all_phases(tested: Framework) -> None:
    for call in CALLS.values():
        call(tested)


each_call = pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)


def test_phases_run_in_their_order_and_plugins_in_theirs() -> None:
    log: list[str] = []
    both = framework(Planner("b", log), Planner("a", log))
    CALLS["enforce"](both)
    CALLS["build"](both)
    assert log == [
        "b.enforce_ml_policy",
        "a.enforce_ml_policy",
        "b.enforce_pod_group_policy",
        "a.enforce_pod_group_policy",
        "b.identify_pod_network",
        "a.identify_pod_network",
        "b.build_components",
        "a.build_components",
    ]


@pytest.mark.parametrize(
    ("call", "method"),
    [
        ("validate", "validate_train_job"),
        ("layout", "node_layout"),
        ("watches", "declare_watches"),
        ("rbac_rules", "declare_rbac_rules"),
    ],
)
def test_outside_of_planning_plugins_run_in_their_order_too(call: str, method: str) -> None:
    log: list[str] = []
    CALLS[call](framework(Planner("b", log), Planner("a", log)))
    assert log == [f"b.{method}", f"a.{method}"]


@pytest.mark.parametrize("plugin", PLUGINS, ids=lambda plugin: plugin.name)
@pytest.mark.parametrize("phase", EXTENSION_POINTS, ids=lambda phase: phase.__name__)
def test_a_plugin_is_in_the_phases_that_it_inherits(plugin: type, phase: type) -> None:
    assert isinstance(plugin(), phase) == (phase in plugin.__mro__)


def only(phase: type, answer: Callable[..., Any]) -> Framework:
    """A framework with a plugin in this one phase, which answers so."""
    [method] = phase.__abstractmethods__  # type: ignore[attr-defined]
    plugin = type("Only", (phase,), {"name": "only", method: answer})()
    return Framework([plugin]) if phase is TrainJobStatus else framework(plugin)


class Greeting(PolicyModel):
    """The policy of a plugin."""

    words: str = "hello"
    max_length: int = 80


GREETING = AnnotationPolicy("acme.com/greeting", Greeting)
ANSWERS: dict[type, Any] = {
    CustomValidation: ValidationResult(),
    RuntimeValidation: ValidationResult(),
    PolicyExtension: GREETING,
    NodeLayoutExtension: None,
}
each_phase = pytest.mark.parametrize("phase", EXTENSION_POINTS, ids=lambda phase: phase.__name__)


@each_phase
def test_plugin_is_called_only_for_its_extension_points(phase: type) -> None:
    calls: list[int] = []

    def answer(*arguments: object) -> Any:
        calls.append(len(arguments))
        return ANSWERS.get(phase, ())

    call_all_phases(only(phase, answer))
    assert len(calls) == 1


def test_objects_are_ordered_by_apply_order_and_then_by_plugin() -> None:
    def builder(name: str, *resources: Resource[Any]) -> Planner:
        return Planner(name, [], lambda: [PlannedObject(each, {"by": name}) for each in resources])

    one = builder("one", JOB_SETS, SERVICES, CONFIG_MAPS)
    other = builder("other", VOLCANO_POD_GROUPS, CONFIG_MAPS, SERVICES, SECRETS)
    built = framework(one, other).build(info(), JOB)
    assert [(planned.resource.kind, planned.manifest["by"]) for planned in built] == [
        ("Secret", "other"),
        ("ConfigMap", "one"),
        ("ConfigMap", "other"),
        ("Service", "one"),
        ("Service", "other"),
        ("PodGroup", "other"),
        ("JobSet", "one"),
    ]


def test_findings_of_all_plugins_are_deduplicated() -> None:
    first, second = required("spec.a"), required("spec.b")
    one = Planner("one", [], lambda: ValidationResult([first], ["slow"]))
    other = Planner("other", [], lambda: ValidationResult([second, first], ["slow", "old"]))
    found = framework(one, other).validate(info(), None, JOB)
    assert found == ValidationResult([first, second], ["slow", "old"])


def test_status_is_taken_from_the_status_plugin() -> None:
    seen = Observed()
    assert Framework([Status("status", [], lambda: seen)]).observe(JOB, NO_OBJECTS) is seen


def test_watches_of_all_plugins_are_returned() -> None:
    one = Planner("one", [], lambda: [Watch(JOB_SETS)])
    other = Planner("other", [], lambda: [Watch(SECRETS)])
    assert framework(one, other).watches() == [Watch(JOB_SETS), Watch(SECRETS)]


def test_a_framework_without_a_status_plugin_is_refused() -> None:
    with pytest.raises(FrameworkError, match="no plugin implements TrainJobStatus"):
        Framework([Planner("a", [])])


def test_a_second_status_plugin_is_refused() -> None:
    with pytest.raises(FrameworkError) as raised:
        Framework([Status("a", []), Planner("b", []), Status("c", [])])
    assert str(raised.value) == "too many TrainJobStatus plugins are registered: a, c"


def test_two_plugins_of_one_name_are_refused() -> None:
    with pytest.raises(FrameworkError, match="two plugins are named a"):
        framework(Planner("a", []), Planner("b", []), Planner("a", []))


def raising(error: BaseException) -> Framework:
    def act() -> Any:
        raise error

    return Framework([Planner("bad", [], act), Status("bad status", [], act)])


@each_phase
@pytest.mark.parametrize(
    ("error", "message"),
    [
        (KeyError("x"), "KeyError: 'x'"),
        (RuntimeError("one\n  two"), "RuntimeError: one two"),
        (AssertionError(), "AssertionError"),
        (SystemExit(3), "SystemExit: 3"),
    ],
    ids=repr,
)
def test_failure_contains_the_name_of_its_plugin(
    phase: type, error: BaseException, message: str
) -> None:
    def answer(*_: object) -> Any:
        raise error

    with pytest.raises(PluginFailedError) as raised:
        call_all_phases(only(phase, answer))
    assert str(raised.value) == f"plugin only failed: {message}"
    assert raised.value.__cause__ is error


@each_call
def test_interrupt_is_not_reported_as_a_plugin_failure(call: Callable[[Framework], Any]) -> None:
    with pytest.raises(KeyboardInterrupt):
        call(raising(KeyboardInterrupt()))


@pytest.mark.parametrize("call", ["enforce", "build", "observe"])
@pytest.mark.parametrize("kind", [InvalidTrainJobError, InvalidRuntimeError])
def test_invalid_document_is_not_reported_as_a_plugin_failure(
    call: str, kind: type[InvalidTrainJobError]
) -> None:
    error = kind("TrainJob job", required("spec.a"))
    with pytest.raises(PlanningError) as raised:
        CALLS[call](raising(error))
    assert raised.value is error


def test_error_raised_by_a_validation_is_one_of_the_findings() -> None:
    wrong = [required("spec.a"), forbidden("spec.b", "never")]

    def act() -> Any:
        raise InvalidTrainJobError("TrainJob job", *wrong)

    other = Planner("other", [], lambda: ValidationResult([required("spec.c")]))
    found = framework(Planner("one", [], act), other).validate(info(), None, JOB)
    assert found == ValidationResult([*wrong, required("spec.c")])


def test_runtime_error_is_a_finding_at_the_runtime_ref() -> None:
    error = InvalidRuntimeError("TrainingRuntime runtime", required("spec.a"))
    reference = {"name": "torch-distributed"}
    reported = invalid(
        "spec.runtimeRef", reference, "TrainingRuntime runtime: spec.a: Required value"
    )
    assert raising(error).validate(info(), None, JOB) == ValidationResult([reported])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ("build", "it returned a dict instead of a PlannedObject"),
        ("watches", "it returned a dict instead of a Watch"),
    ],
)
def test_plugin_that_returns_another_type_fails_with_its_name(call: str, message: str) -> None:
    with pytest.raises(PluginFailedError) as raised:
        CALLS[call](framework(Planner("bad", [], lambda: [{"kind": "ConfigMap"}])))
    assert str(raised.value) == f"plugin bad failed: TypeError: {message}"


@pytest.mark.parametrize(
    ("phase", "call", "message"),
    [
        (NodeLayoutExtension, lambda tested: tested.layout(RUNTIME), "a NodeLayout"),
        (RBACExtension, lambda tested: tested.rbac_rules(), "a RBACRule"),
        (PolicyExtension, lambda _: None, "a Policy"),
    ],
)
def test_declaration_of_a_wrong_type_fails_by_name(
    phase: type, call: Callable[[Framework], object], message: str
) -> None:
    answer = ["node"] if phase is RBACExtension else "node"
    with pytest.raises(PluginFailedError) as raised:
        call(only(phase, lambda *_: answer))
    assert (
        str(raised.value)
        == f"plugin only failed: TypeError: it returned a str instead of {message}"
    )


def greeter(name: str, **methods: Any) -> Any:
    """A plugin with the policy GREETING, and the validation of runtimes."""

    def validate_runtime(_self: Any, runtime: AnyRuntime, info: Info | None) -> ValidationResult:
        return ValidationResult(warnings=[f"{runtime.metadata.name} {info is not None}"])

    bodies = {"declare_policy": lambda _: GREETING, "validate_runtime": validate_runtime}
    bases = (PolicyExtension, RuntimeValidation)
    return type("Greeter", bases, {"name": name, **bodies, **methods})()


def annotated(value: str, **spec: Any) -> TrainingRuntime:
    document = runtime(**spec)
    document["metadata"]["annotations"] = {"acme.com/greeting": value}
    return TrainingRuntime.parse(document)


def test_policy_in_an_annotation_is_parsed() -> None:
    found = GREETING.of(annotated('{"words": "hi", "maxLength": 3}'))
    assert found == Greeting.parse({"words": "hi", "maxLength": 3})
    assert GREETING.of(annotated("{}")) == Greeting()
    assert GREETING.of(RUNTIME) is None


PATH = "metadata.annotations[acme.com/greeting]"


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("hi", '"hi": is not valid JSON: '),
        ("[]", '"[]": must be a JSON object'),
        ('{"words": 7}', r'"{\"words\": 7}": words: must be a string'),
        ('{"maxlength": 7}', r'"{\"maxlength\": 7}": maxlength: is not a known field'),
    ],
)
def test_invalid_policy_in_an_annotation_is_an_error_of_the_runtime(
    value: str, message: str
) -> None:
    [error] = framework(greeter("acme")).validate_runtime(annotated(value)).errors
    assert str(error).startswith(f"{PATH}: Invalid value: {message}")
    with pytest.raises(InvalidRuntimeError) as raised:
        GREETING.of(annotated(value))
    assert raised.value.errors == (error,)


def test_runtime_without_the_policy_is_not_validated() -> None:
    tested = framework(greeter("acme"))
    assert tested.validate_runtime(RUNTIME) == ValidationResult()
    assert tested.validate_runtime(annotated("{}")) == ValidationResult(warnings=["runtime True"])


def test_runtime_that_cannot_be_used_is_validated_without_info() -> None:
    broken = annotated("{}", template={"spec": {"replicatedJobs": []}})
    found = framework(greeter("acme")).validate_runtime(broken)
    assert found == ValidationResult(warnings=["runtime False"])


def test_invalid_runtime_that_a_validation_raises_is_an_error() -> None:
    def validate_runtime(_self: Any, _runtime: AnyRuntime, _info: Info | None) -> ValidationResult:
        raise InvalidRuntimeError("TrainingRuntime runtime", required("spec.a"))

    tested = framework(greeter("acme", validate_runtime=validate_runtime))
    assert tested.validate_runtime(annotated("{}")) == ValidationResult([required("spec.a")])


def test_policy_of_a_disabled_plugin_prevents_planning() -> None:
    tested = Framework([Status("status", [])], disabled=[greeter("acme")])
    with pytest.raises(InvalidRuntimeError) as raised:
        tested.plan(new_info(JOB, annotated("not even valid")), JOB)
    [error] = raised.value.errors
    assert str(error) == f"{PATH}: Forbidden: needs the plugin acme, which is disabled"
    assert tested.plan(info(), JOB) == []


@pytest.mark.parametrize("other", [greeter("other"), Planner("acme", [])], ids=["policy", "name"])
def test_disabled_plugin_is_replaced_by_one_with_its_policy_or_name(other: Plugin) -> None:
    tested = Framework([other, Status("status", [])], disabled=[greeter("acme")])
    assert tested.plan(new_info(JOB, annotated("{}")), JOB) == []


def test_layout_is_that_of_the_first_plugin_that_returns_one() -> None:
    one = Planner("one", [])
    other, third = (Planner(name, [], lambda name=name: NodeLayout(name)) for name in ("b", "c"))
    assert framework(one, other, third).layout(RUNTIME) == NodeLayout("b")
    assert framework(one).layout(RUNTIME) == TRAINER_ONLY


def test_layout_of_a_disabled_plugin_is_known() -> None:
    disabled = Planner("off", [], lambda: NodeLayout("worker"))
    tested = Framework([Status("status", [])], disabled=[disabled])
    assert tested.layout(RUNTIME) == NodeLayout("worker")


@pytest.mark.parametrize("plugin", PLUGINS, ids=lambda plugin: plugin.name)
def test_permissions_of_a_built_in_plugin_include_its_watches(plugin: type) -> None:
    made = plugin()
    watched = (
        {each.resource for each in made.declare_watches()}
        if WatchExtension in plugin.__mro__
        else set()
    )
    rules = made.declare_rbac_rules() if RBACExtension in plugin.__mro__ else ()
    allowed = {each.resource for each in rules if {"list", "watch"} <= {*each.verbs}}
    assert watched <= allowed


class Numbers(BaseModel):
    """A document of a plugin."""

    first: int
    second: list[int]


def test_rejected_values_are_not_in_messages() -> None:
    with pytest.raises(ValidationError) as raised:
        Numbers.model_validate({"first": "hunter2", "second": {"hunter2": "hunter2, x"}})
    message = in_one_line(raised.value)
    assert "hunter2" not in message
    assert "first Input should be a valid integer" in message
    assert "second Input should be a valid list" in message


@pytest.mark.parametrize("length", [500, 501, 50_000])
def test_exception_is_shortened(length: int) -> None:
    assert len(in_one_line(ValueError("x" * length))) == min(513, length + 12)
