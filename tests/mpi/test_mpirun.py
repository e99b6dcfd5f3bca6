"""What the operator creates starts a real mpirun on several hosts; run by `make test-mpi`.

The hosts are network namespaces. Each has the environment, the hostfile, the keys and the host name
of its pod in the JobSet, and a hosts file instead of DNS.
"""

import asyncio
import json
import shlex
import sys
from base64 import b64decode
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from environments.mpi import (
    AS_ROOT,
    IMPLEMENTATIONS,
    MPI_KINDS,
    SYSTEM_PATH,
    MPIKind,
    base_folder,
    mpi_environment,
)
from kftrainer.devcluster.processes.subprocesses import killed_with_parent
from kftrainer.devcluster.progress import Progress
from tests.support.mpi import hosts
from tests.support.mpi.ranks import PROGRAM, all_slots, ranks
from tests.support.objects import Object, replicated_job, runtime
from tests.support.plans import NAMESPACE, container_of, job_on, planned, pod_of
from tests.support.processes import Ran

NAMESPACES = ("--user", "--map-root-user", "--net", "--mount", "--pid", "--mount-proc")
UNSHARE = ("unshare", *NAMESPACES, "--fork", "--kill-child")
WITHIN = 60.0
SUBDOMAIN = "demo"
DOMAIN = f"{SUBDOMAIN}.{NAMESPACE}.svc.cluster.local"
ADDRESSES = "10.9.0.{}"
PROGRAM_PATH = "/root/program.py"

each_kind = pytest.mark.parametrize("kind", MPI_KINDS)


def document(kind: MPIKind, *, as_node: bool, slots: int) -> Object:
    launcher = replicated_job("launcher")
    launcher["template"]["spec"]["template"]["spec"]["containers"][0]["name"] = "node"
    policy = {
        "mpiImplementation": IMPLEMENTATIONS[kind],
        "runLauncherAsNode": as_node,
        "numProcPerNode": slots,
    }
    return runtime(jobs=[replicated_job("node", None), launcher], mlPolicy={"mpi": policy})


class Pods:
    """The pods of a TrainJob as hosts."""

    def __init__(self, kind: MPIKind, environment: Path, **settings: Any) -> None:
        nodes, command = settings.pop("nodes"), settings.pop("command")
        on = document(kind, **settings)
        job = job_on(on, trainer={"numNodes": nodes})
        self._path = f"{environment / 'bin'}:{SYSTEM_PATH}"
        self._exposed = [str(environment), str(base_folder())]
        self._objects: dict[str, Any] = {}
        for each in planned(job, on):
            manifest = each.manifest if each.generate is None else each.generate()
            self._objects[manifest["kind"]] = manifest
        workers = nodes - settings["as_node"]
        names = [f"demo-node-0-{index}" for index in range(workers)] + ["demo-launcher-0-0"]
        self._addresses = {name: ADDRESSES.format(index) for index, name in enumerate(names, 1)}
        self.hosts = [
            self._host(name, ["sshd", "-De"] if name.startswith("demo-node") else command)
            for name in names
        ]

    def _host(self, name: str, command: Sequence[str]) -> Object:
        job = "launcher" if "launcher" in name else "node"
        container = container_of(self._objects["JobSet"], job)
        volumes = {each["name"]: each for each in pod_of(self._objects["JobSet"], job)["volumes"]}
        files = {"/etc/hosts": (self._hosts_file(name), 0o644), PROGRAM_PATH: (PROGRAM, 0o644)}
        for mount in container["volumeMounts"]:
            files |= self._files(volumes[mount["name"]], mount["mountPath"])
        env = {each["name"]: each["value"] for each in container.get("env", ())}
        image = {"PATH": self._path, "HOME": "/root"} | AS_ROOT
        address = self._addresses[name]
        return {
            "name": name,
            "address": address,
            "files": files,
            "exposed": self._exposed,
            "env": image | env,
            "command": list(command),
        }

    def _files(self, volume: Object, folder: str) -> dict[str, tuple[str, int]]:
        if "configMap" in volume:
            source, data = volume["configMap"], self._objects["ConfigMap"]["data"]
        else:
            source, data = volume["secret"], self._objects["Secret"]["data"]
            data = {key: b64decode(value).decode() for key, value in data.items()}
        default = source.get("defaultMode", 0o644)
        return {
            f"{folder}/{item['path']}": (data[item["key"]], item.get("mode", default))
            for item in source["items"]
        }

    def _hosts_file(self, own: str) -> str:
        """The file as the kubelet writes it, and the names that DNS resolves in the subdomain.

        Without the subdomain, a pod resolves only its own name.
        """
        lines = ["127.0.0.1 localhost", f"{self._addresses[own]} {own}.{DOMAIN} {own}"]
        for name, address in self._addresses.items():
            lines.append(f"{address} {name}.{DOMAIN} {name}.{SUBDOMAIN}")
        return "\n".join(lines) + "\n"

    async def run(self, folder: Path) -> Ran:
        """Run until the launcher ends."""
        described = folder / "hosts.json"
        described.write_text(json.dumps(self.hosts))
        command = shlex.join([*UNSHARE, sys.executable, "-I", hosts.__file__])
        shell = ["sh", "-c", f"exec {command} < {shlex.quote(str(described))}"]
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(
            *killed_with_parent(shell), stdin=pipe, stdout=pipe, stderr=pipe
        )
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        try:
            async with asyncio.timeout(WITHIN), asyncio.TaskGroup() as group:
                printed = group.create_task(process.stdout.read())
                error_output = group.create_task(process.stderr.read())
                group.create_task(process.wait())
        finally:
            process.stdin.close()  # kills all hosts
            code = await process.wait()
        return Ran(code, printed.result().decode(), error_output.result().decode())


async def environment_of(kind: MPIKind) -> Path:
    return await mpi_environment(kind, Progress(sys.stderr))


@each_kind
@pytest.mark.parametrize("as_node", [False, True])
@pytest.mark.parametrize(("nodes", "slots"), [(2, 1), (4, 2)])
async def test_processes_run_in_all_slots_of_all_nodes(
    kind: MPIKind, as_node: bool, nodes: int, slots: int, tmp_path: Path
) -> None:
    environment = await environment_of(kind)
    command = ["mpirun", "python", PROGRAM_PATH]
    settings = {"as_node": as_node, "nodes": nodes, "slots": slots, "command": command}
    done = await Pods(kind, environment, **settings).run(tmp_path)
    workers = [f"demo-node-0-{index}" for index in range(nodes - as_node)]
    names = [*workers, "demo-launcher-0-0"] if as_node else workers
    assert (done.code, ranks(done.error_output)) == (0, all_slots(names, slots)), done


@each_kind
async def test_exit_code_of_a_process_is_that_of_mpirun(kind: MPIKind, tmp_path: Path) -> None:
    environment = await environment_of(kind)
    command = ["mpirun", "sh", "-c", "exit 7"]
    settings = {"as_node": False, "nodes": 2, "slots": 1, "command": command}
    done = await Pods(kind, environment, **settings).run(tmp_path)
    assert done.code == 7, done
