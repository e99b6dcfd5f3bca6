"""The framework: phases in their order, plugins in theirs, and nobody's documents changed."""

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
    Observed,
    Plugin,
    PodNetwork,
    TrainJobStatus,
    Watch,
    WatchExtension,
)
from kftrainer.runtime.framework.framework import Framework, FrameworkError, in_one_line
from kftrainer.runtime.info import Info
from kftrainer.runtime.planned_object import PlannedObject
from kftrainer.runtime.plugins import PLUGINS
from kftrainer.runtime.template import new_info
from tests.support.objects import runtime, train_job

JOB = TrainJob.parse(train_job())
RUNTIME = TrainingRuntime.parse(runtime())
SERVICES = Resource("", "v1", "Service", "services", namespaced=True, decode=unstructured)


class Recorder:
    """Tells on a list what it is asked to do, and does `act` when it is."""

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
    WatchExtension,
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

    def declare_watches(self) -> Sequence[Watch]:
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
    "watches": lambda framework: framework.watches(),
}


def call_everything(whole: Framework) -> None:
    for call in CALLS.values():
        call(whole)


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
    ("call", "method"), [("validate", "validate_train_job"), ("watches", "declare_watches")]
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


each_phase = pytest.mark.parametrize("phase", EXTENSION_POINTS, ids=lambda phase: phase.__name__)


@each_phase
def test_a_plugin_is_asked_for_what_it_implements_and_nothing_else(phase: type) -> None:
    asked: list[int] = []

    def answer(*arguments: object) -> Any:
        asked.append(len(arguments))
        return ValidationResult() if phase is CustomValidation else ()

    call_everything(only(phase, answer))
    assert len(asked) == 1


def test_objects_come_in_the_order_of_applying_and_else_in_that_of_plugins() -> None:
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


def test_findings_of_all_plugins_are_told_each_once() -> None:
    first, second = required("spec.a"), required("spec.b")
    one = Planner("one", [], lambda: ValidationResult([first], ["slow"]))
    other = Planner("other", [], lambda: ValidationResult([second, first], ["slow", "old"]))
    found = framework(one, other).validate(info(), None, JOB)
    assert found == ValidationResult([first, second], ["slow", "old"])


def test_the_status_is_what_the_status_plugin_sees() -> None:
    seen = Observed()
    assert Framework([Status("status", [], lambda: seen)]).observe(JOB, NO_OBJECTS) is seen


def test_all_watches_are_told() -> None:
    one = Planner("one", [], lambda: [Watch(JOB_SETS)])
    other = Planner("other", [], lambda: [Watch(SECRETS)])
    assert framework(one, other).watches() == [Watch(JOB_SETS), Watch(SECRETS)]


def test_a_framework_without_a_status_plugin_is_refused() -> None:
    with pytest.raises(FrameworkError, match="no plugin tells the status of TrainJobs"):
        Framework([Planner("a", [])])


def test_a_second_status_plugin_is_refused() -> None:
    with pytest.raises(FrameworkError) as raised:
        Framework([Status("a", []), Planner("b", []), Status("c", [])])
    assert str(raised.value) == "too many TrainJobStatus plugins are registered: a, c"


def test_two_plugins_of_one_name_are_refused() -> None:
    with pytest.raises(FrameworkError, match="there are two plugins named a"):
        framework(Planner("a", []), Planner("b", []), Planner("a", []))


def raising(error: BaseException) -> Framework:
    def act() -> Any:
        raise error

    return Framework([Planner("bad", [], act), Status("bad status", [], act)])


@each_phase
@pytest.mark.parametrize(
    ("error", "told"),
    [
        (KeyError("x"), "KeyError: 'x'"),
        (RuntimeError("one\n  two"), "RuntimeError: one two"),
        (AssertionError(), "AssertionError"),
        (SystemExit(3), "SystemExit: 3"),
    ],
    ids=repr,
)
def test_a_failure_bears_the_name_of_its_plugin(
    phase: type, error: BaseException, told: str
) -> None:
    def answer(*_: object) -> Any:
        raise error

    whole = only(phase, answer)
    with pytest.raises(PluginFailedError) as raised:
        call_everything(whole)
    assert str(raised.value) == f"plugin only failed: {told}"
    assert raised.value.__cause__ is error


@each_call
def test_an_interrupt_is_not_the_plugins_fault(call: Callable[[Framework], Any]) -> None:
    with pytest.raises(KeyboardInterrupt):
        call(raising(KeyboardInterrupt()))


@pytest.mark.parametrize("call", ["enforce", "build", "observe"])
@pytest.mark.parametrize("kind", [InvalidTrainJobError, InvalidRuntimeError])
def test_a_mistake_in_a_document_is_not_the_plugins_fault(
    call: str, kind: type[InvalidTrainJobError]
) -> None:
    error = kind("TrainJob job", required("spec.a"))
    with pytest.raises(PlanningError) as raised:
        CALLS[call](raising(error))
    assert raised.value is error


def test_a_mistake_that_a_validation_raises_is_a_finding_beside_the_others() -> None:
    wrong = [required("spec.a"), forbidden("spec.b", "never")]

    def act() -> Any:
        raise InvalidTrainJobError("TrainJob job", *wrong)

    other = Planner("other", [], lambda: ValidationResult([required("spec.c")]))
    found = framework(Planner("one", [], act), other).validate(info(), None, JOB)
    assert found == ValidationResult([*wrong, required("spec.c")])


def test_a_mistake_in_the_runtime_is_a_finding_at_the_reference_to_it() -> None:
    error = InvalidRuntimeError("TrainingRuntime runtime", required("spec.a"))
    reference = {"name": "torch-distributed"}
    told = invalid("spec.runtimeRef", reference, "TrainingRuntime runtime: spec.a: Required value")
    assert raising(error).validate(info(), None, JOB) == ValidationResult([told])


@pytest.mark.parametrize(
    ("call", "told"),
    [
        ("build", "it gave a dict instead of a PlannedObject"),
        ("watches", "it gave a dict instead of a Watch"),
    ],
)
def test_a_plugin_that_gives_something_else_fails_by_name(call: str, told: str) -> None:
    with pytest.raises(PluginFailedError) as raised:
        CALLS[call](framework(Planner("bad", [], lambda: [{"kind": "ConfigMap"}])))
    assert str(raised.value) == f"plugin bad failed: TypeError: {told}"


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
