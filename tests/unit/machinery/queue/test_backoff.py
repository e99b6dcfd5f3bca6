from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kftrainer.machinery.controller.reconcile import Request
from kftrainer.machinery.queue.backoff import Exponential, spread

A, B = Request("ns", "a"), Request("ns", "b")


def test_each_failure_in_a_row_doubles_the_delay() -> None:
    backoff = Exponential()
    assert [backoff.next_delay(A, 0) for _ in range(5)] == [0.005, 0.01, 0.02, 0.04, 0.08]


def test_the_nineteenth_failure_waits_a_thousand_seconds_and_so_do_all_after_it() -> None:
    backoff = Exponential()
    delays = [backoff.next_delay(A, 0) for _ in range(5000)]
    assert delays[17:] == [655.36] + [1000.0] * 4982


def test_success_resets_the_delays() -> None:
    backoff = Exponential()
    for _ in range(3):
        backoff.next_delay(A, 0)
    backoff.forget(A)
    assert (backoff.failures(A), backoff.next_delay(A, 0)) == (0, 0.005)


def test_requests_do_not_share_their_failures() -> None:
    backoff = Exponential(base=1, cap=10)
    backoff.next_delay(A, 0)
    backoff.next_delay(A, 0)
    assert (backoff.next_delay(B, 0), backoff.failures(A), backoff.failures(B)) == (1, 2, 1)


def test_forget_without_failure_is_a_no_op() -> None:
    Exponential().forget(A)


def test_a_cap_at_the_base_makes_every_delay_the_same() -> None:
    backoff = Exponential(base=2, cap=2)
    assert [backoff.next_delay(A, 0) for _ in range(3)] == [2, 2, 2]


@given(
    base=st.floats(1e-6, 10),
    factor=st.floats(1, 1e9),
    failures=st.integers(1, 60),
)
def test_delays_never_shrink_and_never_pass_the_cap(
    base: float, factor: float, failures: int
) -> None:
    backoff = Exponential(base=base, cap=base * factor)
    delays = [backoff.next_delay(A, 0) for _ in range(failures)]
    assert delays == sorted(delays)
    assert delays[-1] == min(base * factor, base * 2 ** (failures - 1))


@pytest.mark.parametrize(("base", "cap"), [(0, 1), (-1, 1), (2, 1), (1, float("inf"))])
def test_a_backoff_that_cannot_grow_is_refused(base: float, cap: float) -> None:
    with pytest.raises(ValueError, match="cannot grow"):
        Exponential(base=base, cap=cap)


def test_jitter_spreads_delays_around_their_base_even_at_the_maximum() -> None:
    rng = Random(1)  # noqa: S311
    backoff = Exponential(base=100, cap=100, jitter=spread(rng, 0.1))
    delays = [backoff.next_delay(A, 0) for _ in range(1000)]
    assert 90 <= min(delays) < 92
    assert 108 < max(delays) <= 110


def test_upper_bound_of_one_delay_does_not_change_the_growth() -> None:
    backoff = Exponential(base=1, cap=100)
    delays = [backoff.next_delay(A, 0, 3) for _ in range(4)]
    assert (delays, backoff.next_delay(A, 0)) == ([1, 2, 3, 3], 16)


def test_upper_bound_of_a_delay_is_applied_before_jitter() -> None:
    backoff = Exponential(base=1, cap=100, jitter=lambda delay: delay * 1.1)
    assert [backoff.next_delay(A, 0, 2) for _ in range(3)] == pytest.approx([1.1, 2.2, 2.2])
