"""Errors inside exception groups."""

from collections.abc import Iterator


def leaf_errors(error: BaseException) -> Iterator[BaseException]:
    """Yield all errors of an exception group and its nested groups, or the error itself."""
    if isinstance(error, BaseExceptionGroup):
        for each in error.exceptions:
            yield from leaf_errors(each)
    else:
        yield error
