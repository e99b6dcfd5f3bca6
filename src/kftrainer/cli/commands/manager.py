"""`kftrainer manager`: runs the operator until it is stopped."""

import argparse
import asyncio
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import structlog

from kftrainer import config, logs
from kftrainer.api import names
from kftrainer.api.configuration import CONTROLLERS, DEFAULT, Configuration
from kftrainer.cli import errors as one_line_errors
from kftrainer.cli.arguments import add_connection, namespace_name
from kftrainer.cli.manager_setup.assembly import Surroundings, run_manager
from kftrainer.cli.manager_setup.runtime_folder import RuntimeFolderError, runtimes_in
from kftrainer.config import ConfigurationError
from kftrainer.kube.client.errors import KubeError
from kftrainer.kube.objects.model import InvalidDocumentError, Problem
from kftrainer.machinery.cache import cache
from kftrainer.machinery.certs.serving import CertificateError
from kftrainer.machinery.controller import controller
from kftrainer.machinery.manager.leader_election import LeaseLostError
from kftrainer.machinery.webhook.path_tokens import PathTokenError
from kftrainer.machinery.webhook.server import BindError
from kftrainer.runtime.framework.framework import in_one_line
from kftrainer.runtime.framework.plugin_loader import PluginLoadError, load_framework

log = structlog.get_logger(__name__)

FAILED, MISUSED = 1, 2


class FlagError(Exception):
    """A flag has an invalid value; the message begins with the flag."""


