"""How a check tells what it does and sees."""

import time
from collections.abc import Iterator
from contextlib import contextmanager


class CheckError(Exception):
    """The image is not as it should be."""


@contextmanager
def step(name: str) -> Iterator[None]:
    """Tell what is done, and how long it took."""
    print(f"{name} …", flush=True)
    began = time.perf_counter()
    yield
    print(f"  {time.perf_counter() - began:.1f} s", flush=True)


def tell(fact: str) -> None:
    """Tell what was seen."""
    print(f"  {fact}", flush=True)


def require(holds: object, otherwise: str) -> None:
    """Raise CheckError unless it holds."""
    if not holds:
        raise CheckError(otherwise)
