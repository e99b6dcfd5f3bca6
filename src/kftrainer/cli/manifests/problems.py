"""Problems in documents: one line each for people and editors, or JSON for programs."""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Literal

from kftrainer.cli.manifests.documents import Unread
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
        mark = "warning" if self.severity == "warning" else ""
        said = [each for each in (place, self.path, mark, self.message) if each]
        return visible(": ".join(said))


def unreadable(unread: Unread) -> DocumentProblem:
    """Return the problem for something that could not be read."""
    return DocumentProblem(unread.place.file, unread.place.line, "", UNREADABLE, unread.message)


def message_of(error: FieldError) -> str:
    """Return the error message without its path.

    Values are included only if they are scalars and not environment variables, which may be secret.
    """
    said = [error.fault.words]
    is_plain = isinstance(error.value, str | int | float) and not _SECRET.search(error.path)
    if is_plain and error.fault not in WITHOUT_VALUE:
        said.append(shown(error.value))
    if error.detail:
        said.append(error.detail)
    return ": ".join(said)


def split_warning(warning: str) -> tuple[str, str]:
    """Split a warning into the path with which it may begin, and the rest."""
    found = _PATH_FIRST.fullmatch(warning)
    return (found[1], found[2]) if found else ("", warning)


def as_text(remarks: Iterable[DocumentProblem]) -> str:
    """Return one line per problem."""
    return "".join(f"{remark}\n" for remark in remarks)


def as_json(remarks: Sequence[DocumentProblem]) -> str:
    """Return the problems as a JSON list."""
    return json.dumps([asdict(remark) for remark in remarks], indent=2, ensure_ascii=False) + "\n"


@dataclass(frozen=True, slots=True)
class Tally:
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


def counted(remarks: Sequence[DocumentProblem], tally: Tally) -> str:
    """Return the summary line."""
    errors = sum(remark.severity == "error" for remark in remarks)
    warnings = len(remarks) - errors
    found = [
        f"{count} {noun}{'' if count == 1 else 's'}"
        for count, noun in ((errors, "error"), (warnings, "warning"))
        if count
    ]
    return f"{tally}: {' and '.join(found) or 'no problems found'}"
