"""Scores by the length of the source."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import compress
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from regard.errors import UserError, counted
from regard.scoring import metrics

MOST_BINS = 8
"""Bins, without the last one, which is open."""


OwnMetric = Callable[[metrics.Texts, metrics.References], Any]
"""A metric of the user's own: of answers, and of the references of each."""


class Bin(NamedTuple):
    """Lengths from `low` to `high` tokens; None: or more."""

    low: int
    high: int | None

    def __str__(self) -> str:
        if self.high is None:
            return f"{self.low} or more"
        return str(self.low) if self.low == self.high else f"{self.low}–{self.high}"

    def holds(self, lengths: np.ndarray) -> np.ndarray:
        """Which of the lengths (N,) lie within it."""
        inside = lengths >= self.low
        return inside if self.high is None else inside & (lengths <= self.high)


@dataclass(frozen=True)
class LengthScore:
    """The scores of the sentences whose sources have a certain length."""

    bin: Bin
    """Of source tokens, without `<eos>`."""
    sentences: int
    bleu: float | None
    """None: it says nothing about sentences as short as these, or there are none."""
    chrf: float | None
    exact_match: float | None
    metrics: dict[str, float]
    """By metrics of the user's own."""
    loss: float | None = None
    """Of a reference token, given those before it; None: unknown."""
    token_accuracy: float | None = None

    def as_dict(self) -> dict[str, Any]:
        """Ready for JSON: numbers that it cannot write (NaN, infinity) become None."""
        values = asdict(self)
        own = values.pop("metrics")
        values = values.pop("bin")._asdict() | values | own
        return {name: value if _is_sayable(value) else None for name, value in values.items()}


def _is_sayable(value: float | None) -> bool:
    """Whether JSON can write a value."""
    return value is None or math.isfinite(value)


def length_bins(lengths: ArrayLike) -> list[Bin]:
    """A few bins of equal width for lengths (N,), from the first that is not empty; the last is
    open.

    The width is 1, 2 or 5 times a power of ten, so that most lengths fall into the bins before the
    last.
    """
    values = np.asarray(lengths)
    if not values.size:
        raise UserError("no lengths: there must be at least one sentence")
    usual = int(np.quantile(values, 0.95))
    width = next(width for width in _round_numbers() if usual <= MOST_BINS * width)
    shortest = int(values.min())

    bins = []
    low = 1 + (shortest - 1) // width * width
    while low <= usual:
        bins.append(Bin(max(0, low), low + width - 1))
        low += width
    if values.max() >= low:
        bins.append(Bin(low, None))
    return bins


def _round_numbers() -> list[int]:
    """1, 2, 5, 10, 20, 50 …"""
    return [digit * 10**power for power in range(12) for digit in (1, 2, 5)]


def scores_by_length(
    answers: metrics.Texts,
    references: metrics.References,
    lengths: Sequence[int],
    *,
    tokenize: str = "13a",
    own: Mapping[str, OwnMetric] | None = None,
) -> list[LengthScore]:
    """The scores of answers in bins of the length of their sources.

    lengths: of each source, in tokens. tokenize: sacreBLEU's tokenizer for BLEU. own: metrics of
    the caller's own, by name.
    """
    metrics.check(answers, references)
    if len(lengths) != len(answers):
        raise UserError(
            f"{counted(len(lengths), 'length')} for {counted(len(answers), 'answer')}: pass as many"
        )

    values = np.asarray(lengths)  # (N,)
    scores = []
    for one in length_bins(values):
        inside = one.holds(values)  # (N,)
        some = list(compress(answers, inside))
        theirs = list(compress(references, inside))
        scores.append(_score(one, some, theirs, tokenize, own or {}))
    return scores


def _score(
    one: Bin,
    answers: metrics.Texts,
    references: metrics.References,
    tokenize: str,
    own: Mapping[str, OwnMetric],
) -> LengthScore:
    """The scores of the answers of one bin."""
    if not answers:
        return LengthScore(one, 0, None, None, None, {})
    bleu = None
    if metrics.bleu_applies(references, tokenize):
        bleu = metrics.bleu(answers, references, tokenize).score
    return LengthScore(
        one,
        len(answers),
        bleu=bleu,
        chrf=metrics.chrf(answers, references).score,
        exact_match=metrics.exact_match(answers, references),
        metrics={name: float(metric(answers, references)) for name, metric in own.items()},
    )
