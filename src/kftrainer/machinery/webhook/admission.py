"""What the API server asks an admission webhook, and what it may be told.

`admission_review` has them as bytes, `admission_handler` answers requests with them.
"""

import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kftrainer.kube.objects.field_errors import FieldError, ValidationResult
from kftrainer.kube.objects.resource import Manifest
from kftrainer.machinery.metrics.bounded_labels import OTHER

GOOD = 200
MOST_ERRORS = 100  # that an answer tells of; a list can hold thousands of the same mistake

# The API server drops a warning with a control character. When all warnings of a request are
# longer than 4,096 characters it cuts each to 256, and drops what is too much even then.
# Others may warn of the same object, so some of this is left to them.
MOST_WARNING_TEXT = 4000
LONGEST_WARNING = 256
NOT_PRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029]+")


async def no_turn() -> None:
    """Return at once: for requests that share the event loop with nothing."""


@dataclass(frozen=True, slots=True)
class AdmissionRequest:
    """What somebody is about to do to an object.

    A validator that has waited for something awaits `turn` before it works on: it returns in a pass
    of the event loop in which no other validator works.
    """

    uid: str
    operation: str  # CREATE, UPDATE, DELETE or CONNECT
    group: str
    version: str
    kind: str
    namespace: str  # empty where there is none
    name: str  # empty where the API server is yet to make one up
    object: Manifest | None
    old_object: Manifest | None
    dry_run: bool
    turn: Callable[[], Awaitable[None]] = field(default=no_turn, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class AdmissionResponse:
    """Whether it may be done; if not, the status that the person who tried is shown."""

    allowed: bool
    warnings: Sequence[str] = ()
    code: int = GOOD
    reason: str = ""
    message: str = ""
    details: Mapping[str, Any] | None = None
    rules: Sequence[str] = ()  # that it was refused for, each once, in short names for programs


ALLOWED = AdmissionResponse(allowed=True)
Validator = Callable[[AdmissionRequest], Awaitable[AdmissionResponse]]


def response_for(findings: ValidationResult, request: AdmissionRequest) -> AdmissionResponse:
    """Errors forbid it, all of them told at once; warnings are told either way."""
    warnings = told(findings.warnings)
    if not findings.errors:
        return AdmissionResponse(allowed=True, warnings=warnings)
    errors = list({str(error): error for error in findings.errors}.items())
    texts = [text for text, _ in errors[:MOST_ERRORS]]
    if len(errors) > MOST_ERRORS:
        texts.append(f"and {len(errors) - MOST_ERRORS} more")
    return AdmissionResponse(
        allowed=False,
        warnings=warnings,
        code=403,
        reason="Forbidden",
        message=texts[0] if len(texts) == 1 else f"[{', '.join(texts)}]",
        details={
            "name": request.name,
            "group": request.group,
            "kind": request.kind,
            "causes": [
                {"reason": error.fault.value, "message": text, "field": error.path}
                for text, error in errors[:MOST_ERRORS]
            ],
        },
        rules=broken_rules(findings.errors),
    )


def broken_rules(errors: Iterable[FieldError]) -> Sequence[str]:
    """The rules that the errors are about, each once."""
    return tuple(dict.fromkeys(str(error.rule) or OTHER for error in errors))


def denied(code: int, reason: str, message: str, *, rule: str = OTHER) -> AdmissionResponse:
    """A refusal that is not about the fields of the object."""
    return AdmissionResponse(
        allowed=False, code=code, reason=reason, message=message, rules=(str(rule),)
    )


def told(warnings: Iterable[str]) -> Sequence[str]:
    """The warnings as the API server will pass them on: each once, on one line, not too much."""
    lines = [NOT_PRINTABLE.sub(" ", warning).strip() for warning in warnings]
    lines = list(dict.fromkeys(filter(None, lines)))
    if sum(map(len, lines)) <= MOST_WARNING_TEXT:
        return lines
    room = MOST_WARNING_TEXT - LONGEST_WARNING
    fitting: list[str] = []
    for line in lines:
        short = line if len(line) <= LONGEST_WARNING else f"{line[: LONGEST_WARNING - 1]}…"
        room -= len(short)
        if room < 0:
            fitting.append(f"{len(lines) - len(fitting)} more warnings are not shown here.")
            break
        fitting.append(short)
    return fitting