# Errors that the operator of the cluster can fix; no traceback is logged for them.
KNOWN = (
    BindError,
    CertificateError,
    ConfigurationError,
    FlagError,
    KubeError,
    LeaseLostError,
    PathTokenError,
    PluginLoadError,
    RuntimeFolderError,
    cache.NotSyncedError,
    controller.NotSyncedError,
)
# Flags and the configuration fields that they override.
FLAGS: Mapping[str, tuple[str, ...]] = {
    "leader_elect": ("leaderElection", "leaderElect"),
    "leader_election_namespace": ("leaderElection", "resourceNamespace"),
    "webhook_host": ("webhook", "host"),
    "webhook_port": ("webhook", "port"),
    "webhook_client_ca": ("webhook", "clientCAFile"),
    "webhook_client_name": ("webhook", "clientNames"),
    "webhook_path_token_file": ("webhook", "pathTokenFile"),
    "metrics_bind_address": ("metrics", "bindAddress"),
    "metrics_secure": ("metrics", "secureServing"),
    "health_probe_bind_address": ("health", "healthProbeBindAddress"),
    "concurrency": ("controller", "groupKindConcurrency"),
    "qps": ("clientConnection", "qps"),
    "burst": ("clientConnection", "burst"),
}


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the `manager` command."""
    parser = commands.add_parser(
        "manager",
        help="run the operator",
        description="Run the operator, in a cluster or beside one. What is not said here is as the "
        "configuration file says, and what is not said there has a sensible default.",
    )
    parser.add_argument("--config", type=Path, metavar="FILE", help="the configuration file")
    add_connection(parser)
    parser.add_argument(
        "--namespace",
        type=namespace_name,
        action="append",
        default=[],
        metavar="NAME",
        help="look after TrainJobs in this namespace only; may be said several times",
    )
    parser.add_argument(
        "--runtimes",
        type=Path,
        metavar="FOLDER",
        help="keep the ClusterTrainingRuntimes of this folder in the cluster, one in each .yaml "
        "file, and delete those that were in it before, unless TrainJobs refer to them",
    )
    _add_overrides(parser)
    parser.add_argument(
        "--webhook-cert-dir",
        type=Path,
        metavar="FOLDER",
        help="where tls.crt and tls.key of the webhook server are, if others see to them "
        "(default: the manager makes its own)",
    )
    parser.add_argument(
        "--metrics-cert-dir",
        type=Path,
        metavar="FOLDER",
        help="where tls.crt and tls.key of the metrics server are (default: it signs its own)",
    )
    parser.add_argument("--log-level", choices=list(logs.LEVELS), default="info")
    parser.add_argument(
        "--log-format",
        choices=("json", "console"),
        help="(default: console on a terminal, else json)",
    )
    parser.set_defaults(run=run)


def _add_overrides(parser: argparse.ArgumentParser) -> None:
    """Add the flags that override the configuration file."""
    parser.add_argument(
        "--leader-elect",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="enable leader election; required when more than one replica runs",
    )
    parser.add_argument(
        "--leader-election-namespace", metavar="NAME", help="where the Lease is (default: our own)"
    )
    parser.add_argument(
        "--webhook-host", metavar="ADDRESS", help="where the webhook server listens (default: all)"
    )
    parser.add_argument(
        "--webhook-port", type=int, metavar="PORT", help="port of the webhook server; 0: none"
    )
    parser.add_argument(
        "--webhook-client-ca",
        metavar="FILE",
        help="require a client certificate that an authority in this file has signed; the API "
        "server must be configured to present one (default: none is required)",
    )
    parser.add_argument(
        "--webhook-client-name",
        action="append",
        metavar="NAME",
        help="require this common name in the client certificate; may be repeated to allow several "
        "(default: any)",
    )
    parser.add_argument(
        "--webhook-path-token-file",
        metavar="FILE",
        help="accept only requests whose path ends with a token in this file (default: no token)",
    )
    parser.add_argument(
        "--metrics-bind-address", metavar="ADDRESS", help="host:port or :port of metrics; 0: none"
    )
    parser.add_argument(
        "--metrics-secure",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="serve metrics over HTTPS, to authorized clients only",
    )
    parser.add_argument(
        "--health-probe-bind-address",
        metavar="ADDRESS",
        help="host:port or :port of the probes; 0: none",
    )
    parser.add_argument(
        "--concurrency",
        action="append",
        type=_concurrency,
        metavar="KIND=N",
        help="how many objects of a kind are reconciled at once; may be said several times",
    )
    parser.add_argument("--qps", type=float, help="requests per second in the long run; 0: any")
    parser.add_argument("--burst", type=int, help="requests at once, where there is a --qps")


def _concurrency(text: str) -> tuple[str, int]:
    kind, equals, number = text.partition("=")
    if not equals or not number.isdecimal():
        raise argparse.ArgumentTypeError(f"{text} is not of the form TrainJob=5")
    key = kind if kind in CONTROLLERS else f"{kind}.{names.GROUP}"
    return key, int(number)


def run(arguments: argparse.Namespace) -> int:
    """Run the manager; the last line on standard error is the reason if it fails."""
    logs.set_up(arguments.log_level, arguments.log_format)
    try:
        _run(arguments)
    except Exception as error:  # noqa: BLE001  process edge: every error is reported
        return exit_code_of(error)
    return 0


def _run(arguments: argparse.Namespace) -> None:
    configuration = configured(arguments)
    plugins = configuration.plugins
    framework = load_framework(plugins.enabled, plugins.disabled, admission=configuration.admission)
    surroundings = Surroundings(
        kubeconfig=arguments.kubeconfig,
        context=arguments.context,
        namespaces=tuple(dict.fromkeys(arguments.namespace)),
        metrics_certificates=arguments.metrics_cert_dir,
        webhook_certificates=arguments.webhook_cert_dir,
        runtimes=None if arguments.runtimes is None else runtimes_in(arguments.runtimes),
    )
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        runner.run(run_manager(configuration, framework, surroundings))


def exit_code_of(error: Exception) -> int:
    """Print the error in one line and return the exit code; log unexpected errors first."""
    errors = list(one_line_errors.within(error))
    unknown = [each for each in errors if not isinstance(each, KNOWN)]
    if unknown:
        log.critical("manager.crashed", exc_info=error)
        gist = one_line_errors.in_one_line(map(in_one_line, unknown))
        told = f"something unexpected ended it, the log says where: {gist}"
    else:
        told = one_line_errors.in_one_line(map(str, errors))
    print(f"kftrainer manager: {told}", file=sys.stderr)
    return MISUSED if isinstance(error, FlagError) else FAILED


def configured(arguments: argparse.Namespace) -> Configuration:
    """Return the configuration in the file, overridden by flags."""
    read = config.read(arguments.config) if arguments.config else DEFAULT
    document = read.dump()
    for flag, (section, field) in FLAGS.items():
        said: Any = getattr(arguments, flag)
        if said is not None:
            there = document.get(section, {})
            if flag == "concurrency":
                said = {**there.get(field, {}), **dict(said)}
            document[section] = {**there, field: said}
    try:
        return Configuration.parse(document)
    except InvalidDocumentError as error:  # the file alone was valid
        raise FlagError("; ".join(map(_about_flag, error.problems))) from None


def _about_flag(problem: Problem) -> str:
    """Return the problem with the name of the flag that caused it, if any."""
    for flag, path in FLAGS.items():
        field, bracket, key = problem.path.partition("[")
        if field == ".".join(path):
            about = f" {key.removesuffix(']')}" if bracket else ""
            return f"--{flag.replace('_', '-')}{about}: {problem.message}"
    return str(problem)


def _loop_factory() -> Any:
    try:
        import uvloop
    except ImportError:  # not available on every platform
        return None
    return uvloop.new_event_loop
