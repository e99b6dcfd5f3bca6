"""`kftrainer dev`: a local control plane for development."""

import argparse
import asyncio
import os
import shlex
import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from kftrainer.cli.arguments import Commands
from kftrainer.devcluster import cache_paths
from kftrainer.devcluster.cluster_options import BARE, FULL
from kftrainer.devcluster.errors import DevClusterError, NotRunningError
from kftrainer.devcluster.named_control_plane import NamedPlane, State
from kftrainer.devcluster.processes import start_stop
from kftrainer.devcluster.processes.process import tail
from kftrainer.devcluster.progress import Progress

DEFAULT_NAME = "default"
NOT_RUNNING = 1
INTERRUPTED = 130
LAST_PORT = 65_535


def _number(least: int, most: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        value = int(text)
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(f"{value} is not between {least} and {most}")
        return value

    parse.__name__ = "number"
    return parse


def add_parser(commands: Commands) -> None:
    """Add the `dev` command and its actions."""
    parser = commands.add_parser(
        "dev",
        help="run a local control plane for development",
        description="Run a local control plane for development: etcd, kube-apiserver, controllers "
        "and simulated nodes. It needs no container engine.",
    )
    actions = parser.add_subparsers(metavar="ACTION", required=True)

    def action(name: str, run: Callable[[argparse.Namespace], int], help_: str) -> None:
        added = actions.add_parser(name, help=help_, description=help_.capitalize() + ".")
        added.add_argument(
            "--name", default=DEFAULT_NAME, help="name of the control plane (default: %(default)s)"
        )
        added.set_defaults(run=run)
        options.get(name, lambda _: None)(added)

    options = {"up": _up_options, "logs": _logs_options}
    action("up", up, "start a control plane in the background")
    action("down", down, "stop the control plane and delete its data; its logs are kept")
    action("status", status, "print whether the control plane is running, and its processes")
    action("kubeconfig", kubeconfig, "print the path of the kubeconfig file")
    action("logs", logs, "print the logs of the components")


def _up_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--bare", action="store_true", help="start only etcd and kube-apiserver")
    parser.add_argument(
        "--nodes",
        type=_number(0, 5000),
        default=FULL.nodes,
        metavar="N",
        help="number of simulated nodes (default: %(default)s)",
    )
    parser.add_argument(
        "--pod-seconds",
        type=_number(0, 86_400),
        default=5,
        metavar="N",
        help="seconds that pods of Jobs run on simulated nodes (default: %(default)s)",
    )
    parser.add_argument(
        "--port",
        type=_number(1, LAST_PORT),
        metavar="PORT",
        help="port of the API server (default: any free port)",
    )
    parser.add_argument(
        "--crd",
        type=Path,
        action="append",
        default=[],
        metavar="FILE",
        help="YAML file with CRDs to install; may be repeated",
    )


def _logs_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "part", nargs="?", metavar="COMPONENT", help="one component, such as etcd (default: all)"
    )
    parser.add_argument(
        "--tail",
        type=_number(0, 10**9),
        default=50,
        metavar="N",
        help="number of last lines of each log (default: 50)",
    )
    parser.add_argument("-f", "--follow", action="store_true", help="continue to print new lines")


def _place(arguments: argparse.Namespace) -> NamedPlane:
    return NamedPlane(arguments.name, cache_paths.cache_home())


def dev_command(action: str, name: str) -> str:
    """Return the command line for this control plane, for suggestions in messages."""
    option = "" if name == DEFAULT_NAME else f" --name {name}"
    return f"kftrainer dev {action}{option}"


def _starts_it(place: NamedPlane) -> str:
    return f"start it with `{dev_command('up', place.name)}`."


def _how_to_use(state: State) -> str:
    kubeconfig = shlex.quote(state.kubeconfig)
    return f"The API server is ready at {state.url}. To use it:\n  export KUBECONFIG={kubeconfig}"


