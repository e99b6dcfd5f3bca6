from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kftrainer.controllers.metrics.counts import NAMESPACED, TrainJobCounts
from kftrainer.controllers.metrics.state import JobFacts, State
from kftrainer.kube.objects.resource import ObjectKey
from kftrainer.machinery.metrics.bounded_labels import OTHER

KEY = ObjectKey("team", "train")
CREATED = 1000.0
STATES: tuple[State, ...] = ("Pending", "Running", "Suspended", "Blocked", "Complete", "Failed")


class RecordingObserver:
    """Records its calls."""

    def __init__(self) -> None:
        self.recorded: list[tuple[Any, ...]] = []
        self.taken: list[str] = []

    def adopted(self, runtime: str) -> None:
        self.taken.append(runtime)

    def job_set_created(self, runtime: str, seconds: float) -> None:
        self.recorded.append(("JobSet", runtime, seconds))

    def first_pod_running(self, runtime: str, seconds: float) -> None:
        self.recorded.append(("pod", runtime, seconds))

    def ended(self, runtime: str, result: State, seconds: float) -> None:
        self.recorded.append((result, runtime, seconds))


class CountsUnderTest(TrainJobCounts):
    """TrainJobCounts with a recording observer."""

    def __init__(self, **bounds: int) -> None:
        self.witness = RecordingObserver()
        super().__init__(self.witness, **bounds)

    def observe(
        self,
        state: State = "Pending",
        *,
        key: ObjectKey = KEY,
        now: float = CREATED,
        has_job_set: bool = False,
        **more: Any,
    ) -> None:
        facts = JobFacts("1", "torch", state, CREATED, CREATED, has_rows=False, has_had_pods=False)
        self.put(key, replace(facts, **more), now, lambda: has_job_set)

    def counts(self) -> dict[tuple[str, str, str], int]:
        return {(each.namespace, each.runtime, each.state): each.jobs for each in self.groups()}


def test_trainjob_is_counted_in_one_state() -> None:
    counts = CountsUnderTest()
    for state in STATES[:4]:
        counts.observe(state)
        assert counts.counts() == {("team", "torch", state): 1}
    counts.remove(KEY)
    assert counts.counts() == {}
    assert counts.oldest() == {}
    counts.remove(KEY)


def test_durations_of_a_trainjob_are_observed_once() -> None:
    counts = CountsUnderTest()
    counts.observe()
    for _ in range(2):
        counts.job_set_created(KEY, CREATED + 2)
    for _ in range(2):
        counts.first_pod_running(KEY, CREATED + 30)
    for _ in range(2):
        counts.observe("Complete", now=CREATED + 99, since=CREATED + 70)
    assert counts.witness.recorded == [
        ("JobSet", "torch", 2),
        ("pod", "torch", 30),
        ("Complete", "torch", 70),
    ]
    assert counts.counts() == {("team", "torch", "Complete"): 1}


def test_events_before_the_first_list_are_not_observed() -> None:
    counts = CountsUnderTest()
    counts.observe("Complete", since=CREATED + 1)
    counts.observe("Pending", key=ObjectKey("team", "has-job-set"), has_job_set=True)
    counts.observe("Pending", key=ObjectKey("team", "has-rows"), has_rows=True)
    counts.observe("Pending", key=ObjectKey("team", "ran"), has_rows=True, has_had_pods=True)
    counts.observe("Pending", key=ObjectKey("team", "runs"), has_job_set=True)
    counts.first_pod_running(ObjectKey("team", "runs"), None)
    for name in ("train", "has-job-set", "has-rows", "ran", "runs", "unknown"):
        counts.job_set_created(ObjectKey("team", name), CREATED + 5)
    assert counts.witness.recorded == []
    for name in ("train", "has-job-set", "has-rows", "ran", "runs", "unknown"):
        counts.first_pod_running(ObjectKey("team", name), CREATED + 6)
    assert counts.witness.recorded == [("pod", "torch", 6)] * 2


def test_clock_behind_the_servers_yields_no_negative_durations() -> None:
    counts = CountsUnderTest()
    counts.observe()
    counts.job_set_created(KEY, CREATED - 2)
    counts.first_pod_running(KEY, CREATED - 2)
    counts.observe("Failed", since=CREATED - 1)
    assert [seconds for *_, seconds in counts.witness.recorded] == [0, 0, 0]


def test_training_that_never_began_has_no_duration() -> None:
    counts = CountsUnderTest()
    counts.observe()
    counts.observe("Failed", never_began=True, since=CREATED + 1)
    counts.observe("Pending", now=CREATED + 9)  # its kind of runtime became known
    counts.job_set_created(KEY, CREATED + 10)
    assert counts.witness.recorded == [("JobSet", "torch", 10)]
    assert counts.counts() == {("team", "torch", "Pending"): 1}


