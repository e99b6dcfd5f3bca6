"""Several replicas maintain one Secret and one configuration; each may die at any time."""

import asyncio
from base64 import b64encode
from collections.abc import Callable, Coroutine
from datetime import timedelta
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from kftrainer.kube.client.errors import (
    AlreadyExistsError,
    ApiError,
    ConflictError,
    ForbiddenError,
    NotFoundError,
    ServerError,
)
from kftrainer.machinery.certs.authority import (
    CERTIFICATE,
    OVERLAP,
    SETTLED_AFTER,
    Leaf,
    read,
)
from kftrainer.machinery.certs.rotation import (
    CHECK_EVERY,
    LONGEST_PAUSE,
    SHORTEST_PAUSE,
    CertificateRotation,
    FailureLog,
)
from kftrainer.machinery.certs.serving import ServingCertificate
from kftrainer.machinery.certs.x509 import certificates_in
from kftrainer.machinery.metrics.registry import Metrics
from tests.support.certificates import ELSEWHERE, IDENTITY, authority, content, leaf
from tests.support.fake_clock import START, FakeClock
from tests.support.odd_certificates import ODD
from tests.unit.machinery.certs.certificate_server import (
    CONFIGURATION,
    SECRET,
    Server,
    configuration,
    webhook,
)

# Delay until a client receives a change: none, and the maximum.
LAGS = (0.0, SETTLED_AFTER / 2, SETTLED_AFTER - 1)
SETTLED_WITHIN = 40  # runs of each replica
GOOD = authority(START)
SHOWN = leaf(GOOD, START)
METRICS = Metrics()
FORBIDDEN = ForbiddenError(403, "Forbidden", "you may not")


class Replica:
    """One of the processes; each run is one step of the test."""

    def __init__(self, server: Server, clock: FakeClock) -> None:
        self.serving = ServingCertificate(clock=clock, metrics=METRICS)
        self.rotation = CertificateRotation(
            server.client(),
            self.serving,
            secret=SECRET,
            identity=IDENTITY,
            configurations=[CONFIGURATION],
            clock=clock,
            metrics=METRICS,
        )
        self._run: Coroutine[Any, Any, bool] | None = None
        self.is_content = False

    @property
    def shown(self) -> Leaf | None:
        return self.rotation._presented

    def step(self) -> bool:
        """Let it go on until its next request; True when it has seen to everything."""
        if self._run is None:
            self._run = self.rotation._check()
        try:
            self._run.send(None)
        except StopIteration as ended:
            self._run = None
            self.is_content = ended.value
            return True
        return False

    def run_once(self) -> bool:
        """Run one check; return whether it succeeded."""
        while not self.step():
            pass
        return self.is_content

    def restart(self) -> None:
        if self._run is not None:
            self._run.close()
            self._run = None


def pass_time(clock: FakeClock, seconds: float) -> None:
    clock._time += seconds  # no task sleeps here


class World:
    """A server, its replicas, and what must hold of them all the time."""

    def __init__(self, replicas: int = 2) -> None:
        self.clock = FakeClock()
        self.server = Server(self.clock)
        self.replicas = [self.new_replica() for _ in range(replicas)]

    def new_replica(self) -> Replica:
        return Replica(self.server, self.clock)

    def restart(self, number: int) -> None:
        self.replicas[number].restart()
        self.replicas[number] = self.new_replica()

    def check(self) -> None:
        """Whatever a replica shows, every client trusts."""
        for number, replica in enumerate(self.replicas):
            for lag in LAGS:
                for bundle in self.server.bundles_at(lag) if replica.shown else ():
                    assert replica.shown is not None
                    assert replica.shown.issuer in certificates_in(bundle), (
                        f"replica {number} is not trusted by a client that is {lag} s behind"
                    )
            if replica.shown is not None:
                assert replica.serving.missing() is None, f"replica {number} is not ready"

    def settle(self) -> None:
        """Run all replicas until none has anything left to do."""
        for number in range(SETTLED_WITHIN):
            # They wait between checks, and longer after another client has reverted their writes.
            pass_time(self.clock, min(SHORTEST_PAUSE * 2**number, LONGEST_PAUSE) if number else 0)
            before = self.server._version
            contents = [replica.run_once() for replica in self.replicas]
            self.check()
            if all(contents) and self.server._version == before:
                return
        pytest.fail("it never comes to rest")

    def grow_old(self, seconds: float) -> None:
        """Advance the time, and run each replica now and then."""
        for _ in range(2):
            pass_time(self.clock, seconds / 2)
            self.settle()

    def check_healthy(self) -> None:
        stored = read(self.server.content, IDENTITY, self.clock.now())
        assert stored.leaf is not None
        assert stored.issuer == stored.leaf.issuer
        assert [certificates_in(each) for each in self.server.bundles] == [
            [stored.issuer] for _ in self.server.bundles
        ]
        for replica in self.replicas:
            assert replica.shown is not None
            assert replica.shown.certificate == stored.leaf.certificate
            assert replica.serving.missing() is None


