"""`bench.attack`: what counts as an attack, and which results fail."""

from collections import Counter
from dataclasses import replace
from math import inf

import pytest

from bench.attack import (
    ATTACK,
    CONTROL,
    QUIET,
    SIZES,
    Findings,
    Latencies,
    LeaseHistory,
    Phase,
    lag_buckets,
    lag_quantile,
    victim_job,
)
from bench.attacker import CLASSES, Row, Tally, job_in, rows, runtime_in
from bench.hostile import LOOP, RUNTIMES, Cluster, review
from kftrainer.api.configuration import DEFAULT
from kftrainer.api.limits import (
    OBJECT_BYTES,
    OBJECT_QUANTITIES,
    OBJECT_VALUES,
    REPLICATED_JOBS,
    exceeded,
    size_of,
    values_in,
)
from kftrainer.api.resources import CLUSTER_TRAINING_RUNTIMES, TRAIN_JOBS
from kftrainer.machinery.cache.reduction import LARGE
from kftrainer.machinery.webhook.review import decoded
from kftrainer.webhooks.training_runtime import RuntimeAdmission
from kftrainer.webhooks.trainjob import TrainJobAdmission

FULL = Tally(
    Counter(dict.fromkeys(CLASSES, 1)),
    Counter(each.name for each in rows() if each.must_be_stored),
    sent=100,
)
PASSING = Phase(
    {size: Latencies([0.1] * 50) for size in SIZES},
    FULL,
    lag=0.01,
    waits=[0.01] * 100,
)
LEASE = LeaseHistory(["a"], 0, 2.0)
FINE = Findings({QUIET: PASSING, ATTACK: PASSING, CONTROL: PASSING}, LEASE, peak=100, limit=200)


def with_attack(**fields: object) -> Findings:
    attacked = replace(PASSING, **fields)  # type: ignore[arg-type]
    return replace(FINE, phases={**FINE.phases, ATTACK: attacked})


def test_findings_within_all_bounds_have_no_problems() -> None:
    assert [*FINE.problems()] == []


@pytest.mark.parametrize("name", CLASSES)
def test_attack_without_a_class_of_requests_fails(name: str) -> None:
    tally = replace(FULL, classes=FULL.classes - Counter([name]))
    assert [*with_attack(tally=tally).problems()] == [
        f"attack: there was no request of the class {name!r}"
    ]


def test_attack_of_which_a_row_was_never_stored_fails() -> None:
    tally = replace(FULL, stored_rows=FULL.stored_rows - Counter(["50k arguments"]))
    assert [*with_attack(tally=tally).problems()] == [
        "attack: no TrainJob of the row '50k arguments' was stored"
    ]


def test_median_of_one_size_above_twice_the_normal_one_fails() -> None:
    slow = {**PASSING.latencies, "medium": Latencies([0.201] * 50)}
    assert [*with_attack(latencies=slow).problems()] == [
        "medium TrainJobs: p50 is 2.0 x that of the phase 'quiet', more than 2 x"
    ]


def test_slowest_latency_above_five_times_the_control_fails() -> None:
    slow = {**PASSING.latencies, "small": Latencies([0.1] * 49 + [0.6])}
    assert [*with_attack(latencies=slow).problems()] == [
        "small TrainJobs: p99 is 6.0 x that of the phase 'control', more than 5 x"
    ]


def test_slowest_of_few_is_the_90th_percentile() -> None:
    one_slow = {**PASSING.latencies, "large": Latencies([0.1] * 19 + [0.6])}
    three_slow = {**PASSING.latencies, "large": Latencies([0.1] * 17 + [0.6] * 3)}
    assert [*with_attack(latencies=one_slow).problems()] == []
    assert [*with_attack(latencies=three_slow).problems()] == [
        "large TrainJobs: p90 is 6.0 x that of the phase 'control', more than 5 x"
    ]


def test_trainjob_without_a_jobset_fails() -> None:
    missing = {**PASSING.latencies, "small": Latencies([0.1] * 500, missing=1)}
    assert [*with_attack(latencies=missing).problems()] == ["small TrainJobs: 1 without a JobSet"]


@pytest.mark.parametrize(
    "lease",
    [
        LeaseHistory(["a", "b"], 0, 2.0),
        LeaseHistory(["a"], 1, 2.0),
        LeaseHistory(["a"], 0, DEFAULT.leader_election.renew_deadline.seconds + 0.1),
        LeaseHistory([], 0, 0.0),
    ],
)
def test_lost_or_late_lease_fails(lease: LeaseHistory) -> None:
    assert len([*replace(FINE, lease=lease).problems()]) == 1


