"""The `kftrainer` command: runs one subcommand and prints its errors."""

import os
import sys

from kftrainer.cli.interrupts import exiting_on_interrupt, report_interrupt

TYPE_CHECKING = False  # as in `typing`, which takes longer to import than this module
if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

NAME = "kftrainer"
FAILED = 1


def _parser() -> "argparse.ArgumentParser":
    import argparse
    from importlib.metadata import version

    from kftrainer.cli.commands import (
        check,
        crds,
        dev,
        diff_runtime,
        manager,
        plugins,
        purge,
        render,
        validate,
    )

    parser = argparse.ArgumentParser(
        prog=NAME,
        description="A Kubernetes operator for distributed ML training.",
    )
    parser.add_argument("--version", action="version", version=f"{NAME} {version(NAME)}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for command in (check, crds, dev, diff_runtime, manager, plugins, purge, render, validate):
        command.add_parser(commands)
    return parser


def main(argv: "Sequence[str] | None" = None) -> int:
    """Run the command; exit code 0 on success, 1 on failure, 2 for bad usage."""
    try:
        with exiting_on_interrupt(NAME):  # importing the commands takes a second
            arguments = _parser().parse_args(argv)
        return _run(arguments)
    except KeyboardInterrupt:
        return report_interrupt(NAME)


def _run(arguments: "argparse.Namespace") -> int:
    from kftrainer.devcluster.errors import DevClusterError, in_words

    try:
        code: int = arguments.run(arguments)
        sys.stdout.flush()
    except DevClusterError as error:
        print(f"{NAME}: {error}", file=sys.stderr)
        return FAILED
    except BrokenPipeError:  # the reader, such as `head`, has closed the pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except OSError as error:
        print(f"{NAME}: {in_words(error)}", file=sys.stderr)
        return FAILED
    return code


if __name__ == "__main__":
    sys.exit(main())
