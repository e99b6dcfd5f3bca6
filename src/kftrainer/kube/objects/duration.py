"""Durations in Go's notation, such as `1m30s`."""

import re

UNITS = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9}
PART = re.compile(r"([0-9]{1,19}(?:\.[0-9]{0,19})?|\.[0-9]{1,19})(h|ms|m|s|us|µs|ns)")
DURATION = re.compile(f"(?:{PART.pattern})+")


def duration_seconds(text: str) -> float | None:
    """Return the seconds in a duration; None if it is invalid, negative or has no unit."""
    if DURATION.fullmatch(text) is None:
        return None
    return sum(float(count) * UNITS[unit] for count, unit in PART.findall(text))
