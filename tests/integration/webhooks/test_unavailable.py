"""Without an available webhook nothing is admitted, and readiness reports the reason."""

from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest
import pytest_asyncio

from kftrainer.devcluster import cache_paths
from kftrainer.devcluster.client import ApiClient, Object
from kftrainer.devcluster.controlplane import ControlPlane
from kftrainer.devcluster.processes.ports import LOOPBACK, PortReservations
from kftrainer.devcluster.waiting import until
from kftrainer.machinery.manager.clock import SystemClock
from tests.integration.webhooks.cases import KINDS, job_on, placed, torch
from tests.integration.webhooks.conftest import wait_until_stored
from tests.support.certificates import authority, leaf
from tests.support.managers import manager_process
from tests.support.objects import train_job
from tests.support.webhooks import (
    AdmissionClient,
    AdmissionOutcome,
    admission_client,
    admission_client_for,
    admitting_manager,
    register,
    unregister,
    wait_until_call_fails,
    webhook_flags,
)

pytestmark = pytest.mark.integration

FRAMEWORK = "trainer.kubeflow.org/framework"
OWNER = {"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": "none"}
MANY, LONG = 500, 500  # variables and characters of each: nearly as large as is accepted
TEST_TIMEOUT = 30.0
STARTED_WITHIN = 90.0


def object_of(kind: str, name: str, namespace: str) -> Object:
    """An object of this kind that admission accepts."""
    if kind != "TrainJob":
        return placed(torch(), kind, name, namespace)
    return job_on("TrainingRuntime", namespace, namespace, name=name, suspend=True)


def leaving(manifest: Object) -> Object:
    """The object, as if it were being deleted."""
    return {
        **manifest,
        "metadata": {**manifest["metadata"], "deletionTimestamp": "2026-01-01T00:00:00Z"},
    }


def check_stored(outcome: AdmissionOutcome) -> None:
    """Fail unless the write went well."""
    assert (outcome.accepted, outcome.message) == (True, "")


@pytest_asyncio.fixture
async def silent(api: ApiClient, namespace: str) -> AsyncIterator[AdmissionClient]:
    """A user who writes while a webhook is registered and no manager runs.

    There is an object of each kind, stored before.
    """
    env = [{"name": f"VARIABLE_{index}", "value": "x" * LONG} for index in range(MANY)]
    large = object_of("TrainJob", "large", namespace)
    for manifest in (
        *(object_of(kind, namespace, namespace) for kind in (*KINDS, "TrainJob")),
        {**large, "spec": {**large["spec"], "trainer": {"env": env}}},
    ):
        await wait_until_stored(api, manifest)
    ports = PortReservations(cache_paths.ports(cache_paths.cache_home()))
    try:
        await register(api, ports.reserve())
        await wait_until_call_fails(api)
        yield admission_client_for(api)
    finally:
        await unregister(api)
        ports.release_all()


async def test_writes_are_rejected_while_no_manager_is_available(
    plane: ControlPlane, namespace: str
) -> None:
    runtime = placed(torch(), "TrainingRuntime", "torch", namespace)
    job = train_job("train", runtimeRef={"name": "torch", "kind": "TrainingRuntime"})
    job["metadata"]["namespace"] = namespace
    async with admitting_manager(plane) as manager, admission_client(plane, manager) as user:
        assert (await user.create(runtime)).accepted
        assert (await user.create(job)).accepted
        await manager.stop()
        for outcome in (
            await user.create(job | {"metadata": {**job["metadata"], "name": "other"}}),
            await user.patch(job, {"spec": {"suspend": True}}),
            await user.patch(job, {"metadata": {"labels": {"a": "b"}}}),
            await user.patch(job, {"metadata": {"annotations": {"a": "b"}}}),
            await user.patch(runtime, {"spec": {"mlPolicy": {"numNodes": 2}}}),
            await user.patch(runtime, {"metadata": {"labels": {FRAMEWORK: None}}}),
            # A deletion timestamp in the request does not bypass validation.
            await user.create(leaving(placed(runtime, "TrainingRuntime", "other", namespace))),
        ):
            assert (outcome.status, outcome.body["reason"], outcome.denial) == (
                500,
                "InternalError",
                "",
            )
            assert "failed calling webhook" in outcome.message
        # Existing objects can be deleted.
        await user.delete(job)


