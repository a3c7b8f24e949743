import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.comparison.axes import (
    MANY_TIMES,
    MOST_TICKS,
    axis,
    axis_of_names,
    axis_of_numbers,
    time_axis,
)

VALUES = st.lists(st.floats(-1e9, 1e9), min_size=1, max_size=20)


@given(VALUES)
def test_all_values_have_room_and_ticks_are_few_and_apart(values: list[float]) -> None:
    made = axis("quality", values)
    places = [made.place(value) for value in values]
    assert all(0 < place < 1 for place in places)
    ticks = [value for value, _ in made.ticks]
    assert 2 <= len(ticks) <= MOST_TICKS + 1
    assert all(made.low <= tick <= made.high for tick in ticks)
    labels = [label for _, label in made.ticks]
    assert len(set(labels)) == len(labels)


@given(st.floats(-1e6, 1e6), st.integers(1, 5))
def test_equal_values_are_in_the_middle(value: float, count: int) -> None:
    made = axis("quality", [value] * count)
    assert made.place(value) == pytest.approx(0.5)


@given(st.lists(st.floats(0, 100), min_size=1, max_size=9))
def test_an_axis_ends_at_its_limits(values: list[float]) -> None:
    made = axis("BLEU", values, limits=(0.0, 100.0))
    assert 0 <= made.low < made.high <= 100


def test_values_beyond_the_limits_are_moved_to_the_border() -> None:
    made = axis("BLEU", [90.0, 99.0, 130.0], limits=(0.0, 100.0))
    assert made.high == 100
    assert made.place(130.0) == 1


@pytest.mark.parametrize("odd", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_takes_no_room(odd: float) -> None:
    assert axis("loss", [1.0, odd, 2.0]) == axis("loss", [1.0, 2.0])
    alone = axis("loss", [odd])
    assert math.isfinite(alone.low)
    assert math.isfinite(alone.high)


@given(st.lists(st.floats(1e-6, 1e12), min_size=2, max_size=20))
def test_a_scale_is_logarithmic_only_for_wide_values_and_says_so(values: list[float]) -> None:
    made = axis("parameters", values, log_from=MANY_TIMES)
    is_wide = max(values) / min(values) >= MANY_TIMES
    assert made.is_log == is_wide
    assert made.name.endswith("log scale") == is_wide
    assert all(0 <= made.place(value) <= 1 for value in values)
    assert 1 <= len(made.ticks) <= MOST_TICKS + 1


def test_a_logarithmic_axis_puts_equal_ratios_at_equal_distances() -> None:
    made = axis("parameters", [1e3, 1e6], log_from=MANY_TIMES)
    places = [made.place(10.0**power) for power in (3, 4, 5, 6)]
    distances = [after - before for before, after in itertools.pairwise(places)]
    assert distances == pytest.approx([distances[0]] * 3)


def test_zero_has_no_logarithm() -> None:
    assert not axis("time", [0.0, 1e6], log_from=MANY_TIMES).is_log


def test_large_numbers_are_short() -> None:
    labels = [label for _, label in axis("parameters", [1e6, 4e6]).ticks]
    assert "2M" in labels
    labels = [label for _, label in axis("parameters", [20_000, 60_000]).ticks]
    assert "40k" in labels


@pytest.mark.parametrize(
    ("longest", "unit", "seconds"),
    [(30, "seconds", 1), (600, "minutes", 60), (36_000, "hours", 3600), (864_000, "days", 86400)],
)
def test_time_has_the_unit_of_the_longest(longest: float, unit: str, seconds: float) -> None:
    made, length = time_axis("training time", [longest / 2, longest])
    assert made.name == f"training time, {unit}"
    assert length == seconds
    assert made.low <= longest / 2 / length < longest / length <= made.high


def test_numbers_of_a_setting_are_the_ticks() -> None:
    made = axis_of_numbers("heads", [4, 1, 2, 4, 1])
    assert [label for _, label in made.ticks] == ["1", "2", "4"]
    wide = axis_of_numbers("width", [16, 64, 256, 1024])
    assert wide.is_log
    assert [label for _, label in wide.ticks] == ["16", "64", "256", "1,024"]


def test_ticks_that_would_touch_are_left_out() -> None:
    made = axis_of_numbers("width", [100, 101, 200])
    assert [value for value, _ in made.ticks] == [100, 200]


def test_a_single_number_has_an_axis() -> None:
    made = axis_of_numbers("heads", [4, 4])
    assert made.place(4) == pytest.approx(0.5)


def test_names_have_the_same_room_each() -> None:
    made = axis_of_names("length", {0: "1–5", 1: "6–10", 2: "11 or more"})
    assert [made.place(value) for value, _ in made.ticks] == pytest.approx([1 / 6, 1 / 2, 5 / 6])
