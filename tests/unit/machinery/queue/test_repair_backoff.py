"""Repairs that another client reverts are repeated with growing pauses."""

import pytest

from kftrainer.kube.objects.resource import ObjectKey
from kftrainer.machinery.queue.repair_backoff import RESET_AFTER, SWEEP_AT, RepairBackoff, Repeats
from tests.support.fake_clock import FakeClock

TORCH, PLAIN = ObjectKey("", "torch"), ObjectKey("", "plain")


async def test_each_time_the_pause_is_longer() -> None:
    clock = FakeClock()
    backoff = RepairBackoff[ObjectKey](clock, first=1.0, longest=16.0)
    pauses, is_first = list[float](), list[bool]()
    for _ in range(7):
        pauses.append(backoff.pause(TORCH))
        await clock.advance(pauses[-1])
        assert backoff.pause(TORCH) == 0
        is_first.append(backoff.record_write(TORCH))
        backoff.record_unchanged(TORCH)
    assert pauses == [0, 1, 2, 4, 8, 16, 16]
    assert is_first == [False, True, *[False] * 5]
    assert backoff.pause(PLAIN) == 0


async def test_pause_is_not_restarted_by_another_check() -> None:
    clock = FakeClock()
    backoff = RepairBackoff[ObjectKey](clock, first=4.0, longest=60.0)
    backoff.record_write(TORCH)
    assert backoff.pause(TORCH) == 4
    await clock.advance(3)
    assert backoff.pause(TORCH) == 1
    backoff.record_unchanged(TORCH)
    await clock.advance(3)
    assert backoff.pause(TORCH) == 8, "and it is, when it was well meanwhile"


async def test_backoff_resets_after_an_unchanged_minute() -> None:
    clock = FakeClock()
    backoff = RepairBackoff[ObjectKey](clock, first=1.0, longest=60.0)
    for _ in range(2):
        assert backoff.record_write(TORCH) is False
        backoff.record_unchanged(TORCH)
        await clock.advance(RESET_AFTER)
        assert backoff.pause(TORCH) == 0
    backoff.record_write(TORCH)
    assert backoff.pause(TORCH) == 1


async def test_another_change_is_written_at_once() -> None:
    clock = FakeClock()
    backoff = RepairBackoff[ObjectKey](clock, first=4.0, longest=60.0)
    for what in ("suspended", "resumed", "suspended"):
        assert backoff.pause(TORCH, what) == 0
        assert backoff.record_write(TORCH, what) is False
    assert backoff.pause(TORCH, "suspended") == 4


async def test_unchanged_entries_are_evicted_beyond_the_limit() -> None:
    clock = FakeClock()
    backoff = RepairBackoff[ObjectKey](clock, first=1.0, longest=60.0)
    for number in range(SWEEP_AT):
        backoff.record_write(ObjectKey("", str(number)))
    backoff.pause(ObjectKey("", "0"))
    await clock.advance(RESET_AFTER + 2)
    backoff.record_write(TORCH)
    assert len(backoff._writes) == 1


async def repair_repeatedly(
    clock: FakeClock, *, until: float, reverted_after: float = 0.0
) -> list[float]:
    """Return the times of repairs if another client reverts each of them."""
    backoff, times = RepairBackoff[str](clock, first=0.1, longest=300.0), []
    start = clock.monotonic()
    while (now := clock.monotonic() - start) < until:
        if backoff.pause("it") == 0:
            backoff.record_write("it")
            backoff.record_unchanged("it")
            times.append(now)
            await clock.advance(reverted_after)
        await clock.advance(0.1)
    return times


async def test_the_first_repairs_follow_quickly_and_later_ones_rarely() -> None:
    times = await repair_repeatedly(FakeClock(), until=7200)
    assert times[0] == 0
    assert times[3] < 2
    assert len([each for each in times if each < 60]) < 12
    assert 300 <= times[-1] - times[-2] < 301


async def test_a_client_that_reverts_rarely_does_not_delay_repairs() -> None:
    times = await repair_repeatedly(FakeClock(), until=3600, reverted_after=2 * RESET_AFTER)
    assert len(times) == 30


async def test_a_client_that_reverts_often_delays_repairs() -> None:
    times = await repair_repeatedly(FakeClock(), until=3600, reverted_after=RESET_AFTER / 10)
    assert len(times) < 30


async def test_writes_are_repeated_until_they_are_no_longer_reverted() -> None:
    clock = FakeClock()
    backoff = RepairBackoff[ObjectKey](clock, first=0.1, longest=300.0)
    for _ in range(5):
        assert backoff.repeated(5) == {}
        await clock.advance(backoff.pause(TORCH))
        backoff.record_write(TORCH)
    assert backoff.repeated(5) == {TORCH: Repeats(5, pytest.approx(1.6), RESET_AFTER)}
    await clock.advance(RESET_AFTER)
    assert backoff.repeated(5) == {}


async def test_writes_stay_repeated_for_twice_the_next_pause() -> None:
    """A client that pauses for as long as we do is still there."""
    clock = FakeClock()
    backoff = RepairBackoff[ObjectKey](clock, first=300.0, longest=300.0)
    backoff.record_write(TORCH)
    await clock.advance(backoff.pause(TORCH))
    backoff.record_write(TORCH)
    assert backoff.repeated(2) == {TORCH: Repeats(2, 300.0, 600.0)}