async def test_deletion_completes_while_no_manager_is_available(
    silent: AdmissionClient, namespace: str
) -> None:
    for kind in ("TrainJob", *KINDS):
        await check_deletion(kind, silent, namespace)


async def check_deletion(kind: str, silent: AdmissionClient, namespace: str) -> None:
    """Change finalizers and owners, and delete the object, as the garbage collector does it."""
    manifest = await silent.read(object_of(kind, namespace, namespace))
    finalizers = manifest["metadata"].get("finalizers") or []
    for change in (
        {"finalizers": [*finalizers, "example.com/mine"]},
        {"ownerReferences": [OWNER]},
        {"ownerReferences": None},
        {"finalizers": ["example.com/mine"]},
    ):
        check_stored(await silent.patch(manifest, {"metadata": change}))
    await silent.delete(manifest, propagation="Foreground")
    deleted = await silent.read(manifest)
    assert deleted["metadata"]["finalizers"] == ["example.com/mine", "foregroundDeletion"]
    assert "deletionTimestamp" in deleted["metadata"]
    removed_finalizers: Object = {"metadata": {"finalizers": ["example.com/mine"]}}
    check_stored(await silent.patch(manifest, removed_finalizers))
    check_stored(await silent.patch(manifest, {"metadata": {"labels": {"last": "words"}}}))
    check_stored(await silent.patch(manifest, {"metadata": {"finalizers": None}}))

    async def is_deleted() -> bool:
        return await silent.get(manifest) is None

    await until(is_deleted, within=TEST_TIMEOUT, what=f"the end of the {kind}")


async def test_large_trainjob_needs_no_webhook_for_its_finalizers(
    silent: AdmissionClient, namespace: str
) -> None:
    """The conditions compare whole specs: the API server bounds what that may cost."""
    job = object_of("TrainJob", "large", namespace)
    assert len((await silent.read(job))["spec"]["trainer"]["env"]) == MANY
    check_stored(await silent.patch(job, {"metadata": {"finalizers": ["example.com/mine"]}}))
    check_stored(await silent.patch(job, {"metadata": {"finalizers": None}}))
    refused = await silent.patch(job, {"spec": {"suspend": False}})
    assert "failed calling webhook" in refused.message


async def test_readiness_names_the_missing_certificate(plane: ControlPlane, tmp_path: Path) -> None:
    ports = PortReservations(cache_paths.ports(cache_paths.cache_home()))
    flags = (*webhook_flags(ports.reserve()), "--webhook-cert-dir", str(tmp_path))
    try:
        async with (
            manager_process(plane.kubeconfig, *flags) as manager,
            aiohttp.ClientSession() as session,
        ):

            async def readiness(check: str = "") -> str:
                try:
                    async with session.get(f"{manager.health_url}/readyz{check}") as answer:
                        return await answer.text()
                except aiohttp.ClientError as error:
                    return str(error)

            async def only_certificates_are_missing() -> bool:
                message = await readiness()
                return all(
                    line in message
                    for line in ("[+]caches ok", "[-]webhooks failed: reason withheld")
                )

            async def failure() -> str | None:
                message = await readiness("/webhooks")
                return message if str(tmp_path) in message else None

            async def ready() -> bool:
                return await readiness() == "ok"

            await until(
                only_certificates_are_missing, within=STARTED_WITHIN, what="all else being ready"
            )
            message = await until(failure, within=TEST_TIMEOUT, what="a reason")
            assert message.startswith("internal server error: there is no certificate yet: ")
            assert str(tmp_path / "tls.crt") in message
            now = SystemClock().now()
            pair = leaf(authority(now), now)
            (tmp_path / "tls.key").write_bytes(pair.key_pem)
            (tmp_path / "tls.crt").write_bytes(pair.pem)
            await until(ready, within=TEST_TIMEOUT, what="readiness")
    finally:
        ports.release_all()


async def test_a_manager_without_a_webhook_is_ready_without_certificates(
    plane: ControlPlane,
) -> None:
    async with (
        manager_process(plane.kubeconfig, "--webhook-port", "0") as manager,
        aiohttp.ClientSession() as session,
    ):
        await manager.wait_ready()
        async with session.get(f"{manager.health_url}/readyz?verbose") as answer:
            assert "webhooks" not in await answer.text()
    assert LOOPBACK in manager.health_url