def bundle_of(*authorities: Any) -> str:
    return b64encode(b"".join(each.pem for each in authorities)).decode()


def running_world(days_left: float = 3650) -> World:
    """Two replicas that have run for a while, with an authority with `days_left`."""
    world = World()
    ca = authority(START, days_left)
    world.server.fill_secret(content(ca, leaf(ca, START)))
    bundle = bundle_of(ca)
    world.server.put(configuration(webhook("a", caBundle=bundle), webhook("b", caBundle=bundle)))
    return world


def run(
    world: World, acts: list[tuple[str, int]], actions: dict[str, Callable[[int], None]]
) -> None:
    for name, number in acts:
        actions[name](number)
        world.check()


def actions_of(world: World) -> dict[str, Callable[[int], None]]:
    def step(number: int) -> None:
        world.replicas[number % 2].step()

    def wait(seconds: int) -> None:
        pass_time(world.clock, seconds)

    def restart(number: int) -> None:
        world.restart(number % 2)

    return {"step": step, "wait": wait, "die": restart}


ACTS = st.one_of(
    st.tuples(st.just("step"), st.integers(0, 1)),
    st.tuples(st.just("step"), st.integers(0, 1)),
    st.tuples(st.just("wait"), st.integers(0, 40)),
)


@settings(max_examples=60)
@given(st.lists(st.one_of(ACTS, st.tuples(st.just("die"), st.integers(0, 1))), max_size=60))
def test_authority_rotation_is_seamless_with_random_crashes(
    acts: list[tuple[str, int]],
) -> None:
    world = running_world(days_left=400)
    old = certificates_in(world.server.content["ca.crt"])
    run(world, acts, actions_of(world))
    world.settle()
    world.grow_old(2 * SETTLED_AFTER)
    world.grow_old(OVERLAP)
    world.check_healthy()
    assert certificates_in(world.server.content["ca.crt"]) != old


OTHERS = [authority(START) for _ in range(3)]


STEP, REPLACE = ("step", 0), ("replace", 0)


@settings(max_examples=60)
@example([STEP, STEP, REPLACE, STEP])  # read before, written by the other one meanwhile
@example([STEP, STEP, REPLACE, STEP, ("delete", 0)])  # read, and gone when it is to be written
@example([STEP, STEP, REPLACE, STEP, STEP, REPLACE])  # written, and undone before it is injected
@given(
    st.lists(
        st.one_of(
            ACTS, st.tuples(st.sampled_from(["delete", "empty", "replace"]), st.integers(0, 2))
        ),
        max_size=60,
    )
)
def test_random_changes_of_the_secret_do_not_break_running_replicas(
    acts: list[tuple[str, int]],
) -> None:
    world = running_world()
    world.settle()
    world.grow_old(SETTLED_AFTER)

    def delete(_: int) -> None:
        world.server.objects.pop(SECRET, None)

    def empty(_: int) -> None:
        world.server.fill_secret({})

    def replace(number: int) -> None:
        ca = OTHERS[number]
        world.server.fill_secret(content(ca, leaf(ca, world.clock.now())))

    actions = {**actions_of(world), "delete": delete, "empty": empty, "replace": replace}
    run(world, acts, actions)
    world.settle()
    world.grow_old(2 * SETTLED_AFTER)
    world.grow_old(OVERLAP)
    world.check_healthy()


