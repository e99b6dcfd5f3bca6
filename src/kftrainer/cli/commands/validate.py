"""`kftrainer validate`: reports what the cluster would reject, without a cluster."""

import argparse
import io
import sys
from typing import TYPE_CHECKING

from kftrainer.cli.arguments import Commands, add_command, add_config, add_sources

if TYPE_CHECKING:
    from kftrainer.cli.manifests.pipeline import Outcome

INVALID = 1
UNREADABLE_INPUT = 2
DESCRIPTION = """\
Report what the API server or the admission webhook would reject in TrainJobs and runtimes, and the
warnings that admission would return. No cluster is needed, so it can run in CI and in editors.

The files may contain objects in any order. Objects of other kinds that planning reads, such as
LimitRanges and PriorityClasses, are used as context, as if they existed in the cluster; only the
fields that planning reads are checked. All other kinds are skipped; the last line counts them by
kind. Jobs of the Training Operator (v1), such as a PyTorchJob of kubeflow.org/v1, are errors.

A TrainJob is validated together with its runtime. If the files do not contain the runtime:
  - If it is installed with the operator, or if the files contain no runtime of its kind, a warning
    reports that the checks that need the runtime were skipped.
  - Otherwise this is an error, as in a cluster with only the runtimes in the files.

Unknown fields are errors, because kubectl rejects them (--validate=strict, its default). Clients
without strict validation would lose these fields silently.
"""
EPILOG = """\
exit code:
  0  no errors; there may be warnings, unless --fail-on-warning is set
  1  errors were found; with --fail-on-warning: errors or warnings were found
  2  invalid arguments, or a file cannot be used: it does not exist, is neither YAML nor JSON, or
     contains no objects; or the files contain no TrainJob and no runtime
Each problem is one line on standard output. LINE is the line of the field, or of the nearest parent
that exists:
  FILE:LINE: FIELD: error
  FILE:LINE: FIELD: warning: text
With -o json the output is a list of objects with these keys: file, line (or null), path (or ""),
type (the API server's name, such as FieldValueInvalid; or UnknownField or Unreadable; null for
warnings), message, severity (error or warning), and rule (the admission rule that is violated, or
null).
"""


def add_parser(commands: Commands) -> None:
    """Add the `validate` command."""
    parser = add_command(
        commands,
        "validate",
        run,
        summary="report errors in TrainJobs and runtimes; needs no cluster",
        description=DESCRIPTION,
        epilog=EPILOG,
    )
    add_sources(parser)
    parser.add_argument(
        "-o",
        "--output",
        choices=("text", "json"),
        default="text",
        help="output format: one line per problem, or one JSON list (default: %(default)s)",
    )
    parser.add_argument(
        "--fail-on-warning", action="store_true", help="exit with code 1 if there are warnings"
    )
    add_config(parser)


def run(arguments: argparse.Namespace) -> int:
    """Print all problems; the exit code reflects the most severe one."""
    from kftrainer.cli.manifests.problems import UNREADABLE, as_json, as_text, summary

    outcome = _validate(arguments)
    problems = outcome.problems
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8")  # regardless of the locale
    sys.stdout.write(as_json(problems) if arguments.output == "json" else as_text(problems))
    if arguments.output == "text":
        print(f"kftrainer: {summary(problems, outcome.counts)}", file=sys.stderr)
    if any(problem.type == UNREADABLE for problem in problems):
        return UNREADABLE_INPUT
    fatal = ("error", "warning") if arguments.fail_on_warning else ("error",)
    return INVALID if any(problem.severity in fatal for problem in problems) else 0


def _validate(arguments: argparse.Namespace) -> "Outcome":
    from kftrainer.cli.manifests import pipeline
    from kftrainer.cli.manifests.problems import UNREADABLE, DocumentProblem

    try:
        return pipeline.run(arguments.sources, arguments.config, planning=None)
    except pipeline.SetupError as error:
        file = str(arguments.config or "")
        return pipeline.Outcome([DocumentProblem(file, None, "", UNREADABLE, str(error))])
