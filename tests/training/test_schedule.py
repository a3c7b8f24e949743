"""The learning rate: a pure function of the step that rises, then falls as its name says."""

import math
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from regard.config import TrainConfig
from regard.training.schedule import make_rate

laws = settings(max_examples=60, deadline=None, derandomize=True)
KINDS = ["constant", "inverse_sqrt", "cosine", "linear", "wsd"]


@laws
@given(st.sampled_from(KINDS), st.integers(0, 50), st.integers(1, 200), st.floats(1e-6, 1))
def test_rises_then_never_rises_again(kind, warmup, steps, top):
    rate = make_rate(TrainConfig(schedule=kind, warmup=warmup, rate=top), steps)
    rates = [rate(step) for step in range(max(steps, warmup + 1))]
    assert all(0 <= value <= top * (1 + 1e-9) for value in rates)
    assert all(value > 0 for value in rates[:warmup])
    assert rates[:warmup] == sorted(rates[:warmup])
    rest = rates[warmup:]
    assert all(after <= before * (1 + 1e-9) for before, after in pairwise(rest))
    assert rates == [rate(step) for step in range(len(rates))]


@pytest.mark.parametrize("kind", KINDS)
def test_warm_up_is_linear_and_reaches_the_top(kind):
    rate = make_rate(TrainConfig(schedule=kind, warmup=10, rate=0.5), 100)
    assert [rate(step) for step in range(10)] == pytest.approx(
        [0.05 * (step + 1) for step in range(10)]
    )
    assert rate(10) == pytest.approx(0.5, rel=0.06)


def test_formulas():
    def rate(kind, warmup=0):
        return make_rate(TrainConfig(schedule=kind, warmup=warmup, rate=2.0), 100)

    assert rate("constant")(77) == 2.0
    assert rate("inverse_sqrt", warmup=16)(63) == pytest.approx(2.0 * math.sqrt(16 / 64))
    assert rate("cosine")(50) == pytest.approx(1.0)
    assert rate("cosine")(100) == pytest.approx(0.0)
    assert rate("linear")(25) == pytest.approx(1.5)
    assert rate("linear", warmup=20)(60) == pytest.approx(1.0)
    assert rate("linear")(1000) == 0.0


def test_wsd_falls_from_one_step_to_another():
    config = TrainConfig(schedule="wsd", warmup=2, rate=1.0, decay_start=6, decay_end=10)
    rate = make_rate(config, 10)
    rates = [rate(step) for step in range(12)]
    assert rates == [0.5, 1, 1, 1, 1, 1, 1, 0.75, 0.5, 0.25, 0, 0]


def test_wsd_is_constant_until_its_end_is_known():
    rate = make_rate(TrainConfig(schedule="wsd", warmup=2, rate=1.0), 10)
    assert {rate(step) for step in range(2, 1000)} == {1.0}


def test_wsd_reaches_zero_even_within_its_warm_up():
    config = TrainConfig(schedule="wsd", warmup=100, rate=1.0, decay_start=8, decay_end=10)
    rate = make_rate(config, 10)
    assert rate(8) == pytest.approx(0.09)
    assert rate(9) == pytest.approx(0.05)
    assert rate(10) == 0
