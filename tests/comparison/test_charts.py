import math
import re
from collections.abc import Sequence
from itertools import combinations
from xml.etree import ElementTree

import pytest

from regard.comparison.axes import Axis, axis
from regard.comparison.charts import (
    DASHES,
    HEIGHT,
    MARKS,
    MOST_MARKS,
    TOP,
    Look,
    Point,
    Row,
    Series,
    chart,
    dot_plot,
    fitted,
    key,
    legend,
    safe_html,
)
from regard.pictures import COLOURS

HOSTILE = "</title></svg><img src=x onerror=alert(1)>\u202e\ud800\x00&\"'"
SVG = "{http://www.w3.org/2000/svg}"
UNIT = Axis("unit", 0.0, 1.0, [(0.0, "0"), (1.0, "1")])


def parsed(svg: str) -> ElementTree.Element:
    """The chart as XML: a browser is kinder, but what XML takes, every reader takes."""
    return ElementTree.fromstring(svg)


def one_point(name: str, x: float, y: float, number: int = 0) -> Series:
    return Series(name, Look(number), [Point(x, y, words=name)])


def drawn(series: Sequence[Series], *, has_names: bool = False) -> ElementTree.Element:
    return parsed(chart("made", "A title", "Words", UNIT, UNIT, series, has_names=has_names))


def with_class(root: ElementTree.Element, name: str) -> list[ElementTree.Element]:
    return [one for one in root.iter() if name in one.get("class", "").split()]


def test_systems_differ_in_grey() -> None:
    looks = [Look(number) for number in range(len(COLOURS) * len(MARKS))]
    assert len(set(MARKS)) == len(MARKS) > len(COLOURS)
    assert len({(look.colour, look.mark) for look in looks}) == len(looks)
    in_grey = {(look.mark, look.dash) for look in looks[: len(MARKS) * DASHES]}
    assert len(in_grey) == len(MARKS) * DASHES


def test_hostile_names_are_text() -> None:
    series = [one_point(HOSTILE, 0.5, 0.5)]
    svg = chart("made", HOSTILE, HOSTILE, axis(HOSTILE, [0.0, 1.0]), UNIT, series, has_names=True)
    root = parsed(svg)
    assert "<img" not in svg
    assert "\u202e" not in svg
    assert not [one for one in root.iter() if one.tag.removeprefix(SVG) in ("img", "script")]
    title = root.find(f"{SVG}title")
    assert title is not None
    assert title.text is not None
    assert title.text.startswith("</title></svg><img")
    row = Row(HOSTILE, Look(0), "1", 0.5, 0.4, 0.6, [(0.5, HOSTILE)])
    assert "<img" not in dot_plot("rows", HOSTILE, HOSTILE, UNIT, [row])
    assert "<img" not in legend({HOSTILE: Look(0)})


def test_text_is_escaped_and_shows_what_nobody_could_see() -> None:
    assert safe_html("<b>&\"'") == "&lt;b&gt;&amp;&quot;&#x27;"
    assert safe_html("a\u2066b\u202ec\x00") == "a\ufffdb\ufffdc␀"


def test_a_chart_says_what_it_shows_to_those_who_cannot_see_it() -> None:
    root = drawn([one_point("small", 0.5, 0.5)])
    assert root.get("role") == "img"
    names = {one.get("id"): one.text for one in root.iter() if one.get("id")}
    assert names[root.get("aria-labelledby")] == "A title"
    assert names[root.get("aria-describedby")] == "Words"


def test_a_point_is_where_the_axes_say() -> None:
    root = drawn([one_point("small", 0.25, 0.75)])
    [spot] = with_class(root, "spot")
    assert spot.get("x") == "25.00%"
    assert float(spot.get("y", "")) == pytest.approx(TOP + HEIGHT * 0.25)


def test_an_interval_goes_from_its_low_to_its_high() -> None:
    root = drawn([Series("small", Look(0), [Point(0.5, 0.5, 0.2, 0.8)])])
    [line] = with_class(root, "interval")
    assert float(line.get("y1", "")) == pytest.approx(TOP + HEIGHT * 0.8)
    assert float(line.get("y2", "")) == pytest.approx(TOP + HEIGHT * 0.2)


def test_a_line_has_a_gap_where_a_value_is_unknown() -> None:
    values = [0.1, 0.2, math.nan, 0.4, 0.5]
    points = [Point(place / 4, value) for place, value in enumerate(values)]
    root = drawn([Series("small", Look(0), points)])
    [path] = with_class(root, "line")
    assert re.sub("[^ML]", "", path.get("d", "")) == "MLML"
    assert len(with_class(root, "mark")) == 4


