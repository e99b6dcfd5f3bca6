import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kftrainer.kube.client.ratelimit import RateLimiter, TokenBucket
from kftrainer.kube.clock import LoopClock
from tests.support.fake_clock import FakeClock


def test_full_bucket_allows_its_burst_and_then_one_at_a_time() -> None:
    bucket = TokenBucket(per_second=4, burst=2, now=100.0)
    assert [bucket.take(100.0) for _ in range(4)] == [0, 0, 0.25, 0.5]
    assert bucket.take(100.5) == 0.25


def test_a_bucket_does_not_fill_beyond_its_burst() -> None:
    bucket = TokenBucket(per_second=1, burst=2, now=0.0)
    assert [bucket.take(3600.0) for _ in range(3)] == [0, 0, 1]


@given(
    st.floats(0.1, 1000),
    st.integers(1, 100),
    st.lists(st.floats(0, 10), min_size=1, max_size=200),
)
def test_requests_in_any_window_are_limited_by_burst_and_rate(
    rate: float, burst: int, gaps: list[float]
) -> None:
    bucket = TokenBucket(rate, burst, now=0.0)
    now, used = 0.0, []
    for gap in gaps:
        now += gap
        used.append(now + bucket.take(now))
    assert used == sorted(used), "first come, first served"
    for first, begin in enumerate(used):
        for count, end in enumerate(used[first:], start=1):
            assert count <= burst + (end - begin) * rate + 1e-6


@pytest.mark.parametrize(("rate", "burst"), [(0, 1), (-1, 1), (1, 0)])
def test_bucket_without_tokens_is_rejected(rate: float, burst: int) -> None:
    with pytest.raises(ValueError, match="rate above 0"):
        TokenBucket(rate, burst, now=0.0)


async def test_limiter_delays_its_callers() -> None:
    clock = FakeClock()
    limiter = RateLimiter(qps=2, burst=1, clock=clock)
    passed: list[float] = []

    async def send() -> None:
        await limiter.wait()
        passed.append(clock.monotonic())

    async with asyncio.TaskGroup() as senders:
        for _ in range(3):
            senders.create_task(send())
        await clock.advance(10)
    assert passed == [0, 0.5, 1]


async def test_the_clock_of_the_loop_moves_on() -> None:
    clock = LoopClock()
    before = clock.monotonic()
    await clock.sleep(0.01)
    assert clock.monotonic() >= before + 0.009


def test_token_that_does_not_exist_yet_is_not_used() -> None:
    bucket = TokenBucket(per_second=0.5, burst=2, now=0.0)
    assert [bucket.try_take(now) for now in (0.0, 0.0, 0.0, 1.0, 2.0, 2.0)] == [
        True,
        True,
        False,
        False,
        True,
        False,
    ]
