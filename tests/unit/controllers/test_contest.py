"""What is undone again and again is done again more and more slowly."""

from kftrainer.controllers.contest import CALM, SWEEP_AT, Contest
from kftrainer.kube.objects.resource import ObjectKey
from kftrainer.machinery.queue.backoff import Exponential
from tests.support.fake_clock import FakeClock

TORCH, PLAIN = ObjectKey("", "torch"), ObjectKey("", "plain")


async def test_each_time_the_pause_is_longer() -> None:
    clock = FakeClock()
    contest = Contest(clock, Exponential(1.0, 16.0))
    pauses, news = list[float](), list[bool]()
    for _ in range(7):
        pauses.append(contest.pause(TORCH))
        await clock.advance(pauses[-1])
        assert contest.pause(TORCH) == 0
        news.append(contest.acted(TORCH))
        contest.settled(TORCH)
    assert pauses == [0, 1, 2, 4, 8, 16, 16]
    assert news == [False, True, *[False] * 5]
    assert contest.pause(PLAIN) == 0


async def test_a_pause_is_not_begun_anew_by_looking_again() -> None:
    clock = FakeClock()
    contest = Contest(clock, Exponential(4.0, 60.0))
    contest.acted(TORCH)
    assert contest.pause(TORCH) == 4
    await clock.advance(3)
    assert contest.pause(TORCH) == 1
    contest.settled(TORCH)
    await clock.advance(3)
    assert contest.pause(TORCH) == 8, "and it is, when it was well meanwhile"


async def test_after_a_calm_minute_all_is_forgotten() -> None:
    clock = FakeClock()
    contest = Contest(clock, Exponential(1.0, 60.0))
    for _ in range(2):
        assert contest.acted(TORCH) is False
        contest.settled(TORCH)
        await clock.advance(CALM)
        assert contest.pause(TORCH) == 0
    contest.acted(TORCH)
    assert contest.pause(TORCH) == 1


async def test_something_else_is_written_at_once() -> None:
    clock = FakeClock()
    contest = Contest(clock, Exponential(4.0, 60.0))
    for what in ("suspended", "resumed", "suspended"):
        assert contest.pause(TORCH, what) == 0
        assert contest.acted(TORCH, what) is False
    assert contest.pause(TORCH, "suspended") == 4


async def test_calm_writes_are_dropped_when_there_are_many() -> None:
    clock = FakeClock()
    contest = Contest(clock, Exponential(1.0, 60.0))
    for number in range(SWEEP_AT):
        contest.acted(ObjectKey("", str(number)))
    contest.pause(ObjectKey("", "0"))
    await clock.advance(CALM + 2)
    contest.acted(TORCH)
    assert len(contest._acts) == 1
