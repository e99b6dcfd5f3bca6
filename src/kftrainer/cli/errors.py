"""Formats the errors of a failed command as one line."""

from collections.abc import Iterable


def in_one_line(texts: Iterable[str]) -> str:
    """Join the texts into one line, each once."""
    return "; ".join(dict.fromkeys(" ".join(text.split()) for text in texts))
