"""The webhook configuration as the chart renders it, while no manager runs."""

import asyncio
import json
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
import pytest_asyncio

from kftrainer.devcluster.client import ApiClient, Object
from kftrainer.devcluster.controlplane import ControlPlane
from tests.integration.webhooks.cases import KINDS, job_on, placed, torch
from tests.integration.webhooks.conftest import wait_until_stored
from tests.support.helm import WITHOUT_CRDS, merged, named, render
from tests.support.webhooks import unregister, wait_until_call_fails

pytestmark = pytest.mark.integration

IN_PATH = "0123456789abcdef"
Kubectl = Callable[..., Awaitable[str]]


@pytest.fixture
def kubectl(kubectl_program: Path, plane: ControlPlane, tmp_path: Path) -> Kubectl:
    """Runs kubectl; all that it prints."""

    async def run(*arguments: str) -> str:
        process = await asyncio.create_subprocess_exec(
            *(kubectl_program, f"--kubeconfig={plane.kubeconfig}", *arguments),
            env={**os.environ, "HOME": str(tmp_path)},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        printed, _ = await process.communicate()
        return printed.decode()

    return run


def object_of(kind: str, namespace: str) -> Object:
    """An object of this kind, named like the namespace."""
    if kind != "TrainJob":
        return placed(torch(), kind, namespace, namespace)
    return job_on("TrainingRuntime", namespace, namespace, name=namespace, suspend=True)


@pytest_asyncio.fixture
async def registered(helm_program: Path, api: ApiClient, namespace: str) -> AsyncIterator[None]:
    """The chart's configuration is registered, without the Service; objects are stored before."""
    for kind in (*KINDS, "TrainJob"):
        await wait_until_stored(api, object_of(kind, namespace))
    values = merged(WITHOUT_CRDS, {"webhook": {"pathTokens": [IN_PATH]}})
    rendered = named(render(helm_program, values), "ValidatingWebhookConfiguration")
    assert {each["failurePolicy"] for each in rendered["webhooks"]} == {"Fail"}
    try:
        await api.apply(rendered)
        await wait_until_call_fails(api)
        yield
    finally:
        await unregister(api)


async def test_finalizers_change_and_deletion_completes_without_a_manager(
    registered: None, kubectl: Kubectl, namespace: str
) -> None:
    for kind in ("TrainJob", *KINDS):
        target = (f"--namespace={namespace}", kind.lower(), namespace)
        change = json.dumps({"metadata": {"labels": {"a": "b"}}, "spec": {"suspend": False}})
        finalize = json.dumps({"metadata": {"finalizers": ["example.com/mine"]}})
        unfinalize = json.dumps({"metadata": {"finalizers": None}})
        for patch in (finalize, unfinalize, finalize):
            patched = await kubectl("patch", "--type=merge", f"--patch={patch}", *target)
            assert patched.endswith(("patched\n", "patched (no change)\n"))
        if kind == "TrainJob":  # the rest is still rejected
            failed = await kubectl("patch", "--type=merge", f"--patch={change}", *target)
            # With the path token, as it is documented: it is weaker than a certificate.
            assert "failed calling webhook" in failed
            assert f"v1alpha1-trainjob/{IN_PATH}?" in failed
        deleted = await kubectl("delete", "--cascade=foreground", "--wait=false", *target)
        assert "deleted" in deleted
        # As the garbage collector and the owner of the finalizer do it.
        last = await kubectl("patch", "--type=merge", f"--patch={unfinalize}", *target)
        assert last.endswith("patched\n")
        assert "NotFound" in await kubectl("get", *target)
