"""Is one system really better than another, or was it the luck of the test set?"""

from collections.abc import Callable, Iterator
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from regard.scoring.metrics import (
    References,
    Texts,
    character_edits,
    check,
    columns,
    sacre,
    word_edits,
)

Metric = Literal["bleu", "chrf", "ter", "exact_match", "wer", "cer"]
Counts = npt.NDArray[np.int64]
Scorer = Callable[[Counts], float]
"""Counts (N,) -> the score of a test set in which example i stands counts[i] times."""


class Comparison(NamedTuple):
    """System `a`, the one asked about, against system `b` on the same examples."""

    a: float
    b: float
    difference: float
    """a - b: above 0 where `a` has the higher score."""
    low: float
    """95 % of the resampled differences lie between this and `high`."""
    high: float
    p: float
    """How often chance alone shows a difference at least as large, in either direction."""
    metric: Metric = "bleu"


def paired_bootstrap(
    a: Texts,
    b: Texts,
    references: References,
    *,
    metric: Metric = "bleu",
    samples: int = 1000,
    seed: int = 12345,
    tokenize: str = "13a",
) -> Comparison:
    """Compare two systems by paired bootstrap resampling (Koehn 2004).

    The test set is drawn anew with replacement `samples` times, and both are scored on each draw.
    For p the differences are shifted to mean zero, what they would be if the systems were equal,
    and those are counted that are as far out as the one observed. Identical systems therefore get
    p = 1. `tokenize` is sacreBLEU's tokenizer for BLEU.
    """
    score_a = _scorer(a, references, metric, tokenize)
    score_b = _scorer(b, references, metric, tokenize)
    size = len(references)
    drawn = _drawn(size, samples, seed)
    differences = np.array([score_a(counts) - score_b(counts) for counts in drawn])  # (samples,)

    once = np.ones(size, dtype=np.int64)  # (N,) the test set as it is
    whole_a = score_a(once)
    whole_b = score_b(once)
    difference = whole_a - whole_b
    low, high = np.quantile(differences, [0.025, 0.975])
    as_far = np.abs(differences - differences.mean()) >= abs(difference) - 1e-9
    p = (int(as_far.sum()) + 1) / (samples + 1)

    return Comparison(whole_a, whole_b, difference, float(low), float(high), p, metric)


def resampled(
    outputs: Texts,
    references: References,
    *,
    metric: Metric = "bleu",
    samples: int = 1000,
    seed: int = 12345,
    tokenize: str = "13a",
) -> npt.NDArray[np.float64]:
    """The scores (samples,) of one system on test sets that are drawn anew with replacement.

    Sets of the same size are drawn alike in every call, so that systems can be compared on them.
    """
    score = _scorer(outputs, references, metric, tokenize)
    return np.array([score(counts) for counts in _drawn(len(references), samples, seed)])


def resampled_ratios(
    parts: npt.ArrayLike, wholes: npt.ArrayLike, *, samples: int = 1000, seed: int = 12345
) -> npt.NDArray[np.float64]:
    """The same of a score that is a sum over examples divided by another, such as a mean loss.

    parts and wholes (N,): of each example, what it adds to the one sum and to the other.
    """
    score = _ratio(np.asarray(parts, dtype=np.float64), np.asarray(wholes, dtype=np.float64))
    return np.array([score(counts) for counts in _drawn(np.size(parts), samples, seed)])


def _drawn(size: int, samples: int, seed: int) -> Iterator[Counts]:
    """How often each of `size` examples is drawn, for each of the samples."""
    rng = np.random.default_rng(seed)
    for _ in range(samples):
        yield np.bincount(rng.integers(size, size=size), minlength=size)  # (N,)


def _scorer(outputs: Texts, references: References, metric: Metric, tokenize: str) -> Scorer:
    """The scorer of one system by one metric."""
    check(outputs, references)
    if metric == "exact_match":
        hits = np.array([text in answers for text, answers in zip(outputs, references)])  # (N,)
        return lambda counts: float((counts @ hits) / counts.sum())

    if metric in ("wer", "cer"):
        edits_of = word_edits if metric == "wer" else character_edits
        edits, lengths = np.array(edits_of(outputs, references), dtype=np.float64).T  # (N,) each
        return _ratio(edits, lengths)

    options = {"tokenize": tokenize} if metric == "bleu" else {}
    return sacre_scorer(sacre(metric, **options), outputs, references)


def _ratio(parts: npt.NDArray[np.float64], wholes: npt.NDArray[np.float64]) -> Scorer:
    """The sum of `parts` over that of `wholes`, as an error rate is; one without a whole is 1."""

    def score(counts: Counts) -> float:
        part = float(counts @ parts)
        whole = float(counts @ wholes)
        return part / whole if whole else float(part > 0)

    return score


def sacre_scorer(judge: Any, outputs: Texts, references: References) -> Scorer:
    """The scorer of one system by a metric of sacreBLEU.

    sacreBLEU's statistics of each line make it one product of matrices, but they are private to
    sacreBLEU: where a version lacks them, its public function scores the repeated lines.
    """
    private = ("_extract_corpus_statistics", "_compute_score_from_stats")
    if all(hasattr(judge, name) for name in private):
        return _by_statistics(judge, outputs, references)
    return _by_repeated_lines(judge, outputs, references)


def _by_statistics(judge: Any, outputs: Texts, references: References) -> Scorer:
    """The private way, which reads every line once."""
    lines = judge._extract_corpus_statistics(list(outputs), columns(references))
    statistics = np.array(lines, dtype=np.float64)  # (N, K); a corpus has their sum

    def score(counts: Counts) -> float:
        return float(judge._compute_score_from_stats(list(counts @ statistics)).score)

    return score


def _by_repeated_lines(judge: Any, outputs: Texts, references: References) -> Scorer:
    """The public way, which reads every line again for every sample: slow, and the same numbers."""

    def score(counts: Counts) -> float:
        lines = np.repeat(np.arange(len(counts)), counts).tolist()  # line i counts[i] times
        drawn_outputs = [outputs[line] for line in lines]
        drawn_references = [references[line] for line in lines]
        return float(judge.corpus_score(drawn_outputs, columns(drawn_references)).score)

    return score
