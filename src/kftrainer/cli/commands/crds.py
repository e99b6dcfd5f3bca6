"""`kftrainer crds`: prints the CustomResourceDefinitions, for installations without Helm."""

import argparse
import sys
from importlib.resources import files

from kftrainer.cli.arguments import Commands

FOLDER = "crds"


def add_parser(commands: Commands) -> None:
    """Add the `crds` command."""
    parser = commands.add_parser(
        "crds",
        help="print the CustomResourceDefinitions",
        description="Print the CustomResourceDefinitions, for `kubectl apply -f -`.",
    )
    parser.set_defaults(run=run)


def documents() -> list[str]:
    """Return the definitions as YAML, sorted by name."""
    found = sorted((files("kftrainer.api") / FOLDER).iterdir(), key=lambda each: each.name)
    return [each.read_text() for each in found]


def run(_arguments: argparse.Namespace) -> int:
    """Print the definitions as one YAML stream."""
    sys.stdout.write("---\n".join(documents()))
    return 0
