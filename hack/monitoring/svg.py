"""SVG shapes, and curves in a box. Pure."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from math import floor, log10

FONT = "Inter, Helvetica, Arial, sans-serif"
INK, FAINT, GRID, PAPER, BACKGROUND = "#24292e", "#6e7781", "#e4e7eb", "#ffffff", "#f4f5f5"
LETTER = 0.58  # width of a letter, relative to its height
NAMED = {
    "green": "#56a64b",
    "yellow": "#e0b400",
    "blue": "#3274d9",
    "purple": "#a352cc",
    "orange": "#ff780a",
    "red": "#e02f44",
}
PALETTE = (*("#56a64b", "#3274d9", "#ff780a", "#a352cc", "#e0b400"), *("#37872d", "#8ab8ff"))


@dataclass(frozen=True, slots=True)
class Box:
    """A rectangle in the picture."""

    x: float
    y: float
    width: float
    height: float


@dataclass(frozen=True, slots=True)
class Line:
    """A curve with a value for each moment; None where there is no value."""

    name: str
    color: str
    values: Sequence[float | None]


def number(value: float) -> str:
    """Return a coordinate, rounded."""
    return f"{value:.1f}".rstrip("0").rstrip(".")


def text(x: float, y: float, words: str, size: float = 11, **style: str) -> str:
    """Return a line of text."""
    more = "".join(f' {name.replace("_", "-")}="{value}"' for name, value in style.items())
    place = f'x="{number(x)}" y="{number(y)}" font-size="{number(size)}"'
    return f"<text {place}{more}>{escape(words)}</text>"


def rectangle(box: Box, fill: str, stroke: str = "none", radius: float = 0) -> str:
    """Return a rectangle with rounded corners."""
    place = f'x="{number(box.x)}" y="{number(box.y)}"'
    size = f'width="{number(box.width)}" height="{number(box.height)}"'
    return f'<rect {place} {size} rx="{number(radius)}" fill="{fill}" stroke="{stroke}"/>'


def fitted(words: str, width: float, size: float) -> str:
    """Return the text, shortened to the available width."""
    room = int(width / (size * LETTER))
    return words if len(words) <= room else f"{words[: max(room - 1, 1)]}…"


def readable(value: float, unit: str) -> str:
    """Return a value in the format of Grafana."""
    if unit == "percentunit":
        return f"{100 * value:.3g} %"
    if unit == "bytes":
        return f"{value / 2**20:.3g} MiB"
    if unit == "s" and 0 < value < 1:
        return f"{1e3 * value:.3g} ms"
    suffix = {"s": " s", "d": " days", "ops": "/s", "reqps": "/s"}.get(unit, "")
    return f"{value:.3g}{suffix}" if value < 1000 else f"{value:,.0f}{suffix}"  # noqa: PLR2004


def nice_top(value: float, unit: str) -> float:
    """Return the next round number above a value."""
    if value <= 0:
        return 1.0
    whole = 2.0**20 if unit == "bytes" else 1.0
    power = whole * 10.0 ** floor(log10(value / whole))
    return next(step * power for step in (1, 2, 3, 4, 5, 6, 8, 10) if step * power >= value)


def stacked(lines: Sequence[Line]) -> list[Line]:
    """Return stacked curves."""
    floor_of = [0.0] * max((len(line.values) for line in lines), default=0)
    out = []
    for line in lines:
        floor_of = [low + (high or 0) for low, high in zip(floor_of, line.values, strict=True)]
        out.append(Line(line.name, line.color, tuple(floor_of)))
    return out


class Plot:
    """Curves in a box, all with the same number of values."""

    def __init__(self, box: Box, *, top: float, values: int) -> None:
        self._box = box
        self._top = top
        self._steps = max(1, values - 1)

    def grid(self, unit: str, seconds: float) -> Iterator[str]:
        """Yield the grid lines and their labels."""
        box = self._box
        for share in (0.0, 0.5, 1.0):
            y = box.y + box.height * (1 - share)
            yield f'<path d="M{number(box.x)} {number(y)}h{number(box.width)}" stroke="{GRID}"/>'
            label = readable(share * self._top, unit)
            yield text(box.x - 6, y + 3.5, label, 10, fill=FAINT, text_anchor="end")
        for minute in range(int(seconds // 60) + 1):
            x = box.x + box.width * 60 * minute / seconds
            y = box.y + box.height + 13
            yield text(x, y, f"{minute}:00", 10, fill=FAINT, text_anchor="middle")

    def line(self, line: Line) -> str:
        """Yield the curve, with gaps where there are no values."""
        way, is_line_open = [], False
        for place, value in enumerate(line.values):
            if value is not None:
                way.append(f"{'L' if is_line_open else 'M'}{self._point(place, value)}")
            is_line_open = value is not None
        drawn = f'd="{"".join(way)}" stroke="{line.color}"'
        return f'<path {drawn} fill="none" stroke-width="1.6" stroke-linejoin="round"/>'

    def area(self, line: Line, below: Line | None, opacity: float) -> str:
        """Yield the area between a curve and the one below it."""
        under = below.values if below else [0.0] * len(line.values)
        upper = [self._point(place, value or 0) for place, value in enumerate(line.values)]
        lower = [self._point(place, value or 0) for place, value in enumerate(under)]
        way = "L".join([*upper, *reversed(lower)])
        drawn = f'd="M{way}Z" fill="{line.color}" stroke="{line.color}"'
        return f'<path {drawn} fill-opacity="{opacity:g}" stroke-width="0.8"/>'

    def _point(self, place: int, value: float) -> str:
        x = self._box.x + self._box.width * place / self._steps
        share = min(1.0, value / self._top)
        return f"{number(x)} {number(self._box.y + self._box.height * (1 - share))}"
