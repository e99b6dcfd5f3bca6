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
from kftrainer.devcluster.cluster_options import BARE, FULL, Shape
from kftrainer.devcluster.components.kubelet import unavailable
from kftrainer.devcluster.errors import DevClusterError, NotRunningError
from kftrainer.devcluster.named_control_plane import NamedPlane, State
from kftrainer.devcluster.nodes.kubelet.network.addresses import MOST_NODES
from kftrainer.devcluster.processes import start_stop
from kftrainer.devcluster.processes.process import tail
from kftrainer.devcluster.progress import Progress
from kftrainer.kube.objects.quantity import Quantity, QuantityError

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


def _assignment(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not (name and equals and value):
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form NAME=VALUE")
    return name, value


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
        metavar="N",
        help=f"number of simulated nodes (default: {FULL.nodes}, or 0 with --process-nodes)",
    )
    parser.add_argument(
        "--process-nodes",
        type=_number(0, MOST_NODES),
        default=0,
        metavar="N",
        help="number of nodes whose pods run as processes on this machine (default: %(default)s)",
    )
    parser.add_argument(
        "--image",
        type=_assignment,
        action="append",
        default=[],
        metavar="NAME=FOLDER",
        help="virtual environment that an image name selects on process nodes, as nothing is "
        "pulled; the name may end with *; may be repeated (default for all names: the Python that "
        "runs this command)",
    )
    parser.add_argument(
        "--only-mapped-images",
        action="store_true",
        help="reject other image names than those of --image on process nodes",
    )
    parser.add_argument(
        "--node-resource",
        type=_assignment,
        action="append",
        default=[],
        metavar="NAME=QUANTITY",
        help="resource that each process node declares, for example nvidia.com/gpu=8; may be "
        "repeated",
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
    _check(arguments)
    shape = _with_nodes(
        replace(
            BARE if arguments.bare else FULL,
            nodes=0,
            pod_seconds=arguments.pod_seconds,
            port=arguments.port,
            crd_files=tuple(arguments.crd),
        ),
        arguments,
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


def _check(arguments: argparse.Namespace) -> None:
    for file in arguments.crd:
        if not file.is_file():
            raise DevClusterError(f"--crd: {file} is not a file")
    for name, folder in arguments.image:
        if not Path(folder).is_dir():
            raise DevClusterError(f"--image {name}: {folder} is not a folder")
    for name, quantity in arguments.node_resource:
        try:
            Quantity.parse(quantity)
        except QuantityError as error:
            raise DevClusterError(f"--node-resource {name}: {error}") from error
    if arguments.bare and arguments.process_nodes:
        raise DevClusterError("--bare has no controllers, which --process-nodes needs")


def _with_nodes(shape: Shape, arguments: argparse.Namespace) -> Shape:
    """Return the shape with its nodes; fake ones if process nodes cannot run here."""
    if arguments.bare:
        return shape
    if not arguments.process_nodes:
        return replace(shape, nodes=FULL.nodes if arguments.nodes is None else arguments.nodes)
    if (reason := unavailable()) is not None:
        nodes = arguments.nodes or arguments.process_nodes
        print(f"kftrainer: {reason} Pods are simulated on {nodes} nodes.", file=sys.stderr)
        return replace(shape, nodes=nodes)
    return replace(
        shape,
        nodes=arguments.nodes or 0,
        process_nodes=arguments.process_nodes,
        process_node_resources=dict(arguments.node_resource),
        images={name: Path(folder) for name, folder in arguments.image},
        only_mapped_images=arguments.only_mapped_images,
    )


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
