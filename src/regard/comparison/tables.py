"""The tables of a report, as rows of text. The first column names the row."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from regard.comparison.experiment import METRICS
from regard.comparison.outcome import Outcome, PairOutcome, SystemOutcome
from regard.errors import counted

MOST_SETTINGS = 40
MOST_COMPARED = 20
"""Systems in the table of all pairs; more would fit on no page."""
BUDGETS = {
    "steps": "training steps",
    "epochs": "epochs",
    "tokens": "training tokens",
    "minutes": "minutes of training",
    "parameters": "parameters",
}


@dataclass(frozen=True)
class Table:
    """A table of a report."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""


def standing(outcome: Outcome, system: SystemOutcome) -> str:
    """How a system compares with the best one, in a word or two."""
    if system is outcome.best:
        return "best mean"
    return "not decided" if system in outcome.tied else "worse"


def results(outcome: Outcome) -> Table:
    """One row for each system, the best first: its scores, and what they cost."""
    has_decoding = any(system.decoding for system in outcome.systems)
    has_standing = len(outcome.systems) > 1
    columns = ["system", *(METRICS.get(name, name) for name in outcome.columns)]
    if has_standing:
        columns.insert(2, "against the best")
    columns += ["parameters", "training time", "tokens/s, training"]
    if has_decoding:
        columns.append("tokens/s, decoding")

    rows = []
    for system in outcome.ranking:
        row = [system.name, *_scores(outcome, system)]
        if has_standing:
            row.insert(2, standing(outcome, system))
        row += [
            f"{system.mean('parameters'):,.0f}",
            exact_duration(system.mean("seconds")),
            f"{system.tokens_per_second:,.0f}",
        ]
        if has_decoding:
            row.append(f"{system.decoding:,.0f}" if system.decoding else "–")
        rows.append(row)
    return Table("Results", columns, rows, _about_results(outcome))


def _scores(outcome: Outcome, system: SystemOutcome) -> list[str]:
    """The score that systems are compared by with its interval, and the means of the others."""
    compared_by, *others = outcome.columns
    first = outcome.shown_spread(system.spread(compared_by), compared_by)
    return [first, *(outcome.shown(fmean(system.values(name)), name) for name in others)]


def _about_results(outcome: Outcome) -> str:
    """What the figures of the results are, in words."""
    numbers = sorted({len(system.scores) for system in outcome.systems})
    if numbers == [1]:
        return (
            f"Scores are of the {outcome.plan.split} set, with one seed each, so how much of a "
            f"difference is chance is not known."
        )
    how_many = counted(numbers[-1], "seed")
    if len(numbers) > 1:
        how_many = f"{numbers[0]} to {how_many}"
    words = (
        f"Scores are of the {outcome.plan.split} set. Each figure is the mean of {how_many}; ± is "
        f"the 95 % confidence interval of the mean over seeds."
    )
    if len(outcome.tied) > 1:
        words += " “Not decided”: the difference to the best mean may be chance."
    return words


def seeds(outcome: Outcome) -> Table:
    """The score of every seed."""
    every = sorted({one.seed for system in outcome.systems for one in system.scores})
    rows = []
    for system in outcome.ranking:
        by_seed = {one.seed: one.values[outcome.metric] for one in system.scores}
        known = system.spread(outcome.metric)
        deviation = "–" if known.deviation is None else outcome.shown(known.deviation)
        row = [_or_dash(outcome, by_seed.get(seed)) for seed in every]
        rows.append([system.name, *row, deviation])
    columns = ["system", *(f"seed {seed}" for seed in every), "standard deviation"]
    return Table(f"{outcome.metric_name} by seed", columns, rows)


def _or_dash(outcome: Outcome, value: float | None, metric: str | None = None) -> str:
    return "–" if value is None else outcome.shown(value, metric)


def differences(outcome: Outcome) -> Table:
    """By how much the best system is better than every other one."""
    rows = []
    for other in outcome.ranking[1:]:
        pair = outcome.pair(outcome.best.name, other.name)
        gap = pair.difference
        ends = sorted((outcome.sign * gap.low, outcome.sign * gap.high))
        rows.append(
            [
                other.name,
                "yes" if pair.differs else "not decided",
                outcome.shown(outcome.sign * gap.difference),
                _interval(outcome, *ends),
                shown_p(gap.p),
                shown_p(pair.p),
            ]
        )
    behind = f"behind by ({outcome.metric_name})"
    columns = ["system", "worse?", behind, "95 % interval", "p", "p, corrected"]
    note = f"Every system against {outcome.best.name}, which has the best mean. "
    return Table("Which systems really differ", columns, rows, note + _about_chance(outcome))


def _interval(outcome: Outcome, low: float, high: float) -> str:
    if not (math.isfinite(low) and math.isfinite(high)):
        return "unknown"
    return f"{outcome.shown(low)} to {outcome.shown(high)}".replace("-", "−")


def shown_p(p: float, equals: str = "") -> str:
    """A p-value for a person: never 0; `equals` stands before a number that is one."""
    return "< 0.001" if p < 0.001 else f"{equals}{p:.3f}"


