"""Admission requests and responses, and the conversion of validation results.

`review` encodes and decodes them; `handler` serves them over HTTP.
"""

import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kftrainer.kube.objects.field_errors import FieldError, ValidationResult
from kftrainer.kube.objects.json_patch import Operation
from kftrainer.kube.objects.resource import Manifest
from kftrainer.machinery.metrics.bounded_labels import OTHER

GOOD = 200
MOST_ERRORS = 100  # in one response; a list can repeat the same mistake thousands of times

# The API server drops warnings that contain control characters. If the warnings of a request exceed
# 4,096 characters in total, it truncates each to 256 and drops those that still do not fit. Other
# webhooks may add warnings for the same object, so this limit is lower.
MOST_WARNING_TEXT = 4000
LONGEST_WARNING = 256
NOT_PRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029]+")


async def no_turn() -> None:
    """Return at once; the default for requests that do not share the event loop."""


@dataclass(frozen=True, slots=True)
class AdmissionRequest:
    """An operation on an object, sent by the API server to be allowed or denied.

    A validator that has waited for I/O awaits `turn` before it continues: it returns in a pass of
    the event loop in which no other validator or defaulter runs.
    """

    uid: str
    operation: str  # CREATE, UPDATE, DELETE or CONNECT
    group: str
    version: str
    kind: str
    namespace: str  # empty for cluster-scoped objects
    name: str  # empty if the API server generates the name later
    object: Manifest | None
    old_object: Manifest | None
    dry_run: bool
    turn: Callable[[], Awaitable[None]] = field(default=no_turn, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class AdmissionResponse:
    """Whether an operation is allowed; if not, the status returned to the client."""

    allowed: bool
    warnings: Sequence[str] = ()
    code: int = GOOD
    reason: str = ""
    message: str = ""
    details: Mapping[str, Any] | None = None
    rules: Sequence[str] = ()  # violated rules as short machine-readable names, each once
    patch: Sequence[Operation] = ()  # changes of the object, by a defaulter only


ALLOWED = AdmissionResponse(allowed=True)
Validator = Callable[[AdmissionRequest], Awaitable[AdmissionResponse]]
Defaulter = Callable[[AdmissionRequest], Awaitable[AdmissionResponse]]  # may return a patch


def response_for(findings: ValidationResult, request: AdmissionRequest) -> AdmissionResponse:
    """Deny the request if there are errors and report all of them; always return the warnings."""
    warnings = response_warnings(findings.warnings)
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
                {"reason": error.type.value, "message": text, "field": error.path}
                for text, error in errors[:MOST_ERRORS]
            ],
        },
        rules=broken_rules(findings.errors),
    )


def broken_rules(errors: Iterable[FieldError]) -> Sequence[str]:
    """Return the rules that the errors violate, each once."""
    return tuple(dict.fromkeys(str(error.rule) or OTHER for error in errors))


def denied(code: int, reason: str, message: str, *, rule: str = OTHER) -> AdmissionResponse:
    """Return a denial that is not about a field of the object."""
    return AdmissionResponse(
        allowed=False, code=code, reason=reason, message=message, rules=(str(rule),)
    )


def response_warnings(warnings: Iterable[str]) -> Sequence[str]:
    """Return the warnings as the API server accepts them: unique, on one line, limited in size."""
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