@pytest.mark.parametrize(
    "fields",
    [{"lag": 0.111}, {"waits": [0.01] * 98 + [0.12] * 2}, {"failed_probes": 1}],
    ids=["event loop", "probes", "failed probe"],
)
def test_manager_that_does_not_respond_in_time_fails(fields: dict[str, object]) -> None:
    assert len([*with_attack(**fields).problems()]) == 1


def test_memory_above_the_charts_limit_fails() -> None:
    assert len([*replace(FINE, peak=201).problems()]) == 1


def test_tally_is_the_same_after_json() -> None:
    assert Tally.from_json(FULL.to_json()) == FULL


def test_quantile_of_delays_is_interpolated_in_its_bucket() -> None:
    before = {0.1: 10.0, 0.2: 10.0, inf: 10.0}
    after = {0.1: 100.0, 0.2: 110.0, inf: 110.0}
    assert lag_quantile(before, after, 0.95) == pytest.approx(0.15)
    assert lag_quantile(before, {0.1: 10.0, 0.2: 10.0, inf: 20.0}, 0.99) == 0.2
    assert lag_quantile(before, before, 0.99) == 0.0


def test_buckets_of_the_delay_are_read_from_metrics() -> None:
    name = "machinery_event_loop_lag_seconds_bucket"
    text = f'{name}{{le="0.1"}} 3.0\n{name}{{le="+Inf"}} 4.0\nother{{le="1"}} 5.0\n'
    assert lag_buckets(text) == {0.1: 3.0, inf: 4.0}


def test_victims_are_held_whole_and_not_whole() -> None:
    small, medium, large = (size_of(victim_job("team", 1, size)) for size in SIZES)
    assert small < 4_000 < medium < LARGE < large < OBJECT_BYTES


# What the attacker sends.

REQUIRED = [each for each in rows() if each.must_be_stored]


def admits(row: Row) -> bool:
    objects = row.within[0]
    job = review(TRAIN_JOBS, None, {**objects.new, "spec": dict(objects.new["spec"])})
    runtime = review(CLUSTER_TRAINING_RUNTIMES, None, objects.runtime)
    verdicts = [
        LOOP.run_until_complete(each)
        for each in (
            TrainJobAdmission(RUNTIMES, Cluster(objects), None)(decoded(job)),
            RuntimeAdmission(CLUSTER_TRAINING_RUNTIMES, RUNTIMES.framework)(decoded(runtime)),
        )
    ]
    return all(each.allowed for each in verdicts)


@pytest.mark.parametrize("row", REQUIRED, ids=lambda row: row.name)
def test_required_row_is_admitted(row: Row) -> None:
    assert admits(row)


def limits_used(row: Row) -> list[float]:
    """The shares that the row uses of limits: it is to use most of one."""
    objects = row.within[0]
    pods = [
        each["template"]["spec"]["template"]["spec"]
        for each in objects.runtime["spec"]["template"]["spec"]["replicatedJobs"]
    ]
    resources = objects.new["spec"]["trainer"].get("resourcesPerNode", {})
    return [
        max(size_of(objects.new), size_of(objects.runtime)) / OBJECT_BYTES,
        max(values_in(objects.new), values_in(objects.runtime)) / OBJECT_VALUES,
        len(pods) / REPLICATED_JOBS,
        max(len(pod.get("containers", ())) / 64 for pod in pods),
        max(len(pod.get("initContainers", ())) / 64 for pod in pods),
        sum(len(each) for each in resources.values()) / min(128, OBJECT_QUANTITIES),
        len(objects.new["spec"]["trainer"]["args"]) / 1024,
        len(objects.new["spec"].get("labels", ())) / 256,
    ]


@pytest.mark.parametrize("row", REQUIRED, ids=lambda row: row.name)
def test_required_row_is_at_a_limit_and_does_not_exceed_one(row: Row) -> None:
    for each in row.within:
        assert exceeded(each.new) is None
        assert exceeded(each.runtime) is None
    assert max(limits_used(row)) > 0.45


@pytest.mark.parametrize("row", rows(), ids=lambda row: row.name)
def test_objects_are_of_the_attackers_namespace(row: Row) -> None:
    objects = row.within[0]
    job = job_in("tenant-a", "job", 3, objects.new)
    runtime = runtime_in("tenant-a", 3, objects.runtime)
    assert job["spec"]["runtimeRef"] == {"name": "row-3", "kind": "TrainingRuntime"}
    assert runtime["metadata"]["name"] == "row-3"
    assert {job["metadata"]["namespace"], runtime["metadata"]["namespace"]} == {"tenant-a"}


def test_rows_of_the_table_are_sent_beyond_the_limits_too() -> None:
    beyond = [
        each.name for each in rows() if exceeded(each.beyond.new) or exceeded(each.beyond.runtime)
    ]
    assert len(beyond) > 0.9 * len(rows()) - 3