@given(st.lists(st.one_of(ACTS, st.tuples(st.just("die"), st.integers(0, 1))), max_size=40))
def test_replicas_that_start_together_create_one_authority(acts: list[tuple[str, int]]) -> None:
    world = World()
    actions = actions_of(world)
    for name, number in acts:
        actions[name](number)  # no bundle existed before
    world.server.put(configuration(webhook("a")))
    for replica in world.replicas:
        replica.run_once()
        replica.run_once()
    world.check_healthy()
    assert world.server.writes.count("create Secret") == 1
    assert "update Secret" not in world.server.writes


@pytest.mark.parametrize("requests", range(4))
def test_old_bundle_never_replaces_a_newer_one(requests: int) -> None:
    world = running_world()
    world.settle()
    world.grow_old(2 * OVERLAP)
    slow, fast = world.replicas
    for _ in range(requests):
        slow.step()
    world.server.objects.pop(SECRET)
    assert fast.run_once()
    slow.run_once()
    trusted = certificates_in(world.server.bundles[0])
    assert trusted == certificates_in(world.server.content["ca.crt"])
    assert len(trusted) == 2


def test_a_server_certificate_is_replaced_in_time_and_shown_at_once() -> None:
    world = running_world()
    world.settle()
    first = world.server.content[CERTIFICATE]
    pass_time(world.clock, timedelta(days=274).total_seconds())
    world.settle()
    assert world.server.content[CERTIFICATE] == first
    pass_time(world.clock, timedelta(days=2).total_seconds())
    world.settle()
    assert world.server.content[CERTIFICATE] != first
    world.check_healthy()


def test_other_webhooks_and_fields_are_not_modified() -> None:
    world = World(replicas=1)
    theirs = webhook("theirs", SECRET, caBundle=bundle_of(GOOD))
    by_url = {"name": "by-url", "clientConfig": {"url": "https://elsewhere"}}
    world.server.put(configuration(webhook("ours", path="/x"), theirs, by_url))
    world.server.fill_secret({"notes": b"keep"})
    assert world.replicas[0].run_once()
    own, *others = world.server.objects[CONFIGURATION.key]["webhooks"]
    assert others == [theirs, by_url]
    assert own["clientConfig"]["path"] == "/x"
    assert world.server.content["notes"] == b"keep"
    assert certificates_in(world.server.bundles[0]) == certificates_in(
        world.server.content["ca.crt"]
    )


def test_valid_secret_is_not_written() -> None:
    world = running_world()
    world.settle()
    world.grow_old(OVERLAP)
    assert world.server.writes == []


