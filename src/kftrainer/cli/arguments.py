"""Arguments shared by several commands."""

import argparse
from collections.abc import Callable
from math import inf
from pathlib import Path
from typing import TypeAlias

from kftrainer.kube.schema.metadata import DNS_LABEL, LABEL_WORDS, LONGEST_LABEL

# What `add_subparsers` returns; argparse has no public name for it.
Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"  # noqa: SLF001


def add_command(
    commands: Commands,
    name: str,
    run: Callable[[argparse.Namespace], int],
    *,
    summary: str,
    description: str,
    epilog: str | None = None,
) -> argparse.ArgumentParser:
    """Add a command whose description and epilog keep their line breaks."""
    parser = commands.add_parser(
        name,
        help=summary,
        description=description,
        epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(run=run)
    return parser


def add_sources(parser: argparse.ArgumentParser) -> None:
    """Add `-f`: the manifests to read."""
    parser.add_argument(
        "-f",
        "--filename",
        dest="sources",
        metavar="FILE",
        nargs="+",
        action="extend",
        required=True,
        help="YAML or JSON files, folders (read recursively), or - for standard input",
    )


def add_config(
    parser: argparse.ArgumentParser, *, used: str = "plugins and admission settings"
) -> None:
    """Add `--config`; `used` names the sections of the file that the command uses."""
    parser.add_argument(
        "--config",
        type=Path,
        metavar="FILE",
        help=f"the manager's configuration file; only its {used} are used",
    )


def add_connection(parser: argparse.ArgumentParser) -> None:
    """Add `--kubeconfig` and `--context`: how to reach the API server."""
    parser.add_argument(
        "--kubeconfig",
        type=Path,
        metavar="FILE",
        help="the kubeconfig file (default: $KUBECONFIG, else the service account of the pod, else "
        "~/.kube/config)",
    )
    parser.add_argument(
        "--context",
        metavar="NAME",
        help="the context of the kubeconfig (default: its current context)",
    )


def add_timeout(parser: argparse.ArgumentParser, seconds: float) -> None:
    """Add `--timeout`: the total time to wait."""
    parser.add_argument(
        "--timeout",
        type=_seconds,
        default=seconds,
        metavar="SECONDS",
        help="total time to wait, in seconds (default: %(default)g)",
    )


def namespace_name(text: str) -> str:
    """Argument type for a namespace; an empty name would select all namespaces."""
    if DNS_LABEL.fullmatch(text) is None:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a valid namespace name: it {LABEL_WORDS}"
        )
    if len(text) > LONGEST_LABEL:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a valid namespace name: it is longer than {LONGEST_LABEL} characters"
        )
    return text


def _seconds(text: str) -> float:
    try:
        seconds = float(text.removesuffix("s"))
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds")
    return seconds
