"""One candidate on virtual time, with a server that can fail in every way."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random

import pytest

from kftrainer.kube.client.client import Client
from kftrainer.kube.client.errors import TransportError
from kftrainer.machinery.manager import leader_election as election_module
from kftrainer.machinery.manager.leader_election import LeaderElector, LeaseLostError
from kftrainer.machinery.manager.watchdog import Watchdog
from kftrainer.machinery.metrics.registry import Metrics
from tests.support.fake_clock import FakeClock, at_rest
from tests.unit.machinery.manager.lease_server import LeaseServer


class Lowest(Random):
    def random(self) -> float:
        return 0.0


class Highest(Random):
    def random(self) -> float:
        return 0.999_999


def candidate(
    server: LeaseServer,
    clock: FakeClock,
    identity: str = "me",
    *,
    metrics: Metrics | None = None,
    rng: Random | None = None,
) -> LeaderElector:
    return LeaderElector(
        Client(server, lane="lease"),
        clock=clock,
        lease_name="lock",
        lease_namespace="here",
        identity=identity,
        metrics=metrics,
        rng=rng or Lowest(),
    )


@asynccontextmanager
async def holding(election: LeaderElector) -> AsyncIterator[list[LeaseLostError]]:
    """Renew during the block and report a loss; no watchdog remains afterwards."""
    stop, losses = asyncio.Event(), list[LeaseLostError]()

    async def hold() -> None:
        try:
            await election.hold(stop)
        except LeaseLostError as error:
            losses.append(error)

    async with asyncio.TaskGroup() as group:
        group.create_task(hold())
        yield losses
        stop.set()
    await election.release()


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def server() -> LeaseServer:
    return LeaseServer()


@pytest.fixture(autouse=True)
def no_process_exit(monkeypatch: pytest.MonkeyPatch) -> None:
    """A watchdog looks at a clock that we advance from another thread: it may see the future."""
    monkeypatch.setattr(election_module, "end_process", lambda *_: None)


async def test_the_first_candidate_creates_the_lease(server: LeaseServer, clock: FakeClock) -> None:
    election = candidate(server, clock)
    assert not election.is_leading
    await election.acquire()
    assert election.is_leading
    assert server.spec == {
        "holderIdentity": "me",
        "leaseDurationSeconds": 15,
        "acquireTime": "2026-01-01T00:00:00.000000Z",
        "renewTime": "2026-01-01T00:00:00.000000Z",
        "leaseTransitions": 0,
    }
    await election.release()


async def test_candidate_waits_a_full_lease_duration_after_observing_another_holder(
    server: LeaseServer, clock: FakeClock
) -> None:
    other = candidate(server, clock, "other")
    await other.acquire()
    await clock.advance(100)  # the other has been silent for long, but we have not seen that
    election = candidate(server, clock)
    async with asyncio.TaskGroup() as group:
        group.create_task(election.acquire())
        await clock.advance(14.9)
        assert not election.is_leading
        await clock.advance(2.1)
        assert election.is_leading
    assert server.spec["leaseTransitions"] == 1
    await election.release()
    await other.release()


@pytest.mark.parametrize(("rng", "delay"), [(Lowest(), 2.0), (Highest(), 4.4)])
async def test_candidates_try_at_random_intervals(
    server: LeaseServer, clock: FakeClock, rng: Random, delay: float
) -> None:
    other = candidate(server, clock, "other")
    await other.acquire()
    election = candidate(server, clock, rng=rng)
    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(election.acquire())
        await at_rest()
        assert clock.sleeping == [pytest.approx(delay, abs=1e-4)]
        waiting.cancel()
    await other.release()


async def test_a_leader_renews_every_two_seconds_without_reading(
    server: LeaseServer, clock: FakeClock
) -> None:
    election = candidate(server, clock)
    await election.acquire()
    server.requests.clear()
    async with holding(election):
        await clock.advance(60)
        assert election.is_leading
        assert server.requests == ["PUT"] * 30
        assert server.spec["renewTime"] == "2026-01-01T00:01:00.000000Z"
        assert server.spec["acquireTime"] == "2026-01-01T00:00:00.000000Z"


@pytest.mark.parametrize("error", [TransportError("gone"), KeyError("odd")])
async def test_any_failure_is_a_failed_attempt_and_the_next_one_counts(
    server: LeaseServer, clock: FakeClock, error: Exception
) -> None:
    election = candidate(server, clock)
    await election.acquire()

    def fail(_method: str) -> None:
        raise error

    async with holding(election):
        server.before = fail
        await clock.advance(7)
        server.before = lambda _method: None
        await clock.advance(30)
        assert election.is_leading


async def test_leading_ends_at_the_renew_deadline_by_the_clock(
    server: LeaseServer, clock: FakeClock
) -> None:
    metrics = Metrics()
    election = candidate(server, clock, metrics=metrics)

    def status() -> float | None:
        name = "leader_election_master_status"
        return metrics.registry.get_sample_value(name, {"name": "lock"})

    assert status() == 0
    await election.acquire()
    assert status() == 1

    def fail(_method: str) -> None:
        raise TransportError("gone")

    async with holding(election) as losses:
        server.before = fail
        await clock.advance(9.9)
        assert election.is_leading
        assert not losses
        await clock.advance(0.1)
        assert not election.is_leading
        await at_rest()
        assert [str(loss) for loss in losses] == ["the lease here/lock was lost"]
        assert status() == 0
        server.requests.clear()
    assert server.requests == []  # what is lost is not given back


async def test_nothing_but_the_clock_is_needed_to_stop_leading(
    server: LeaseServer, clock: FakeClock
) -> None:
    election = candidate(server, clock)
    await election.acquire()
    await clock.advance(10)  # without a renewal, as if the loop had stalled
    assert not election.is_leading
    await election.release()


async def test_lease_held_by_another_is_lost_at_once(server: LeaseServer, clock: FakeClock) -> None:
    election = candidate(server, clock)
    await election.acquire()
    async with holding(election) as losses:
        assert server.lease is not None
        server.write({**server.lease, "spec": {**server.spec, "holderIdentity": "thief"}})
        await clock.advance(2)
        assert not election.is_leading
        assert len(losses) == 1
    assert server.spec["holderIdentity"] == "thief"


async def test_renewal_with_lost_response_is_recognized(
    server: LeaseServer, clock: FakeClock
) -> None:
    election = candidate(server, clock)
    await election.acquire()

    def lose() -> None:
        server.after_write = lambda: None
        raise TransportError("written, but the response was lost")

    async with holding(election):
        server.after_write = lose
        await clock.advance(30)
        assert election.is_leading
        assert server.spec["leaseTransitions"] == 0


async def test_the_lease_counts_from_when_the_request_was_sent(
    server: LeaseServer, clock: FakeClock
) -> None:
    server.before = lambda method: setattr(clock, "_time", 4.0) if method == "POST" else None
    election = candidate(server, clock)
    await election.acquire()  # whose request took four seconds
    await clock.advance(5.9)
    assert election.is_leading
    await clock.advance(0.1)
    assert not election.is_leading
    await election.release()


async def test_released_lease_is_acquired_at_the_next_attempt(
    server: LeaseServer, clock: FakeClock
) -> None:
    leader, election = candidate(server, clock, "other"), candidate(server, clock)
    await leader.acquire()
    async with asyncio.TaskGroup() as group:
        group.create_task(election.acquire())
        await at_rest()
        await leader.release()
        assert not leader.is_leading
        assert (server.spec["holderIdentity"], server.spec["leaseDurationSeconds"]) == ("", 1)
        await clock.advance(2)
        assert election.is_leading
    await election.release()


async def test_unreachable_server_does_not_block_exiting(
    server: LeaseServer, clock: FakeClock
) -> None:
    election = candidate(server, clock)
    await election.acquire()

    def fail(_method: str) -> None:
        raise TransportError("gone")

    server.before = fail
    await election.release()
    assert not election.is_leading


def test_durations_that_cannot_work_are_refused(server: LeaseServer, clock: FakeClock) -> None:
    with pytest.raises(ValueError, match="longer than the renew deadline"):
        LeaderElector(
            Client(server),
            clock=clock,
            lease_name="lock",
            lease_namespace="here",
            identity="me",
            lease_duration=10,
            renew_deadline=10,
        )


class Acted:
    """Waits, in real time, for a watchdog's thread."""

    def __init__(self) -> None:
        self.event = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    def __call__(self) -> None:
        self._loop.call_soon_threadsafe(self.event.set)


async def test_a_watchdog_acts_when_it_is_not_fed(clock: FakeClock) -> None:
    acted = Acted()
    watchdog = Watchdog(clock, 5.0, acted)
    await clock.advance(6)
    watchdog.feed(0.0)  # which is too long ago
    async with asyncio.timeout(30):
        await acted.event.wait()


async def test_a_stopped_watchdog_does_nothing() -> None:
    from kftrainer.machinery.manager.clock import SystemClock

    clock, acted, other = SystemClock(), Acted(), Acted()
    stopped, guard = Watchdog(clock, 1.0, acted), Watchdog(clock, 1.2, other)
    stopped.feed(clock.monotonic())
    stopped.stop()
    guard.feed(clock.monotonic())
    async with asyncio.timeout(30):
        await other.event.wait()  # by when the first one would have acted, too
    assert not acted.event.is_set()
