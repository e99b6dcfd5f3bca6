"""The `kftrainer` command: runs one subcommand and tells errors as sentences."""

import argparse
import errno
import sys
from collections.abc import Sequence
from importlib.metadata import version

from kftrainer.cli import crds, dev
from kftrainer.devcluster.errors import DevClusterError

FAILED = 1
INTERRUPTED = 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="kftrainer",
        description="A Kubernetes operator for distributed ML training.",
    )
    parser.add_argument("--version", action="version", version=f"kftrainer {version('kftrainer')}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    crds.add_parser(commands)
    dev.add_parser(commands)
    return parser


def _in_words(error: OSError) -> str:
    where = f" ({error.filename})" if error.filename else ""
    match error.errno:
        case errno.ENOSPC | errno.EDQUOT:
            return f"The disk is full{where}: free some space and run this again."
        case errno.EACCES | errno.EPERM | errno.EROFS:
            return f"No permission{where}: {error.strerror}. Is XDG_CACHE_HOME a folder of yours?"
        case _:
            return f"{error.strerror or error}{where}."


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; the exit code is 0 when it did what it says, 1 when not, 2 for bad usage."""
    arguments = _parser().parse_args(argv)
    try:
        code: int = arguments.run(arguments)
    except DevClusterError as error:
        print(f"kftrainer: {error}", file=sys.stderr)
        return FAILED
    except BrokenPipeError:  # the reader, such as `head`, has seen enough
        sys.stderr.close()
        return FAILED
    except OSError as error:
        print(f"kftrainer: {_in_words(error)}", file=sys.stderr)
        return FAILED
    except KeyboardInterrupt:
        print("kftrainer: interrupted; nothing was left running.", file=sys.stderr)
        return INTERRUPTED
    return code


if __name__ == "__main__":
    sys.exit(main())
