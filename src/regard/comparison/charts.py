"""Charts as inline SVG, made as text: a page shows them without a script or the network.

Across, everything is placed in per cent of the plot's width; down, in pixels. So a chart is as wide
as its page allows, and its letters keep their size on a phone. Colours and dashes are classes of
report.css.
"""

import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import NamedTuple

from regard.comparison.axes import Axis
from regard.display import html, page_text
from regard.pictures import COLOURS

TOP = 34
"""Pixels above a plot, where the name of its upright axis is written."""
HEIGHT = 250
BELOW = 44
"""Pixels below a plot, for its ticks and the name of the axis."""
ROW = 56
"""Pixels of a row of a dot plot."""
STROKES = 1000
"""Units across of the box that lines are drawn in."""
MOST_MARKS = 8
"""Marks of a line."""
CROWD = 10
"""Lines from which on each has a third of these marks, or nobody would see the lines."""
LETTER = 7.2
"""Pixels of a letter in a chart, rather too many than too few."""
WIDTHS = {"narrow": 235, "wide": 410}
"""Pixels of a plot's width, at least: on a phone, and on a wider screen (report.css)."""

# Around 0 0, in the order of regard.pictures.MARKERS.
MARKS = (
    "M-4.8 0a4.8 4.8 0 1 0 9.6 0a4.8 4.8 0 1 0-9.6 0z",
    "M-4.3-4.3h8.6v8.6h-8.6z",
    "M0-5.8l5.4 9.4h-10.8z",
    "M0-5.9l5.9 5.9-5.9 5.9-5.9-5.9z",
    "M0 5.8l5.4-9.4h-10.8z",
    "M-2-5.6h4v3.6h3.6v4h-3.6v3.6h-4v-3.6h-3.6v-4h3.6z",
    "M-2.6-5.4L0-2.8 2.6-5.4 5.4-2.6 2.8 0 5.4 2.6 2.6 5.4 0 2.8-2.6 5.4-5.4 2.6-2.8 0-5.4-2.6z",
    "M-5.8 0l9.4-5.4v10.8z",
)
DASHES = 5
"""Kinds of line: as many classes as report.css has."""
# Where the name of a point may be written: pixels to the right, where it is anchored, pixels down.
NEAR = (
    (10, "start", 4),
    (-10, "end", 4),
    (0, "middle", -11),
    (0, "middle", 20),
    (9, "start", -8),
    (9, "start", 17),
    (-9, "end", -8),
    (-9, "end", 17),
    (8, "start", -22),
    (8, "start", 31),
    (-8, "end", -22),
    (-8, "end", 31),
)


@dataclass(frozen=True)
class Look:
    """How a system is drawn in all charts. Systems differ in grey too: by mark and dashes."""

    number: int

    @property
    def colour(self) -> str:
        return f"colour{self.number % len(COLOURS)}"

    @property
    def dash(self) -> str:
        return f"dash{self.number % DASHES}"

    @property
    def mark(self) -> str:
        return MARKS[self.number % len(MARKS)]


class Point(NamedTuple):
    """A value, where it is known with its confidence interval."""

    x: float
    y: float
    """NaN: unknown, a gap in the line."""
    low: float | None = None
    high: float | None = None
    words: str = ""
    """What the pointer reads there."""


@dataclass(frozen=True)
class Series:
    """What is drawn in one look: a line through points, or a point alone."""

    name: str
    look: Look
    points: Sequence[Point]
    thin: Sequence[Sequence[Point]] = ()
    """Thin lines behind it, such as a line for each seed."""
    dots: Sequence[Point] = ()
    """Small circles, such as one for each seed."""


class Row(NamedTuple):
    """A system in a dot plot."""

    name: str
    look: Look
    score: str
    """The mean for people."""
    mean: float
    low: float | None
    high: float | None
    seeds: Sequence[tuple[float, str]]
    """The value of each, and what the pointer reads there."""


def safe_html(text: object) -> str:
    """Names and answers inside the page: no letter of them is markup or turns what follows."""
    return html(page_text(text))


def key(look: Look, *, has_line: bool = False) -> str:
    """The mark of a system, as a picture between words."""
    width = 40 if has_line else 16
    line = f'<line class="line {look.dash}" x1="0" x2="40" y1="8" y2="8"/>' if has_line else ""
    return (
        f'<svg class="key {look.colour}" width="{width}" height="16" aria-hidden="true">{line}'
        f'<path class="mark" transform="translate({width / 2:g} 8)" d="{look.mark}"/></svg>'
    )


def legend(looks: Mapping[str, Look], *, has_lines: bool = False, is_beside: bool = False) -> str:
    """The names of the systems, each with its mark; is_beside: next to a chart if there is room."""
    items = [
        f"<li>{key(look, has_line=has_lines)} <bdi>{safe_html(name)}</bdi></li>"
        for name, look in looks.items()
    ]
    place = " beside" if is_beside else ""
    return f'<ul class="legend{place}">{"".join(items)}</ul>'


