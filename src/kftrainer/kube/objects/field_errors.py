"""Field errors in the API server's format."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum

import orjson

LONGEST_VALUE = 120  # characters of a value that is repeated in an error


class ErrorType(StrEnum):
    """The types of field errors, by their names in `status.details.causes`."""

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
    UNKNOWN = "UnknownField"  # rejected by the API server without a cause, before validation

    @property
    def words(self) -> str:
        """The type as shown in messages."""
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
    ErrorType.TYPE_INVALID,  # might disclose a password that consists of digits without quotes
    ErrorType.TOO_LONG,
    ErrorType.INTERNAL,
    ErrorType.UNKNOWN,
)


@dataclass(frozen=True, slots=True)
class FieldError:
    """An error about one field: its path, type, detail and value."""

    path: str
    type: ErrorType
    detail: str = ""
    value: object = None
    # Short name of the violated rule, for programs. Errors that differ only in it are equal.
    rule: str = field(default="", compare=False)

    def __str__(self) -> str:
        parts = [self.path, self.type.words]
        if self.type not in WITHOUT_VALUE:
            parts.append(shown(self.value))
        if self.detail:
            parts.append(self.detail)
        return ": ".join(parts)


def invalid(path: str, value: object, detail: str, *, rule: str = "") -> FieldError:
    """Return an error for a field with an invalid value."""
    return FieldError(path, ErrorType.INVALID, detail, value, rule)


def required(path: str, detail: str = "", *, rule: str = "") -> FieldError:
    """Return an error for a field that is missing or empty."""
    return FieldError(path, ErrorType.REQUIRED, detail, rule=rule)


def forbidden(path: str, detail: str, *, rule: str = "") -> FieldError:
    """Return an error for a field that must not be set or changed."""
    return FieldError(path, ErrorType.FORBIDDEN, detail, rule=rule)


def shown(value: object) -> str:
    """Return the value as shown in messages: JSON, truncated if long."""
    try:
        text = orjson.dumps(value, default=str).decode()
    except TypeError:  # an integer that is too large for JSON
        text = str(value)
    return text if len(text) <= LONGEST_VALUE else f"{text[:LONGEST_VALUE]}…"


@dataclass(slots=True)
class ValidationResult:
    """Result of a validation: errors reject the object, warnings are shown to the client."""

    errors: list[FieldError] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    def add_errors(self, *errors: FieldError) -> None:
        """Add errors without duplicates: two plugins may validate the same field."""
        if errors:  # usually empty
            self.errors += without(self.errors, errors)

    def add_warnings(self, *warnings: str) -> None:
        """Add warnings without duplicates."""
        if warnings:
            self.warnings = list(dict.fromkeys((*self.warnings, *warnings)))

    def add(self, other: "ValidationResult") -> None:
        """Add the errors and warnings of another result."""
        self.add_errors(*other.errors)
        self.add_warnings(*other.warnings)


def without(known: Iterable[FieldError], errors: Iterable[FieldError]) -> list[FieldError]:
    """Return the errors that are not known yet, without duplicates.

    Efficient for thousands of errors.
    """
    seen: dict[tuple[str, str], list[FieldError]] = {}  # values may not be hashable
    for error in known:
        seen.setdefault((error.path, error.detail), []).append(error)
    new = []
    for error in errors:
        twins = seen.setdefault((error.path, error.detail), [])
        if error not in twins:
            twins.append(error)
            new.append(error)
    return new
