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
from kftrainer.cli.arguments import Commands, add_connection, namespace_name
from kftrainer.cli.manager_setup.assembly import ManagerOptions, run_manager
from kftrainer.cli.manager_setup.runtime_folder import RuntimeFolderError, runtimes_in
from kftrainer.config import ConfigurationError
from kftrainer.kube.client.errors import KubeError
from kftrainer.kube.objects.model import InvalidDocumentError, Problem
from kftrainer.machinery.cache.cache import NotSyncedError
from kftrainer.machinery.certs.serving import CertificateError
from kftrainer.machinery.exception_groups import leaf_errors
from kftrainer.machinery.manager.leader_election import LeaseLostError
from kftrainer.machinery.webhook.path_tokens import PathTokenError
from kftrainer.machinery.webhook.server import BindError
from kftrainer.runtime.framework.framework import in_one_line
from kftrainer.runtime.framework.plugin_loader import PluginLoadError, load_framework

log = structlog.get_logger(__name__)

FAILED, USAGE_ERROR = 1, 2


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
    NotSyncedError,
    PathTokenError,
    PluginLoadError,
    RuntimeFolderError,
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


def add_parser(commands: Commands) -> None:
    """Add the `manager` command."""
    parser = commands.add_parser(
        "manager",
        help="run the operator",
        description="Run the operator, in a pod or on another machine. Flags override the "
        "configuration file; the file overrides the defaults.",
    )
    parser.add_argument(
        "--config", type=Path, metavar="FILE", help="the configuration file (default: none)"
    )
    add_connection(parser)
    parser.add_argument(
        "--namespace",
        type=namespace_name,
        action="append",
        default=[],
        metavar="NAME",
        help="reconcile TrainJobs of this namespace only; may be repeated (default: all "
        "namespaces)",
    )
    parser.add_argument(
        "--runtimes",
        type=Path,
        metavar="FOLDER",
        help="apply the ClusterTrainingRuntimes of this folder (one per .yaml file), and re-create "
        "those that are deleted; a runtime that is removed from the folder is deleted from the "
        "cluster once no TrainJob refers to it",
    )
    _add_overrides(parser)
    parser.add_argument(
        "--webhook-cert-dir",
        type=Path,
        metavar="FOLDER",
        help="folder with tls.crt and tls.key of the webhook server (default: the manager issues "
        "its own certificate)",
    )
    parser.add_argument(
        "--metrics-cert-dir",
        type=Path,
        metavar="FOLDER",
        help="folder with tls.crt and tls.key of the metrics server (default: a self-signed "
        "certificate)",
    )
    parser.add_argument(
        "--log-level",
        choices=list(logs.LEVELS),
        default="info",
        help="the least severe level that is logged (default: %(default)s)",
    )
    parser.add_argument(
        "--log-format",
        choices=("json", "console"),
        help="log format (default: console on a terminal, else json)",
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
        "--leader-election-namespace",
        metavar="NAME",
        help="namespace of the Lease (default: that of the pod)",
    )
    parser.add_argument(
        "--webhook-host",
        metavar="ADDRESS",
        help="address that the webhook server listens on (default: all)",
    )
    parser.add_argument(
        "--webhook-port",
        type=int,
        metavar="PORT",
        help=f"port of the webhook server; 0 disables it (default: {DEFAULT.webhook.port})",
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
        "--metrics-bind-address",
        metavar="ADDRESS",
        help="host:port or :port of the metrics server; 0 disables it (default: "
        f"{DEFAULT.metrics.bind_address})",
    )
    parser.add_argument(
        "--metrics-secure",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="serve metrics over HTTPS, to authorized clients only; this is the default",
    )
    parser.add_argument(
        "--health-probe-bind-address",
        metavar="ADDRESS",
        help="host:port or :port of the health probes; 0 disables them (default: "
        f"{DEFAULT.health.health_probe_bind_address})",
    )
    parser.add_argument(
        "--concurrency",
        action="append",
        type=_concurrency,
        metavar="KIND=N",
        help="number of objects of this kind that are reconciled concurrently; may be repeated "
        "(default: TrainJob=5, 1 for other kinds)",
    )
    parser.add_argument(
        "--qps",
        type=float,
        metavar="N",
        help="average requests per second to the API server; 0: no limit (default: "
        f"{DEFAULT.client_connection.qps:g})",
    )
    parser.add_argument(
        "--burst",
        type=int,
        metavar="N",
        help="requests that may be sent at once if --qps is set (default: "
        f"{DEFAULT.client_connection.burst})",
    )


def _concurrency(text: str) -> tuple[str, int]:
    kind, equals, number = text.partition("=")
    if not equals or not number.isdecimal():
        raise argparse.ArgumentTypeError(
            f"{text!r} does not have the form KIND=N, such as TrainJob=5"
        )
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
    options = ManagerOptions(
        kubeconfig=arguments.kubeconfig,
        context=arguments.context,
        namespaces=tuple(dict.fromkeys(arguments.namespace)),
        metrics_certificates=arguments.metrics_cert_dir,
        webhook_certificates=arguments.webhook_cert_dir,
        runtimes=None if arguments.runtimes is None else runtimes_in(arguments.runtimes),
    )
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        runner.run(run_manager(configuration, framework, options))


def exit_code_of(error: Exception) -> int:
    """Print the error in one line and return the exit code; log unexpected errors first."""
    errors = list(leaf_errors(error))
    unknown = [each for each in errors if not isinstance(each, KNOWN)]
    if unknown:
        log.critical("manager_crashed", exc_info=error)
        gist = one_line_errors.in_one_line(map(in_one_line, unknown))
        message = f"unexpected error, see the traceback in the log: {gist}"
    else:
        message = one_line_errors.in_one_line(map(str, errors))
    print(f"kftrainer manager: {message}", file=sys.stderr)
    return USAGE_ERROR if isinstance(error, FlagError) else FAILED


def configured(arguments: argparse.Namespace) -> Configuration:
    """Return the configuration in the file, overridden by flags."""
    read = config.read(arguments.config) if arguments.config else DEFAULT
    document = read.dump()
    for flag, (section, field) in FLAGS.items():
        value: Any = getattr(arguments, flag)
        if value is not None:
            present = document.get(section, {})
            if flag == "concurrency":
                value = {**present.get(field, {}), **dict(value)}
            document[section] = {**present, field: value}
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