def chart(
    name: str,
    title: str,
    description: str,
    across: Axis,
    up: Axis,
    series: Sequence[Series],
    *,
    has_names: bool = False,
) -> str:
    """Lines and points between two axes.

    name: of the chart in the page; has_names: each point has the name of its series beside it,
    where there is room.
    """
    parts = [*_grid(across, up), *_thin_lines(across, up, series)]
    for one in series:
        parts += _intervals(across, up, one)
    for one in series:
        parts.append(_lines([one.points], across, up, f"line {one.look.colour} {one.look.dash}"))
        parts += _dots(across, up, one)
    for one in series:
        parts += _marks(across, up, one, MOST_MARKS // 3 if len(series) >= CROWD else MOST_MARKS)
    if has_names:
        parts += _names(across, up, series)
    return _svg(name, "plot", TOP + HEIGHT + BELOW, title, description, parts)


def dot_plot(name: str, title: str, description: str, across: Axis, rows: Sequence[Row]) -> str:
    """A row for each system: its mean and interval, and below it its seeds."""
    height = ROW * len(rows)
    parts = [*_upright_lines(across, 0, height)]
    for number, row in enumerate(rows):
        parts += _row(across, row, ROW * number)
    parts.append(_axis_name(across, height))
    return _svg(name, "rows", height + BELOW, title, description, parts)


# the frame


def _svg(
    name: str, kind: str, height: int, title: str, description: str, parts: Iterable[str]
) -> str:
    content = "".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="chart {kind}" height="{height}" '
        f'role="img" aria-labelledby="{name}-title" aria-describedby="{name}-words">'
        f'<title id="{name}-title">{safe_html(title)}</title>'
        f'<desc id="{name}-words">{safe_html(description)}</desc>{content}</svg>'
    )


def _grid(across: Axis, up: Axis) -> Iterator[str]:
    """The lines, ticks and names of both axes."""
    yield from _upright_lines(across, TOP, TOP + HEIGHT)
    for value, label in up.ticks:
        y = _down(up, value)
        yield f'<line class="grid" x1="0" x2="100%" y1="{y}" y2="{y}"/>'
        yield f'<text class="tick end" x="-8" y="{y + 4:.1f}">{safe_html(label)}</text>'
    yield f'<text class="axis" x="-50" y="16">{safe_html(up.name)}</text>'
    yield _axis_name(across, TOP + HEIGHT)


def _upright_lines(across: Axis, top: int, bottom: int) -> Iterator[str]:
    for value, label in across.ticks:
        x = _right(across, value)
        yield f'<line class="grid" x1="{x}" x2="{x}" y1="{top}" y2="{bottom}"/>'
        yield f'<text class="tick middle" x="{x}" y="{bottom + 17}">{safe_html(label)}</text>'
    yield f'<line class="edge" x1="0" x2="100%" y1="{bottom}" y2="{bottom}"/>'


def _axis_name(across: Axis, bottom: int) -> str:
    return f'<text class="axis end" x="100%" y="{bottom + 37}">{safe_html(across.name)}</text>'


def _right(across: Axis, value: float) -> str:
    return f"{100 * across.place(value):.2f}%"


def _down(up: Axis, value: float) -> float:
    return round(TOP + HEIGHT * (1 - up.place(value)), 1)


# what is drawn of a series


def _thin_lines(across: Axis, up: Axis, series: Sequence[Series]) -> Iterator[str]:
    for one in series:
        if one.thin:
            yield _lines(one.thin, across, up, f"line thin {one.look.colour}")


def _lines(lines: Sequence[Sequence[Point]], across: Axis, up: Axis, look: str) -> str:
    """Lines through points. Their box is as wide as the plot, whatever that is in pixels."""
    path = "".join(_path(points, across, up) for points in lines if len(points) > 1)
    if not path:
        return ""
    bottom = TOP + HEIGHT
    return (
        f'<svg class="lines" height="{bottom}" viewBox="0 0 {STROKES} {bottom}" '
        f'preserveAspectRatio="none"><path class="{look}" d="{path}"/></svg>'
    )


def _path(points: Sequence[Point], across: Axis, up: Axis) -> str:
    """The path of an SVG; a gap where a value is unknown."""
    steps = []
    is_drawing = False
    for point in points:
        if not isfinite(point.y):
            is_drawing = False
            continue
        x = STROKES * across.place(point.x)
        steps.append(f"{'L' if is_drawing else 'M'}{x:.1f} {_down(up, point.y)}")
        is_drawing = True
    return "".join(steps)


def _intervals(across: Axis, up: Axis, series: Series) -> Iterator[str]:
    for point in series.points:
        if point.low is None or point.high is None or not isfinite(point.high - point.low):
            continue
        x = _right(across, point.x)
        low = _down(up, point.low)
        high = _down(up, point.high)
        yield (
            f'<line class="interval {series.look.colour}" x1="{x}" x2="{x}" y1="{low}" '
            f'y2="{high}"/>'
        )


