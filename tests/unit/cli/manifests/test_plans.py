"""`render` with third-party plugins and with malformed documents."""

import copy
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kftrainer.api.resources import CONFIG_MAPS, SECRETS
from kftrainer.api.trainjob import TrainJob
from kftrainer.cli.manifests.documents import Document, Documents, Place
from kftrainer.cli.manifests.identification import NO_UID
from kftrainer.cli.manifests.pipeline import Outcome, process
from kftrainer.cli.manifests.plans import PlanOptions
from kftrainer.kube.objects.field_errors import invalid
from kftrainer.kube.objects.resource import Manifest, ObjectKey, Resource, unstructured
from kftrainer.runtime.errors import InvalidTrainJobError
from kftrainer.runtime.framework.extension_points import ComponentBuilder, Watch, WatchExtension
from kftrainer.runtime.framework.framework import Framework
from kftrainer.runtime.framework.plugin_loader import load_framework
from kftrainer.runtime.info import Info
from kftrainer.runtime.object_builders import owned
from kftrainer.runtime.planned_object import PlannedObject
from kftrainer.runtime.plugins.jobset import JobSet
from tests.support.objects import Object, replicated_job, runtime, train_job

HEAD = "f:2: "


class CallbackPlugin(ComponentBuilder):
    """Builds the objects that it is given."""

    name: ClassVar[str] = "Maker"

    def __init__(self, make: Callable[[Info, TrainJob], PlannedObject]) -> None:
        self._make = make

    def build_components(self, info: Info, job: TrainJob) -> Sequence[PlannedObject]:
        return [self._make(info, job)]


def planned_by(*plugins: Any, documents: Sequence[Any] = (), **options: bool) -> Outcome:
    plain = runtime("torch-distributed", "ClusterTrainingRuntime", mlPolicy={"numNodes": 1})
    given = [plain, train_job(), *documents]
    read = [Document(Place("f", line), each) for line, each in enumerate(given, start=1)]
    framework = Framework([JobSet(), *plugins])
    return process(Documents(read), framework, PlanOptions(**options))


def problems_of(outcome: Outcome) -> list[str]:
    return [str(problem) for problem in outcome.problems if problem.severity == "error"]


def secret(generate: Callable[[], Manifest] | None = None) -> CallbackPlugin:
    def make(_info: Info, job: TrainJob) -> PlannedObject:
        manifest = owned(SECRETS, job) | {"data": {"a": "eA=="}, "stringData": {"b": "y"}}
        return PlannedObject(SECRETS, manifest, generate, generated_keys=("c",) if generate else ())

    return CallbackPlugin(make)


def data_of(outcome: Outcome) -> list[dict[str, str]]:
    [plan] = outcome.plans
    return [plan.manifests[0][field] for field in ("data", "stringData")]


def test_secret_data_is_not_shown() -> None:
    assert data_of(planned_by(secret())) == [{"a": "<redacted>"}, {"b": "<redacted>"}]


def test_secret_data_is_shown_on_request() -> None:
    assert data_of(planned_by(secret(), show_secrets=True)) == [{"a": "eA=="}, {"b": "y"}]


def test_new_keys_are_not_generated_only_to_be_redacted() -> None:
    def generate() -> Manifest:
        raise AssertionError

    assert data_of(planned_by(secret(generate)))[0] == {"a": "<redacted>", "c": "<redacted>"}


def test_data_of_other_kinds_is_not_redacted() -> None:
    def make(_info: Info, job: TrainJob) -> PlannedObject:
        return PlannedObject(CONFIG_MAPS, owned(CONFIG_MAPS, job) | {"data": {"a": "x"}})

    [plan] = planned_by(CallbackPlugin(make)).plans
    assert plan.manifests[0]["data"] == {"a": "x"}


def test_common_fields_are_printed_first() -> None:
    def make(_info: Info, job: TrainJob) -> PlannedObject:
        return PlannedObject(CONFIG_MAPS, {"data": {}, "binaryData": {}, **owned(CONFIG_MAPS, job)})

    [plan] = planned_by(CallbackPlugin(make)).plans
    assert list(plan.manifests[0]) == ["apiVersion", "kind", "metadata", "data", "binaryData"]


