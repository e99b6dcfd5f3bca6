from itertools import product
from typing import get_args

from prometheus_client import CollectorRegistry

from kftrainer.controllers.metrics.collectors import (
    DURATION_BUCKETS,
    JOB_SET_BUCKETS,
    POD_BUCKETS,
    JobCounts,
    JobHistograms,
)
from kftrainer.controllers.metrics.counts import NAMESPACED, TrainJobCounts
from kftrainer.controllers.metrics.state import JobFacts, State
from kftrainer.kube.objects.resource import ObjectKey
from kftrainer.machinery.metrics.text_format import exposition

CREATED = 1_700_000_000.0


class Exported:
    """A counts and its metrics."""

    def __init__(self, most_runtimes: int = 100) -> None:
        self.registry = CollectorRegistry()
        self.counts = TrainJobCounts(JobHistograms(self.registry, most_runtimes=most_runtimes))
        self.registry.register(JobCounts(self.counts))

    def observe(
        self, name: str, state: State = "Pending", at: float = 0, runtime: str = "t"
    ) -> None:
        since = CREATED + at
        facts = JobFacts("1", runtime, state, CREATED, since, has_rows=False, has_had_pods=False)
        self.counts.put(ObjectKey("ns", name), facts, since, lambda: False)

    def lines(self, *without: str) -> list[str]:
        text = exposition(self.registry).decode()
        return [
            line
            for line in text.splitlines()
            if not line.startswith("#") and not any(each in line for each in without)
        ]


def test_registry_without_trainjobs_exports_no_series() -> None:
    assert exposition(Exported().registry) == b""


def test_collector_exports_counts_and_oldest_times() -> None:
    it = Exported()
    for number, state in enumerate(("Pending", "Pending", "Running", "Blocked", "Suspended")):
        it.observe(f"job-{number}", state, at=number)  # type: ignore[arg-type]
    it.observe("done", "Complete")
    it.observe("bad", "Failed", runtime="u")
    assert it.lines() == [
        'kftrainer_trainjob_oldest_timestamp_seconds{namespace="ns",state="Pending"} 1.7e+09',
        'kftrainer_trainjob_oldest_timestamp_seconds{namespace="ns",state="Running"} '
        "1.700000002e+09",
        'kftrainer_trainjob_oldest_timestamp_seconds{namespace="ns",state="Blocked"} '
        "1.700000003e+09",
        'kftrainer_trainjob_oldest_timestamp_seconds{namespace="ns",state="Suspended"} '
        "1.700000004e+09",
        'kftrainer_trainjobs{namespace="ns",runtime="t",state="Pending"} 2',
        'kftrainer_trainjobs{namespace="ns",runtime="t",state="Running"} 1',
        'kftrainer_trainjobs{namespace="ns",runtime="t",state="Blocked"} 1',
        'kftrainer_trainjobs{namespace="ns",runtime="t",state="Suspended"} 1',
        'kftrainer_trainjobs{namespace="ns",runtime="t",state="Complete"} 1',
        'kftrainer_trainjobs{namespace="ns",runtime="u",state="Failed"} 1',
    ]
    for name in (*(f"job-{number}" for number in range(5)), "done", "bad"):
        it.counts.remove(ObjectKey("ns", name))
    assert it.lines() == []


def test_durations_are_kept_after_their_trainjobs_are_deleted() -> None:
    it, key = Exported(), ObjectKey("ns", "job")
    it.observe("job")
    it.counts.job_set_created(key, CREATED + 0.75)
    it.counts.first_pod_running(key, CREATED + 40)
    it.observe("job", "Complete", at=7000)
    it.counts.remove(key)
    lines = it.lines()
    for name, labels, total, bucket in (
        ("jobset_creation", 'runtime="t"', "0.75", ("0.5", "1")),
        ("first_pod_running", 'runtime="t"', "40", ("30", "60")),
        ("duration", 'runtime="t",result="Complete"', "7000", ("3600", "7200")),
    ):
        family = f"kftrainer_trainjob_{name}_seconds"
        assert f"{family}_sum{{{labels}}} {total}" in lines
        assert f"{family}_count{{{labels}}} 1" in lines
        below, above = bucket
        assert f'{family}_bucket{{{labels},le="{below}"}} 0' in lines
        assert f'{family}_bucket{{{labels},le="{above}"}} 1' in lines


