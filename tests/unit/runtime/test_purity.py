"""Planning reads from a cache that others read from, too: it changes nothing that it is given."""

from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any, TypeVar

import pytest

from kftrainer.api.resources import CLUSTER_TRAINING_RUNTIMES
from kftrainer.api.trainingruntime import ClusterTrainingRuntime
from kftrainer.api.trainjob import TrainJob
from kftrainer.kube.objects.resource import Manifest, ObjectKey, Resource
from kftrainer.runtime.cluster_reader import GivenObjects
from kftrainer.runtime.framework.plugin_loader import load_framework
from kftrainer.runtime.runtimes import Runtimes
from tests.support.objects import Object, replicated_job, train_job
from tests.support.runtimes import SHIPPED, cluster_runtime

T = TypeVar("T")
PLAIN = cluster_runtime("plain", "plain", {}, replicatedJobs=[replicated_job()])
PLAIN["spec"]["template"]["metadata"] = {"labels": {"a": "b"}, "annotations": {"c": "d"}}
LABELS = {"team": "vision"}
GANGS: dict[str, Object] = {
    "alone": {},
    "coscheduling": {"podGroupPolicy": {"coscheduling": {"scheduleTimeoutSeconds": 60}}},
    "volcano": {"podGroupPolicy": {"volcano": {"networkTopology": {"mode": "hard"}}}},
}
OVERRIDE = {
    "targetJobs": [{"name": "node"}],
    "metadata": {"labels": dict(LABELS), "annotations": dict(LABELS)},
    "spec": {
        "nodeSelector": {"disk": "fast"},
        "tolerations": [{"key": "gpu", "operator": "Exists"}],
        "volumes": [{"name": "data", "emptyDir": {}}],
        "containers": [
            {"name": "node", "volumeMounts": [{"name": "data", "mountPath": "/data"}]},
        ],
    },
}
JOBS: dict[str, Object] = {
    "bare": {},
    "full": {
        "labels": dict(LABELS),
        "annotations": dict(LABELS),
        "trainer": {
            "image": "mine",
            "numNodes": 2,
            "env": [
                {"name": "SEED", "value": "7"},
                {"name": "POD", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
                {"name": "EMPTY"},
            ],
            "resourcesPerNode": {
                "limits": {"nvidia.com/gpu": 2},
                "requests": {"cpu": "500m", "memory": "1024Mi"},
            },
        },
    },
    "overridden": {"suspend": True, "podTemplateOverrides": [OVERRIDE, OVERRIDE]},
}


class RecordedReads(GivenObjects):
    """Gives the same runtime each time, as a cache may: a change to it would stay."""

    def __init__(self, runtime: Object, *others: Manifest) -> None:
        super().__init__([runtime, *others])
        self.runtime = ClusterTrainingRuntime.parse(runtime)

    def get(self, resource: Resource[T], key: ObjectKey) -> T | None:
        if resource == CLUSTER_TRAINING_RUNTIMES:
            return self.runtime  # type: ignore[return-value]
        return super().get(resource, key)


@dataclass
class Case:
    """What planning is given: documents, and what was read from them."""

    document: Object
    runtime: Object
    applied: list[Object] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.job = TrainJob.parse(self.document)
        self.existing = RecordedReads(self.runtime, *self.applied)

    def all_values(self) -> list[Any]:
        return deepcopy(
            [self.document, self.runtime, self.applied, self.job, self.existing.runtime]
        )

    def plan(self) -> list[Any]:
        """All calls of the planning API for one TrainJob."""
        runtime = Runtimes(load_framework()).of(self.job)
        return [
            [each.manifest for each in runtime.new_objects(self.job, self.existing)],
            runtime.validate_objects(self.job, self.job, self.existing),
            runtime.train_job_status(self.job, self.existing),
        ]


@pytest.fixture(params=[*SHIPPED, PLAIN], ids=lambda each: each["metadata"]["name"])
def runtime(request: pytest.FixtureRequest) -> Object:
    return request.param


@pytest.fixture(params=list(product(GANGS, JOBS)), ids="-".join)
def case(request: pytest.FixtureRequest, runtime: Object) -> Case:
    gang, job = request.param
    document = train_job(runtimeRef={"name": runtime["metadata"]["name"]}, **JOBS[job])
    document["metadata"] |= {"namespace": "team", "uid": "1", "labels": LABELS}
    return Case(*deepcopy([document, {**runtime, "spec": {**runtime["spec"], **GANGS[gang]}}]))


def test_planning_does_not_modify_its_input(case: Case) -> None:
    before = case.all_values()
    case.plan()
    assert case.all_values() == before


def test_planning_again_does_not_modify_earlier_plans(case: Case) -> None:
    again = replace(case, applied=deepcopy(case.plan()[0]))
    before = again.all_values()
    again.plan()
    assert again.all_values() == before


def test_planning_is_deterministic(case: Case) -> None:
    first = deepcopy(case.plan())
    assert case.plan() == first


def parts(value: Any) -> Iterator[int]:
    """Which objects and lists there are in it."""
    if isinstance(value, dict | list):
        yield id(value)
        for inner in value.values() if isinstance(value, dict) else value:
            yield from parts(inner)


def test_modifying_a_plan_does_not_modify_the_input(case: Case) -> None:
    objects, *_ = case.plan()
    given = {*parts([case.document, case.job.dump()]), *parts(case.existing.runtime.dump())}
    assert given.isdisjoint(parts(objects))
