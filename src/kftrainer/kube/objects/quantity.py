"""Resource quantities such as `500m` or `1.5Gi`: exact, formatted as the API server does."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import lru_cache
from math import isfinite
from reprlib import Repr
from typing import ClassVar

import orjson

SMALLEST = -9  # exponent; nano is the smallest unit
NANO = 10**9  # nanos in 1
MILLI = 10**6  # nanos in a thousandth
BINARY_MAX = (2**63 - 1) * NANO
# Maximum number of characters, and of decimal places. Go accepts more, for values that no cluster
# has; the limit bounds the time to parse and format any quantity.
BOUND = 256
KNOWN_TEXTS = 4096
# Up to this many digits, Go parses a decimal or binary quantity into an int64.
INT64_DIGITS, BINARY_DIGITS = 18, 14

# Go trims the JSON text, in which control characters are escaped and so are not spaces.
SPACES = r"[^\S\x00-\x1f]*"
NUMBER = r"([+-]?)([0-9]*)(?:\.([0-9]*))?"
SUFFIX = r"(?:[eE]([+-]?[0-9]+)|([numkMGTPE]|[KMGTPE]i)?)"
QUANTITY = re.compile(f"{SPACES}({NUMBER}{SUFFIX}){SPACES}")

_quoted = Repr()
_quoted.maxstring = _quoted.maxother = 40


class QuantityError(ValueError):
    """A value that is not a quantity; `path` is its location, if known."""

    def __init__(self, message: str, path: str = "") -> None:
        super().__init__(message)
        self.path = path

    def at(self, path: str) -> "QuantityError":
        """Return the same error with a path prefix."""
        dot = "." if self.path else ""
        return QuantityError(str(self), f"{path}{dot}{self.path}")


class Format(Enum):
    """How a quantity was written, and is formatted after a calculation."""

    DECIMAL = "DecimalSI"  # 12M
    BINARY = "BinarySI"  # 12Mi
    EXPONENT = "DecimalExponent"  # 12e6


BINARY_SUFFIXES = ("", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei")
DECIMAL_SUFFIXES = dict(
    zip(range(SMALLEST, 21, 3), ("n", "u", "m", "", "k", "M", "G", "T", "P", "E"), strict=True)
)
SUFFIXES = {
    **{suffix: (Format.DECIMAL, exponent) for exponent, suffix in DECIMAL_SUFFIXES.items()},
    **{suffix: (Format.BINARY, 10 * n) for n, suffix in enumerate(BINARY_SUFFIXES) if n},
}


@dataclass(frozen=True, slots=True, order=True)
class Quantity:
    """An exact amount; compared by value, whatever the format."""

    nanos: int
    format: Format = field(default=Format.DECIMAL, compare=False)
    written: str = field(default="", compare=False, repr=False)  # set if Go keeps the text
    ZERO: ClassVar["Quantity"]

    @staticmethod
    def parse(value: object) -> "Quantity":
        """Parse a quantity of a manifest by Go's rules; numbers are parsed as their JSON.

        Fractions of a nano are rounded up, and binary quantities are limited to 2^63 - 1.
        """
        match value:
            case str():
                return _read(value)
            case bool():
                raise _not_a_quantity(value)
            case int():
                return _read_int(value)
            case float() if isfinite(value):
                return _read(orjson.dumps(value).decode())
        raise _not_a_quantity(value)

    def __str__(self) -> str:
        return self.written or _canonical(self.nanos, self.format)

    def __add__(self, other: "Quantity") -> "Quantity":
        """Return the sum, in the format of the first operand that is not zero."""
        return Quantity(self.nanos + other.nanos, self.format if self.nanos else other.format)

    def __mul__(self, times: int) -> "Quantity":
        return Quantity(self.nanos * times, self.format)

    __rmul__ = __mul__

    def __bool__(self) -> bool:
        return self.nanos != 0

    def ceil(self) -> int:
        """Return the next integer away from zero."""
        return _rounded(self.nanos, NANO)

    def in_millis(self) -> "Quantity":
        """Round away from zero to a thousandth, as the API server does in resource lists."""
        if self.nanos % MILLI == 0:
            return self
        return Quantity(_rounded(self.nanos, MILLI) * MILLI, self.format)


ZERO = Quantity.ZERO = Quantity(0)
ResourceList = Mapping[str, Quantity]


def _not_a_quantity(value: object) -> QuantityError:
    return QuantityError(f"{_quoted.repr(value)} is not a quantity such as 2, 500m or 1.5Gi")


def _out_of_bounds(shown: str) -> QuantityError:
    return QuantityError(f"{shown} has more than {BOUND} digits or decimal places")


def _rounded(nanos: int, unit: int) -> int:
    whole = -(-abs(nanos) // unit)
    return whole if nanos >= 0 else -whole


def _read_int(value: int) -> Quantity:
    if value.bit_length() > 3 * BOUND:  # too long for str()
        raise _out_of_bounds("an integer")
    return Quantity(value * NANO)


@lru_cache(KNOWN_TEXTS)
def _read(text: str) -> Quantity:
    if len(text) > BOUND:
        raise _out_of_bounds(_quoted.repr(text))
    found = QUANTITY.fullmatch(text)
    if found is None or not found[1]:
        raise _not_a_quantity(text)
    written, sign, whole, places, power, suffix = found.groups("")
    form, exponent = (Format.EXPONENT, int(power)) if power else SUFFIXES[suffix]
    if abs(exponent) > BOUND:
        raise _out_of_bounds(_quoted.repr(text))
    digits = (whole.lstrip("0") or "0") + places
    short = _is_short(form, exponent, len(digits), len(places))
    if not (short or whole or places):  # otherwise Go reads a single dot, sign or suffix as zero
        raise _not_a_quantity(text)
    nanos = _nanos(form, exponent, int(digits), len(places))
    kept = short and _is_kept(form, exponent - len(places), digits)
    if form is Format.BINARY and 0 < nanos < NANO:
        form = Format.DECIMAL
    return Quantity(-nanos if sign == "-" else nanos, form, written if kept else "")


def _is_short(form: Format, exponent: int, digits: int, places: int) -> bool:
    """Return whether Go parses this many digits into an int64, not a big number."""
    if form is Format.BINARY:
        return places == 0 and digits + exponent * 3 // 10 <= BINARY_DIGITS
    return digits <= INT64_DIGITS and exponent - places >= SMALLEST


def _is_kept(form: Format, scale: int, digits: str) -> bool:
    """Return whether Go treats a short text as canonical, such as `+1.500` and `007`."""
    if form is Format.BINARY:
        return int(digits) % 8 != 0
    return scale % 3 == 0 and digits[0] != "0" and not digits.endswith("000")


def _nanos(form: Format, exponent: int, digits: int, places: int) -> int:
    """Return the absolute value in nanos, rounded up."""
    if form is Format.BINARY:
        return min(_rounded((digits << exponent) * NANO, 10**places), BINARY_MAX)
    shift = exponent - places - SMALLEST
    return digits * 10**shift if shift >= 0 else _rounded(digits, 10**-shift)


def _canonical(nanos: int, form: Format) -> str:
    """Return the text that stays the same when the server parses and formats it again.

    It differs from Go's where that would be parsed as another value or in another format.
    """
    if nanos == 0:
        return "0"
    if form is Format.BINARY and nanos % (1024 * NANO) == 0 and abs(nanos) <= BINARY_MAX:
        return _in_binary(nanos // NANO)
    return _in_decimal(nanos, form)


def _in_binary(number: int) -> str:
    power = ((number & -number).bit_length() - 1) // 10  # trailing zero bits, by tens
    return f"{number >> 10 * power}{BINARY_SUFFIXES[power]}"


def _in_decimal(nanos: int, form: Format) -> str:
    digits = str(nanos)
    zeros = (len(digits) - len(digits.rstrip("0"))) // 3 * 3
    exponent, number = SMALLEST + zeros, digits[: len(digits) - zeros]
    # There is no suffix from 1000E on, and Go uses none.
    if exponent and (form is Format.EXPONENT or exponent not in DECIMAL_SUFFIXES):
        return f"{number}e{exponent}"
    return f"{number}{DECIMAL_SUFFIXES[exponent]}"
