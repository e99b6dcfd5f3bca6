"""`make dev` on a control plane that is up: the webhook, one manager at a time, and the end."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from kftrainer.cli.manager_setup.assembly import DEFAULT_NAMESPACE
from kftrainer.devcluster.client import ApiClient
from kftrainer.devcluster.controlplane import ControlPlane
from kftrainer.devcluster.errors import ApiError
from kftrainer.devcluster.named_control_plane import NamedPlane, State
from kftrainer.devcluster.processes.ports import LOOPBACK
from kftrainer.devcluster.waiting import until
from kftrainer.webhooks import registration
from tests.support.objects import train_job
from tests.support.webhooks import MERGE, MUTATING_PATH, SECRET_PATH

ROOT = Path(__file__).parents[2]
WEBHOOK = (
    "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations/"
    f"{registration.CONFIGURATION}"
)
SERVICE = "/api/v1/namespaces/kubeflow-system/services/kubeflow-trainer-controller-manager"
RUNTIME = "/apis/trainer.kubeflow.org/v1alpha1/clustertrainingruntimes/torch-distributed"
WITHIN = 90.0


class Dev:
    """`make dev` with a cache of its own, in which the session's control plane has a name."""

    def __init__(self, cache: Path, kubectl: Path) -> None:
        assets = cache / "assets"
        assets.mkdir()
        (assets / "kubectl").symlink_to(kubectl)
        places = {"XDG_CACHE_HOME": str(cache), "KUBEBUILDER_ASSETS": str(assets)}
        self._environ = {**os.environ, **places}

    @asynccontextmanager
    async def running(self) -> AsyncIterator[asyncio.subprocess.Process]:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "hack/run.py", "dev", "--name", "shared"),
            cwd=ROOT,
            env=self._environ,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            yield process
        except Exception as error:
            _kill(process)
            printed, log = await process.communicate()
            code = process.returncode
            error.add_note(f"make dev, exit code {code}:\n{(printed + log).decode()[-4000:]}")
            raise
        finally:
            _kill(process)
            await process.communicate()

    async def error(self) -> str:
        """Its message where it does not start."""
        async with self.running() as process, asyncio.timeout(WITHIN):
            _, printed = await process.communicate()
            assert process.returncode == 1
            return printed.decode().splitlines()[-1]


@pytest.fixture
async def dev(
    control_plane: ControlPlane, api: ApiClient, kubectl_program: Path, tmp_path: Path
) -> AsyncIterator[Dev]:
    assert await api.get_or_none(WEBHOOK) is None
    place = NamedPlane("shared", tmp_path / "kftrainer")
    assert place.lock.try_acquire()
    place.write(State("ready", url=control_plane.url, kubeconfig=str(control_plane.kubeconfig)))
    try:
        yield Dev(tmp_path, kubectl_program)
    finally:
        place.lock.release()
        for path in (
            WEBHOOK,
            MUTATING_PATH,
            SERVICE,
            RUNTIME,
            SECRET_PATH,
        ):  # other tests use this control plane, too
            if await api.get_or_none(path) is not None:
                await api.request(
                    "PATCH", path, body={"metadata": {"finalizers": None}}, content_type=MERGE
                )
                await api.delete(path)
        assert await api.get_or_none(RUNTIME) is None


async def leave_service_of_another_client(api: ApiClient) -> None:
    """Apply the Namespace and Service of a webhook at another port, as `make demo` does."""
    other_objects = registration.external_objects(
        SERVICE.rpartition("/")[2], DEFAULT_NAMESPACE, host=LOOPBACK, port=1, required=False
    )
    for each in other_objects:
        if not each["kind"].endswith("WebhookConfiguration"):
            await api.apply(each)


def _kill(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        process.kill()


async def test_second_make_dev_is_refused_and_the_first_keeps_validating(
    dev: Dev, api: ApiClient, namespace: str
) -> None:
    await leave_service_of_another_client(api)
    async with dev.running() as first:

        async def validates() -> bool:
            assert first.returncode is None, "make dev has exited"
            return await _refuses(api, namespace)

        await until(validates, within=WITHIN, what="the webhook answering")
        printed = await dev.error()
        assert printed.startswith(f"dev: `make dev` (process {first.pid}) already runs the manager")
        assert await _refuses(api, namespace)
        first.send_signal(signal.SIGINT)
        async with asyncio.timeout(WITHIN):
            _, log = await first.communicate()
        assert first.returncode == 0, log.decode()
    assert await api.get_or_none(WEBHOOK) is None
    assert await api.get_or_none(MUTATING_PATH) is None
    assert await api.get_or_none(SERVICE) is None


async def test_webhook_of_another_operator_is_not_modified(dev: Dev, api: ApiClient) -> None:
    other_configuration = registration.configuration(
        "their-service", "their-namespace", required=False
    )
    await api.apply(other_configuration)
    before = await api.get(WEBHOOK)
    printed = await dev.error()
    assert f"already has the webhook configuration {registration.CONFIGURATION}" in printed
    assert "delete validatingwebhookconfiguration" in printed
    assert await api.get(WEBHOOK) == before


async def _refuses(api: ApiClient, namespace: str) -> bool:
    """Whether a TrainJob without a runtime is refused by the webhook."""
    job: dict[str, Any] = train_job("wrong", runtimeRef={"name": "no-such-runtime"})
    path = f"/apis/trainer.kubeflow.org/v1alpha1/namespaces/{namespace}/trainjobs"
    try:
        await api.fetch("POST", path, query={"dryRun": "All"}, body=job)
    except ApiError as error:
        return "denied the request" in str(error)
    return False
