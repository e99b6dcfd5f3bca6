"""`kftrainer validate`: what the API server and admission would refuse, without a cluster."""

import argparse
import io
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from kftrainer.cli.arguments import add_config, add_sources

if TYPE_CHECKING:
    from kftrainer.cli.judgement import Judgement
    from kftrainer.cli.remarks import Remark

REFUSED = 1
UNREAD = 2
DESCRIPTION = """\
Say what the API server would refuse about TrainJobs and runtimes, and what our admission would
refuse or warn of, without a cluster: for CI and editors.

The documents may be in any order and mixture. Objects of other kinds, such as LimitRanges or
PriorityClasses, are taken for what there is in the cluster, and are not judged.

A TrainJob is judged together with its runtime. If that is in none of the files, but another runtime
of the same kind is, the TrainJob is refused, as it would be in a cluster where only these are. If
the files hold no runtime of that kind at all, or it is one that comes with the operator, there is
a warning that this part was not checked.

Fields that nobody knows are errors, because kubectl refuses them (--validate=strict, its default);
who writes them by other means finds them dropped.
"""
EPILOG = """\
exit code:
  0  nothing is refused; warnings do not change that
  1  something is refused
  2  something cannot be read: a file that is not there, or is neither YAML nor JSON, or holds no
     object; or bad usage
Each problem is one line on standard output, with the line of the field or of the nearest one around
it that is there:
  FILE:LINE: FIELD: what is wrong
  FILE:LINE: FIELD: warning: what is likely not meant
With -o json it is an object of a list: file, line (or null), path (or ""), type (the API server's
name such as FieldValueInvalid; UnknownField, Unreadable; null for a warning), message, severity
(error or warning), and rule (the rule of our admission that is broken; null where it is none).
"""


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add `validate`."""
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
    add_config(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Print all that there is to say; the exit code says how bad it is."""
    from kftrainer.cli.remarks import UNREADABLE, counted

    found = _judgement(arguments.sources, arguments.config)
    _print(found.remarks, arguments.output)
    if arguments.output == "text":
        print(f"kftrainer: {counted(found.remarks, found.objects)}", file=sys.stderr)
    if any(remark.type == UNREADABLE for remark in found.remarks):
        return UNREAD
    return REFUSED if any(remark.severity == "error" for remark in found.remarks) else 0


def _judgement(sources: Sequence[str], config: Path | None) -> "Judgement":
    from kftrainer.cli.documents import read
    from kftrainer.cli.judgement import Judgement, judge
    from kftrainer.cli.plugins import framework_of
    from kftrainer.cli.remarks import UNREADABLE, Remark
    from kftrainer.config import ConfigurationError
    from kftrainer.runtime.errors import PlanningError
    from kftrainer.runtime.loading import PluginLoadError

    try:
        framework = framework_of(config)
        return judge(read(sources, with_spots=True, empty_is_unread=True), framework)
    except (ConfigurationError, PluginLoadError, PlanningError) as error:  # of no document's
        message = " ".join(str(error).split())
        return Judgement([Remark(str(config or ""), None, "", UNREADABLE, message)], 0)


def _print(remarks: "Sequence[Remark]", form: str) -> None:
    from kftrainer.cli.remarks import as_json, as_text

    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8")  # whatever the terminal speaks
    sys.stdout.write(as_json(remarks) if form == "json" else as_text(remarks))
