"""What is wrong with one field of an object, told as the API server tells it."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum

import orjson

LONGEST_VALUE = 120  # characters of a value that an error repeats


class ErrorType(StrEnum):
    """The kinds of field errors, by their names in `status.details.causes`."""

    INVALID = "FieldValueInvalid"
    REQUIRED = "FieldValueRequired"
    FORBIDDEN = "FieldValueForbidden"
    NOT_FOUND = "FieldValueNotFound"
    NOT_SUPPORTED = "FieldValueNotSupported"
    DUPLICATE = "FieldValueDuplicate"
    TYPE_INVALID = "FieldValueTypeInvalid"
    TOO_LONG = "FieldValueTooLong"
    TOO_MANY = "FieldValueTooMany"
    INTERNAL = "InternalError"
    UNKNOWN = "UnknownField"  # the API server refuses it without a cause, before it looks at values

    @property
    def words(self) -> str:
        """The kind as it stands in messages."""
        return _WORDS[self]


_WORDS = {
    ErrorType.INVALID: "Invalid value",
    ErrorType.REQUIRED: "Required value",
    ErrorType.FORBIDDEN: "Forbidden",
    ErrorType.NOT_FOUND: "Not found",
    ErrorType.NOT_SUPPORTED: "Unsupported value",
    ErrorType.DUPLICATE: "Duplicate value",
    ErrorType.TYPE_INVALID: "Invalid value",
    ErrorType.TOO_LONG: "Too long",
    ErrorType.TOO_MANY: "Too many",
    ErrorType.INTERNAL: "Internal error",
    ErrorType.UNKNOWN: "Unknown field",
}
WITHOUT_VALUE = (
    ErrorType.REQUIRED,
    ErrorType.FORBIDDEN,
    ErrorType.TYPE_INVALID,  # a password of digits only, without quotes, would be told
    ErrorType.TOO_LONG,
    ErrorType.INTERNAL,
    ErrorType.UNKNOWN,
)


@dataclass(frozen=True, slots=True)
class FieldError:
    """One field that is wrong: where it is, what it holds, and what it should hold."""

    path: str
    fault: ErrorType
    detail: str = ""
    value: object = None
    # The rule that it breaks, in a short name for programs. What two rules tell alike is the same.
    rule: str = field(default="", compare=False)

    def __str__(self) -> str:
        said = [self.path, self.fault.words]
        if self.fault not in WITHOUT_VALUE:
            said.append(shown(self.value))
        if self.detail:
            said.append(self.detail)
        return ": ".join(said)


def invalid(path: str, value: object, detail: str, *, rule: str = "") -> FieldError:
    """The field holds what it must not."""
    return FieldError(path, ErrorType.INVALID, detail, value, rule)


def required(path: str, detail: str = "", *, rule: str = "") -> FieldError:
    """The field is not there, or empty."""
    return FieldError(path, ErrorType.REQUIRED, detail, rule=rule)


def forbidden(path: str, detail: str, *, rule: str = "") -> FieldError:
    """The field must not be set, or must not be changed."""
    return FieldError(path, ErrorType.FORBIDDEN, detail, rule=rule)


def shown(value: object) -> str:
    """The value as messages repeat it: JSON, cut where it is long."""
    try:
        text = orjson.dumps(value, default=str).decode()
    except TypeError:  # an integer that JSON has no room for
        text = str(value)
    return text if len(text) <= LONGEST_VALUE else f"{text[:LONGEST_VALUE]}…"


@dataclass(slots=True)
class ValidationResult:
    """All that a validation found: errors refuse the object, warnings go to who wrote it."""

    errors: list[FieldError] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    def refuse(self, *errors: FieldError) -> None:
        """Add errors, each once: two plugins may look at the same field."""
        if errors:  # mostly there are none
            self.errors += without(self.errors, errors)

    def warn(self, *warnings: str) -> None:
        """Add warnings, each once."""
        if warnings:
            self.warnings = list(dict.fromkeys((*self.warnings, *warnings)))

    def add(self, other: "ValidationResult") -> None:
        """Add all that another validation found."""
        self.refuse(*other.errors)
        self.warn(*other.warnings)


def without(known: Iterable[FieldError], errors: Iterable[FieldError]) -> list[FieldError]:
    """The errors that are not among the known, each once; there may be thousands of both."""
    seen: dict[tuple[str, str], list[FieldError]] = {}  # their values need not be hashable
    for error in known:
        seen.setdefault((error.path, error.detail), []).append(error)
    news = []
    for error in errors:
        twins = seen.setdefault((error.path, error.detail), [])
        if error not in twins:
            twins.append(error)
            news.append(error)
    return news