def _dots(across: Axis, up: Axis, series: Series) -> Iterator[str]:
    for dot in series.dots:
        if isfinite(dot.y):
            y = _down(up, dot.y)
            yield _dot(_right(across, dot.x), y, series.look, dot.words)


def _dot(x: str, y: float, look: Look, words: str) -> str:
    told = f"<title>{safe_html(words)}</title>" if words else ""
    return f'<circle class="dot {look.colour}" cx="{x}" cy="{y}" r="3.5">{told}</circle>'


def _marks(across: Axis, up: Axis, series: Series, most: int) -> Iterator[str]:
    """A mark on each point; of many points, on a few, at places of the series' own."""
    known = [point for point in series.points if isfinite(point.y)]
    distance = -(-len(known) // most)
    first = series.look.number % distance if distance else 0
    for point in known[first :: distance or 1]:
        yield _mark(_right(across, point.x), _down(up, point.y), series.look, point.words)


def _mark(x: str, y: float, look: Look, words: str) -> str:
    told = f"<title>{safe_html(words)}</title>" if words else ""
    return (
        f'<svg class="spot" x="{x}" y="{y}" width="1" height="1">'
        f'<path class="mark {look.colour}" d="{look.mark}">{told}</path></svg>'
    )


def _row(across: Axis, row: Row, top: int) -> Iterator[str]:
    y = top + 32
    yield f'<text class="score end" x="100%" y="{top + 17}">{safe_html(row.score)}</text>'
    for width, pixels in (("narrow", 290), ("wide", 640)):
        label = fitted(row.name, pixels - LETTER * (len(row.score) + 2))
        yield f'<text class="name {width}" x="0" y="{top + 17}">{safe_html(label)}</text>'
    if row.low is not None and row.high is not None and isfinite(row.high - row.low):
        low = _right(across, row.low)
        high = _right(across, row.high)
        yield (
            f'<line class="interval {row.look.colour}" x1="{low}" x2="{high}" y1="{y}" y2="{y}"/>'
        )
    for value, words in row.seeds:
        if isfinite(value):
            yield _dot(_right(across, value), y + 13, row.look, words)
    if isfinite(row.mean):
        yield _mark(_right(across, row.mean), y, row.look, f"{row.name}: {row.score}")


# names beside points


class _Box(NamedTuple):
    """A rectangle that something is written or drawn in, in pixels."""

    left: float
    top: float
    right: float
    bottom: float

    def meets(self, other: "_Box") -> bool:
        is_beside = self.right <= other.left or other.right <= self.left
        return not is_beside and self.top < other.bottom and other.top < self.bottom


def _names(across: Axis, up: Axis, series: Sequence[Series]) -> Iterator[str]:
    """The name of each point, where it has room; the legend has them all.

    Names that do not meet on a narrow plot do not meet on a wider one either.
    """
    points = [(one.name, point) for one in series for point in one.points if isfinite(point.y)]
    for width, pixels in WIDTHS.items():
        taken = [_drawn_box(across, up, point, pixels) for _, point in points]
        for name, point in points:
            x = across.place(point.x) * pixels
            y = _down(up, point.y)
            for shift, anchor, fall in NEAR:
                box = _name_box(name, x + shift, anchor, y + fall)
                is_inside = box.left > -8 and box.right < pixels + 14
                is_inside = is_inside and box.top > TOP - 12 and box.bottom < TOP + HEIGHT
                if is_inside and not any(box.meets(other) for other in taken):
                    taken.append(box)
                    yield (
                        f'<text class="name {anchor} {width}" x="{_right(across, point.x)}" '
                        f'dx="{shift}" y="{y + fall:.1f}">{safe_html(name)}</text>'
                    )
                    break


def _drawn_box(across: Axis, up: Axis, point: Point, pixels: int) -> _Box:
    """Where a point's mark is drawn, with the half of its interval that is next to it."""
    x = across.place(point.x) * pixels
    y = _down(up, point.y)
    return _Box(x - 7, y - 7, x + 7, y + 7)


def _name_box(name: str, x: float, anchor: str, y: float) -> _Box:
    width = _width(name)
    left = {"start": x, "middle": x - width / 2, "end": x - width}[anchor]
    return _Box(left, y - 11, left + width, y + 3)


def _width(text: str) -> float:
    """About how many pixels a text takes in a chart."""
    wide = sum(unicodedata.east_asian_width(letter) in "WF" for letter in text)
    return LETTER * (len(text) + wide)


def fitted(text: str, pixels: float) -> str:
    """The text, without its middle if it is longer than so many pixels of a chart."""
    width = _width(text)
    if width <= pixels:
        return text
    letters = max(4, int(len(text) * pixels / width) - 1)
    tail = letters // 3
    return f"{text[: letters - tail]}…{text[-tail:]}"
