"""What a comparison found: a score with its spread for each system, and which differ."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from statistics import fmean
from typing import Any

import numpy as np

from regard.comparison.cells import Plan
from regard.comparison.experiment import LOWER_IS_BETTER, METRICS, SHARES
from regard.comparison.scores import Scores
from regard.errors import UserError
from regard.scoring import scores_by_length, sentence_chrfs
from regard.scoring.lengths import Bin, length_bins
from regard.scoring.significance import Metric, resampled
from regard.scoring.spread import Difference, Spread, difference, holm, spread

SAMPLES = 1000
"""Test sets that are drawn to tell how much depends on the examples."""
SURE = 0.05
"""A difference counts if chance alone shows one as large less often than this."""
OF_EXAMPLES = ("bleu", "chrf", "ter", "exact_match")
"""Metrics that are known for any part of the test set."""
USUAL = ("bleu", "exact_match", "bits_per_character", "loss")
"""What systems are compared by if nobody says: the first one that all of them have."""
SHOWN = ("bleu", "chrf", "exact_match", "token_accuracy", "bits_per_character", "loss")
"""Columns of the table, where all systems have them."""
DISAGREEMENTS = 6


@dataclass(frozen=True)
class SystemOutcome:
    """A system: the mean of its seeds, and what it cost."""

    name: str
    scores: list[Scores]
    """One for each seed."""

    def values(self, metric: str) -> list[float]:
        """The score of each seed by a metric that it has."""
        return [value for one in self.scores if (value := one.values.get(metric)) is not None]

    def has(self, metric: str) -> bool:
        return len(self.values(metric)) == len(self.scores)

    def spread(self, metric: str) -> Spread:
        return spread(self.values(metric))

    def mean(self, name: str) -> float:
        """The mean of a number that the scores have as a field, such as seconds."""
        return fmean(float(getattr(one, name)) for one in self.scores)

    @property
    def decoding(self) -> float | None:
        """Tokens a second in decoding."""
        known = [one.decoding for one in self.scores if one.decoding is not None]
        return fmean(known) if known else None

    @property
    def tokens_per_second(self) -> float:
        """In training."""
        return self.mean("tokens") / max(1e-9, self.mean("seconds"))


@dataclass(frozen=True)
class PairOutcome:
    """Whether two systems differ."""

    a: str
    b: str
    difference: Difference
    """a - b."""
    p: float
    """The p-value, raised for the number of pairs (Holm)."""

    @property
    def differs(self) -> bool:
        return self.p < SURE


@dataclass(frozen=True)
class Disagreement:
    """A test example on which the systems do not agree."""

    source: str
    references: list[str]
    answers: dict[str, str]
    """Of the first seed of each system."""
    shares: dict[str, float]
    """How near each system is to a reference, mean of its seeds, from 0 to 1."""


class Outcome:
    """What a comparison found. In a notebook it is a table."""

    def __init__(self, plan: Plan, scores: Sequence[Scores]) -> None:
        self.plan = plan
        by_system: dict[str, list[Scores]] = {name: [] for name in plan.systems()}
        for one in scores:
            by_system[one.system].append(one)
        self.systems = [SystemOutcome(name, of) for name, of in by_system.items() if of]
        if not self.systems:
            raise UserError("no run has been scored yet")
        self.metric = plan.metric or self._usual_metric()
        missing = [system for system in self.systems if not system.has(self.metric)]
        if missing:
            known = [name for name in METRICS if all(one.has(name) for one in self.systems)]
            raise UserError(
                f"metric={self.metric} cannot be computed for {missing[0].name}: choose one of "
                f"{', '.join(known)}"
            )

    def _usual_metric(self) -> str:
        every = (metric for metric in USUAL if all(one.has(metric) for one in self.systems))
        return next(every, "loss")

    @property
    def metric_name(self) -> str:
        return METRICS.get(self.metric, self.metric)

    @property
    def sign(self) -> int:
        """1 where more is better, -1 where less is."""
        return -1 if self.metric in LOWER_IS_BETTER else 1

    @cached_property
    def ranking(self) -> list[SystemOutcome]:
        """The systems, the best first."""
        return sorted(
            self.systems, key=lambda one: self.sign * one.spread(self.metric).mean, reverse=True
        )

    @property
    def best(self) -> SystemOutcome:
        return self.ranking[0]

    @cached_property
    def columns(self) -> list[str]:
        """The metrics of the table, that of the comparison first."""
        shown = [name for name in SHOWN if all(one.has(name) for one in self.systems)]
        return [self.metric, *(name for name in shown if name != self.metric)]

    # differences

    @cached_property
    def pairs(self) -> list[PairOutcome]:
        """All pairs of systems."""
        found = []
        for a, b in combinations(self.systems, 2):
            variance, examples = self._example_variance(a, b)
            gap = difference(
                a.values(self.metric),
                b.values(self.metric),
                example_variance=variance,
                examples=examples,
            )
            found.append((a.name, b.name, gap))
        raised = holm([gap.p for _, _, gap in found])
        return [PairOutcome(a, b, gap, p) for (a, b, gap), p in zip(found, raised)]

    def pair(self, a: str, b: str) -> PairOutcome:
        """How `a` compares with `b`."""
        for one in self.pairs:
            if (one.a, one.b) == (a, b):
                return one
            if (one.a, one.b) == (b, a):
                gap = one.difference
                turned = gap._replace(difference=-gap.difference, low=-gap.high, high=-gap.low)
                return PairOutcome(a, b, turned, one.p)
        raise UserError(f"no systems {a} and {b}")

    @cached_property
    def tied(self) -> list[SystemOutcome]:
        """The systems that are as good as the best, as far as these runs tell; the best first."""
        return [
            one
            for one in self.ranking
            if one is self.best or not self.pair(self.best.name, one.name).differs
        ]

    def _example_variance(self, a: SystemOutcome, b: SystemOutcome) -> tuple[float | None, int]:
        """The variance of a difference between test sets, and the examples of one."""
        drawn_a = self._drawn.get(a.name)
        drawn_b = self._drawn.get(b.name)
        if drawn_a is None or drawn_b is None:
            return None, 0
        return float(np.var(drawn_a - drawn_b, ddof=1)), len(a.scores[0].sources)

    @cached_property
    def _drawn(self) -> dict[str, np.ndarray]:
        """For each system, the mean score of its seeds on test sets that are drawn anew."""
        if self.metric not in OF_EXAMPLES or not self.same_examples:
            return {}
        metric: Metric = self.metric  # type: ignore[assignment]
        drawn = {}
        for system in self.systems:
            by_seed = [
                resampled(
                    one.answers,
                    one.references,
                    metric=metric,
                    samples=SAMPLES,
                    tokenize=one.tokenize,
                )
                for one in system.scores
                if one.answers
            ]
            if len(by_seed) == len(system.scores):
                drawn[system.name] = np.mean(by_seed, axis=0)
        return drawn

    @property
    def missing(self) -> dict[str, list[int]]:
        """The seeds of each system that have no scores (yet), where there are such."""
        known = {(one.system, one.seed) for system in self.systems for one in system.scores}
        missing: dict[str, list[int]] = {}
        for cell in self.plan.cells:
            if (cell.system, cell.seed) not in known:
                missing.setdefault(cell.system, []).append(cell.seed)
        return missing

    @cached_property
    def same_examples(self) -> bool:
        """Whether all systems were scored on the same examples."""
        first = self.systems[0].scores[0]
        return all(
            one.sources == first.sources and one.references == first.references
            for system in self.systems
            for one in system.scores
        )

    # closer looks

    @cached_property
    def by_length(self) -> tuple[str, list[Bin], list[int], dict[str, list[float | None]]]:
        """The unit, bins of source length, examples of each, and the score of each system.

        Without bins where there is nothing to divide.
        """
        first = self.systems[0].scores[0]
        metric = self.metric if self.metric in ("bleu", "chrf", "exact_match") else "chrf"
        if not first.sources or not self.same_examples:
            return "", [], [], {}
        words = [len(source.split()) for source in first.sources]
        unit = "words" if fmean(words) >= 2 else "characters"
        lengths = words if unit == "words" else [len(source) for source in first.sources]
        bins = length_bins(lengths)
        if len(bins) < 2:
            return "", [], [], {}
        counts = [int(one.holds(np.asarray(lengths)).sum()) for one in bins]
        table: dict[str, list[float | None]] = {}
        for system in self.systems:
            seeds = []
            for one in system.scores:
                rows = scores_by_length(one.answers, one.references, lengths, tokenize=one.tokenize)
                seeds.append([getattr(row, metric) for row in rows])
            table[system.name] = [_mean_or_none(column) for column in zip(*seeds)]
        return unit, bins, counts, table

    @property
    def length_metric(self) -> str:
        """What `by_length` shows."""
        return self.metric if self.metric in ("bleu", "chrf", "exact_match") else "chrf"

    @cached_property
    def disagreements(self) -> list[Disagreement]:
        """The examples on which the systems disagree most."""
        if not self.same_examples or not self.systems[0].scores[0].answers:
            return []
        first = self.systems[0].scores[0]
        near = {
            system.name: np.mean([_nearness(one) for one in system.scores], axis=0)
            for system in self.systems
        }
        table = np.stack(list(near.values()))  # (systems, N)
        gaps = table.max(0) - table.min(0)  # (N,)
        found = []
        for place in np.argsort(-gaps, kind="stable")[:DISAGREEMENTS].tolist():
            if gaps[place] <= 0:
                break
            found.append(
                Disagreement(
                    first.sources[place],
                    first.references[place],
                    {system.name: system.scores[0].answers[place] for system in self.systems},
                    {name: float(values[place]) for name, values in near.items()},
                )
            )
        return found

    @cached_property
    def differing(self) -> dict[str, list[Any]]:
        """The settings in which the systems differ, with the value of each; None: it has none."""
        every = [_flat(system.scores[0].settings) for system in self.systems]
        names = list(dict.fromkeys(name for one in every for name in one))
        table = {name: [one.get(name) for one in every] for name in names}
        return {
            name: values
            for name, values in table.items()
            if any(value != values[0] for value in values) and name != "data.digest"
        }

    def as_dict(self) -> dict[str, Any]:
        """All figures, for JSON."""
        systems = {}
        for system in self.systems:
            known = system.spread(self.metric)
            systems[system.name] = {
                self.metric: known._asdict(),
                "seeds": {one.seed: one.values for one in system.scores},
                "parameters": system.mean("parameters"),
                "steps": system.mean("steps"),
                "tokens": system.mean("tokens"),
                "seconds": system.mean("seconds"),
                "tokens_per_second": system.tokens_per_second,
                "decoding_tokens_per_second": system.decoding,
            }
        return {
            "name": self.plan.name,
            "metric": self.metric,
            "best": self.best.name,
            "tied": [system.name for system in self.tied],
            "systems": systems,
            "pairs": [
                {"a": pair.a, "b": pair.b, **pair.difference._asdict(), "p_holm": pair.p}
                for pair in self.pairs
            ],
            "settings": self.differing,
            "decisions": self.plan.decisions,
            "command": self.plan.command,
        }

    def shown(self, value: float, metric: str | None = None) -> str:
        """A score for a person: shares in per cent."""
        metric = metric or self.metric
        if metric in SHARES:
            return f"{100 * value:.1f} %"
        return f"{value:.3f}" if metric in ("loss", "bits_per_character") else f"{value:.1f}"

    def shown_spread(self, known: Spread, metric: str | None = None) -> str:
        """A mean with what it may be off by: 95.2 ± 0.4."""
        mean = self.shown(known.mean, metric)
        if known.low is None:
            return mean
        reach = known.mean - known.low
        return f"{mean} ± {self.shown(reach, metric)}".replace(" % ±", " ±")


def _mean_or_none(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None


def _nearness(scores: Scores) -> np.ndarray:
    """How near each answer is to a reference, from 0 to 1: 1 only if it is the same."""
    near = 0.9 * np.array(sentence_chrfs(scores.answers, scores.references)) / 100  # (N,)
    right = [
        answer in references
        for answer, references in zip(scores.answers, scores.references, strict=True)
    ]
    return np.where(right, 1.0, near)


def _flat(settings: Mapping[str, Any]) -> Mapping[str, Any]:
    """Settings by their full name, without the seed."""
    flat = {
        f"{section}.{name}": value
        for section, values in settings.items()
        for name, value in values.items()
    }
    flat.pop("train.seed", None)
    return flat