@pytest.mark.parametrize(
    ("body", "messages"),
    [
        ({}, ["ConfigMap job: built by Maker"]),
        (
            {"data": {"a": "x", "b": "y"}},
            [
                'ConfigMap job: data[a] = "x"  Maker ← spec.a',
                'ConfigMap job: data[b] = "y"  Maker',
            ],
        ),
    ],
    ids=["a name and no more", "data"],
)
def test_every_object_is_explained(body: Object, messages: list[str]) -> None:
    def make(_info: Info, job: TrainJob) -> PlannedObject:
        return PlannedObject(
            CONFIG_MAPS, owned(CONFIG_MAPS, job) | body, sources={"data[a]": "spec.a"}
        )

    [plan] = planned_by(CallbackPlugin(make), explain=True).plans
    assert [line for line in plan.explained() if line.startswith("ConfigMap")] == messages


def test_identical_problems_are_reported_once() -> None:
    override = {"targetJobs": [{"name": "node"}] * 2, "spec": {"containers": [{"name": "x"}]}}
    job = train_job("other", podTemplateOverrides=[override])
    [problem] = problems_of(planned_by(documents=[job]))
    assert problem.startswith("f:3: spec.podTemplateOverrides[0].spec.")


def _failing_generator() -> Manifest:
    raise RuntimeError("no\nentropy")


def _crash(_info: Info, _job: TrainJob) -> PlannedObject:
    raise KeyError("line\nline")


def _not_json(_info: Info, job: TrainJob) -> PlannedObject:
    return PlannedObject(CONFIG_MAPS, owned(CONFIG_MAPS, job) | {"data": object()})


def _headless(_info: Info, _job: TrainJob) -> PlannedObject:
    return PlannedObject(CONFIG_MAPS, {"data": {}})


def _refuse(_info: Info, _job: TrainJob) -> PlannedObject:
    raise InvalidTrainJobError("TrainJob", invalid("spec.x", 1, "is\nno good"))


@pytest.mark.parametrize(
    ("plugin", "message"),
    [
        (CallbackPlugin(_refuse), r"spec.x: Invalid value: 1: is\nno good"),
        (CallbackPlugin(_crash), "Internal error: plugin Maker failed: "),
        (
            CallbackPlugin(_not_json),
            "Internal error: failed to print a ConfigMap: TypeError(",
        ),
        (
            CallbackPlugin(_headless),
            "Internal error: failed to print a ConfigMap: KeyError('apiVersion')",
        ),
        (
            secret(_failing_generator),
            "Internal error: failed to print a Secret: RuntimeError(",
        ),
    ],
    ids=["error of two lines", "crash", "not JSON", "headless", "generate"],
)
def test_plugin_exception_is_reported_at_the_train_job(
    plugin: CallbackPlugin, message: str
) -> None:
    outcome = planned_by(plugin, show_secrets=True)
    [problem] = problems_of(outcome)
    assert problem.startswith(f"{HEAD}{message}")
    assert outcome.plans == []


QUOTAS: Resource[Manifest] = Resource(
    "example.com", "v1", "Quota", "quotas", namespaced=True, decode=unstructured
)


class Reader(WatchExtension, ComponentBuilder):
    """Needs a kind that no other plugin uses."""

    name: ClassVar[str] = "Reader"

    def declare_watches(self) -> Sequence[Watch]:
        return (Watch(QUOTAS, map_func=lambda _quota, _existing: ()),)

    def build_components(self, info: Info, job: TrainJob) -> Sequence[PlannedObject]:
        found = info.existing.get(QUOTAS, ObjectKey("default", "quota"))
        assert found is not None
        return ()


def test_kinds_that_plugins_watch_are_known() -> None:
    quota = {"apiVersion": "example.com/v1", "kind": "Quota", "metadata": {"name": "quota"}}
    assert problems_of(planned_by(Reader(), documents=[quota])) == []


# ---- malformed documents

