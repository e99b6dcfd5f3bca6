"""`kftrainer render`: prints what would be applied for TrainJobs, without a cluster."""

import argparse
import io
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from kftrainer.cli.arguments import add_config, add_sources

if TYPE_CHECKING:
    from kftrainer.cli.manifests.plans import Plan

FAILED = 1
DIFFERENT = 1
TROUBLE = 2  # exit code for failures with --diff, where 1 means that something has changed
DESCRIPTION = """\
Print the objects that would be applied for each TrainJob, in the order of applying.

The documents may be TrainJobs, runtimes, and objects that are there already, in any order and
mixture; kinds that planning has no use for are left out. Defaults are filled in as the API server
would. What belongs to a TrainJob that has not been created yet refers to it by a uid of zeros.
"""
EPILOG = """\
exit code:
  0  done; with --diff: nothing has changed
  1  something is wrong, and nothing was printed; with --diff: something has changed
  2  bad usage; with --diff also: something is wrong
Problems are lines on standard error, the same as of `kftrainer validate`. What the API server or
admission rejects is an error, as nothing would be applied for it. An error here alone: a TrainJob
without a name or whose runtime is in none of the files, and an object that is there twice.
"""


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the `render` command."""
    parser = commands.add_parser(
        "render",
        help="print what would be applied for TrainJobs, without a cluster",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_sources(parser)
    form = parser.add_mutually_exclusive_group()
    form.add_argument(
        "-o",
        "--output",
        choices=("yaml", "json"),
        default="yaml",
        help="YAML documents or one JSON List (default: %(default)s)",
    )
    form.add_argument(
        "--diff",
        metavar="FILE",
        help="print what has changed since this output, YAML or JSON, of an earlier time",
    )
    form.add_argument(
        "--explain",
        action="store_true",
        help="print which plugin set which value, and from which field it came",
    )
    parser.add_argument(
        "--show-secrets",
        action="store_true",
        help="print the contents of Secrets; generated keys differ on every run",
    )
    add_config(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Print all objects, or only the problems if there are errors."""
    from kftrainer.cli.manifests.documents import read
    from kftrainer.cli.manifests.plans import plan_all
    from kftrainer.cli.plugins import framework_of
    from kftrainer.config import ConfigurationError
    from kftrainer.runtime.errors import PlanningError
    from kftrainer.runtime.framework.plugin_loader import PluginLoadError

    failed = FAILED if arguments.diff is None else TROUBLE
    reading = read(arguments.sources, with_spots=True)
    options = {"explain": arguments.explain, "show_secrets": arguments.show_secrets}
    try:
        outcome = plan_all(reading, framework_of(arguments.config), **options)
    except (ConfigurationError, PluginLoadError, PlanningError) as error:  # not about a document
        return _refuse([" ".join(str(error).split())], failed)
    _report(map(str, outcome.remarks))
    if outcome.is_refused:
        return failed
    if outcome.no_train_job:
        _report(["warning: there is no TrainJob in the documents"])
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8")  # regardless of the locale
    return _print(outcome.plans, arguments)


def _refuse(problems: Iterable[str], code: int) -> int:
    _report(problems)
    return code


def _report(messages: Iterable[str]) -> None:
    """Print each message on one line; control characters of documents are escaped."""
    from kftrainer.cli.manifests.output import visible

    for message in messages:
        print(visible(message), file=sys.stderr)


def _print(plans: "Sequence[Plan]", arguments: argparse.Namespace) -> int:
    from kftrainer.cli.manifests import output

    objects = [manifest for plan in plans for manifest in plan.manifests]
    if arguments.diff is not None:
        return _print_difference(objects, arguments.diff)
    if arguments.explain:
        lines = [f"{output.visible(line)}\n" for plan in plans for line in plan.explained()]
        sys.stdout.write("".join(lines))
    else:
        write = {"yaml": output.as_yaml, "json": output.as_json}[arguments.output]
        sys.stdout.write(write(objects))
    return 0


def _print_difference(now: list[dict[str, Any]], file: str) -> int:
    from kftrainer.cli.manifests import output
    from kftrainer.cli.manifests.documents import read

    reading = read([file])
    problems = reading.problems + [
        f"{each.place}: it is no object that was rendered: it has no apiVersion, kind or name"
        for each in reading.documents
        if not _is_object(each.content)
    ]
    if problems:
        return _refuse(problems, TROUBLE)
    found = output.difference([each.content for each in reading.documents], now, file)
    sys.stdout.write(found)
    return DIFFERENT if found else 0


def _is_object(content: Mapping[str, Any]) -> bool:
    match content:
        case {"apiVersion": str(), "kind": str(), "metadata": {"name": str()}}:
            return True
        case _:
            return False
