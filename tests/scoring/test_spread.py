"""Student's t by the tables of textbooks, and what is made of it."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.scoring.spread import difference, holm, spread, t_quantile, t_tails

# Of tables of Student's t: degrees of freedom, t that 95 % and 99 % of all lie within.
TABLE = [
    (1, 12.706, 63.657),
    (2, 4.303, 9.925),
    (3, 3.182, 5.841),
    (4, 2.776, 4.604),
    (5, 2.571, 4.032),
    (10, 2.228, 3.169),
    (30, 2.042, 2.750),
    (120, 1.980, 2.617),
    (10**6, 1.960, 2.576),
]
NUMBERS = st.lists(st.floats(-100, 100), min_size=1, max_size=6)


@pytest.mark.parametrize(("freedom", "t95", "t99"), TABLE)
def test_the_quantiles_are_those_of_tables(freedom, t95, t99):
    assert t_quantile(0.95, freedom) == pytest.approx(t95, abs=6e-4)
    assert t_quantile(0.99, freedom) == pytest.approx(t99, abs=6e-4)
    assert t_tails(t95, freedom) == pytest.approx(0.05, abs=1e-4)


def test_one_degree_of_freedom_is_cauchys_distribution():
    for t in (0.0, 0.1, 1.0, 7.0, 1000.0):
        assert t_tails(t, 1) == pytest.approx(1 - 2 * math.atan(t) / math.pi, abs=1e-9)


def test_the_tails_go_down_from_one_to_nothing():
    for freedom in (1, 1.5, 4, 50, 999, 1001):
        tails = [t_tails(t, freedom) for t in np.linspace(0, 40, 200)]
        assert tails[0] == pytest.approx(1.0, abs=1e-5)
        assert all(before >= after >= 0 for before, after in itertools.pairwise(tails))


def test_the_spread_of_three_seeds():
    """Mean 7/3, deviation √(7/3), and 4.303 standard errors on either side."""
    known = spread([1.0, 2.0, 4.0])
    assert known.mean == pytest.approx(7 / 3)
    assert known.deviation == pytest.approx(math.sqrt(7 / 3))
    assert known.low == pytest.approx(-1.46125, abs=1e-4)
    assert known.high == pytest.approx(6.12792, abs=1e-4)


def test_one_seed_says_nothing_of_others():
    assert spread([3.0]) == (3.0, None, None, None)


def test_welchs_example():
    """Two samples with other sizes and variances: t = -2.22, 24.5 degrees of freedom, p = 0.036."""
    a = [19.8, 20.4, 19.6, 17.8, 18.5, 18.9, 18.3, 18.9, 19.5, 22.0]
    b = [28.2, 26.6, 20.1, 23.3, 25.2, 22.1, 17.7, 27.6, 20.6, 13.7]
    b += [23.2, 17.5, 20.6, 18.0, 23.9, 21.6, 24.3, 20.4, 24.0, 13.2]
    found = difference(a, b)
    assert found.difference == pytest.approx(-2.22)
    assert found.p == pytest.approx(0.035972, abs=1e-6)
    assert (found.low, found.high) == pytest.approx((-4.282394, -0.157606), abs=1e-5)
    assert found.knows_seeds
    assert not found.knows_examples


def test_the_chance_of_other_examples_is_added():
    seeds = difference([1.0, 2.0, 3.0], [5.0, 6.0, 7.0])
    both = difference([1.0, 2.0, 3.0], [5.0, 6.0, 7.0], example_variance=4.0, examples=100)
    assert both.p > seeds.p
    assert both.high - both.low > seeds.high - seeds.low
    assert both.knows_examples


def test_one_seed_and_many_examples_is_the_normal_distribution():
    found = difference([1.0], [0.0], example_variance=0.25, examples=5000)
    assert found.p == pytest.approx(0.0455, abs=1e-4)  # two standard errors
    assert not found.knows_seeds


def test_what_nothing_is_known_of_may_be_anything():
    found = difference([1.0], [0.0])
    assert (found.low, found.high, found.p) == (-math.inf, math.inf, 1.0)


def test_one_seed_is_taken_to_vary_like_those_of_the_other_system():
    few = difference([3.0], [1.0, 2.0, 3.0])
    assert few.knows_seeds
    assert few.high - few.low > 2 * 4.3 * 1.0  # one seed and three: 4.303 · √(1 + 1/3)
    assert few.low == pytest.approx(1 - 4.302653 * math.sqrt(4 / 3), abs=1e-5)


def test_one_model_used_in_two_ways_is_compared_seed_by_seed():
    """Seeds vary by ten, and the second way is always better by one, give or take."""
    one = [10.0, 20.0, 30.0]
    two = [11.1, 20.9, 31.0]
    assert difference(two, one).p > 0.9
    assert difference(two, one, is_paired=True).p < 0.01


def test_the_same_answers_every_time():
    assert difference([0.5, 0.5], [0.5, 0.5]).p == 1.0
    assert difference([0.5, 0.5], [0.4, 0.4]).p == 0.0


@given(a=NUMBERS, b=NUMBERS)
def test_it_does_not_matter_which_system_comes_first(a, b):
    forth = difference(a, b, example_variance=0.5, examples=20)
    back = difference(b, a, example_variance=0.5, examples=20)
    assert forth.p == pytest.approx(back.p)
    assert 0 <= forth.p <= 1
    assert (forth.low, forth.high) == pytest.approx((-back.high, -back.low))
    assert forth.low <= forth.difference <= forth.high


@given(a=NUMBERS, b=NUMBERS)
def test_the_interval_has_zero_if_and_only_if_p_is_above_a_twentieth(a, b):
    found = difference(a, b, example_variance=0.5, examples=20)
    if abs(found.p - 0.05) > 1e-6:
        assert (found.low <= 0 <= found.high) == (found.p > 0.05)


def test_holms_correction():
    """The smallest of four times four, the next times three …"""
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([]) == []
    assert holm([0.5]) == [0.5]
    assert holm([0.9, 0.8]) == [1.0, 1.0]


@given(p=st.lists(st.floats(0, 1), max_size=20))
def test_holm_keeps_the_order_and_lowers_nothing(p):
    raised = holm(p)
    assert all(before <= after <= 1 for before, after in zip(p, raised))
    order = sorted(range(len(p)), key=lambda place: p[place])
    assert [raised[place] for place in order] == sorted(raised)
