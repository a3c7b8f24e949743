"""Scores of a few seeds: their mean, how far it may be off, and whether two systems differ.

All from Student's t distribution: with three seeds, the normal distribution would promise too much.
"""

import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

LEVEL = 0.95
"""Of confidence, everywhere."""
NEARLY_NORMAL = 1000.0
"""Degrees of freedom from which on Student's t is taken for the normal distribution."""


class Spread(NamedTuple):
    """The scores of a system that was trained with several seeds."""

    mean: float
    deviation: float | None
    """Standard deviation between the seeds; None: there is one seed only."""
    low: float | None
    """The mean of all possible seeds lies between this and `high`, with a confidence of 95 %."""
    high: float | None


class Difference(NamedTuple):
    """How far the means of two systems, `a` and `b`, are apart."""

    difference: float
    """a - b."""
    low: float
    """The true difference lies between this and `high`, with a confidence of 95 %."""
    high: float
    p: float
    """How often chance alone shows a difference at least as large, in either direction."""
    knows_seeds: bool
    """Whether chance includes other seeds: False if both systems have a single seed."""
    knows_examples: bool
    """Whether chance includes other test examples."""


def spread(values: Sequence[float]) -> Spread:
    """Mean, deviation and confidence interval of the scores of the seeds."""
    mean = statistics.fmean(values)
    if len(values) < 2:
        return Spread(mean, None, None, None)
    deviation = statistics.stdev(values)
    reach = t_quantile(LEVEL, len(values) - 1) * deviation / math.sqrt(len(values))
    return Spread(mean, deviation, mean - reach, mean + reach)


def difference(
    a: Sequence[float],
    b: Sequence[float],
    *,
    is_paired: bool = False,
    example_variance: float | None = None,
    examples: int = 0,
) -> Difference:
    """Compare the scores of two systems, each with its own seeds.

    A difference counts if it would hold with other seeds and other test examples. So two sources of
    chance are added: the variance between seeds (Welch 1947), and the variance of the difference
    when the test set of `examples` is drawn anew (`example_variance`; None: unknown). Part of the
    second is in the first already, so this errs on the side of caution.

    is_paired: seed by seed, both are the same trained model, used in two ways: then the differences
    of the seeds are what varies.
    """
    parts = _variances_between_seeds(a, b, is_paired)
    knows_seeds = bool(parts)
    if example_variance is not None:
        parts.append((example_variance, max(1, examples - 1)))

    gap = statistics.fmean(a) - statistics.fmean(b)
    knows_examples = example_variance is not None
    if not parts:
        return Difference(gap, -math.inf, math.inf, 1.0, False, False)

    variance = sum(part for part, _ in parts)
    error = math.sqrt(variance)
    if error <= 1e-12 * max(1.0, abs(gap)):  # nothing varies: the same answers every time
        p = 1.0 if gap == 0 else 0.0
        return Difference(gap, gap, gap, p, knows_seeds, knows_examples)
    freedom = variance**2 / sum(part**2 / degrees for part, degrees in parts)
    reach = t_quantile(LEVEL, freedom) * error
    p = t_tails(abs(gap) / error, freedom)
    return Difference(gap, gap - reach, gap + reach, p, knows_seeds, knows_examples)


def _variances_between_seeds(
    a: Sequence[float], b: Sequence[float], is_paired: bool
) -> list[tuple[float, float]]:
    """Parts of the variance of a difference that other seeds make, with their degrees of freedom.

    A system with one seed is taken to vary as much as the other one does.
    """
    if is_paired and len(a) == len(b) > 1:
        gaps = [x - y for x, y in zip(a, b, strict=True)]
        return [(statistics.variance(gaps) / len(gaps), len(gaps) - 1)]
    if len(a) > 1 and len(b) > 1:
        return [(statistics.variance(x) / len(x), len(x) - 1) for x in (a, b)]
    longer = max(a, b, key=len)
    if len(longer) == 1:
        return []
    variance = statistics.variance(longer) * (1 / len(a) + 1 / len(b))
    return [(variance, len(longer) - 1)]


def holm(p_values: Sequence[float]) -> list[float]:
    """The same p-values, raised so that many comparisons together err no more often than one.

    Holm 1979: the smallest is multiplied by their number, the next by one less, and so on.
    """
    order = sorted(range(len(p_values)), key=lambda place: p_values[place])
    adjusted = [1.0] * len(p_values)
    largest = 0.0
    for rank, place in enumerate(order):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[place]))
        adjusted[place] = largest
    return adjusted


def t_tails(t: float, freedom: float) -> float:
    """How likely Student's t is at least this far from zero, on either side (freedom >= 1)."""
    if freedom >= NEARLY_NORMAL:
        return math.erfc(t / math.sqrt(2))
    # With t = √freedom · tan(angle), the density is cos(angle) to the power of freedom - 1.
    angles = np.linspace(math.atan(t / math.sqrt(freedom)), math.pi / 2, 4097)
    heights = np.cos(angles).clip(min=0.0) ** (freedom - 1)
    area = float(np.trapezoid(heights, angles))
    log_whole = math.lgamma(freedom / 2) - math.lgamma((freedom + 1) / 2)
    whole = math.sqrt(math.pi) / 2 * math.exp(log_whole)
    return min(1.0, area / whole)


def t_quantile(level: float, freedom: float) -> float:
    """The t between whose negative and itself Student's t lies with this probability."""
    wanted = 1 - level
    t = statistics.NormalDist().inv_cdf((1 + level) / 2)
    for _ in range(100):  # Newton's method; from below, it never overshoots a convex curve
        step = (t_tails(t, freedom) - wanted) / (2 * _t_density(t, freedom))
        t += step
        if abs(step) <= 1e-9 * t:
            break
    return t


def _t_density(t: float, freedom: float) -> float:
    """The density of Student's t distribution."""
    if freedom >= NEARLY_NORMAL:
        return statistics.NormalDist().pdf(t)
    log_scale = math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2)
    power = -(freedom + 1) / 2 * math.log1p(t * t / freedom)
    return math.exp(log_scale + power) / math.sqrt(math.pi * freedom)
