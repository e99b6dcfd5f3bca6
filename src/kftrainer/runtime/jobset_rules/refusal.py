"""Refusal: a reason for which JobSet's webhook rejects a JobSet."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Refusal:
    """A path in the JobSet, such as `spec.…`, and JobSet's message."""

    path: str
    text: str
    gated: bool = False  # JobSet accepts it if a feature gate is enabled that is off by default

    def __str__(self) -> str:
        return f"{self.path}: {self.text}"
