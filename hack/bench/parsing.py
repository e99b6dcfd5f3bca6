"""`make bench`: what is claimed to be fast, measured as ratios within one run."""

import sys
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from timeit import Timer
from typing import Any

import orjson
from pydantic import BaseModel

from kftrainer.api.trainingruntime import ClusterTrainingRuntime
from kftrainer.api.trainjob import TrainJob

RUNTIME_SIZE = 200 * 1024
ROUNDS = 7

CONTAINER = {
    "name": "node",
    "image": "example.com/trainer:1",
    "command": ["torchrun", "train.py"],
    "env": [{"name": f"VARIABLE_{n}", "value": "x" * 20} for n in range(40)],
    "resources": {"limits": {"cpu": "8", "memory": "64Gi", "nvidia.com/gpu": "8"}},
    "volumeMounts": [{"name": f"volume-{n}", "mountPath": f"/mnt/{n}"} for n in range(20)],
}
JOB = {
    "name": "node",
    "template": {
        "metadata": {"labels": {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}},
        "spec": {"template": {"spec": {"containers": [CONTAINER]}}},
    },
}
TRAIN_JOB: dict[str, Any] = {
    "apiVersion": "trainer.kubeflow.org/v1alpha1",
    "kind": "TrainJob",
    "metadata": {"name": "job", "namespace": "team", "uid": "0", "labels": {"team": "nlp"}},
    "spec": {
        "runtimeRef": {
            "name": "torch-distributed",
            "apiGroup": "trainer.kubeflow.org",
            "kind": "ClusterTrainingRuntime",
        },
        "suspend": False,
        "managedBy": "trainer.kubeflow.org/trainjob-controller",
        "initializer": {"dataset": {"storageUri": "hf://a/b"}, "model": {"storageUri": "s3://c"}},
        "trainer": {
            "image": "example.com/trainer:2",
            "numNodes": 8,
            "numProcPerNode": 8,
            "command": ["torchrun", "train.py"],
            "env": [{"name": "A", "value": "1"}],
            "resourcesPerNode": {"limits": {"nvidia.com/gpu": "8"}},
        },
        "podTemplateOverrides": [
            {"targetJobs": [{"name": "node"}], "spec": {"serviceAccountName": "trainer"}}
        ],
    },
    "status": {
        "conditions": [
            {
                "type": "Suspended",
                "status": "False",
                "reason": "Resumed",
                "message": "TrainJob is resumed",
                "lastTransitionTime": "2026-01-02T03:04:05Z",
            }
        ],
        "jobsStatus": [
            {"name": "node", "ready": 1, "succeeded": 0, "failed": 0, "active": 1, "suspended": 0}
        ],
    },
}


def large_runtime() -> dict[str, Any]:
    """A runtime whose template makes it as large as a busy platform team would."""
    jobs: list[dict[str, Any]] = []
    runtime = {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "ClusterTrainingRuntime",
        "metadata": {"name": "torch-distributed"},
        "spec": {
            "mlPolicy": {"numNodes": 1, "torch": {"numProcPerNode": "auto"}},
            "podGroupPolicy": {"coscheduling": {"scheduleTimeoutSeconds": 60}},
            "template": {"metadata": {"labels": {"a": "b"}}, "spec": {"replicatedJobs": jobs}},
        },
    }
    while len(orjson.dumps(runtime)) < RUNTIME_SIZE:
        jobs.append({**deepcopy(JOB), "name": f"job-{len(jobs)}"})
    return runtime


def owned_fields(model: BaseModel) -> int:
    """How many fields of the document were given a type of ours."""
    count = 0
    for name in model.model_fields_set:
        value = getattr(model, name)
        count += 1
        for each in value if isinstance(value, list) else [value]:
            if isinstance(each, BaseModel):
                count += owned_fields(each)
    return count


def best(function: Callable[[], object]) -> float:
    """Seconds for one call, the best of several rounds: the least disturbed one."""
    timer = Timer(function)
    number, _ = timer.autorange()
    return min(timer.repeat(ROUNDS, number)) / number


def parsing() -> Sequence[Mapping[str, str]]:
    """Parsing a TrainJob with its runtime, against reading the same bytes as JSON."""
    runtime = large_runtime()
    raw = [orjson.dumps(TRAIN_JOB), orjson.dumps(runtime)]

    def parse() -> tuple[TrainJob, ClusterTrainingRuntime]:
        return TrainJob.parse(TRAIN_JOB), ClusterTrainingRuntime.parse(runtime)

    parsed, loaded = best(parse), best(lambda: [orjson.loads(each) for each in raw])
    fields = sum(owned_fields(model) for model in parse())
    size = sum(map(len, raw)) // 1024
    return [
        {"what": f"orjson.loads of TrainJob and runtime ({size} KiB)", "µs": f"{loaded * 1e6:.1f}"},
        {
            "what": f"parsing both into our types ({fields} fields of ours)",
            "µs": f"{parsed * 1e6:.1f}",
            "ratio": f"{parsed / loaded:.3f} of orjson.loads",
        },
        {"what": "  per field of ours", "µs": f"{parsed / fields * 1e6:.2f}"},
    ]


def main() -> int:
    """Measure and print."""
    for row in parsing():
        print(f"{row['what']:<62} {row['µs']:>9} µs  {row.get('ratio', '')}".rstrip())
    return 0


if __name__ == "__main__":
    sys.exit(main())