@pytest.mark.parametrize("before", ["Pending", "Complete"])
def test_trainjob_of_the_same_name_is_observed_separately(before: State) -> None:
    counts = CountsUnderTest()
    counts.observe(before)
    counts.job_set_created(KEY, CREATED + 1)
    counts.witness.recorded.clear()
    counts.observe("Pending", uid="2", runtime="jax")  # of the same second
    assert counts.counts() == {("team", "jax", "Pending"): 1}
    counts.job_set_created(KEY, CREATED + 3)
    assert counts.witness.recorded == [("JobSet", "jax", 3)]


def test_event_that_the_status_reports_is_not_measured() -> None:
    counts = CountsUnderTest()
    counts.observe()
    counts.observe(has_rows=True)
    assert [counts.awaiting(KEY, what) for what in ("JobSet", "pod")] == [None, "1"]
    counts.observe("Running", has_rows=True, has_had_pods=True)
    assert counts.awaiting(KEY, "pod") is None
    counts.observe("Pending", has_rows=True)  # its pods are started again
    counts.job_set_created(KEY, CREATED + 5000)
    counts.first_pod_running(KEY, CREATED + 5000)  # the end of what has run all the time
    assert counts.witness.recorded == []


def test_first_pod_may_precede_its_job_set() -> None:
    counts = CountsUnderTest()
    counts.observe()
    counts.first_pod_running(KEY, CREATED + 2)
    counts.job_set_created(KEY, CREATED + 3)
    assert counts.witness.recorded == [("pod", "torch", 2), ("JobSet", "torch", 3)]


def test_job_set_without_known_time_is_not_measured() -> None:
    counts = CountsUnderTest()
    counts.observe()
    counts.job_set_created(KEY, None)
    counts.job_set_created(KEY, CREATED + 5)
    assert counts.witness.recorded == []
    assert [counts.awaiting(KEY, what) for what in ("JobSet", "pod")] == [None, "1"]


def test_namespaced_runtimes_share_durations() -> None:
    counts = CountsUnderTest()
    for name in "ab":
        key = ObjectKey("team", name)
        counts.observe(key=key, runtime=name, has_namespaced_runtime=True)
        counts.job_set_created(key, CREATED + 1)
        counts.first_pod_running(key, CREATED + 2)
        counts.observe(
            "Failed", key=key, runtime=name, has_namespaced_runtime=True, since=CREATED + 3
        )
    observations = [("JobSet", NAMESPACED, 1), ("pod", NAMESPACED, 2), ("Failed", NAMESPACED, 3)]
    assert counts.witness.recorded == observations * 2
    assert counts.counts() == {("team", "a", "Failed"): 1, ("team", "b", "Failed"): 1}


def test_start_of_a_state_is_from_conditions_or_observed() -> None:
    def since(state: State, at: float, **more: Any) -> float:
        counts.observe(state, now=CREATED + at, **more)
        [found] = counts.oldest().values()
        return found - CREATED

    counts = CountsUnderTest()
    assert since("Pending", 0) == 0
    assert since("Pending", 10) == 0
    assert since("Blocked", 20, since=CREATED + 19) == 19
    assert since("Blocked", 30, since=CREATED + 29) == 29  # unblocked and blocked again
    assert since("Pending", 40) == 40
    assert since("Running", 50) == 50
    assert since("Running", 60) == 50
    assert since("Pending", 70) == 70  # its pods are started again
    assert since("Suspended", 80, since=CREATED + 79) == 79


def test_trainjob_that_waits_for_pods_again_does_so_since_it_was_added() -> None:
    """As after an initializer that ran for hours under another manager."""
    counts = CountsUnderTest()
    counts.observe(has_rows=True, has_had_pods=True, now=CREATED + 7200)
    assert counts.oldest() == {("team", "Pending"): CREATED + 7200}


@pytest.mark.parametrize("before", [{"has_rows": True}, {"has_job_set": True}])
def test_trainjob_with_a_job_set_is_adopted(before: dict[str, bool]) -> None:
    counts = CountsUnderTest()
    counts.observe(has_namespaced_runtime=True, **before)
    counts.observe("Running")
    counts.observe("Complete", key=ObjectKey("team", "done"), has_rows=True)
    assert counts.witness.taken == [NAMESPACED]


def test_oldest_time_by_namespace_and_state() -> None:
    counts = CountsUnderTest()
    for name, at in {"c": 3.0, "a": 1.0, "b": 2.0}.items():
        counts.observe(key=ObjectKey("team", name), since=at, runtime=name)
    counts.observe("Blocked", key=ObjectKey("team", "d"), since=4.0)
    counts.observe(key=ObjectKey("other", "e"), since=5.0)
    counts.observe("Complete", key=ObjectKey("other", "f"), since=0.5)
    assert counts.oldest() == {
        ("team", "Pending"): 1.0,
        ("team", "Blocked"): 4.0,
        ("other", "Pending"): 5.0,
    }
    counts.remove(ObjectKey("team", "a"))
    assert counts.oldest()["team", "Pending"] == 2.0


