"""How a command ends that has failed: with one line, whatever the errors were."""

from collections.abc import Iterable, Iterator


def within(error: BaseException) -> Iterator[BaseException]:
    """The errors of a group, however deep; or the error itself."""
    if isinstance(error, BaseExceptionGroup):
        for each in error.exceptions:
            yield from within(each)
    else:
        yield error


def in_one_line(texts: Iterable[str]) -> str:
    """Each text once, without its line breaks."""
    return "; ".join(dict.fromkeys(" ".join(text.split()) for text in texts))
