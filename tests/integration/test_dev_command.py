"""`kftrainer dev` as a person uses it, in a cache of its own."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from kftrainer.devcluster import cache_paths
from kftrainer.devcluster.artifacts import binaries
from kftrainer.devcluster.cluster_options import BARE
from kftrainer.devcluster.controlplane import ControlPlane
from kftrainer.devcluster.named_control_plane import NamedPlane
from kftrainer.devcluster.progress import SILENT
from kftrainer.devcluster.waiting import until
from tests.support.processes import pids_of, processes_of

COMMAND = [sys.executable, "-m", "kftrainer.cli.main", "dev"]


@dataclass
class Dev:
    """The command, and the one control plane that it is about."""

    environ: dict[str, str]
    place: NamedPlane

    def __call__(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*COMMAND, *arguments],
            env=self.environ,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    async def eventually(self, condition: Callable[[], bool], what: str) -> None:
        async def holds() -> bool:
            return condition()

        await until(holds, within=30, what=what)

    async def all_gone(self) -> None:
        def is_deleted() -> bool:
            return not processes_of(self.place.folder) and not self.place.kept()

        await self.eventually(is_deleted, f"the end of all processes of {self.place.folder}")


@pytest.fixture
async def dev(control_plane: ControlPlane, tmp_path: Path) -> AsyncIterator[Dev]:
    """The command with an empty cache; the binaries that the session has are its assets."""
    found = await binaries.provide(BARE.binaries(), cache=cache_paths.cache_home(), progress=SILENT)
    assets = tmp_path / "assets"
    assets.mkdir()
    for name, path in found.items():
        (assets / name).symlink_to(path)
    environ = {
        **os.environ,
        "XDG_CACHE_HOME": str(tmp_path),
        "KUBEBUILDER_ASSETS": str(assets),
    }
    dev = Dev(environ, NamedPlane("default", tmp_path / "kftrainer"))
    yield dev
    dev("down")
    await dev.all_gone()


async def test_from_up_to_down(dev: Dev) -> None:
    up = dev("up", "--bare")
    assert up.returncode == 0, up.stderr
    assert f"export KUBECONFIG={dev.place.folder / 'kubeconfig'}" in up.stdout
    assert dev("up", "--bare").stdout.startswith("default is already running.")
    assert dev("kubeconfig").stdout.strip() == str(dev.place.folder / "kubeconfig")
    status = dev("status")
    assert status.returncode == 0
    assert "default is running at https://127.0.0.1:" in status.stdout
    assert "kube-apiserver" in status.stdout

    down = dev("down")
    assert (down.returncode, down.stdout) == (0, "default is stopped.\n")
    await dev.all_gone()
    assert sorted(path.name for path in dev.place.folder.iterdir()) == ["logs", "state.json"]
    assert dev("status").returncode == 1
    assert "etcd" in dev("logs").stdout


async def test_killing_the_supervisor_stops_all_processes_and_up_recovers(dev: Dev) -> None:
    assert dev("up", "--bare").returncode == 0
    supervisor = dev.place.supervisor()
    assert supervisor
    os.kill(supervisor, signal.SIGKILL)
    await dev.all_gone()
    assert "its processes were killed" in dev("status").stdout
    again = dev("up", "--bare")
    assert again.returncode == 0, again.stderr


async def test_status_reports_a_component_that_exited(dev: Dev) -> None:
    assert dev("up", "--bare").returncode == 0
    [etcd] = [
        pid for pid, command in pids_of(dev.place.folder) if command.split()[0].endswith("/etcd")
    ]
    os.kill(etcd, signal.SIGKILL)
    await dev.all_gone()
    status = dev("status")
    assert status.returncode == 1
    assert "default is not running: etcd ended by itself (killed by SIGKILL)" in status.stdout


async def test_interrupting_up_leaves_nothing_behind(dev: Dev) -> None:
    with subprocess.Popen(
        [*COMMAND, "up", "--bare"], env=dev.environ, stderr=subprocess.PIPE, text=True
    ) as up:
        await dev.eventually(lambda: bool(processes_of(dev.place.folder)), "etcd starting")
        up.send_signal(signal.SIGINT)
        _, printed_output = up.communicate(timeout=60)
    assert up.returncode == 130
    assert "kftrainer: interrupted; no process is left running." in printed_output
    assert "Traceback" not in printed_output
    assert processes_of(dev.place.folder) == []


async def test_killing_up_before_it_is_ready_leaves_nothing_behind(dev: Dev) -> None:
    with subprocess.Popen(
        [*COMMAND, "up", "--bare"], env=dev.environ, stderr=subprocess.DEVNULL
    ) as up:
        await dev.eventually(lambda: bool(processes_of(dev.place.folder)), "etcd starting")
        up.kill()
    await dev.all_gone()


async def test_taken_port_is_reported_in_one_sentence(dev: Dev) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        up = dev("up", "--bare", "--port", str(port))
    assert up.returncode == 1
    assert f"kftrainer: Port {port} on 127.0.0.1 is in use by another program" in up.stderr
    assert "Traceback" not in up.stderr


async def test_crd_rejection_is_reported_with_the_message_of_the_server(
    dev: Dev, tmp_path: Path
) -> None:
    crd = tmp_path / "crd.yaml"
    crd.write_text(
        "apiVersion: apiextensions.k8s.io/v1\nkind: CustomResourceDefinition\n"
        "metadata: {name: wrong}\nspec: {group: x.y, scope: Namespaced, names: {kind: W, "
        "plural: ws}, versions: [{name: v1, served: true, storage: true, schema: "
        "{openAPIV3Schema: {type: object}}}]}\n"
    )
    up = dev("up", "--bare", "--crd", str(crd))
    assert up.returncode == 1
    assert 'must be spec.names.plural+"."+spec.group' in up.stderr
    assert "Traceback" not in up.stderr