def test_namespaces_and_runtimes_are_bounded_and_released() -> None:
    counts = CountsUnderTest(most_namespaces=2, most_runtimes=2)
    for name in "abcd":
        counts.observe(key=ObjectKey(name, "train"), runtime=name)
    assert counts.counts() == {
        ("a", "a", "Pending"): 1,
        ("b", "b", "Pending"): 1,
        (OTHER, OTHER, "Pending"): 2,
    }
    assert set(counts.oldest()) == {("a", "Pending"), ("b", "Pending"), (OTHER, "Pending")}
    counts.observe("Running", key=ObjectKey("a", "train"), runtime="a")
    assert ("a", "a", "Running") in counts.counts()
    counts.remove(ObjectKey("a", "train"))
    counts.observe("Running", key=ObjectKey("c", "train"), runtime="c")
    assert counts.counts() == {
        ("b", "b", "Pending"): 1,
        ("c", "c", "Running"): 1,
        (OTHER, OTHER, "Pending"): 1,
    }


def test_pairs_of_namespace_and_runtime_are_bounded_and_released() -> None:
    counts = CountsUnderTest(most_places=2)
    for namespace, runtime in ("ab", "aa", "ba", "bb"):
        counts.observe(key=ObjectKey(namespace, runtime), runtime=runtime)
    counts.observe("Running", key=ObjectKey("a", "another"), runtime="b")
    counts.observe("Running", key=ObjectKey("b", "another"), runtime="b")
    assert counts.counts() == {
        ("a", "b", "Pending"): 1,
        ("a", "a", "Pending"): 1,
        (OTHER, OTHER, "Pending"): 2,
        ("a", "b", "Running"): 1,
        (OTHER, OTHER, "Running"): 1,
    }
    for namespace, name in (("a", "a"), ("b", "b"), ("b", "another")):
        counts.remove(ObjectKey(namespace, name))
    counts.observe("Running", key=ObjectKey("b", "a"), runtime="a")
    assert counts.counts() == {
        ("a", "b", "Pending"): 1,
        ("a", "b", "Running"): 1,
        ("b", "a", "Running"): 1,
    }


NAMES = st.sampled_from("abc")
CHANGES = st.tuples(
    st.builds(ObjectKey, NAMES, NAMES),
    st.one_of(
        st.none(),
        st.tuples(NAMES, st.sampled_from(STATES), st.sampled_from("12")),
    ),
)


@given(st.lists(CHANGES, max_size=60), st.integers(0, 3), st.integers(0, 3), st.integers(0, 9))
def test_counts_equal_a_recount(
    changes: list[tuple[ObjectKey, tuple[str, State, str] | None]],
    namespaces: int,
    runtimes: int,
    places: int,
) -> None:
    counts = CountsUnderTest(most_namespaces=namespaces, most_runtimes=runtimes, most_places=places)
    expected_states: dict[ObjectKey, tuple[str, State, str]] = {}
    runtime_of: dict[tuple[ObjectKey, str], str] = {}  # which is immutable
    for key, change in changes:
        if change is None:
            counts.remove(key)
            expected_states.pop(key, None)
        else:
            runtime, state, uid = change
            if key not in expected_states or expected_states[key][2] != uid:
                runtime_of[key, uid] = runtime
            runtime = runtime_of[key, uid]
            counts.observe(state, key=key, uid=uid, runtime=runtime)
            expected_states[key] = (runtime, state, uid)
    found = counts.counts()
    assert all(found.values())
    by_state = Counter(state for _, state, _ in expected_states.values())
    assert sum_by(found, 2) == by_state
    if (namespaces, runtimes, places) == (3, 3, 9):
        every = Counter(
            (key.namespace, runtime, state) for key, (runtime, state, _) in expected_states.items()
        )
        assert found == every
    assert len({namespace for namespace, _, _ in found} - {OTHER}) <= namespaces
    assert len({runtime for _, runtime, _ in found} - {OTHER}) <= runtimes
    pairs = {(namespace, runtime) for namespace, runtime, _ in found}
    assert len(pairs - {(OTHER, OTHER)}) <= places
    for key in list(expected_states):
        counts.remove(key)
    assert counts.counts() == {}
    for labels in (counts._namespaces, counts._runtimes, counts._places):
        assert labels._holders == {}


def sum_by(counts: dict[tuple[str, str, str], int], part: int) -> Counter[str]:
    found: Counter[str] = Counter()
    for place, jobs in counts.items():
        found[place[part]] += jobs
    return found
