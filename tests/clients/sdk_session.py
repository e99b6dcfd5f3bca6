"""Calls the Kubeflow SDK and prints the outcome as JSON; runs with the Python of an SDK.

    python sdk_session.py KUBECONFIG NAMESPACE life|options|list

It uses what every release since 0.1.0 has, and options where a release has them.
"""

import json
import sys
import traceback
from collections.abc import Callable
from functools import partial
from importlib.metadata import version
from typing import Any

from kubeflow.trainer import (
    BuiltinTrainer,
    CustomTrainer,
    HuggingFaceDatasetInitializer,
    HuggingFaceModelInitializer,
    Initializer,
    KubernetesBackendConfig,
    TorchTuneConfig,
    TrainerClient,
)

WITHIN = 180  # seconds, more than it takes on a busy machine


def train() -> None:
    """What runs in the pods."""
    print("trained")  # noqa: T201


def life(client: Any) -> dict[str, Any]:
    """List runtimes; train, observe, wait for and delete a job; fine-tune; see a job running."""
    runtimes = {each.name: each for each in client.list_runtimes()}
    trainer = CustomTrainer(func=train, num_nodes=2, resources_per_node={"cpu": 1, "memory": "1Gi"})
    name = client.train(runtime=client.get_runtime("torch-distributed"), trainer=trainer)
    got, listed = client.get_job(name), client.list_jobs()
    lasting = client.train(runtime=client.get_runtime("torch-lasting"), trainer=trainer)
    model = client.train(
        runtime=client.get_runtime("torchtune-llama3.2-1b"),
        initializer=Initializer(
            dataset=HuggingFaceDatasetInitializer(storage_uri="hf://team/dataset"),
            model=HuggingFaceModelInitializer(storage_uri="hf://team/model"),
        ),
        trainer=BuiltinTrainer(config=TorchTuneConfig(epochs=1, resources_per_node={"gpu": 1})),
    )
    outcome = {
        "runtimes": sorted(runtimes),
        "got": (got.name == name, got.runtime.name, got.num_nodes),
        "listed": [each.name for each in listed] == [name],
        "trained": summary(client.wait_for_job_status(name, timeout=WITHIN)),
        "running": summary(client.wait_for_job_status(lasting, {"Running"}, timeout=WITHIN)),
        "fine-tuned": summary(client.wait_for_job_status(model, timeout=WITHIN)),
    }
    for each in (name, lasting, model):
        client.delete_job(each)
    return {**outcome, "left": [each.name for each in client.list_jobs()]}


def summary(job: Any) -> tuple[str, dict[str, str]]:
    """The status of a job, and of its steps by their names."""
    return job.status, {each.name: each.status for each in job.steps}


def options(client: Any) -> dict[str, str]:
    """Train with options of SDK 0.4 and later; the error of each."""
    from kubeflow.trainer import options

    template = options.JobSetTemplatePatch(metadata={"labels": {"team": "a"}})
    patch = options.TrainingRuntimeSpecPatch(template=template)
    chosen = {"RuntimePatch": options.RuntimePatch(training_runtime_spec=patch)}
    if hasattr(options, "ActiveDeadlineSeconds"):  # since 0.5
        chosen["ActiveDeadlineSeconds"] = options.ActiveDeadlineSeconds(60)
    return {
        name: error_of(partial(client.train, options=[option])) for name, option in chosen.items()
    }


def error_of(call: Callable[[], Any]) -> str:
    """The error message of a failed call; empty if the call succeeds."""
    try:
        call()
    except Exception:  # noqa: BLE001 - whatever it is, the test decides
        return traceback.format_exc()
    return ""


def list_jobs(client: Any) -> dict[str, Any]:
    """The names of all jobs and runtimes, or the error."""
    names: list[str] = []
    error = error_of(lambda: names.extend(each.name for each in client.list_jobs()))
    return {
        "api": version("kubeflow_trainer_api"),
        "jobs": sorted(names),
        "error": error,
        "runtimes": [each.name for each in client.list_runtimes()],
    }


def main(kubeconfig: str, namespace: str, scenario: str) -> None:
    """Run the scenario; the outcome is the last line."""
    config = KubernetesBackendConfig(config_file=kubeconfig, namespace=namespace)
    scenarios = {"life": life, "options": options, "list": list_jobs}
    print(json.dumps(scenarios[scenario](TrainerClient(config))))  # noqa: T201


if __name__ == "__main__":
    main(*sys.argv[1:])