class TestFailures:
    def test_start_and_end_are_each_logged_once(self) -> None:
        world = running_world()
        world.server.put(configuration(webhook("a")))
        world.server.refusals["update ValidatingWebhookConfiguration"] = FORBIDDEN
        replica = world.replicas[0]
        with capture_logs() as logs:
            assert not any(replica.run_once() for _ in range(5))
            world.server.refusals.clear()
            assert replica.run_once()
        logged = [entry for entry in logs if entry["event"].startswith("certificate_failure")]
        assert [(each["event"], each["log_level"]) for each in logged] == [
            ("certificate_failure_started", "warning"),
            ("certificate_failure_ended", "info"),
        ]
        assert "our-hooks cannot be written" in logged[0]["failure"]

    @pytest.mark.parametrize("method", ["get", "update"])
    def test_with_the_configuration_does_not_keep_the_certificate_from_being_shown(
        self, method: str
    ) -> None:
        world = running_world()
        world.server.put(configuration(webhook("a")))
        world.server.refusals[f"{method} ValidatingWebhookConfiguration"] = FORBIDDEN
        assert not world.replicas[0].run_once()
        assert world.replicas[0].shown is not None

    def test_with_the_secret_is_reported_by_readiness(self) -> None:
        world = World(replicas=1)
        world.server.refusals["get Secret"] = ServerError(500, "InternalError", "etcd is away")
        assert not world.replicas[0].run_once()
        missing = world.replicas[0].serving.missing()
        assert missing is not None
        assert "ours/hooks-cert cannot be read: etcd is away" in missing
        world.server.refusals.clear()
        assert world.replicas[0].run_once()
        assert world.replicas[0].serving.missing() is None

    def test_a_missing_secret_that_may_not_be_created_is_reported(self) -> None:
        world = World(replicas=1)
        world.server.refusals["create Secret"] = FORBIDDEN
        assert not world.replicas[0].run_once()
        missing = world.replicas[0].serving.missing()
        assert missing is not None
        assert "cannot be created: create it, empty, or allow the manager" in missing
        world.server.fill_secret({})
        assert world.replicas[0].run_once()

    def test_failed_write_keeps_the_existing_certificate_in_use(self) -> None:
        world = running_world(days_left=400)
        world.server.refusals["update Secret"] = FORBIDDEN
        assert not world.replicas[0].run_once()
        assert world.replicas[0].serving.missing() is None

    def test_failed_write_keeps_all_trusted_authorities(self) -> None:
        world = running_world()
        world.settle()
        world.grow_old(SETTLED_AFTER)
        before = world.replicas[0].shown
        world.server.fill_secret(content(OTHERS[0], leaf(OTHERS[0], START)))
        world.server.refusals["update Secret"] = ServerError(500, "InternalError", "try again")
        assert not world.replicas[0].run_once()
        world.check()
        assert world.replicas[0].shown == before

    def test_a_missing_namespace_is_reported(self) -> None:
        world = World(replicas=1)
        world.server.refusals["create Secret"] = NotFoundError(404, "NotFound", "no such namespace")
        assert not world.replicas[0].run_once()
        assert "no such namespace" in (world.replicas[0].serving.missing() or "")

    def test_conflicting_write_is_not_logged_as_failure(self) -> None:
        world = World()
        with capture_logs() as logs:
            for replica in world.replicas:
                replica.step(), replica.step(), replica.step()  # both are about to create it
            assert [replica.run_once() for replica in world.replicas] == [True, False]
            assert world.replicas[1].run_once()
        assert [entry for entry in logs if entry["log_level"] == "warning"] == []


class TestReadiness:
    def test_waits_until_the_api_server_trusts_the_served_certificate(self) -> None:
        world = World(replicas=1)
        world.server.put(configuration(webhook("a")))
        world.server.refusals["update ValidatingWebhookConfiguration"] = FORBIDDEN
        replica = world.replicas[0]
        assert not replica.run_once()
        assert replica.serving.missing() == (
            "the ValidatingWebhookConfiguration our-hooks does not trust the certificate's "
            "authority: the ValidatingWebhookConfiguration our-hooks cannot be written: you may not"
        )
        world.server.refusals.clear()
        assert replica.run_once()
        assert replica.serving.missing() is None

    def test_is_lost_with_the_bundle_even_if_the_secret_cannot_be_read(self) -> None:
        world = running_world()
        world.settle()
        world.server.put(configuration(webhook("a")))
        world.server.refusals["get Secret"] = FORBIDDEN
        assert not world.replicas[0].run_once()
        assert "does not trust" in (world.replicas[0].serving.missing() or "")

    @pytest.mark.parametrize(
        "webhooks",
        [None, [webhook("theirs", SECRET)]],
        ids=["no configuration", "none of our webhooks"],
    )
    def test_does_not_wait_for_configurations_of_other_services(
        self, webhooks: list[Any] | None
    ) -> None:
        world = World(replicas=1)
        if webhooks is not None:
            world.server.put(configuration(*webhooks))
        assert world.replicas[0].run_once()
        assert world.replicas[0].serving.missing() is None

    @pytest.mark.parametrize("is_trusted", [True, False])
    def test_stays_as_it_was_while_configurations_cannot_be_read(self, is_trusted: bool) -> None:
        world = running_world()
        replica = world.replicas[0]
        assert replica.run_once()
        if not is_trusted:
            world.server.put(configuration(webhook("a")))
            world.server.refusals["update ValidatingWebhookConfiguration"] = FORBIDDEN
            assert not replica.run_once()
        world.server.refusals["get ValidatingWebhookConfiguration"] = FORBIDDEN
        assert not replica.run_once()
        assert (replica.serving.missing() is None) == is_trusted

    def test_ignores_a_bundle_that_is_restored_immediately(self) -> None:
        world = running_world()
        world.settle()
        slow, fast = world.replicas
        world.server.put(configuration(webhook("a")))
        slow.step(), slow.step()  # it has seen that the bundle is gone
        assert fast.run_once()
        assert not slow.run_once(), "somebody else was faster"
        assert (fast.serving.missing(), slow.serving.missing()) == (None, None)


