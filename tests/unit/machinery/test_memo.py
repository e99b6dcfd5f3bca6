"""What is found out once about each object, and for how many of them it is kept."""

import pytest

from kftrainer.machinery.memo import Memo


class Found:
    """Counts the items of lists, and how often it has done so."""

    def __init__(self) -> None:
        self.times = 0

    def __call__(self, it: list[int]) -> int:
        self.times += 1
        if not it:
            raise ValueError("nothing to count")
        return len(it)


def test_result_for_the_same_object_is_cached() -> None:
    found, it = Found(), [1, 2]
    memo = Memo(found, most=2)
    assert [memo.of(it), memo.of(it), found.times] == [2, 2, 1]


def test_an_object_that_is_merely_equal_is_another() -> None:
    found = Found()
    memo = Memo(found, most=2)
    assert [memo.of([1]), memo.of([1]), found.times] == [1, 1, 2]


def test_oldest_entry_is_evicted_beyond_the_limit() -> None:
    found = Found()
    memo, (first, second, third) = Memo(found, most=2), ([1], [2], [3])
    for it in (first, second, third, second, third):
        memo.of(it)
    assert found.times == 3
    memo.of(first)
    assert found.times == 4


def test_failure_is_not_cached() -> None:
    it: list[int] = []
    memo = Memo(Found(), most=2)
    with pytest.raises(ValueError, match="nothing"):
        memo.of(it)
    it.append(1)
    assert memo.of(it) == 1


def test_entries_have_at_most_the_given_size_together() -> None:
    found = Found()
    memo = Memo(found, most=10, size=lambda count: count, most_size=5)
    small, medium, large = [1], [1] * 4, [1] * 6
    for it in (small, medium, small, medium):
        memo.of(it)
    assert found.times == 2
    memo.of([2, 2])  # the oldest, `small`, is dropped, and then `medium`
    memo.of(medium)
    assert found.times == 4
    memo.of(large)
    memo.of(large)
    assert found.times == 6  # too large to be kept
    memo.of(medium)
    assert found.times == 6  # and nothing was dropped for it
