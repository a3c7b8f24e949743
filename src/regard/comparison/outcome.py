"""What a comparison found: a score with its spread for each system, and which differ."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
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
from regard.scoring.significance import Metric, resampled, resampled_ratios
from regard.scoring.spread import Difference, Spread, difference, holm, spread

SAMPLES = 1000
"""Test sets that are drawn to tell how much depends on the examples."""
SURE = 0.05
"""A difference counts if chance alone shows one as large less often than this."""
OF_ANSWERS = ("bleu", "chrf", "ter", "exact_match", "wer", "cer")
"""Metrics that answers have, so that any part of the test set has them."""
OF_LOSSES = {"loss": 0, "bits_per_character": 0, "token_accuracy": 1}
"""Metrics that follow from the losses of the examples, and which number of these."""
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
        return self.p < SURE and self.difference.knows_seeds


@dataclass(frozen=True)
class Disagreement:
    """A test example on which the systems do not agree."""

    source: str
    references: list[str]
    answers: dict[str, str]
    """Of each system with the seed that all have, or else with its first one."""
    shares: dict[str, float]
    """How near each system is to a reference, mean of its seeds, from 0 to 1."""


class Outcome:
    """What a comparison found."""

    def __init__(self, plan: Plan, scores: Sequence[Scores]) -> None:
        self.plan = plan
        by_system: dict[str, list[Scores]] = {name: [] for name in plan.systems()}
        for one in scores:
            by_system[one.system].append(one)
        self.systems = [SystemOutcome(name, of) for name, of in by_system.items() if of]
        if not self.systems:
            raise UserError("no run has been scored yet")
        self.metric = plan.metric or self._usual_metric()
        self.without_metric = [one.name for one in self.systems if not one.has(self.metric)]
        """Systems that cannot be compared, since the metric says nothing about some answers."""
        compared = [one for one in self.systems if one.has(self.metric)]
        if not compared:
            known = [name for name in METRICS if all(one.has(name) for one in self.systems)]
            raise UserError(
                f"metric={self.metric} cannot be computed for {self.systems[0].name}: choose one "
                f"of {', '.join(known)}"
            )
        self.systems = compared

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
                is_paired=_share_runs(a, b),
                example_variance=variance,
                examples=examples,
            )
            found.append((a.name, b.name, gap))
        raised = holm([gap.p for _, _, gap in found])
        return [PairOutcome(a, b, gap, p) for (a, b, gap), p in zip(found, raised)]

    def pair(self, a: str, b: str) -> PairOutcome:
        """How `a` compares with `b`."""
        known = self._pair_of.get((a, b))
        if known is not None:
            return known
        other = self._pair_of.get((b, a))
        if other is None:
            raise UserError(f"no systems {a} and {b}")
        gap = other.difference
        turned = gap._replace(difference=-gap.difference, low=-gap.high, high=-gap.low)
        return PairOutcome(a, b, turned, other.p)

    @cached_property
    def _pair_of(self) -> dict[tuple[str, str], PairOutcome]:
        return {(one.a, one.b): one for one in self.pairs}

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
        return float(np.var(drawn_a - drawn_b, ddof=1)), a.scores[0].examples

    @cached_property
    def _drawn(self) -> dict[str, np.ndarray]:
        """For each system, the mean score of its seeds on test sets that are drawn anew."""
        if not self.same_examples:
            return {}
        drawn = {}
        for system in self.systems:
            by_seed = [self._drawn_of(one) for one in system.scores]
            known = [scores for scores in by_seed if scores is not None]
            if len(known) == len(by_seed):
                drawn[system.name] = np.mean(known, axis=0)  # (SAMPLES,)
        return drawn

    def _drawn_of(self, one: Scores) -> np.ndarray | None:
        """The score of a run on test sets that are drawn anew; None: it has it for no part."""
        if self.metric in OF_ANSWERS and one.answers:
            metric: Metric = self.metric  # type: ignore[assignment]
            return resampled(
                one.answers, one.references, metric=metric, samples=SAMPLES, tokenize=one.tokenize
            )
        if self.metric not in OF_LOSSES or not one.losses:
            return None
        table = np.asarray(one.losses, dtype=np.float64)  # (N, 3)
        drawn = resampled_ratios(table[:, OF_LOSSES[self.metric]], table[:, 2], samples=SAMPLES)
        if self.metric == "bits_per_character":  # tokens a character stay what they are
            drawn *= float(one.values[self.metric] or 0.0) / float(one.values["loss"] or 1.0)
        return drawn

    @property
    def missing(self) -> dict[str, list[int]]:
        """The seeds of each system that have no scores (yet), where there are such."""
        known = {(one.system, one.seed) for system in self.systems for one in system.scores}
        missing: dict[str, list[int]] = {}
        for cell in self.plan.cells:
            is_scored = cell.system in self.without_metric or (cell.system, cell.seed) in known
            if not is_scored:
                missing.setdefault(cell.system, []).append(cell.seed)
        return missing

    @cached_property
    def common_seed(self) -> int | None:
        """The first seed that all systems have; None: there is none."""
        seeds = [{one.seed for one in system.scores} for system in self.systems]
        return min(set.intersection(*seeds), default=None)

    @cached_property
    def same_examples(self) -> bool:
        """Whether all systems were scored on the same examples."""
        first = self.systems[0].scores[0]
        return all(
            one.sources == first.sources
            and one.references == first.references
            and one.digest == first.digest
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
                    {
                        system.name: self._shown_seed(system).answers[place]
                        for system in self.systems
                    },
                    {name: float(values[place]) for name, values in near.items()},
                )
            )
        return found

    def _shown_seed(self, system: SystemOutcome) -> Scores:
        """The run of a system whose answers are shown."""
        same = [one for one in system.scores if one.seed == self.common_seed]
        return (same or system.scores)[0]

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
                "curves": {one.seed: one.curve for one in system.scores},
                "machine": {**system.scores[0].machine, "device": system.scores[0].device},
                "bleu_signature": system.scores[0].signature,
                "seen_in_training": system.scores[0].seen_in_training,
            }
        return {
            "name": self.plan.name,
            "metric": self.metric,
            "best": self.best.name,
            "tied": [system.name for system in self.tied],
            "systems": systems,
            "pairs": [
                {"a": pair.a, "b": pair.b, **_finite(pair.difference), "p_holm": pair.p}
                for pair in self.pairs
            ],
            "settings": self.differing,
            "decisions": self.plan.decisions,
            "budget": dict(self.plan.budget),
            "split": self.plan.split,
            "by_length": self._lengths_as_dict(),
            "disagreements": [asdict(one) for one in self.disagreements],
            "command": self.plan.command,
        }

    def _lengths_as_dict(self) -> dict[str, Any]:
        unit, bins, counts, scores = self.by_length
        return {
            "metric": self.length_metric,
            "unit": unit,
            "bins": [str(one) for one in bins],
            "examples": counts,
            "scores": scores,
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


def _finite(gap: Difference) -> dict[str, Any]:
    """A difference for JSON, which has no infinity: an end that is not known is null."""
    return {
        name: None if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in gap._asdict().items()
    }


def _share_runs(a: SystemOutcome, b: SystemOutcome) -> bool:
    """Whether two systems are the same trained models, seed by seed, and only used differently."""
    return [(one.seed, one.run) for one in a.scores] == [(one.seed, one.run) for one in b.scores]


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
