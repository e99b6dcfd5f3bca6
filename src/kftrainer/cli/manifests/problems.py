"""Problems in documents: one line each for people and editors, or JSON for programs."""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Literal

from kftrainer.cli.manifests.documents import ReadError
from kftrainer.cli.manifests.output import visible
from kftrainer.kube.objects.field_errors import WITHOUT_VALUE, FieldError, shown

UNREADABLE = "Unreadable"  # the type of problems in documents that could not be read
_SECRET = re.compile(r"\.env\[\d+\]\.value\Z")
_PATH_FIRST = re.compile(r"((?:metadata|spec)(?:[.\[]\S*?)?):? (.+)", re.DOTALL)
Severity = Literal["error", "warning"]


@dataclass(frozen=True, slots=True)
class DocumentProblem:
    """One problem; `type` is the API server's name for it, None for warnings."""

    file: str
    line: int | None
    path: str
    type: str | None
    message: str
    severity: Severity = "error"
    rule: str | None = field(default=None, compare=False)  # of our admission

    def __str__(self) -> str:
        place = self.file if self.line is None else f"{self.file}:{self.line}"
        if self.line is None and f"{self.file}:" in self.message:  # as in configuration errors
            place = ""
        mark = "warning" if self.severity == "warning" else ""
        parts = [each for each in (place, self.path, mark, self.message) if each]
        return visible(": ".join(parts))


def unreadable(error: ReadError) -> DocumentProblem:
    """Return the problem for something that could not be read."""
    return DocumentProblem(error.place.file, error.place.line, "", UNREADABLE, error.message)


def message_of(error: FieldError) -> str:
    """Return the error message without its path.

    Values are included only if they are scalars and not environment variables, which may be secret.
    """
    parts = [error.type.words]
    is_plain = isinstance(error.value, str | int | float) and not _SECRET.search(error.path)
    if is_plain and error.type not in WITHOUT_VALUE:
        parts.append(shown(error.value))
    if error.detail:
        parts.append(error.detail)
    return ": ".join(parts)


def split_warning(warning: str) -> tuple[str, str]:
    """Split a warning into the path with which it may begin, and the rest."""
    found = _PATH_FIRST.fullmatch(warning)
    return (found[1], found[2]) if found else ("", warning)


def as_text(problems: Iterable[DocumentProblem]) -> str:
    """Return one line per problem."""
    return "".join(f"{problem}\n" for problem in problems)


def as_json(problems: Sequence[DocumentProblem]) -> str:
    """Return the problems as a JSON list."""
    return (
        json.dumps([asdict(problem) for problem in problems], indent=2, ensure_ascii=False) + "\n"
    )


@dataclass(frozen=True, slots=True)
class ObjectCounts:
    """Number of objects checked, and by kind of those used as context and skipped."""

    checked: int = 0
    context: Mapping[str, int] = field(default_factory=dict)
    skipped: Mapping[str, int] = field(default_factory=dict)

    def __str__(self) -> str:
        noun = "object" if self.checked == 1 else "objects"
        parts = [f"{self.checked} {noun} checked"]
        for kinds, verb in ((self.context, "used as context"), (self.skipped, "skipped")):
            if kinds:
                each = (f"{count} {kind}" for kind, count in sorted(kinds.items()))
                parts.append(f"{sum(kinds.values())} {verb} ({', '.join(each)})")
        return ", ".join(parts)


def summary(problems: Sequence[DocumentProblem], counts: ObjectCounts) -> str:
    """Return the summary line."""
    errors = sum(problem.severity == "error" for problem in problems)
    warnings = len(problems) - errors
    found = [
        f"{count} {noun}{'' if count == 1 else 's'}"
        for count, noun in ((errors, "error"), (warnings, "warning"))
        if count
    ]
    return f"{counts}: {' and '.join(found) or 'no problems found'}"
