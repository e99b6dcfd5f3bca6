"""How `kftrainer manager` reads flags and file, and how it reports failures to start."""

import argparse
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
import structlog
import yaml

from kftrainer.cli.commands import manager
from kftrainer.cli.main import main
from kftrainer.kube.client.errors import KubeError
from kftrainer.machinery.cache.cache import NotSyncedError
from kftrainer.machinery.manager.leader_election import LeaseLostError
from kftrainer.machinery.webhook.server import BindError

HEAD = {"apiVersion": "config.trainer.kubeflow.org/v1alpha1", "kind": "Configuration"}
JOBS = "TrainJob.trainer.kubeflow.org"

Run = Callable[..., tuple[int, str]]


pytestmark = pytest.mark.usefixtures("logging_as_before")


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """The exit code of the command, and its output; `F` is a folder of its own."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("KUBECONFIG", raising=False)

    def run(*flags: str) -> tuple[int, str]:
        code = main(["manager", *(flag.replace("F/", f"{tmp_path}/") for flag in flags)])
        out, err = capsys.readouterr()
        assert out == ""
        return code, err.replace(str(tmp_path), "F")

    return run


def parsed(*flags: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    manager.add_parser(parser.add_subparsers())
    return parser.parse_args(["manager", *flags])


def file_with(folder: Path, **settings: object) -> str:
    path = folder / "config.yaml"
    path.write_text(yaml.safe_dump({**HEAD, **settings}))
    return str(path)


def test_defaults_apply_without_flags() -> None:
    configuration = manager.configured(parsed())
    assert not configuration.leader_election.leader_elect
    assert configuration.metrics.address == ":8443"
    assert configuration.metrics.secure_serving
    assert configuration.health.address == ":8081"
    assert configuration.controller.concurrency("TrainJob") == 5
    assert configuration.client_connection.qps == 0


def test_every_flag_has_precedence_over_the_file(tmp_path: Path) -> None:
    file = file_with(
        tmp_path,
        leaderElection={"leaderElect": True, "resourceNamespace": "there", "leaseDuration": "20s"},
        metrics={"bindAddress": ":1", "secureServing": True},
        health={"healthProbeBindAddress": ":2"},
        controller={"groupKindConcurrency": {JOBS: 3, "TrainingRuntime.trainer.kubeflow.org": 2}},
        clientConnection={"qps": 5, "burst": 10},
    )
    configuration = manager.configured(
        parsed(
            *("--config", file, "--no-leader-elect", "--leader-election-namespace", "here"),
            *("--metrics-bind-address", "0", "--no-metrics-secure"),
            *("--health-probe-bind-address", "127.0.0.1:4", "--concurrency", "TrainJob=7"),
            *("--qps", "50.5", "--burst", "60"),
        )
    )
    assert not configuration.leader_election.leader_elect
    assert configuration.leader_election.resource_namespace == "here"
    assert configuration.leader_election.lease_duration.seconds == 20, "of which no flag spoke"
    assert (configuration.metrics.address, configuration.metrics.secure_serving) == ("0", False)
    assert configuration.health.address == "127.0.0.1:4"
    assert configuration.controller.concurrency("TrainJob") == 7
    assert configuration.controller.concurrency("TrainingRuntime") == 2, "of which no flag spoke"
    assert (configuration.client_connection.qps, configuration.client_connection.burst) == (
        50.5,
        60,
    )


def test_every_flag_has_precedence_over_the_defaults() -> None:
    configuration = manager.configured(
        parsed("--leader-elect", f"--concurrency={JOBS}=2", "--metrics-secure")
    )
    assert configuration.leader_election.leader_elect
    assert configuration.metrics.secure_serving
    assert configuration.controller.concurrency("TrainJob") == 2


def test_a_file_alone_is_followed(tmp_path: Path) -> None:
    file = file_with(tmp_path, metrics={"bindAddress": "0"}, plugins={"disabled": ["Volcano"]})
    configuration = manager.configured(parsed("--config", file))
    assert configuration.metrics.address == "0"
    assert configuration.plugins.disabled == ["Volcano"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "failed to read F/config.yaml: No such file or directory"),
        ("- 1", "failed to decode config file: F/config.yaml: must be an object"),
        ("a: [", "failed to decode config file: F/config.yaml:2: not valid YAML"),
        ("metrics: {bindAdress: ''}", "F/config.yaml: metrics.bindAdress: is not a known field"),
        ("webhook: {port: high}", "F/config.yaml: webhook.port: must be an integer"),
        ("leaderElection: {leaseDuration: 15}", "leaderElection.leaseDuration: must be a duration"),
        ("plugins: {enabled: [Mine]}", "plugins.enabled: Mine: no installed package declares it"),
        ("plugins: {disabled: [Mine]}", "plugins.disabled: Mine: not built in"),
    ],
)
def test_invalid_file_is_reported_in_one_line(
    run: Run, tmp_path: Path, text: str | None, message: str
) -> None:
    if text is not None:
        head = "" if text in ("- 1", "a: [") else yaml.safe_dump(HEAD)
        (tmp_path / "config.yaml").write_text(f"{head}{text}\n")
    code, output = run("--config", "F/config.yaml")
    assert code == 1
    assert message in output
    assert_one_line(output)


def assert_one_line(stderr: str) -> None:
    assert stderr.startswith("kftrainer manager: ")
    assert stderr.count("\n") == 1
    assert stderr.endswith("\n")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ((), "No cluster configured: pass --kubeconfig, set KUBECONFIG"),
        (("--kubeconfig", "F/none"), "The kubeconfig does not exist: F/none."),
        (("--kubeconfig", "F/words"), "F/words cannot be used: it is malformed"),
        (("--kubeconfig", "F/empty"), "F/empty cannot be used: it is malformed"),
        (("--kubeconfig", "F/torn"), "F/torn cannot be used: while parsing a flow node"),
        (("--kubeconfig", "F/good", "--context", "b"), "Expected object with name b in F/good"),
    ],
)
def test_invalid_kubeconfig_is_reported_in_one_line(
    run: Run, tmp_path: Path, flags: tuple[str, ...], message: str
) -> None:
    (tmp_path / "words").write_text("just words")
    (tmp_path / "empty").write_text("")
    (tmp_path / "torn").write_text("clusters: [")
    write_kubeconfig(tmp_path / "good")
    code, output = run(*flags)
    assert code == 1
    assert message in output
    assert_one_line(output)


def write_kubeconfig(path: Path, server: str = "http://127.0.0.1:1") -> None:
    document = {
        "clusters": [{"name": "a", "cluster": {"server": server}}],
        "contexts": [{"name": "a", "context": {"cluster": "a", "user": "a"}}],
        "users": [{"name": "a", "user": {"token": "t"}}],
        "current-context": "a",
    }
    path.write_text(yaml.safe_dump(document))


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--qps", "-1"), "--qps: must be at least 0"),
        (("--qps", "2", "--burst", "0"), "clientConnection: burst must be at least 1"),
        (("--concurrency", "TrainJob=0"), f"--concurrency {JOBS}: must be at least 1"),
        (("--concurrency", "Pod=1"), "--concurrency Pod.trainer.kubeflow.org: is not a kind with"),
        (("--metrics-bind-address", "here"), "--metrics-bind-address: must be host:port"),
        (("--health-probe-bind-address", ":x"), "--health-probe-bind-address: must be host:port"),
    ],
)
def test_flag_with_invalid_value_is_a_usage_error(
    run: Run, flags: tuple[str, ...], message: str
) -> None:
    code, output = run(*flags)
    assert code == 2
    assert output.startswith(f"kftrainer manager: {message}")
    assert_one_line(output)


@pytest.mark.parametrize(
    "flags", [("--frobnicate",), ("--concurrency", "TrainJob"), ("--qps", "many"), ("surplus",)]
)
def test_unknown_flag_is_a_usage_error(
    flags: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["manager", *flags])
    assert ended.value.code == 2
    assert "error: " in capsys.readouterr().err.splitlines()[-1]


def test_taken_port_is_reported_in_one_line_first(run: Run, tmp_path: Path) -> None:
    write_kubeconfig(tmp_path / "closed")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        flags = ("--metrics-bind-address", "0", "--health-probe-bind-address", address)
        code, output = run("--kubeconfig", "F/closed", *flags)
    assert code == 1
    assert output == (
        f"kftrainer manager: probes cannot listen: another program listens on {address}\n"
    ), "it has not sent a request to the API server"


def test_a_folder_without_certificates_ends_it_with_one_line(run: Run, tmp_path: Path) -> None:
    write_kubeconfig(tmp_path / "closed")
    code, output = run("--kubeconfig", "F/closed", "--metrics-cert-dir", "F/certificates")
    assert code == 1
    assert "A certificate cannot be read" in output
    assert "F/certificates/tls.crt" in output
    assert_one_line(output)


def test_certificates_that_are_none_end_it_with_one_line(run: Run, tmp_path: Path) -> None:
    write_kubeconfig(tmp_path / "closed")
    for name in ("tls.crt", "tls.key"):
        (tmp_path / name).write_text("nonsense")
    code, output = run("--kubeconfig", "F/closed", "--metrics-cert-dir", str(tmp_path))
    assert code == 1
    assert "tls.crt and tls.key in F: The pair cannot be used" in output
    assert_one_line(output)


def test_invalid_runtimes_folder_is_reported_in_one_line(run: Run, tmp_path: Path) -> None:
    write_kubeconfig(tmp_path / "closed")
    (tmp_path / "runtimes").mkdir()
    (tmp_path / "runtimes" / "pod.yaml").write_text("apiVersion: v1\nkind: Pod\n")
    for folder, expected_text in (
        ("F/runtimes", "runtimes cannot be used: F/runtimes/pod.yaml:1: must be a Cluster"),
        ("F/none", "failed to read runtimes: F/none: No such file or directory"),
    ):
        code, output = run("--kubeconfig", "F/closed", "--runtimes", folder)
        assert code == 1
        assert expected_text in output
        assert_one_line(output)


def reported(error: Exception, capsys: pytest.CaptureFixture[str]) -> tuple[int, list[str]]:
    code = manager.exit_code_of(error)
    return code, capsys.readouterr().err.splitlines()


def test_grouped_errors_are_reported_once_each_in_one_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    lost = [LeaseLostError("the lease\nwas lost"), KubeError("no answer")]
    group = ExceptionGroup("", [BindError("taken"), ExceptionGroup("", [*lost, *lost])])
    assert reported(group, capsys) == (
        1,
        ["kftrainer manager: taken; the lease was lost; no answer"],
    )
    group = ExceptionGroup("", [NotSyncedError("waited 120 s for TrainJob")])
    assert reported(group, capsys) == (1, ["kftrainer manager: waited 120 s for TrainJob"])


def test_unexpected_error_is_logged_with_traceback_and_summarized_in_the_last_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fail() -> None:
        raise ValueError("two\nlines")

    try:
        fail()
    except ValueError as error:
        group = ExceptionGroup("", [error, KubeError("of which the other is the cause")])
    with structlog.testing.capture_logs() as logged:
        code, lines = reported(group, capsys)
    assert code == 1
    assert lines == [
        "kftrainer manager: unexpected error, see the traceback in the log: ValueError: two lines"
    ]
    assert [(entry["event"], entry["exc_info"]) for entry in logged] == [("manager_crashed", group)]
