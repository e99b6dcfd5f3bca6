"""Faults: the kubelet is killed, users without permission, Python packages of an image."""

import os
import signal
import ssl
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from kftrainer.devcluster.client import ApiClient, UnreachableError
from kftrainer.devcluster.cluster_options import PROCESSES
from kftrainer.devcluster.controlplane import ControlPlane, running
from kftrainer.devcluster.environment import ADMIN, ADMINS
from kftrainer.devcluster.waiting import until
from tests.support.process_pods import Pods, container, shell, waiting_for
from tests.support.processes import pids_of
from tests.support.trainjobs import Kubectl

pytestmark = pytest.mark.process_nodes


async def test_kubelet_api_requires_a_permitted_client_certificate(
    control_plane: ControlPlane, api: ApiClient, pods: Pods, namespace: str
) -> None:
    await pods.run("train", shell("echo secret"))
    node = (await pods.get("train"))["spec"]["nodeName"]
    status = (await api.get(f"/api/v1/nodes/{node}"))["status"]
    url = f"https://127.0.0.1:{status['daemonEndpoints']['kubeletEndpoint']['Port']}"
    path = f"/containerLogs/{namespace}/train/main"

    found = []
    for user, groups in (("ada", ()), (ADMIN, ADMINS)):
        tls = control_plane.client(user, groups).tls
        async with ApiClient(url, tls) as kubelet:
            response = await kubelet.send("GET", path)
            found.append((response.status, response.body))
    forbidden = b"Forbidden (user=ada, verb=get, resource=nodes, subresource(s)=[proxy])"
    assert found == [(403, forbidden), (200, b"secret\n")]

    anonymous = ssl.create_default_context(cafile=control_plane.certificate_authority)
    async with ApiClient(url, anonymous) as kubelet:
        with pytest.raises(UnreachableError):
            await kubelet.send("GET", path)


async def test_exec_is_refused_in_one_sentence(pods: Pods) -> None:
    await pods.create("train", shell("sleep 1000"), terminationGracePeriodSeconds=0)
    await pods.running("train")
    with pytest.raises(AssertionError, match="but not exec, attach and port-forward"):
        await pods.kubectl("exec", "train", "--", "true")


async def test_killed_kubelet_leaves_no_process_and_restarts_its_pods(
    kubectl_program: Path, tmp_path: Path
) -> None:
    environment = tmp_path / "environment"
    (environment / "bin").mkdir(parents=True)
    (environment / "bin" / "train").write_text("#!/bin/sh\necho mapped\n")
    (environment / "bin" / "train").chmod(0o755)
    shape = replace(
        PROCESSES,
        process_nodes=1,
        jobset=False,
        images={"team/*": environment},
        only_mapped_images=True,
        process_node_resources={"nvidia.com/gpu": "8"},
    )
    async with running(shape) as plane, plane.client() as api:
        namespace = await plane.create_namespace(api)
        kubectl = Kubectl(kubectl_program, plane.kubeconfig, namespace, tmp_path)
        pods = Pods(api, namespace, kubectl)

        gpus = {"resources": {"limits": {"nvidia.com/gpu": "8"}}}
        mapped = {"name": "main", "image": "team/trainer:v1", "command": ["train"], **gpus}
        assert await pods.run("mapped", mapped) == "mapped\n"

        await pods.create("other", shell("true"))
        await pods.until("other", waiting_for("ErrImageNeverPull"), "waiting for its image")

        marker = f"sleep 12345.{os.getpid()}"
        sleeping = shell(f"{marker} & {marker}", image="team/trainer:v1")
        await pods.create("once", sleeping)
        await pods.create("again", sleeping, restartPolicy="Always")
        await pods.running("once")
        await pods.running("again")
        [kubelet] = [each for each in plane.processes if each.name == "kubelet"]
        [pid] = [
            pid
            for pid, command in pids_of(plane.folder / "kubelet.json")
            if command.startswith(sys.executable)
            and "kubelet.main" in command
            and "-I" not in command
        ]
        os.kill(pid, signal.SIGKILL)

        async def gone() -> bool:
            return not pids_of(marker) and not pids_of(plane.folder / "kubelet.json")

        await until(gone, within=10, what="the end of all processes of the pods")

        kubelet.kill()
        kubelet.start()
        once = await pods.end_of("once")
        assert container(once)["state"]["terminated"]["exitCode"] == 255
        again = await pods.until(
            "again",
            lambda status: container(status)["restartCount"] == 1 and container(status)["ready"],
            "running again",
        )
        assert again["phase"] == "Running"
    assert not pids_of(marker)