def _about_chance(outcome: Outcome) -> str:
    """What the p-values mean, and which chance they know."""
    if not outcome.pairs:
        return ""
    gaps = [pair.difference for pair in outcome.pairs]
    if not any(gap.knows_seeds for gap in gaps):
        return (
            "With one seed, nobody knows how much another seed would change, so nothing can be "
            "decided: add seeds to the experiment."
        )
    sources = ["other seeds"]
    if all(gap.knows_examples for gap in gaps):
        sources.append("other test examples")
    words = (
        f"p is the probability that chance alone ({' and '.join(sources)}) shows a difference "
        f"this large between two systems that are equally good. "
    )
    if len(gaps) > 1:
        words += (
            f"Many comparisons find something by chance, so p is corrected for {len(gaps)} pairs "
            f"(Holm's method); the interval is not. "
        )
    words += "Systems differ if it is below 0.05; “not decided” does not mean “equal”."
    if len(sources) == 1:
        words += (
            f" What other test examples would change is not known for {outcome.metric_name}: this "
            f"holds for these examples."
        )
    if any(len(system.scores) == 1 for system in outcome.systems):
        words += " A system with one seed is taken to vary between seeds as much as the other does."
    return words


def pairs(outcome: Outcome) -> Table | None:
    """Every system against every other one, if that tells more than the table of differences."""
    is_new = any(
        pair.differs for pair in outcome.pairs if outcome.best.name not in (pair.a, pair.b)
    )
    if not is_new or len(outcome.systems) > MOST_COMPARED:
        return None
    rows = []
    for number, system in enumerate(outcome.ranking, 1):
        cells = [
            "" if system is other else _sign(outcome, system, other) for other in outcome.ranking
        ]
        rows.append([f"{number}. {system.name}", *cells])
    columns = ["system", *(str(number) for number in range(1, len(rows) + 1))]
    note = (
        "Read a row from left to right: + this system is better than the one with that number, "
        "− it is worse, ? not decided."
    )
    return Table("Every pair", columns, rows, note)


def _sign(outcome: Outcome, system: SystemOutcome, other: SystemOutcome) -> str:
    pair: PairOutcome = outcome.pair(system.name, other.name)
    if not pair.differs:
        return "?"
    return "+" if outcome.sign * pair.difference.difference > 0 else "−"


def lengths(outcome: Outcome) -> Table | None:
    """The score by length of the source."""
    unit, bins, counts, scores = outcome.by_length
    if not bins:
        return None
    metric = outcome.length_metric
    rows = [
        [system.name, *(_or_dash(outcome, value, metric) for value in scores[system.name])]
        for system in outcome.ranking
    ]
    rows.append(["test examples", *(f"{count:,}" for count in counts)])
    title = f"{METRICS[metric]} by length of the source"
    columns = ["system", *(f"{one} {unit}" for one in bins)]
    has_gaps = any(value is None for values in scores.values() for value in values)
    note = ""
    if has_gaps and metric == "bleu":
        note = "–: BLEU says nothing about texts with fewer than four tokens."
    return Table(title, columns, rows, note)


def settings(outcome: Outcome) -> Table:
    """The settings in which the systems differ. Whatever there is less of goes across."""
    names = [system.name for system in outcome.systems]
    known = dict(list(outcome.differing.items())[:MOST_SETTINGS])
    columns = [[_value(value) for value in values] for values in known.values()]
    title = "The settings that differ"
    left = len(outcome.differing) - len(known)
    note = f"{counted(left, 'more setting')} not shown; report.json has all." if left else ""
    if len(names) < len(known):
        rows = [[name, *values] for name, values in zip(known, columns)]
        return Table(title, ["setting", *names], rows, note)
    rows = [[name, *values] for name, values in zip(names, zip(*columns))]
    return Table(title, ["system", *known], rows, note)


def _value(value: Any) -> str:
    """A setting as a file of settings would have it, on one line."""
    if value is None:
        return "–"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Mapping):
        return ", ".join(f"{name} = {_value(one)}" for name, one in value.items()) or "–"
    return str(value) or '""'


def machine(outcome: Outcome) -> Table:
    """Hardware, versions and signatures."""
    one = outcome.systems[0].scores[0]
    known = one.machine
    threads = counted(int(known["threads"]), "thread")
    paths = {
        str(system.scores[0].settings.get("data", {}).get("path")) for system in outcome.systems
    }
    rows = [
        ["data", ", ".join(sorted(paths))],
        ["processor", f"{known['processor']}, {known['system']}"],
        ["device", f"{one.device}, {threads} a run"],
        ["Regard", str(known["regard"])],
        ["PyTorch", str(known["torch"])],
        ["Python", str(known["python"])],
        ["the same for all systems", shown_budget(outcome) or "no budget was given"],
        ["scored on", f"{counted(one.examples, 'example')} of the {outcome.plan.split} set"],
    ]
    every = [one.signature for system in outcome.systems for one in system.scores]
    signatures = list(dict.fromkeys(signature for signature in every if signature))
    rows += [["sacreBLEU", signature] for signature in signatures]
    return Table("How it was measured", ["", ""], rows)


def exact_duration(seconds: float) -> str:
    """Seconds for a table, where near ones must not read the same: 75 s, 12.5 min, 3.25 h."""
    for unit, length in (("h", 3600), ("min", 60)):
        if seconds >= 5 * length:
            return f"{seconds / length:.3g} {unit}"
    return f"{seconds:.3g} s"


def shown_budget(outcome: Outcome) -> str:
    """What was the same for all systems: 600 training steps, 1,000,000 parameters."""
    words = []
    for name, value in outcome.plan.budget.items():
        noun = BUDGETS.get(name, name)
        if isinstance(value, str):
            words.append(f"as many {noun} as {value}")
        elif value is not None:
            words.append(f"{value:,.10g} {noun}")
    return ", ".join(words)
