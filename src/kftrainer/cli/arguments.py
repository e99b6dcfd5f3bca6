"""Arguments that commands without a cluster have in common."""

import argparse
from pathlib import Path


def add_sources(parser: argparse.ArgumentParser) -> None:
    """Add `-f`: the documents."""
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
    """Add `--config`, of which only the plugins matter here."""
    parser.add_argument(
        "--config",
        type=Path,
        metavar="FILE",
        help="the manager's configuration file, which says what plugins run",
    )
