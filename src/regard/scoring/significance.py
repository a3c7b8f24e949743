"""Is one system really better than another, or was it the luck of the test set?"""

from collections.abc import Callable
from itertools import zip_longest
from typing import Literal, NamedTuple

import numpy as np

from regard.scoring.metrics import References, Texts, check, sacre

Metric = Literal["bleu", "chrf", "ter", "exact_match"]
Score = Callable[[np.ndarray], float]


class Comparison(NamedTuple):
    """System `a` against system `b` on the same examples."""

    a: float
    b: float
    difference: float  # b - a
    low: float  # 95 of 100 resampled test sets lie between this
    high: float  # and this
    p: float  # how often chance alone would show a difference at least as large, in either direction


def paired_bootstrap(
    a: Texts,
    b: Texts,
    references: References,
    *,
    metric: Metric = "bleu",
    samples: int = 1000,
    seed: int = 12345,
    tokenized: bool = False,
) -> Comparison:
    """Koehn 2004: draw the test set anew with replacement `samples` times, score both systems on each draw.

    For p the differences are shifted to mean zero, what they would be if the systems were equal, and those are counted
    that are as far out as the one observed. Identical systems therefore get p = 1.
    """
    (first, score), (second, _) = (_statistics(system, references, metric, tokenized) for system in (a, b))
    rng, count, differences = np.random.default_rng(seed), len(first), np.empty(samples)
    for i in range(samples):
        # How often each example was drawn times its statistics: no resampled corpus is ever built.
        drawn = np.bincount(rng.integers(count, size=count), minlength=count).astype(np.float64)
        differences[i] = score(drawn @ second) - score(drawn @ first)
    score_a, score_b = score(first.sum(0)), score(second.sum(0))
    low, high = np.quantile(differences, [0.025, 0.975])
    as_far = np.abs(differences - differences.mean()) >= abs(score_b - score_a) - 1e-9
    return Comparison(score_a, score_b, score_b - score_a, float(low), float(high), p=(int(as_far.sum()) + 1) / (samples + 1))


def _statistics(outputs: Texts, references: References, metric: Metric, tokenized: bool) -> tuple[np.ndarray, Score]:
    """Counts (N, K) of every example, and the function from their sum (K,) to the score of a corpus."""
    check(outputs, references)
    if metric == "exact_match":
        hits = [[float(output in answers), 1.0] for output, answers in zip(outputs, references)]
        return np.array(hits), lambda total: float(total[0] / total[1])
    judge = sacre(metric, **({"tokenize": "none", "force": True} if tokenized and metric == "bleu" else {}))
    counts = judge._extract_corpus_statistics(list(outputs), list(zip_longest(*references)))
    return np.array(counts, dtype=np.float64), lambda total: float(judge._compute_score_from_stats(list(total)).score)
