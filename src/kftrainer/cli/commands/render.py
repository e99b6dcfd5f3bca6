"""`kftrainer render`: prints what would be applied for TrainJobs, without a cluster."""

import argparse
import io
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from kftrainer.cli.arguments import Commands, add_command, add_config, add_sources

if TYPE_CHECKING:
    from kftrainer.cli.manifests.plans import Plan

FAILED = 1
DIFFERENT = 1
DIFF_FAILED = 2  # exit code for failures with --diff, where 1 means that something has changed
DESCRIPTION = """\
Print the objects that would be applied for each TrainJob, in the order of applying. No cluster is
needed.

The files may contain TrainJobs, runtimes, and objects that already exist in the cluster, in any
order. Kinds that planning does not read are ignored. Defaults are filled in as the API server does.
Owner references to a TrainJob that has no UID yet contain a UID of zeros.
"""
EPILOG = """\
exit code:
  0  success; with --diff: nothing has changed
  1  errors were found, and nothing was printed; with --diff: something has changed
  2  invalid arguments; with --diff also: errors were found
Problems are printed to standard error, in the format of `kftrainer validate`. Everything that the
API server or the admission webhook would reject is an error. Three more problems are errors here
but not in `kftrainer validate`: a TrainJob without a name, a TrainJob whose runtime is not among
the given files, and an object that is defined twice.
"""


def add_parser(commands: Commands) -> None:
    """Add the `render` command."""
    parser = add_command(
        commands,
        "render",
        run,
        summary="print the objects that would be applied for TrainJobs; needs no cluster",
        description=DESCRIPTION,
        epilog=EPILOG,
    )
    add_sources(parser)
    form = parser.add_mutually_exclusive_group()
    form.add_argument(
        "-o",
        "--output",
        choices=("yaml", "json"),
        default="yaml",
        help="output format: YAML documents, or one JSON List (default: %(default)s)",
    )
    form.add_argument(
        "--diff",
        metavar="FILE",
        help="compare with earlier output (YAML or JSON) and print the differences",
    )
    form.add_argument(
        "--explain",
        action="store_true",
        help="print which plugin set each value, and from which field it was taken",
    )
    parser.add_argument(
        "--show-secrets",
        action="store_true",
        help="print the contents of Secrets; generated keys differ on every run",
    )
    add_config(parser)


def run(arguments: argparse.Namespace) -> int:
    """Print all objects, or only the problems if there are errors."""
    from kftrainer.cli.manifests import pipeline
    from kftrainer.cli.manifests.plans import PlanOptions

    failed = FAILED if arguments.diff is None else DIFF_FAILED
    options = PlanOptions(explain=arguments.explain, show_secrets=arguments.show_secrets)
    try:
        outcome = pipeline.run(arguments.sources, arguments.config, options)
    except pipeline.SetupError as error:
        _report([str(error)])
        return failed
    _report(map(str, outcome.problems))
    if outcome.is_invalid:
        return failed
    if not outcome.has_train_jobs:
        _report(["warning: the files contain no TrainJob"])
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8")  # regardless of the locale
    return _print(outcome.plans, arguments)


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

    earlier = read([file])
    problems = [str(error) for error in earlier.errors] + [
        f"{each.place}: not an object that was rendered: it has no apiVersion, kind or name"
        for each in earlier.documents
        if not _is_object(each.content)
    ]
    if problems:
        _report(problems)
        return DIFF_FAILED
    found = output.difference([each.content for each in earlier.documents], now, file)
    sys.stdout.write(found)
    return DIFFERENT if found else 0


def _is_object(content: Mapping[str, Any]) -> bool:
    match content:
        case {"apiVersion": str(), "kind": str(), "metadata": {"name": str()}}:
            return True
        case _:
            return False
