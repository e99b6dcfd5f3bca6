"""Arguments shared by several commands."""

import argparse
from math import inf
from pathlib import Path

from kftrainer.kube.schema.metadata import DNS_LABEL, LABEL_WORDS, LONGEST_LABEL


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
        help="YAML or JSON files, folders with all that is below them, or - for standard input",
    )


def add_config(parser: argparse.ArgumentParser) -> None:
    """Add `--config`, from which only the plugins are used."""
    parser.add_argument(
        "--config",
        type=Path,
        metavar="FILE",
        help="the manager's configuration file, which says what plugins run",
    )


def add_connection(parser: argparse.ArgumentParser) -> None:
    """Add `--kubeconfig` and `--context`: how to reach the API server."""
    parser.add_argument(
        "--kubeconfig",
        type=Path,
        metavar="FILE",
        help="how to reach the API server (default: $KUBECONFIG, else as the pod that this runs "
        "in, else ~/.kube/config)",
    )
    parser.add_argument("--context", metavar="NAME", help="the context in the kubeconfig")


def add_timeout(parser: argparse.ArgumentParser, seconds: float) -> None:
    """Add `--timeout`: the total time to wait."""
    parser.add_argument(
        "--timeout",
        type=_seconds,
        default=seconds,
        metavar="SECONDS",
        help="how long to wait for everything together (default: %(default)g)",
    )


def namespace_name(text: str) -> str:
    """Argument type for a namespace; an empty name would select all namespaces."""
    if DNS_LABEL.fullmatch(text) is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no name of a namespace: it {LABEL_WORDS}")
    if len(text) > LONGEST_LABEL:
        raise argparse.ArgumentTypeError(
            f"{text!r} is no name of a namespace: it is longer than {LONGEST_LABEL} characters"
        )
    return text


def _seconds(text: str) -> float:
    try:
        seconds = float(text.removesuffix("s"))
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < inf:
        raise argparse.ArgumentTypeError(f"{text} is no number of seconds")
    return seconds
