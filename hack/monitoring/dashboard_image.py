"""Draws a dashboard with real data."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import isnan
from typing import Any

from monitoring.panels import named, queries_of
from monitoring.prometheus import Curve, Prometheus
from monitoring.svg import (
    BACKGROUND,
    FAINT,
    FONT,
    GRID,
    INK,
    LETTER,
    NAMED,
    PALETTE,
    PAPER,
    Box,
    Line,
    Plot,
    fitted,
    nice_top,
    readable,
    rectangle,
    stacked,
    text,
)

Json = Mapping[str, Any]

COLUMN, ROW, GAP, MARGIN = 50.0, 30.0, 8.0, 8.0
HEADER = 44.0
LEGEND_ROWS, LEGEND_SIZE, LONGEST_NAME = 2, 10.5, 165.0


@dataclass(frozen=True, slots=True)
class Span:
    """The time range, in seconds since 1970."""

    start: float
    end: float
    step: float

    @property
    def moments(self) -> int:
        """The number of values of a curve."""
        return int((self.end - self.start) / self.step) + 1


class Picture:
    """Draws a dashboard with the data of a Prometheus."""

    def __init__(self, prometheus: Prometheus, values: Mapping[str, str], span: Span) -> None:
        self._prometheus = prometheus
        self._values = values
        self._span = span

    async def draw(self, dashboard: Json) -> str:
        """Return the dashboard as SVG."""
        places = [panel["gridPos"] for panel in dashboard["panels"]]
        width = 24 * COLUMN + 2 * MARGIN
        height = HEADER + max(each["y"] + each["h"] for each in places) * ROW + MARGIN
        shapes = [rectangle(Box(0, 0, width, height), BACKGROUND)]
        shapes.append(text(MARGIN + 8, 28, dashboard["title"], 18, fill=INK, font_weight="600"))
        for panel in dashboard["panels"]:
            shapes += await self._panel(panel)
        size = f'width="{width:g}" height="{height:g}" viewBox="0 0 {width:g} {height:g}"'
        opening = f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="{FONT}">'
        return "\n".join([opening, *shapes, "</svg>\n"])

    async def _panel(self, panel: Json) -> list[str]:
        box = _box(panel["gridPos"])
        if panel["type"] == "row":
            title = f"▾ {panel['title']}"
            return [text(box.x + 4, box.y + 18, title, 13, fill=INK, font_weight="600")]
        title = fitted(panel["title"], box.width - 20, 12)
        return [
            rectangle(box, PAPER, GRID, 3),
            text(box.x + 10, box.y + 18, title, 12, fill=INK, font_weight="500"),
            *(await self._stat(panel, box) if panel["type"] == "stat" else ()),
            *(await self._series(panel, box) if panel["type"] == "timeseries" else ()),
        ]

    async def _stat(self, panel: Json, box: Box) -> list[str]:
        lines = [
            (named(query.legend, curve.labels), curve.points[-1][1])
            for query in queries_of(panel, self._values)
            for curve in await self._prometheus.query(query.expr)
        ]
        return list(_numbers(panel, box, lines))

    async def _series(self, panel: Json, box: Box) -> list[str]:
        colors = _colors(panel)
        lines: list[Line] = []
        for query in queries_of(panel, self._values):
            span = self._span
            found = await self._prometheus.query_range(query.expr, span.start, span.end, span.step)
            for curve in found:
                name = named(query.legend, curve.labels)
                color = colors.get(name, PALETTE[len(lines) % len(PALETTE)])
                lines.append(Line(name, color, self._values_of(curve)))
        return list(_curves(panel, box, lines, self._span))

    def _values_of(self, curve: Curve) -> Sequence[float | None]:
        """Return a value for each moment; None where Prometheus has none."""
        values: list[float | None] = [None] * self._span.moments
        for at, value in curve.points:
            place = round((at - self._span.start) / self._span.step)
            values[place] = None if isnan(value) else value
        return values


def _box(place: Json) -> Box:
    return Box(
        MARGIN + place["x"] * COLUMN + GAP / 2,
        HEADER + place["y"] * ROW + GAP / 2,
        place["w"] * COLUMN - GAP,
        place["h"] * ROW - GAP,
    )


def _colors(panel: Json) -> dict[str, str]:
    return {
        each["matcher"]["options"]: NAMED[each["properties"][0]["value"]["fixedColor"]]
        for each in panel["fieldConfig"]["overrides"]
    }


def _numbers(panel: Json, box: Box, lines: Sequence[tuple[str, float]]) -> Iterator[str]:
    """Draw single values side by side."""
    defaults, colors = panel["fieldConfig"]["defaults"], _colors(panel)
    each = box.width / max(1, len(lines))
    for place, (name, value) in enumerate(lines):
        middle = box.x + each * (place + 0.5)
        steps = defaults["thresholds"]["steps"]
        step = [s for s in steps if s["value"] is None or value >= s["value"]][-1]
        color = colors.get(name, NAMED[step["color"]])
        shows_name = panel["options"]["textMode"] == "name"
        words = name if shows_name else readable(value, defaults["unit"])
        size = min(28.0, 1.35 * each / max(3, len(words)))
        style = {"text_anchor": "middle", "fill": color, "font_weight": "600"}
        yield text(middle, box.y + box.height * 0.62, words, size, **style)
        if name and not shows_name:
            label = {"text_anchor": "middle", "fill": FAINT}
            yield text(middle, box.y + box.height * 0.84, name, 11, **label)


def _curves(panel: Json, box: Box, lines: Sequence[Line], span: Span) -> Iterator[str]:
    custom = panel["fieldConfig"]["defaults"]["custom"]
    unit = panel["fieldConfig"]["defaults"]["unit"]
    is_stacked = custom["stacking"]["mode"] == "normal"
    visible_lines = stacked(lines) if is_stacked else lines
    highest = max((value for line in visible_lines for value in line.values if value), default=0.0)
    left, below = 58.0, 22.0 + 15.0 * LEGEND_ROWS
    inside = Box(box.x + left, box.y + 30, box.width - left - 18, box.height - 30 - below)
    plot = Plot(inside, top=nice_top(highest, unit), values=span.moments)
    yield from plot.grid(unit, span.end - span.start)
    for place, line in enumerate(visible_lines):
        if is_stacked:
            opacity = custom["fillOpacity"] / 100
            yield plot.area(line, visible_lines[place - 1] if place else None, opacity)
        else:
            yield plot.line(line)
    yield from _legend(lines, box)


def _legend(lines: Sequence[Line], box: Box) -> Iterator[str]:
    """Draw the legend in at most two rows; the number of omitted names is shown."""
    left, right = box.x + 12, box.x + box.width - 12
    x, row = left, 0
    top = box.y + box.height - 15 * LEGEND_ROWS + 5
    for place, line in enumerate(lines):
        words = fitted(line.name, LONGEST_NAME, LEGEND_SIZE)
        width = 28 + len(words) * LEGEND_SIZE * LETTER
        room = right - (0 if place == len(lines) - 1 or row < LEGEND_ROWS - 1 else 28)
        if x + width > room and row < LEGEND_ROWS - 1:
            x, row = left, row + 1
        elif x + width > room:
            rest = f"+{len(lines) - place}"
            yield text(x, top + 15 * row, rest, LEGEND_SIZE, fill=FAINT)
            return
        y = top + 15 * row
        yield rectangle(Box(x, y - 5, 12, 3), line.color, radius=1.5)
        yield text(x + 16, y, words, LEGEND_SIZE, fill=INK)
        x += width