def test_a_certificate_is_renewed_in_time_where_configurations_cannot_be_read() -> None:
    world = World(replicas=1)
    world.server.refusals["get ValidatingWebhookConfiguration"] = FORBIDDEN
    world.replicas[0].run_once()
    first = world.replicas[0].shown
    assert first is not None
    pass_time(world.clock, timedelta(days=276).total_seconds())
    world.replicas[0].run_once()
    now = world.replicas[0].shown
    assert now is not None
    assert now.certificate != first.certificate
    assert now.issuer == first.issuer


@pytest.mark.parametrize("certificate_of_unknown_kind", ODD.values(), ids=ODD.keys())
@pytest.mark.parametrize("name", ["ca.crt", "tls.crt", "caBundle"])
def test_a_certificate_of_an_unknown_kind_is_replaced(
    name: str, certificate_of_unknown_kind: bytes
) -> None:
    world = running_world()
    if name == "caBundle":
        world.server.put(
            configuration(webhook("a", caBundle=b64encode(certificate_of_unknown_kind).decode()))
        )
    else:
        world.server.fill_secret({**world.server.content, name: certificate_of_unknown_kind})
    world.settle()
    world.grow_old(OVERLAP)
    world.check_healthy()


class TestRevertedWrites:
    RECENT_SECONDS = 3600

    def writes_against(self, world: World, undo: Callable[[], None], every: float) -> int:
        """The number of writes in an hour against a client that reverts each at once."""
        before = len(world.server.writes)
        for _ in range(int(self.RECENT_SECONDS / every)):
            pass_time(world.clock, every)
            undo()
            for replica in world.replicas:
                replica.run_once()
        return len(world.server.writes) - before

    def test_repeated_reverts_are_repaired_at_growing_intervals(self) -> None:
        world = running_world()
        world.replicas.pop()
        world.settle()
        replica = world.replicas[0]

        def reset() -> None:
            world.server.put(configuration(webhook("a")))

        with capture_logs() as logs:
            assert self.writes_against(world, reset, every=5) < 30
            logged = [entry for entry in logs if entry["event"].startswith("certificate_failure")]
            assert [entry["event"] for entry in logged] == ["certificate_failure_started"]
            message = "another client keeps changing the ValidatingWebhookConfiguration our-hooks"
            assert logged[0]["failure"] == message
            assert message in (replica.serving.missing() or "")
            pass_time(world.clock, 300)
            assert replica.run_once()
            assert (replica.serving.missing(), message in (replica.serving.failure or "")) == (
                None,
                True,
            )
            pass_time(world.clock, SETTLED_AFTER)
            assert replica.run_once()
            wait = replica.rotation._until_next_check(0)
            assert wait == 600 - SETTLED_AFTER, "until it is over"
            pass_time(world.clock, wait)
            assert replica.run_once()
            assert replica.serving.failure is None
        reset()
        assert replica.run_once()
        assert replica.serving.missing() is None, "and then it is repaired at once again"

    def test_rare_reverts_are_repaired_immediately(self) -> None:
        world = running_world()
        world.replicas.pop()
        world.settle()

        def reset() -> None:
            world.server.put(configuration(webhook("a")))

        assert self.writes_against(world, reset, every=180) == self.RECENT_SECONDS / 180
        world.check()

    def test_may_be_a_manager_with_another_name(self) -> None:
        world = running_world()
        world.settle()
        world.replicas[1].rotation._identity = ELSEWHERE
        assert self.writes_against(world, lambda: None, every=10) < 60
        reported = world.replicas[0].serving.failure or ""
        assert "another client keeps changing the Secret ours/hooks-cert" in reported
        world.check()

    def test_tolerates_a_replica_with_a_wrong_clock(self) -> None:
        world = running_world()
        world.settle()
        wrong = FakeClock()
        pass_time(wrong, timedelta(days=300).total_seconds())
        world.replicas[1] = Replica(world.server, wrong)

        def advance_both() -> None:
            pass_time(wrong, 10)

        assert self.writes_against(world, advance_both, every=10) < 60