def up(arguments: argparse.Namespace) -> int:
    """Start the control plane, unless it runs."""
    place = _place(arguments)
    if place.kept():
        return _already_up(place)
    for file in arguments.crd:
        if not file.is_file():
            raise DevClusterError(f"--crd: {file} is not a file")
    shape = replace(
        BARE if arguments.bare else FULL,
        nodes=0 if arguments.bare else arguments.nodes,
        pod_seconds=arguments.pod_seconds,
        port=arguments.port,
        crd_files=tuple(arguments.crd),
    )
    try:
        state = asyncio.run(
            start_stop.up(place, shape, cache_paths.cache_home(), Progress(sys.stderr))
        )
    except KeyboardInterrupt:
        left = "it is still stopping" if place.kept() else "no process is left running"
        print(f"kftrainer: interrupted; {left}.", file=sys.stderr)
        return INTERRUPTED
    print(_how_to_use(state))
    return 0


def _already_up(place: NamedPlane) -> int:
    state = place.read()
    if state is None or state.phase != "ready":
        raise DevClusterError(
            f"another process is starting or stopping {place.name}: "
            f"wait until it has finished, or run `{dev_command('down', place.name)}`."
        )
    print(f"{place.name} is already running. {_how_to_use(state)}")
    return 0


def down(arguments: argparse.Namespace) -> int:
    """Stop the control plane, if it runs."""
    place = _place(arguments)
    was_up = place.kept()
    asyncio.run(start_stop.down(place, Progress(sys.stderr)))
    print(f"{place.name} is stopped." if was_up else f"{place.name} was not running.")
    return 0


def status(arguments: argparse.Namespace) -> int:
    """Print whether it runs; the exit code is 0 only if it does."""
    place = _place(arguments)
    state = place.read()
    if not place.kept():
        print(_why_down(place, state))
        return NOT_RUNNING
    if state is None or state.phase != "ready":
        print(f"{place.name} is {state.phase if state else 'starting'}.")
        return NOT_RUNNING
    print(f"{place.name} is running at {state.url}")
    print(f"kubeconfig: {state.kubeconfig}")
    for part in state.parts:
        print(f"  {part.name:<24} pid {part.pid}")
    return 0


def _why_down(place: NamedPlane, state: State | None) -> str:
    match state:
        case State(phase="failed"):
            return f"{place.name} is not running: {state.reason}"
        case State(phase="ready" | "starting" | "stopping"):
            killed = "its processes were killed"
            return f"{place.name} is not running: {killed}; {_starts_it(place)}"
        case _:
            return f"{place.name} is not running; {_starts_it(place)}"


def kubeconfig(arguments: argparse.Namespace) -> int:
    """Print the kubeconfig's path, for `export KUBECONFIG=$(kftrainer dev kubeconfig)`."""
    place = _place(arguments)
    state = place.read()
    if not place.kept() or state is None or state.phase != "ready":
        raise NotRunningError(f"{place.name} is not running; {_starts_it(place)}")
    print(state.kubeconfig)
    return 0


def logs(arguments: argparse.Namespace) -> int:
    """Show the logs, which remain after the control plane has stopped."""
    place = _place(arguments)
    found = place.logs()
    if arguments.part is not None:
        if arguments.part not in found:
            known = ", ".join(found) or "none"
            raise DevClusterError(
                f"{place.name} has no log of {arguments.part}; available logs: {known}"
            )
        found = {arguments.part: found[arguments.part]}
    if not found:
        raise NotRunningError(f"{place.name} has no logs; {_starts_it(place)}")
    if arguments.follow:
        follower = shutil.which("tail")
        if follower is None:
            raise DevClusterError("--follow needs the program `tail`, which is not on PATH")
        argv = [follower, "-n", str(arguments.tail), "-F", *map(str, found.values())]
        os.execv(follower, argv)  # noqa: S606
    for name, path in found.items():
        print(f"==> {name} ({path})")
        print(tail(path, arguments.tail))
    return 0
