"""The `kftrainer` command: runs one subcommand and tells errors as sentences."""

import argparse
import os
import sys
from collections.abc import Sequence
from importlib.metadata import version

from kftrainer.cli import check, crds, dev, manager, purge, render, validate
from kftrainer.devcluster.errors import DevClusterError, in_words

FAILED = 1
INTERRUPTED = 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="kftrainer",
        description="A Kubernetes operator for distributed ML training.",
    )
    parser.add_argument("--version", action="version", version=f"kftrainer {version('kftrainer')}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    check.add_parser(commands)
    crds.add_parser(commands)
    dev.add_parser(commands)
    manager.add_parser(commands)
    purge.add_parser(commands)
    render.add_parser(commands)
    validate.add_parser(commands)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; the exit code is 0 when it did what it says, 1 when not, 2 for bad usage."""
    arguments = _parser().parse_args(argv)
    try:
        code: int = arguments.run(arguments)
        sys.stdout.flush()
    except DevClusterError as error:
        print(f"kftrainer: {error}", file=sys.stderr)
        return FAILED
    except BrokenPipeError:  # the reader, such as `head`, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except OSError as error:
        print(f"kftrainer: {in_words(error)}", file=sys.stderr)
        return FAILED
    except KeyboardInterrupt:
        print("kftrainer: interrupted.", file=sys.stderr)
        return INTERRUPTED
    return code


if __name__ == "__main__":
    sys.exit(main())
