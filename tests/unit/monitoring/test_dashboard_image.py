"""The picture of the dashboard: how it is drawn, and whether the documents have today's."""

from pathlib import Path
from xml.etree import ElementTree

import pytest

from generate.dashboard import kftrainer
from monitoring.dashboard_image import Picture, Span
from monitoring.prometheus import Curve
from monitoring.svg import Box, Line, Plot, fitted, nice_top, readable, stacked

IMAGE_PATH = Path(__file__).parents[3] / "docs" / "img" / "dashboard.svg"
LARGEST = 150 * 1024
VARIABLES = {"job": "j", "namespace": ".*", "__rate_interval": "1m", "__range": "1h"}
SVG = "{http://www.w3.org/2000/svg}"


def texts_of(text: str) -> list[str]:
    return [each.text or "" for each in ElementTree.fromstring(text).iter(f"{SVG}text")]  # noqa: S314


class Constant:
    """A Prometheus that has the same two series for everything."""

    async def query(self, _expr: str) -> list[Curve]:
        return [Curve({"version": "v1"}, [(0, 2.0)])]

    async def query_range(self, _expr: str, start: float, end: float, step: float) -> list[Curve]:
        points = [(start, 1.0), (start + step, float("nan")), (end, 3.0)]
        return [Curve({"controller": name}, points) for name in ("one", "two")]


async def test_every_panel_is_rendered() -> None:
    picture = Picture(Constant(), VARIABLES, Span(0, 120, 10))  # type: ignore[arg-type]
    texts = texts_of(await picture.draw(kftrainer()))
    assert {panel["title"].removeprefix("▾ ") for panel in kftrainer()["panels"]} <= {
        each.removeprefix("▾ ") for each in texts
    }


def test_the_picture_in_the_documents_is_of_this_dashboard() -> None:
    text = IMAGE_PATH.read_text()
    assert len(text.encode()) < LARGEST
    texts = {each.removeprefix("▾ ") for each in texts_of(text)}
    assert {panel["title"] for panel in kftrainer()["panels"]} <= texts, (
        "draw it again: PYTHONPATH=hack .venv/bin/python -m monitoring"
    )


def test_curve_has_a_gap_where_values_are_missing() -> None:
    plot = Plot(Box(0, 0, 30, 10), top=10, values=4)
    assert 'd="M0 10L10 5M30 0"' in plot.line(Line("a", "red", [0, 5, None, 10]))


def test_stacked_series_start_at_the_previous_one() -> None:
    [first, second] = stacked([Line("a", "red", [1, None]), Line("b", "blue", [2, 3])])
    assert (first.values, second.values) == ((1, 0), (3, 3))


@pytest.mark.parametrize(
    ("value", "unit", "message"),
    [
        (0.25, "percentunit", "25 %"),
        (3 * 2**20, "bytes", "3 MiB"),
        (0.012, "s", "12 ms"),
        (90, "s", "90 s"),
        (364.6, "d", "365 days"),
        (12345, "short", "12,345"),
    ],
)
def test_values_are_readable(value: float, unit: str, message: str) -> None:
    assert readable(value, unit) == message


@pytest.mark.parametrize(
    ("value", "unit", "top"), [(0, "s", 1), (7, "s", 8), (0.11, "s", 0.2), (2**20, "bytes", 2**20)]
)
def test_scales_end_at_round_numbers(value: float, unit: str, top: float) -> None:
    assert nice_top(value, unit) == pytest.approx(top)


def test_long_names_are_cut() -> None:
    assert fitted("trainingruntime_controller", 60, 10) == "trainingr…"
