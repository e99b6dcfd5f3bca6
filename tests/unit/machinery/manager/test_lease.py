"""Who may hold a lease."""

from datetime import UTC, datetime, timedelta, timezone

from hypothesis import given
from hypothesis import strategies as st

from kftrainer.kube.objects.resource import Manifest, ObjectKey
from kftrainer.machinery.manager.lease import (
    Hold,
    Wait,
    claimed,
    decide,
    micro_time,
    new_lease,
    observe,
    record_of,
    released,
)

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
LATER = NOON + timedelta(seconds=2)
KEY = ObjectKey("here", "lock")


def lease_of(holder: str) -> Manifest:
    lease = new_lease(KEY, holder, 15, NOON)
    return {**lease, "metadata": {**lease["metadata"], "resourceVersion": "7"}}


def test_lease_of_another_holder_expires_by_the_local_observation_time() -> None:
    seen = observe(None, lease_of("other"), now=100.0)
    assert decide(seen, "me", now=114.9) == Wait(until=115.0)
    assert decide(seen, "me", now=115.0) == Hold()


def test_own_and_released_leases_are_acquired_at_once() -> None:
    assert decide(observe(None, lease_of("me"), 0.0), "me", 0.0) == Hold()
    assert decide(observe(None, lease_of(""), 0.0), "me", 0.0) == Hold()


def test_a_renewal_by_another_starts_the_waiting_again() -> None:
    seen = observe(None, lease_of("other"), 0.0)
    renewed = claimed(seen, "other", 15, LATER)
    assert decide(observe(seen, renewed, 14.0), "me", 20.0) == Wait(until=29.0)


def test_lease_with_only_a_new_version_counts_as_unchanged() -> None:
    seen = observe(None, lease_of("other"), 0.0)
    touched = {**lease_of("other"), "metadata": {"name": "lock", "resourceVersion": "8"}}
    again = observe(seen, touched, 14.0)
    assert again.changed_at == 0.0
    assert again.manifest["metadata"]["resourceVersion"] == "8"


def test_the_duration_is_that_of_the_holder() -> None:
    seen = observe(None, new_lease(KEY, "other", 60, NOON), 0.0)
    assert decide(seen, "me", 59.0) == Wait(until=60.0)


def test_renewing_keeps_when_it_was_acquired_and_taking_over_counts() -> None:
    own = observe(None, lease_of("me"), 0.0)
    assert claimed(own, "me", 15, LATER)["spec"] == {
        "holderIdentity": "me",
        "leaseDurationSeconds": 15,
        "acquireTime": "2026-01-01T12:00:00.000000Z",
        "renewTime": "2026-01-01T12:00:02.000000Z",
        "leaseTransitions": 0,
    }
    taken = claimed(own, "other", 15, LATER)
    assert record_of(taken).transitions == 1
    assert record_of(taken).acquired == "2026-01-01T12:00:02.000000Z"
    assert taken["metadata"]["resourceVersion"] == "7"  # which fences it


def test_release_removes_the_holder_and_the_next_holder_counts_as_a_transition() -> None:
    free = released(observe(None, lease_of("me"), 0.0), LATER)
    assert (free["spec"]["holderIdentity"], free["spec"]["leaseDurationSeconds"]) == ("", 1)
    assert record_of(claimed(observe(None, free, 0.0), "me", 15, LATER)).transitions == 1


def test_fields_of_others_are_kept() -> None:
    lease = {**lease_of("me"), "spec": {**lease_of("me")["spec"], "strategy": "OldestEmulation"}}
    assert claimed(observe(None, lease, 0.0), "me", 15, LATER)["spec"]["strategy"]


def test_lease_without_holder_is_free() -> None:
    assert decide(observe(None, {"metadata": {"name": "lock"}}, 0.0), "me", 0.0) == Hold()


def test_fractions_of_a_second_are_rounded_up() -> None:
    assert new_lease(KEY, "me", 2.2, NOON)["spec"]["leaseDurationSeconds"] == 3


@given(st.datetimes(timezones=st.just(UTC)))
def test_times_have_six_digits(moment: datetime) -> None:
    year_may_be_short = micro_time(moment.replace(year=2026, day=1))
    assert len(year_may_be_short) == len("2026-01-01T12:00:00.000000Z")


def test_times_are_in_utc() -> None:
    tokyo = timezone(timedelta(hours=9))
    assert micro_time(datetime(2026, 1, 1, 21, tzinfo=tokyo)) == micro_time(NOON)