FRAMEWORK = load_framework()
CONTAINER = {
    "env": [
        {"name": "A", "value": "1"},
        {"name": "B", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
    ],
    "resources": {"limits": {"cpu": "1", "nvidia.com/gpu": 2}},
    "ports": [{"containerPort": 1}],
    "volumeMounts": [{"name": "v", "mountPath": "/v"}],
    "command": ["tune", "run", "--config", "llama3_2/1B_full"],
}
DEPENDENCY = {"name": "dataset-initializer", "status": "Complete"}


def of_class(runtime_class: str, job: Object) -> Object:
    job["template"]["spec"]["template"]["spec"]["runtimeClassName"] = runtime_class
    return job


def own_metadata() -> Object:
    return {"name": "job", "ownerReferences": [{"controller": True, "uid": NO_UID}]}


VALID = [
    runtime(
        "torch-distributed",
        "ClusterTrainingRuntime",
        [
            replicated_job("dataset-initializer", "dataset-initializer"),
            of_class("vm", replicated_job("node", **CONTAINER) | {"dependsOn": [DEPENDENCY]}),
        ],
        podGroupPolicy={"coscheduling": {}},
    ),
    train_job(
        initializer={"dataset": {"storageUri": "hf://x", "secretRef": {"name": "s"}}},
        trainer={
            **{key: CONTAINER[key] for key in ("env", "command")},
            "numNodes": 2,
            "resourceClaimsPerNode": [{"name": "gpu", "resourceClaimTemplateName": "gpus"}],
        },
        labels={"a": "b"},
        podTemplateOverrides=[
            {
                "targetJobs": [{"name": "node"}],
                "metadata": {"labels": {"a": "b"}},
                "spec": {
                    "nodeSelector": {"a": "b"},
                    "containers": [
                        {"name": "node", "volumeMounts": [{"name": "v", "mountPath": "/w"}]}
                    ],
                    "volumes": [{"name": "v", "emptyDir": {}}],
                },
            }
        ],
    ),
    {
        "apiVersion": "v1",
        "kind": "LimitRange",
        "metadata": {"name": "limits"},
        "spec": {"limits": [{"type": "Container", "default": {"cpu": "1"}, "min": {"cpu": 1}}]},
    },
    {
        "apiVersion": "node.k8s.io/v1",
        "kind": "RuntimeClass",
        "metadata": {"name": "vm"},
        "overhead": {"podFixed": {"cpu": "250m"}},
    },
    {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": own_metadata(),
        "spec": {"suspend": True},
        "status": {
            "conditions": [{"type": "Suspended", "status": "True"}],
            "replicatedJobsStatus": [{"name": "node", "active": 1}],
        },
    },
    {"apiVersion": "v1", "kind": "Secret", "metadata": own_metadata()},
    {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": "gpus"},
        "spec": {
            "spec": {
                "devices": {
                    "requests": [
                        {"name": "a", "exactly": {"deviceClassName": "gpu.x", "count": 2}},
                        {"name": "b", "firstAvailable": [{"name": "gpu", "count": 1}]},
                    ]
                }
            }
        },
    },
]


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if path:
        yield path
    if isinstance(value, dict | list):
        for key, each in value.items() if isinstance(value, dict) else enumerate(value):
            yield from places(each, (*path, key))


SCALARS = (None, True, 0, -1, 2**31, 1.5, "", "x", "nvidia.com/gpu")
LISTS = ([], [None], ["x"], [[]], [{}], [{"name": "node"}, {"name": "node"}])
OBJECTS = ({}, {"name": "x"}, {"a": None}, {"$patch": "delete"})
MALFORMED = st.sampled_from([*SCALARS, *LISTS, *OBJECTS])
PLACES = [place for place in places(VALID) if len(place) > 1]


def test_valid_documents_are_accepted() -> None:
    outcome = process(documents_of(VALID), FRAMEWORK, PlanOptions())
    assert (problems_of(outcome), len(outcome.plans)) == ([], 1)


def documents_of(contents: list[Object]) -> Documents:
    return Documents([Document(Place("f", line), each) for line, each in enumerate(contents)])


@given(st.lists(st.tuples(st.sampled_from(PLACES), MALFORMED), min_size=1, max_size=2))
def test_no_document_causes_an_internal_error(changes: list[tuple[tuple[Any, ...], Any]]) -> None:
    documents = copy.deepcopy(VALID)
    for place, malformed in changes:
        holder: Any = documents
        for step in place[:-1]:
            holder = holder[step] if _has(holder, step) else None
        if _has(holder, place[-1]):
            holder[place[-1]] = copy.deepcopy(malformed)  # the next change may be in it
    outcome = process(documents_of(documents), FRAMEWORK, PlanOptions())
    assert not [each for each in problems_of(outcome) if "failed" in each]


def _has(holder: Any, step: Any) -> bool:
    if isinstance(holder, dict):
        return step in holder
    return isinstance(holder, list) and isinstance(step, int) and step < len(holder)