def test_runtimes_beyond_the_limit_share_one_series() -> None:
    it = Exported(most_runtimes=1)
    for name in ("first", "second", "third"):
        it.observe(name, runtime=name)
        it.observe(name, "Complete", at=1, runtime=name)
        it.counts.remove(ObjectKey("ns", name))
    counts = [line for line in it.lines() if "duration_seconds_count" in line]
    assert counts == [
        'kftrainer_trainjob_duration_seconds_count{runtime="first",result="Complete"} 1',
        'kftrainer_trainjob_duration_seconds_count{runtime="first",result="Failed"} 0',
        'kftrainer_trainjob_duration_seconds_count{runtime="_other",result="Complete"} 2',
        'kftrainer_trainjob_duration_seconds_count{runtime="_other",result="Failed"} 0',
    ]


def test_namespaced_runtimes_always_have_a_series() -> None:
    registry = CollectorRegistry()
    histograms = JobHistograms(registry, most_runtimes=1)
    for runtime in ("first", "second", NAMESPACED):
        histograms.job_set_created(runtime, 1)
    text = exposition(registry).decode()
    for label in ("first", "_other", "_namespaced"):
        assert f'jobset_creation_seconds_count{{runtime="{label}"}} 1\n' in text


def test_help_of_durations_states_what_is_not_included_and_what_the_runtime_is() -> None:
    it = Exported()
    it.observe("job")
    it.counts.job_set_created(ObjectKey("ns", "job"), CREATED + 1)
    it.counts.first_pod_running(ObjectKey("ns", "job"), CREATED + 1)
    text = exposition(it.registry).decode()
    helps = [
        line for line in text.splitlines() if line.startswith("# HELP") and "Time from" in line
    ]
    assert len(helps) == 3
    for line in helps:
        assert "Events without a leader are not included." in line
        assert "_namespaced for all TrainingRuntimes" in line


def test_number_of_series_is_bounded() -> None:
    it = Exported()
    states: tuple[State, ...] = get_args(State)
    for place, state in product(range(2500), states):
        name = str(place % 100)
        facts = JobFacts(name, name, state, CREATED, CREATED, has_rows=False, has_had_pods=False)
        it.counts.put(ObjectKey(f"team-{place // 100}", f"{name}-{state}"), facts, 0, lambda: False)
    counts = [line for line in it.lines() if line.startswith("kftrainer_trainjobs{")]
    assert len(counts) == 2001 * len(states)
    assert sum(float(line.rpartition(" ")[2]) for line in counts) == 2500 * len(states)
    assert 'kftrainer_trainjobs{namespace="_other",runtime="_other",state="Failed"} 500' in counts


def test_durations_start_at_zero() -> None:
    it = Exported()
    it.observe("job")
    it.counts.job_set_created(ObjectKey("ns", "job"), CREATED + 1)
    assert [line for line in it.lines() if "_count" in line] == [
        'kftrainer_trainjob_duration_seconds_count{runtime="t",result="Complete"} 0',
        'kftrainer_trainjob_duration_seconds_count{runtime="t",result="Failed"} 0',
        'kftrainer_trainjob_jobset_creation_seconds_count{runtime="t"} 1',
    ]


def test_durations_start_at_zero_for_adopted_trainjobs() -> None:
    """A rate must include them: five failures between two scrapes cause an alert."""
    it = Exported()
    facts = JobFacts("1", "t", "Running", CREATED, CREATED, has_rows=True, has_had_pods=True)
    it.counts.put(ObjectKey("ns", "job"), facts, CREATED + 9, lambda: True)
    assert [line for line in it.lines() if "_count" in line] == [
        'kftrainer_trainjob_duration_seconds_count{runtime="t",result="Complete"} 0',
        'kftrainer_trainjob_duration_seconds_count{runtime="t",result="Failed"} 0',
    ]


def test_buckets_are_few_and_ascending() -> None:
    for buckets in (JOB_SET_BUCKETS, POD_BUCKETS, DURATION_BUCKETS):
        assert len(buckets) <= 14
        assert sorted(set(buckets)) == list(buckets)
