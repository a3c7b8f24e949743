"""Is one system really better than another, or was it the luck of the test set?"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from regard.errors import UserError
from regard.scoring.metrics import References, check, sacre_metric, streams

Metric = Literal["bleu", "chrf", "ter", "exact_match"]
METRICS: tuple[Metric, ...] = ("bleu", "chrf", "ter", "exact_match")


@dataclass(frozen=True)
class Comparison:
    """System `a` against system `b` on the same examples.

    `difference` is b - a; in 95 of 100 resampled test sets it lies between `low` and `high`; `p` is how often chance
    alone would show a difference at least as large in either direction.
    """

    a: float
    b: float
    difference: float
    low: float
    high: float
    p: float


def paired_bootstrap(
    a: Sequence[str],
    b: Sequence[str],
    references: References,
    *,
    metric: Metric = "bleu",
    samples: int = 1000,
    seed: int = 12345,
    tokenize: str = "13a",
) -> Comparison:
    """Koehn 2004: draw the test set anew with replacement `samples` times, score both systems on each draw.

    For p the differences are shifted to mean zero, what they would be if the systems were equal, and those are counted
    that are as far out as the one observed. Identical systems therefore get p = 1.
    """
    check(a, references)
    check(b, references)
    if samples < 1:
        raise UserError(f"the bootstrap needs at least one sample, not {samples}")
    first, score = _statistics(a, references, metric, tokenize)
    second, _ = _statistics(b, references, metric, tokenize)
    both = np.concatenate([first, second], axis=1)  # (N, 2 · statistics)
    width, count = first.shape[1], len(first)
    rng = np.random.default_rng(seed)
    differences = np.empty(samples)
    for i in range(samples):
        # How often each example was drawn times its statistics: no resampled corpus is ever built.
        drawn = np.bincount(rng.integers(count, size=count), minlength=count)
        totals = drawn.astype(np.float64) @ both
        differences[i] = score(totals[width:]) - score(totals[:width])
    score_a, score_b = score(first.sum(0)), score(second.sum(0))
    difference = score_b - score_a
    low, high = np.quantile(differences, [0.025, 0.975])
    as_far = np.abs(differences - differences.mean()) >= abs(difference) - 1e-9
    p = (int(as_far.sum()) + 1) / (samples + 1)
    return Comparison(score_a, score_b, difference, float(low), float(high), p)


def _statistics(
    hypotheses: Sequence[str], references: References, metric: Metric, tokenize: str
) -> tuple[np.ndarray, Callable[[np.ndarray], float]]:
    """Counts (N, K) of every example, and the function from their sum (K,) to the score of a corpus."""
    if metric == "exact_match":
        hits = [[float(output in answers), 1.0] for output, answers in zip(hypotheses, references)]
        return np.array(hits), lambda total: float(total[0] / total[1])
    if metric not in METRICS:
        raise UserError(f"no metric {metric!r} to compare by; there are {', '.join(METRICS)}")
    judge = sacre_metric(metric, tokenize)
    counts = judge._extract_corpus_statistics(list(hypotheses), streams(references))
    return np.array(counts, dtype=np.float64), lambda total: float(judge._compute_score_from_stats(list(total)).score)