def test_pauses_grow_and_end() -> None:
    rotation = World(replicas=1).replicas[0].rotation
    assert rotation._until_next_check(0) == CHECK_EVERY
    delays = [rotation._until_next_check(failures) for failures in range(1, 12)]
    assert delays[0] < 0.3
    assert delays[-1] < 33.1
    assert all(later > earlier for earlier, later in pairwise(delays[:8]))


async def test_unexpected_error_is_logged_once_and_retried() -> None:
    world, stop = World(replicas=1), asyncio.Event()
    replica, steps = world.replicas[0], 0
    rotation, run_once = replica.rotation, replica.rotation._check

    async def raise_unexpected() -> bool:
        nonlocal steps
        steps += 1
        if steps <= 4:
            raise LookupError("unexpected error")
        return await run_once()

    rotation._informers = lambda: iter(())  # type: ignore[method-assign]
    rotation._check = raise_unexpected  # type: ignore[method-assign]
    with capture_logs() as logs:
        async with asyncio.timeout(30), asyncio.TaskGroup() as tasks:
            tasks.create_task(rotation.run(lambda: None, stop))
            await world.clock.advance(1)
            assert 1 < steps <= 4, "the pauses grow"
            assert "unexpected error" in (replica.serving.missing() or "")
            await world.clock.advance(60)
            assert (steps, replica.serving.missing()) == (5 + 1, None), "and when it has settled"
            stop.set()
    logged = [entry for entry in logs if entry["log_level"] == "error"]
    assert [(entry["event"], entry["exc_info"]) for entry in logged] == [
        ("certificate_check_failed", True)
    ]


async def test_it_is_ready_at_once_and_stops_when_stop_is_set() -> None:
    world, stop, ready = World(replicas=1), asyncio.Event(), asyncio.Event()
    rotation = world.replicas[0].rotation
    rotation._informers = lambda: iter(())  # type: ignore[method-assign]
    async with asyncio.timeout(30), asyncio.TaskGroup() as tasks:
        tasks.create_task(rotation.run(ready.set, stop))
        await ready.wait()
        stop.set()


class TestFailureLog:
    def test_failures_are_logged_when_they_start_and_end(self) -> None:
        failures = FailureLog()
        with capture_logs() as logs:
            for failing in (["a"], ["a", "b"], ["b"], []):
                failures.begin()
                for what in failing:
                    with failures.recording(what):
                        raise ForbiddenError(403, "Forbidden", "no")
                assert failures.end() == ("; ".join(f"{what}: no" for what in failing) or None)
                assert failures.is_done == (not failing)
        assert [(entry["event"], entry["failure"]) for entry in logs] == [
            ("certificate_failure_started", "a"),
            ("certificate_failure_started", "b"),
            ("certificate_failure_ended", "a"),
            ("certificate_failure_ended", "b"),
        ]

    @pytest.mark.parametrize("kind", [ConflictError, AlreadyExistsError, NotFoundError])
    def test_a_lost_race_is_retried_and_not_logged(self, kind: type[ApiError]) -> None:
        failures = FailureLog()
        with capture_logs() as logs:
            failures.begin()
            with failures.recording("a"):
                raise kind(409, "", "")
            assert (failures.lost_race, failures.is_done, failures.end()) == (True, False, None)
            failures.begin()
            assert failures.is_done
        assert logs == []

    def test_a_reported_problem_is_logged_once_and_not_retried(self) -> None:
        failures = FailureLog()
        with capture_logs() as logs:
            for _ in range(2):
                failures.begin()
                failures.report("a", "so it is")
                assert (failures.is_done, failures.end()) == (True, "a: so it is")
        assert [entry["event"] for entry in logs] == ["certificate_failure_started"]

    def test_a_postponed_check_is_retried_and_not_logged(self) -> None:
        failures = FailureLog()
        failures.begin()
        failures.postpone()
        assert (failures.is_done, failures.end()) == (False, None)
        failures.begin()
        assert failures.is_done

    def test_other_errors_are_raised(self) -> None:
        with pytest.raises(KeyError), FailureLog().recording("a"):
            raise KeyError("a")
