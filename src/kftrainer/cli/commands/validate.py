"""`kftrainer validate`: reports what admission would reject, without a cluster."""

import argparse
import io
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from kftrainer.cli.arguments import add_config, add_sources

if TYPE_CHECKING:
    from kftrainer.cli.manifests.offline_validation import OfflineResult
    from kftrainer.cli.manifests.problems import DocumentProblem

REFUSED = 1
UNREAD = 2
DESCRIPTION = """\
Say what the API server would refuse about TrainJobs and runtimes, and what our admission would
refuse or warn of, without a cluster: for CI and editors.

The documents may be in any order and mixture. Objects of other kinds that planning reads, such as
LimitRanges or PriorityClasses, are used as context: they are taken for what there is in the
cluster, and are not judged. Objects of all other kinds are skipped; the last line says how many of
which kind. Jobs of the Training Operator (v1), such as a PyTorchJob of kubeflow.org/v1, are errors.

A TrainJob is judged together with its runtime. If that is in none of the files, but another runtime
of the same kind is, the TrainJob is refused, as it would be in a cluster where only these are. If
the files hold no runtime of that kind at all, or it is one that comes with the operator, there is
a warning that this part was not checked.

Fields that nobody knows are errors, because kubectl refuses them (--validate=strict, its default);
who writes them by other means finds them dropped.
"""
EPILOG = """\
exit code:
  0  nothing is refused; warnings do not change that, unless there is --fail-on-warning
  1  something is refused; with --fail-on-warning: or there is a warning
  2  something cannot be read: a file that is not there, or is neither YAML nor JSON, or holds no
     object; or there is no TrainJob and no runtime to check; or bad usage
Each problem is one line on standard output, with the line of the field or of the nearest one around
it that is there:
  FILE:LINE: FIELD: what is wrong
  FILE:LINE: FIELD: warning: what is likely not meant
With -o json it is an object of a list: file, line (or null), path (or ""), type (the API server's
name such as FieldValueInvalid; UnknownField, Unreadable; null for a warning), message, severity
(error or warning), and rule (the rule of our admission that is broken; null where it is none).
"""


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the `validate` command."""
    parser = commands.add_parser(
        "validate",
        help="say what would be refused about TrainJobs and runtimes, without a cluster",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_sources(parser)
    parser.add_argument(
        "-o",
        "--output",
        choices=("text", "json"),
        default="text",
        help="a line for each problem, or one JSON list (default: %(default)s)",
    )
    parser.add_argument(
        "--fail-on-warning", action="store_true", help="exit with 1 if there is a warning"
    )
    add_config(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Print all problems; the exit code reflects the most severe one."""
    from kftrainer.cli.manifests.problems import UNREADABLE, counted

    found = _judgement(arguments.sources, arguments.config)
    _print(found.remarks, arguments.output)
    if arguments.output == "text":
        print(f"kftrainer: {counted(found.remarks, found.tally)}", file=sys.stderr)
    if any(remark.type == UNREADABLE for remark in found.remarks):
        return UNREAD
    counts = ("error", "warning") if arguments.fail_on_warning else ("error",)
    return REFUSED if any(remark.severity in counts for remark in found.remarks) else 0


def _judgement(sources: Sequence[str], config: Path | None) -> "OfflineResult":
    from kftrainer.cli.manifests.documents import read
    from kftrainer.cli.manifests.offline_validation import OfflineResult, judge
    from kftrainer.cli.manifests.problems import UNREADABLE, DocumentProblem, Tally
    from kftrainer.cli.plugins import framework_of
    from kftrainer.config import ConfigurationError
    from kftrainer.runtime.errors import PlanningError
    from kftrainer.runtime.framework.plugin_loader import PluginLoadError

    try:
        framework = framework_of(config)
        return judge(read(sources, with_spots=True, empty_is_unread=True), framework)
    except (ConfigurationError, PluginLoadError, PlanningError) as error:  # not about a document
        message = " ".join(str(error).split())
        return OfflineResult(
            [DocumentProblem(str(config or ""), None, "", UNREADABLE, message)], Tally()
        )


def _print(remarks: "Sequence[DocumentProblem]", form: str) -> None:
    from kftrainer.cli.manifests.problems import as_json, as_text

    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8")  # regardless of the locale
    sys.stdout.write(as_json(remarks) if form == "json" else as_text(remarks))
