"""`kftrainer manager` as a process on a real API server: how it begins, serves, and ends."""

import asyncio
import json
import signal
import socket
import ssl
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from kftrainer.devcluster import cache_paths
from kftrainer.devcluster.client import ApiClient
from kftrainer.devcluster.controlplane import ControlPlane
from kftrainer.devcluster.errors import ApiError
from kftrainer.devcluster.processes.ports import LOOPBACK, PortReservations
from kftrainer.devcluster.waiting import until
from tests.support.fault_proxy import Answer, FaultProxy, ProxiedRequest, running_proxy
from tests.support.managers import ManagerProcess, manager_process
from tests.support.objects import train_job

COMMAND = (sys.executable, "-m", "kftrainer.cli.main", "manager")
OURS = "/apis/trainer.kubeflow.org/v1alpha1"
CONTROLLERS = (
    "trainjob_controller",
    "trainingruntime_controller",
    "clustertrainingruntime_controller",
)
TEST_TIMEOUT = 90.0  # more than it takes on a busy machine, the start of a manager included
CONFIGURATION = {
    "apiVersion": "config.trainer.kubeflow.org/v1alpha1",
    "kind": "Configuration",
}


class Command:
    """The command, running."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._lines: list[str] = []

    async def line_with(self, text: str) -> str:
        """The first line on standard error that contains this."""
        assert self._process.stderr is not None
        async with asyncio.timeout(TEST_TIMEOUT):
            async for raw in self._process.stderr:
                line = raw.decode()
                self._lines.append(line)
                if text in line:
                    return line
        raise AssertionError(f"it never printed {text!r}: {''.join(self._lines)}")

    def send(self, signum: signal.Signals) -> None:
        self._process.send_signal(signum)

    async def ended(self) -> tuple[int, list[str]]:
        """The exit code, and all lines on standard error."""
        async with asyncio.timeout(TEST_TIMEOUT):
            out, err = await self._process.communicate()
        assert out == b"", "standard output is not for logs"
        message = "".join(self._lines) + err.decode()
        assert "Traceback" not in message
        assert "exception" not in message
        assert self._process.returncode is not None
        return self._process.returncode, message.splitlines()


@asynccontextmanager
async def command(*flags: str | Path) -> AsyncIterator[Command]:
    """The command, with its servers disabled unless the flags enable them."""
    off = (
        *("--metrics-bind-address", "0", "--health-probe-bind-address", "0"),
        *("--webhook-port", "0"),
    )
    process = await asyncio.create_subprocess_exec(
        *(*COMMAND, *off, *map(str, flags)),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        yield Command(process)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def failure(*flags: str | Path) -> str:
    """The last line of a command that fails."""
    async with command(*flags) as failing:
        code, output = await failing.ended()
    assert code == 1
    assert [line for line in output if not line.startswith("{")] == output[-1:], (
        "one line is not log"
    )
    return output[-1]


@pytest.fixture
async def proxy(control_plane: ControlPlane, tmp_path: Path) -> AsyncIterator[FaultProxy]:
    async with running_proxy(control_plane, tmp_path) as proxy:
        yield proxy


@pytest.fixture
def free_address() -> Iterator[str]:
    """A port that no other test chooses."""
    ports = PortReservations(cache_paths.ports(cache_paths.cache_home()))
    yield f"{LOOPBACK}:{ports.reserve()}"
    ports.release_all()


def closed(kubeconfig: Path, folder: Path, address: str) -> Path:
    """The same kubeconfig for a server that is not there."""
    document = yaml.safe_load(kubeconfig.read_text())
    document["clusters"][0]["cluster"]["server"] = f"https://{address}"
    path = folder / "closed"
    path.write_text(yaml.safe_dump(document))
    return path


def discovers_ours(request: ProxiedRequest) -> bool:
    return request.path == OURS


async def bind(api: ApiClient, user: str, verbs: Sequence[str], resources: Sequence[str]) -> None:
    """Let the user do this with the resources, everywhere."""
    ours = ["trainer.kubeflow.org", "jobset.x-k8s.io"]
    theirs = ["node.k8s.io", "scheduling.k8s.io", "resource.k8s.io"]
    groups = ["", "coordination.k8s.io", *ours, *theirs]
    rule = {"apiGroups": groups, "resources": [*resources], "verbs": [*verbs]}
    api_version, metadata = "rbac.authorization.k8s.io/v1", {"name": user}
    await api.create(
        {
            "apiVersion": api_version,
            "kind": "ClusterRole",
            "metadata": metadata,
            "rules": [rule],
        }
    )
    subject = {"kind": "User", "name": user, "apiGroup": "rbac.authorization.k8s.io"}
    reference = {"kind": "ClusterRole", "name": user, "apiGroup": "rbac.authorization.k8s.io"}
    await api.create(
        {
            "apiVersion": api_version,
            "kind": "ClusterRoleBinding",
            "metadata": metadata,
            "subjects": [subject],
            "roleRef": reference,
        }
    )


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_ends_it_cleanly(
    control_plane: ControlPlane, namespace: str, signum: signal.Signals
) -> None:
    async with command("--kubeconfig", control_plane.kubeconfig, "--namespace", namespace) as it:
        await it.line_with("manager_started")
        it.send(signum)
        code, output = await it.ended()
    assert code == 0
    entries = [json.loads(line) for line in output]  # all of it is log, and all log is JSON
    events = [entry["event"] for entry in entries]
    assert events.index("signal_received") < events.index("controller_stopped")
    assert {"level", "logger", "timestamp", "event"} <= entries[0].keys()


async def test_log_format_console_prints_no_json(
    control_plane: ControlPlane, namespace: str
) -> None:
    flags = ("--log-format", "console", "--namespace", namespace)
    async with command("--kubeconfig", control_plane.kubeconfig, *flags) as it:
        await it.line_with("manager_started")
        it.send(signal.SIGTERM)
        code, output = await it.ended()
    assert code == 0
    assert not [line for line in output if line.startswith("{")]


async def test_a_server_that_is_not_there_is_waited_for_and_a_signal_ends_the_waiting(
    control_plane: ControlPlane, tmp_path: Path, free_address: str
) -> None:
    unreachable = closed(control_plane.kubeconfig, tmp_path, free_address)
    async with command("--kubeconfig", unreachable) as it:
        line = await it.line_with("preflight_waiting")
        assert "Cannot connect to host" in json.loads(line)["error"]
        it.send(signal.SIGTERM)
        code, _ = await it.ended()
    assert code == 0


async def test_manager_starts_when_the_api_server_becomes_available(
    proxy: FaultProxy, namespace: str
) -> None:
    proxy.inject(Answer(503, "starting"), discovers_ours, times=2)
    async with command("--kubeconfig", proxy.kubeconfig, "--namespace", namespace) as it:
        await it.line_with("preflight_waiting")
        await it.line_with("manager_started")
        it.send(signal.SIGTERM)
        assert (await it.ended())[0] == 0
    assert proxy.faults_left == 0


async def test_missing_crds_are_reported_with_installation_instructions(proxy: FaultProxy) -> None:
    proxy.inject(Answer(404, "404 page not found\n"), discovers_ours, times=99)
    assert await failure("--kubeconfig", proxy.kubeconfig) == (
        "kftrainer manager: the API server does not serve TrainJob.trainer.kubeflow.org: install "
        "the CustomResourceDefinitions, for example with `kftrainer crds | kubectl apply -f -`"
    )


async def test_missing_permission_is_reported_with_the_kinds(
    control_plane: ControlPlane, api: ApiClient, namespace: str
) -> None:
    user = f"reader-of-runtimes-{namespace}"
    runtimes = ["trainingruntimes", "clustertrainingruntimes"]
    others = [
        "limitranges",
        "runtimeclasses",
        "priorityclasses",
        "resourceclaimtemplates",
    ]
    await bind(api, user, ["list", "watch"], [*runtimes, *others])
    assert await failure("--kubeconfig", control_plane.kubeconfig_for(user)) == (
        "kftrainer manager: no permission to read TrainJob.trainer.kubeflow.org, "
        "ControllerRevision.apps, ConfigMap: trainjobs.trainer.kubeflow.org is forbidden: "
        f'User "{user}" cannot list resource "trainjobs" in API group '
        '"trainer.kubeflow.org" at the cluster scope'
    )


async def test_unauthenticated_user_is_reported(
    control_plane: ControlPlane, tmp_path: Path
) -> None:
    document = yaml.safe_load(control_plane.kubeconfig.read_text())
    document["users"][0]["user"] = {"token": "made-up"}
    path = tmp_path / "stranger"
    path.write_text(yaml.safe_dump(document))
    assert await failure("--kubeconfig", path) == (
        "kftrainer manager: the API server rejected the credentials: Unauthorized"
    )


async def test_taken_port_is_reported(control_plane: ControlPlane, tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        flags = ("--no-metrics-secure", "--metrics-bind-address", address)
        assert await failure("--kubeconfig", control_plane.kubeconfig, *flags) == (
            f"kftrainer manager: metrics cannot listen: another program listens on {address}"
        )


async def test_a_configuration_file_is_read_strictly(
    control_plane: ControlPlane, tmp_path: Path
) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(yaml.safe_dump({**CONFIGURATION, "metrics": {"bindAdress": ":1"}}))
    assert await failure("--kubeconfig", control_plane.kubeconfig, "--config", file) == (
        f"kftrainer manager: invalid configuration: {file}: metrics.bindAdress: "
        "is not a known field"
    )


async def test_a_lost_lease_ends_it(
    control_plane: ControlPlane, api: ApiClient, namespace: str
) -> None:
    flags = ("--leader-elect", "--leader-election-namespace", namespace, "--namespace", namespace)
    lease = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/trainer.kubeflow.org"
    async with command("--kubeconfig", control_plane.kubeconfig, *flags) as it:
        await it.line_with("manager_started")
        await take_over(api, lease)
        code, output = await it.ended()
    assert code == 1
    assert output[-1] == f"kftrainer manager: the lease {namespace}/trainer.kubeflow.org was lost"
    assert (await api.get(lease))["spec"]["holderIdentity"] == "thief"


async def take_over(api: ApiClient, lease: str) -> None:
    async def is_taken_over() -> bool:
        manifest = await api.get(lease)
        manifest["spec"] |= {"holderIdentity": "thief", "leaseDurationSeconds": 60}
        try:
            await api.request("PUT", lease, body=manifest)
        except ApiError:  # it was renewed in this moment
            return False
        return True

    await until(is_taken_over, within=TEST_TIMEOUT, what="the lease being stolen")


async def test_one_of_two_replicas_leads_and_the_other_takes_over(
    control_plane: ControlPlane, api: ApiClient, namespace: str
) -> None:
    flags = ("--leader-elect", "--leader-election-namespace", namespace, "--namespace", namespace)
    async with (
        manager_process(control_plane.kubeconfig, *flags) as first,
        manager_process(control_plane.kubeconfig, *flags) as second,
    ):
        await first.wait_ready()
        await second.wait_ready()
        both = (first, second)
        leader = await until(lambda: leader_of(both), within=TEST_TIMEOUT, what="an election")
        [other] = [each for each in both if each is not leader]
        assert other.log_entries("controller_started") == [], "who does not lead does not work"
        await leader.stop()
        assert leader.ending() == "exit code 0"
        new_leader = await until(lambda: leader_of((other,)), within=TEST_TIMEOUT, what="another")
        assert new_leader is other


async def leader_of(managers: Sequence[ManagerProcess]) -> ManagerProcess | None:
    leaders = [each for each in managers if each.log_entries("manager_started")]
    return leaders[0] if leaders else None


async def test_probes_and_metrics_are_there(
    control_plane: ControlPlane, api: ApiClient, namespace: str, free_address: str
) -> None:
    flags = ("--no-metrics-secure", "--metrics-bind-address", free_address)
    async with (
        manager_process(control_plane.kubeconfig, *flags) as manager,
        ApiClient(manager.health_url, None) as probes,
        ApiClient(f"http://{free_address}", None) as metrics,
    ):
        await manager.wait_ready()
        assert await probes.fetch("GET", "/healthz") == b"ok"
        ready = await probes.fetch("GET", "/readyz", query={"verbose": ""})
        assert ready == b"[+]caches ok\n[+]stopping ok\nhealthz check passed\n"
        job: dict[str, Any] = train_job("job")
        job["metadata"]["namespace"] = namespace
        await api.create(job)

        async def counted() -> str | None:
            text = (await metrics.fetch("GET", "/metrics")).decode()
            done = 'controller_runtime_reconcile_total{controller="trainjob_controller"'
            lines = [line for line in text.splitlines() if line.startswith(done)]
            return text if any(not line.endswith(" 0") for line in lines) else None

        text = await until(counted, within=TEST_TIMEOUT, what="a reconcile being counted")
    for controller in CONTROLLERS:
        assert f'controller_runtime_max_concurrent_reconciles{{controller="{controller}"}}' in text
        assert f'controller_runtime_reconcile_time_seconds_count{{controller="{controller}"' in text
        assert f'workqueue_adds_total{{name="{controller}"' in text


async def test_manager_is_live_but_not_ready_until_caches_have_synced(
    proxy: FaultProxy, namespace: str
) -> None:
    proxy.inject(Answer(503, "starting"), discovers_ours, times=10_000)
    async with (
        manager_process(proxy.kubeconfig, "--namespace", namespace) as manager,
        ApiClient(manager.health_url, None) as probes,
    ):

        async def waiting() -> bool:
            return bool(manager.log_entries("preflight_waiting"))

        await until(waiting, within=TEST_TIMEOUT, what="the manager waiting")
        assert await probes.fetch("GET", "/healthz") == b"ok"
        with pytest.raises(ApiError, match=r"\[-\]caches failed"):
            await probes.fetch("GET", "/readyz")
        proxy.forget_faults()
        await manager.wait_ready()


async def test_https_metrics_are_served_to_authorized_users_only(
    control_plane: ControlPlane, namespace: str, tmp_path: Path, free_address: str
) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(yaml.safe_dump({**CONFIGURATION, "health": {"livenessEndpointName": "alive"}}))
    flags = ("--config", str(file), "--metrics-bind-address", free_address)
    encrypted = ssl.create_default_context()
    encrypted.check_hostname, encrypted.verify_mode = False, ssl.CERT_NONE
    async with (
        manager_process(control_plane.kubeconfig, *flags, "--namespace", namespace) as manager,
        ApiClient(manager.health_url, None) as probes,
        ApiClient(f"https://{free_address}", encrypted) as metrics,
    ):
        await manager.wait_ready()
        assert await probes.fetch("GET", "/alive") == b"ok", "as configured in the file"
        with pytest.raises(ApiError) as refused:
            await metrics.fetch("GET", "/metrics")
    assert refused.value.status == 401
