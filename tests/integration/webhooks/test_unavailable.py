"""While there is no webhook to ask: nothing is accepted unseen, and readiness says why."""

from pathlib import Path

import aiohttp
import pytest

from kftrainer.devcluster import places
from kftrainer.devcluster.controlplane import ControlPlane
from kftrainer.devcluster.ports import LOOPBACK, PortReservations
from kftrainer.devcluster.waiting import until
from kftrainer.machinery.clock import SystemClock
from tests.integration.webhooks.cases import placed, torch
from tests.support.certificates import authority, leaf
from tests.support.managers import manager_process
from tests.support.objects import train_job
from tests.support.webhooks import admitting_manager, applicant, webhook_flags

pytestmark = pytest.mark.integration

SOON = 30.0
STARTED_WITHIN = 90.0


async def test_nothing_is_accepted_while_no_manager_answers(
    plane: ControlPlane, namespace: str
) -> None:
    runtime = placed(torch(), "TrainingRuntime", "torch", namespace)
    job = train_job("train", runtimeRef={"name": "torch", "kind": "TrainingRuntime"})
    job["metadata"]["namespace"] = namespace
    async with admitting_manager(plane) as manager, applicant(plane, manager) as person:
        assert (await person.create(runtime)).accepted
        assert (await person.create(job)).accepted
        await manager.stop()
        for heard in (
            await person.create(job | {"metadata": {**job["metadata"], "name": "other"}}),
            await person.patch(job, {"spec": {"suspend": True}}),
            await person.patch(runtime, {"metadata": {"labels": {"a": "b"}}}),
        ):
            assert (heard.status, heard.body["reason"], heard.denial) == (500, "InternalError", "")
            assert "failed calling webhook" in heard.message
        # What is there can be deleted.
        await person.delete(job)


async def test_readiness_says_which_certificate_is_missing(
    plane: ControlPlane, tmp_path: Path
) -> None:
    ports = PortReservations(places.ports(places.cache_home()))
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
                said = await readiness()
                return all(
                    line in said for line in ("[+]caches ok", "[-]webhooks failed: reason withheld")
                )

            async def complains() -> str | None:
                said = await readiness("/webhooks")
                return said if str(tmp_path) in said else None

            async def ready() -> bool:
                return await readiness() == "ok"

            await until(
                only_certificates_are_missing, within=STARTED_WITHIN, what="all else being ready"
            )
            said = await until(complains, within=SOON, what="a reason")
            assert said.startswith("internal server error: there is no certificate yet: ")
            assert str(tmp_path / "tls.crt") in said
            now = SystemClock().now()
            pair = leaf(authority(now), now)
            (tmp_path / "tls.key").write_bytes(pair.key_pem)
            (tmp_path / "tls.crt").write_bytes(pair.pem)
            await until(ready, within=SOON, what="readiness")
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
