"""What a person sees in a terminal."""

import asyncio
import json
import os
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from kftrainer.devcluster.controlplane import ControlPlane
from tests.integration.webhooks.cases import placed, reference, torch
from tests.support.objects import Object, train_job
from tests.support.webhooks import AdmissionClient

pytestmark = pytest.mark.integration

Kubectl = Callable[..., Awaitable[tuple[int, str, str]]]


@pytest.fixture
def kubectl(
    kubectl_program: Path, control_plane: ControlPlane, tmp_path: Path, namespace: str
) -> Kubectl:
    """Runs kubectl with a file; its exit code, and what it prints."""

    async def run(document: Object, *arguments: str) -> tuple[int, str, str]:
        file = tmp_path / "job.yaml"
        file.write_text(json.dumps(document))
        process = await asyncio.create_subprocess_exec(
            *(kubectl_program, f"--kubeconfig={control_plane.kubeconfig}"),
            *(f"--namespace={namespace}", *arguments, "-f", file.name),
            env={**os.environ, "HOME": str(tmp_path)},
            cwd=tmp_path,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        printed, errors = await process.communicate()
        assert process.returncode is not None
        return process.returncode, printed.decode(), errors.decode()

    return run


COMMANDS = (
    ("apply",),
    ("apply", "--dry-run=server"),
    ("apply", "--server-side"),
    ("create",),
)


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
async def test_error_and_warning_are_printed(
    command: tuple[str, ...], kubectl: Kubectl, user: AdmissionClient, namespace: str
) -> None:
    assert (await user.create(placed(torch(), "TrainingRuntime", "torch", namespace))).accepted
    job = train_job("train", runtimeRef=reference("TrainingRuntime", "torch"))
    at = {**job, "metadata": {**job["metadata"], "namespace": namespace}}

    job["spec"]["trainer"] = {"env": [{"name": "PET_NNODES", "value": "3"}]}
    code, printed, errors = await kubectl(job, *command)
    assert (code, printed) == (1, "")
    *_, last = errors.splitlines()
    assert last.startswith('Error from server (Forbidden): error when creating "job.yaml": ') or (
        command == ("apply", "--server-side") and last.startswith("Error from server (Forbidden): ")
    )
    assert last.endswith(
        'admission webhook "validator.trainjob.trainer.kubeflow.org" denied the request: '
        'spec.trainer.env: Invalid value: ["PET_NNODES"]: must not have reserved envs, invalid '
        "envs configured: [PET_NNODES]"
    )
    assert await user.get(at) is None

    gpu = {"limits": {"nvidia.com/gpu": "1"}}
    job["spec"]["trainer"] = {"numProcPerNode": 2, "resourcesPerNode": gpu}
    code, printed, errors = await kubectl(job, *command)
    done = {"create": "created", "--server-side": "serverside-applied"}.get(command[-1], "created")
    dry = " (server dry run)" if command[-1] == "--dry-run=server" else ""
    assert (code, printed) == (0, f"trainjob.trainer.kubeflow.org/train {done}{dry}\n")
    assert errors == (
        "Warning: spec.trainer.numProcPerNode: 2 processes on each node share 1 accelerator: run "
        "1, or request more in spec.trainer.resourcesPerNode\n"
    )
    assert (await user.get(at) is None) is bool(dry)


async def test_pod_template_overrides_of_a_running_train_job_cannot_be_changed(
    kubectl: Kubectl, user: AdmissionClient, namespace: str
) -> None:
    assert (await user.create(placed(torch(), "TrainingRuntime", "torch", namespace))).accepted
    job = train_job("train", runtimeRef=reference("TrainingRuntime", "torch"))
    assert (await kubectl(job, "apply"))[0] == 0
    job["spec"]["podTemplateOverrides"] = [
        {"targetJobs": [{"name": "node"}], "spec": {"nodeSelector": {"disk": "ssd"}}}
    ]
    for command in (("apply",), ("apply", "--dry-run=server")):
        code, printed, errors = await kubectl(job, *command)
        assert (code, printed) == (1, "")
        assert errors.endswith(
            "denied the request: spec.podTemplateOverrides: Forbidden: PodTemplateOverrides can "
            "only be modified when the TrainJob is suspended\n"
        )
