"""`bench.memory`: the estimate, and that it is compared with the chart's limit."""

import re
from pathlib import Path

import pytest

from bench import memory
from bench.memory import (
    FINALIZERS,
    REFUSED_PODS,
    TRAIN_JOBS_AT_MOST,
    Estimate,
    Point,
    estimate,
    job_at_the_limit,
    report_estimate,
)
from bench.whole_manager import MIB, VALUES, Memory, chart_limit, memory_in
from kftrainer.api.limits import OBJECT_BYTES, OBJECT_VALUES, exceeded, size_of, values_in

ROOT = Path(__file__).parents[3]
KIB = 1024


def point(whole: int, largest: int, live: int, restarted: int, peak: int, cached: int) -> Point:
    """A point by its memory in KiB."""
    memories = Memory(live * KIB, peak * KIB), Memory(restarted * KIB, restarted * KIB)
    return Point(whole, largest, *memories, cached * KIB)


POINTS = [
    point(100, 0, 100_000, 99_000, 100_000, 3_200),
    point(300, 0, 106_000, 107_000, 108_000, 9_600),  # 30 and 40 KiB for each TrainJob
    point(300, 50, 127_000, 127_000, 150_000, 9_700),  # 2 KiB for each in caches
]
HELD = {
    "TrainJobs just held whole": 17.0 * KIB,
    "TrainJobs at the limit": 2.0 * KIB,
    "JobSets just held whole": 16.0 * KIB,
    REFUSED_PODS: 8.0 * KIB,
}


def test_estimate_adds_the_missing_trainjobs_and_refused_pods_to_the_measured_peak() -> None:
    assert estimate(POINTS, HELD) == Estimate(150_000 * KIB, 350, 40.0 * KIB, 80_000.0 * KIB)


def test_estimate_uses_stores_where_the_manager_needs_less() -> None:
    held = {**HELD, "JobSets just held whole": 50.0 * KIB}
    assert estimate(POINTS, held).each == 67.0 * KIB


def test_estimate_counts_what_caches_hold_of_trainjobs_at_the_limit() -> None:
    last = point(300, 50, 127_000, 127_000, 150_000, 9_600 + 50 * 300)
    assert estimate([*POINTS[:2], last], HELD).each == 300.0 * KIB


def test_estimate_of_no_more_than_the_limit_fits() -> None:
    found = Estimate(100 * MIB, TRAIN_JOBS_AT_MOST - 1024, 16.0 * KIB, 4.0 * MIB)
    assert found.bytes == 120 * MIB
    assert [found.fits(limit) for limit in (120 * MIB, 120 * MIB - 1)] == [True, False]


@pytest.mark.parametrize(("limit", "code"), [("700Mi", 0), ("100Mi", 1)])
def test_exit_code_depends_on_the_limit_in_the_chart(
    limit: str, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = tmp_path / "values.yaml"
    values.write_text(f"resources:\n  limits:\n    memory: {limit}\n")

    async def measured(_numbers: object) -> list[Point]:
        return POINTS

    monkeypatch.setattr(memory, "measure_manager", measured)
    monkeypatch.setattr(memory, "bytes_of_each", lambda _count: HELD)
    monkeypatch.setattr(memory, "chart_limit", lambda: chart_limit(values))
    monkeypatch.setattr("sys.argv", ["bench.memory"])
    assert memory.main() == code


def test_verdict_that_does_not_fit_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    assert not report_estimate(estimate(POINTS, HELD), 100 * MIB)
    assert "do not fit" in capsys.readouterr().err


def test_memory_is_read_from_the_kernels_status() -> None:
    text = "Name:\tpython\nVmPeak:\t  999 kB\nVmHWM:\t  300 kB\nVmRSS:\t  200 kB\n"
    assert memory_in(text) == Memory(200 * KIB, 300 * KIB)


def test_trainjob_at_the_limit_uses_the_limits_up_and_does_not_exceed_them() -> None:
    job = job_at_the_limit("limit", "team")
    assert exceeded(job) is None
    assert exceeded(job_at_the_limit("limit", "team", FINALIZERS)) is None
    assert size_of(job) > 0.99 * OBJECT_BYTES
    assert values_in(job) > 0.99 * OBJECT_VALUES


def test_documented_maximum_is_the_sum_of_its_parts_and_fits_in_the_charts_limit() -> None:
    """The numbers of docs/operations.md; `bench.memory` measures whether they are true."""
    text = (ROOT / "docs" / "operations.md").read_text()
    section = text.partition("### Memory\n")[2].partition("\n#")[0]
    parts = dict(re.findall(r"^\| (.+?) \| (\d+) [MK]iB \|$", section, re.MULTILINE))
    fixed = [int(number) for name, number in parts.items() if "each" not in name]
    [each] = [int(number) for name, number in parts.items() if "each" in name]
    found = re.search(r"10,000 TrainJobs with their JobSets take at most (\d+) MiB", section)
    stated = re.search(r"limit of the chart, (\d+) MiB", section)
    assert found is not None
    assert stated is not None
    total = sum(fixed) + 2 * each * TRAIN_JOBS_AT_MOST * KIB / MIB
    assert total <= int(found[1]) <= total + 10
    assert int(found[1]) <= int(stated[1])
    assert int(stated[1]) * MIB == chart_limit(VALUES)
