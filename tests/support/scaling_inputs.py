"""Strings that count comparisons, to detect quadratic run time."""


class Compared(str):
    """A text that counts how often it is compared."""

    __slots__ = ()
    times = 0

    def __eq__(self, other: object) -> bool:
        Compared.times += 1
        return str.__eq__(self, other)

    __hash__ = str.__hash__
