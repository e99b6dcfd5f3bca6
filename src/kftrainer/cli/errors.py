"""Formats the errors of a failed command as one line."""

from collections.abc import Iterable, Iterator


def within(error: BaseException) -> Iterator[BaseException]:
    """Yield the leaf errors of an exception group, or the error itself."""
    if isinstance(error, BaseExceptionGroup):
        for each in error.exceptions:
            yield from within(each)
    else:
        yield error


def in_one_line(texts: Iterable[str]) -> str:
    """Join the texts into one line, each once."""
    return "; ".join(dict.fromkeys(" ".join(text.split()) for text in texts))
