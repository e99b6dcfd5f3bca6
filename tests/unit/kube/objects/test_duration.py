"""Durations are read as Go writes them."""

import pytest

from kftrainer.kube.objects.duration import duration_seconds


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("10s", 10),
        ("1m30s", 90),
        ("1h", 3600),
        ("500ms", 0.5),
        ("1.5s", 1.5),
        (".5s", 0.5),
        ("2us", 2e-6),
        ("2µs", 2e-6),
        ("1ns", 1e-9),
        ("0s", 0),
        ("10000000000ns", 10),
        *(
            (bad, None)
            for bad in ("", "10", "s", "-1s", "10s ", "1d", "1e3s", "٣s", "9" * 99 + "s")
        ),
    ],
)
def test_a_duration_is_read_as_in_go(text: str, seconds: float | None) -> None:
    assert duration_seconds(text) == pytest.approx(seconds)
