"""What is measured with: TrainJobs as a busy namespace has them."""

from typing import Any


def train_job(number: int) -> dict[str, Any]:
    """A TrainJob of about 2 KiB, no two of them alike."""
    return {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainJob",
        "metadata": {
            "name": f"job-{number}",
            "namespace": "default",
            "labels": {
                "kueue.x-k8s.io/queue-name": f"queue-{number % 7}",
                "team": f"t{number % 31}",
            },
            "annotations": {"example.com/commit": f"{number:040x}"},
        },
        "spec": {
            "runtimeRef": {"name": "torch-distributed"},
            "initializer": {
                "dataset": {"storageUri": f"hf://team/dataset-{number}"},
                "model": {"storageUri": f"s3://models/base-{number % 97}"},
            },
            "trainer": {
                "image": f"example.com/trainer:{number}",
                "command": ["torchrun", "train.py", f"--seed={number}"],
                "numNodes": 1 + number % 16,
                "env": [{"name": f"VARIABLE_{n}", "value": f"{number}-{n}"} for n in range(16)],
                "resourcesPerNode": {"limits": {"nvidia.com/gpu": "8", "memory": "64Gi"}},
            },
        },
    }
