"""Progress output of the image check."""

import time
from collections.abc import Iterator
from contextlib import contextmanager


class CheckError(Exception):
    """The image failed a check."""


@contextmanager
def step(name: str) -> Iterator[None]:
    """Print the name of a step and its duration."""
    print(f"{name} …", flush=True)
    began = time.perf_counter()
    yield
    print(f"  {time.perf_counter() - began:.1f} s", flush=True)


def report(fact: str) -> None:
    """Print a result."""
    print(f"  {fact}", flush=True)


def require(condition: object, message: str) -> None:
    """Raise CheckError with the message unless the condition is true."""
    if not condition:
        raise CheckError(message)
