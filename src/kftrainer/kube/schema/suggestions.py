"""Suggestions for misspelled names."""

from collections.abc import Collection

LETTERS_PER_EDIT = 4  # letters of a name per allowed edit; at least one edit is allowed


def closest(name: str, known: Collection[str]) -> str | None:
    """Return the known name that this one most likely misspells, or None.

    Only a few edits count as a misspelling. A field of another release or kind is not a
    misspelling, and a suggestion would be misleading.
    """
    limit = min(max(1, len(name) // LETTERS_PER_EDIT), len(name) - 1)
    distances = ((distance(name.lower(), each.lower(), limit), each) for each in known)
    near = min(distances, default=(limit + 1, ""))
    return near[1] if near[0] <= limit else None


def distance(one: str, other: str, limit: int) -> int:
    """Return the number of edits between two words, or more than the limit.

    An edit inserts, deletes or replaces a letter, or swaps two neighbours.
    """
    if abs(len(one) - len(other)) > limit:
        return limit + 1
    before: list[int] = []
    last: list[int] = [*range(len(other) + 1)]
    for row, letter in enumerate(one, start=1):
        current: list[int] = [row]
        for column, wanted in enumerate(other, start=1):
            cost = min(
                last[column] + 1,
                current[column - 1] + 1,
                last[column - 1] + int(letter != wanted),
            )
            if row > 1 and column > 1 and one[row - 2 : row] == other[column - 2 : column][::-1]:
                cost = min(cost, before[column - 2] + 1)
            current.append(cost)
        before, last = last, current
    return last[-1]