@pytest.mark.parametrize("odd", [math.nan, math.inf])
def test_what_is_not_finite_is_not_drawn(odd: float) -> None:
    root = drawn([Series("a", Look(0), [Point(0.5, odd, -odd, odd)], dots=[Point(0.5, odd)])])
    assert not with_class(root, "mark") + with_class(root, "dot") + with_class(root, "interval")
    row = Row("a", Look(0), "nan", odd, odd, odd, [(odd, "seed 1")])
    svg = dot_plot("rows", "title", "words", UNIT, [row])
    assert "nan" not in svg.replace(">nan<", "")
    assert not with_class(parsed(svg), "mark")


def test_a_long_line_has_few_marks() -> None:
    points = [Point(place / 99, 0.5) for place in range(100)]
    root = drawn([Series("a", Look(number), points) for number in range(3)])
    assert 3 <= len(with_class(root, "mark")) <= 3 * MOST_MARKS
    crowd = drawn([Series("a", Look(number), points) for number in range(20)])
    assert 20 <= len(with_class(crowd, "mark")) < 20 * MOST_MARKS


def test_names_do_not_write_over_one_another() -> None:
    series = [
        one_point(f"system {number}", 0.5 + 0.02 * (number % 3), 0.5 + 0.005 * number, number)
        for number in range(12)
    ]
    root = drawn(series, has_names=True)
    for width, pixels in (("narrow", 235), ("wide", 410)):
        labels = [one for one in with_class(root, "name") if width in one.get("class", "")]
        assert labels
        boxes = [_box(label, pixels) for label in labels]
        for (left, right, y), (other_left, other_right, other_y) in combinations(boxes, 2):
            is_beside = right <= other_left or other_right <= left
            assert is_beside or abs(y - other_y) >= 14


def _box(label: ElementTree.Element, pixels: int) -> tuple[float, float, float]:
    """From where to where a name is written, at six pixels a letter, and how far down."""
    x = float(label.get("x", "").rstrip("%")) / 100 * pixels + float(label.get("dx", "0"))
    length = 6 * len(label.text or "")
    shift = {"start": 0.0, "middle": 0.5, "end": 1.0}
    share = next(shift[name] for name in label.get("class", "").split() if name in shift)
    return x - share * length, x + (1 - share) * length, float(label.get("y", ""))


def test_a_name_alone_is_written() -> None:
    labels = with_class(drawn([one_point("small", 0.5, 0.5)], has_names=True), "name")
    assert [label.text for label in labels] == ["small", "small"]
    assert not with_class(drawn([one_point("small", 0.5, 0.5)]), "name")


def test_a_row_for_each_system() -> None:
    rows = [
        Row("large", Look(1), "9.0 ± 1.0", 0.9, 0.8, 1.0, [(0.85, "seed 1"), (0.95, "seed 2")]),
        Row("small", Look(0), "5.0", 0.5, None, None, []),
    ]
    root = parsed(dot_plot("rows", "title", "words", UNIT, rows))
    [first, second] = with_class(root, "spot")
    assert first.get("x") == "90.00%"
    assert float(first.get("y", "")) < float(second.get("y", ""))
    [interval] = with_class(root, "interval")
    assert (interval.get("x1"), interval.get("x2")) == ("80.00%", "100.00%")
    assert [dot.get("cx") for dot in with_class(root, "dot")] == ["85.00%", "95.00%"]
    assert [score.text for score in with_class(root, "score")] == ["9.0 ± 1.0", "5.0"]


def test_a_long_name_keeps_its_ends() -> None:
    name = "beginning " + "n" * 2000 + " end"
    short = fitted(name, 200)
    assert len(short) < 40
    assert short.startswith("beginning")
    assert short.endswith("end")
    assert "…" in short
    assert fitted("short", 200) == "short"


def test_wide_letters_take_more_room() -> None:
    assert len(fitted("字" * 100, 200)) < len(fitted("a" * 100, 200))


def test_the_legend_has_marks_and_lines() -> None:
    looks = {"small": Look(0), "large": Look(1)}
    root = parsed(legend(looks, has_lines=True))
    assert [one.text for one in root.iter("bdi")] == ["small", "large"]
    marks = [one.get("d") for one in root.iter() if one.get("class") == "mark"]
    assert marks == [MARKS[0], MARKS[1]]
    assert len(with_class(root, "line")) == 2
    assert not with_class(parsed(legend(looks)), "line")
    assert parsed(key(Look(2))).get("aria-hidden") == "true"
