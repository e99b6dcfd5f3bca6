"""One reason of JobSet's webhook to refuse a JobSet."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Refusal:
    """Where in the JobSet it is, as `spec.…`, and what JobSet says about it."""

    path: str
    text: str
    gated: bool = False  # JobSet accepts it if a feature gate is enabled that is off by default

    def __str__(self) -> str:
        return f"{self.path}: {self.text}"
