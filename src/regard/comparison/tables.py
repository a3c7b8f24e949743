"""The tables of a report, as rows of text."""

from collections.abc import Sequence
from dataclasses import dataclass

from regard.comparison.experiment import METRICS
from regard.comparison.outcome import Outcome
from regard.training.forecast import duration

MOST_SETTINGS = 40


@dataclass(frozen=True)
class Table:
    """A table of a report."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""


def results(outcome: Outcome) -> Table:
    """One row for each system: its scores, and what they cost."""
    columns = ["system", *(METRICS.get(name, name) for name in outcome.columns)]
    columns += ["parameters", "training", "tokens/s", "decoding, tokens/s"]
    has_decoding = any(system.decoding for system in outcome.systems)
    if not has_decoding:
        columns.pop()
    rows = []
    for system in outcome.systems:
        scores = [
            outcome.shown_spread(system.spread(name), name)
            if name == outcome.metric
            else outcome.shown(system.spread(name).mean, name)
            for name in outcome.columns
        ]
        row = [system.name, *scores, f"{system.mean('parameters'):,.0f}"]
        row += [duration(system.mean("seconds")), f"{system.tokens_per_second:,.0f}"]
        if has_decoding:
            row.append(f"{system.decoding:,.0f}" if system.decoding else "")
        rows.append(row)
    seeds = len(outcome.systems[0].scores)
    note = f"Means of {seeds} seeds; ± is the 95 % confidence interval (Student's t)."
    if seeds == 1:
        note = "One seed: how much is chance is not known."
    return Table("Results", columns, rows, note)


def seeds(outcome: Outcome) -> Table:
    """The score of every seed."""
    every = sorted({one.seed for system in outcome.systems for one in system.scores})
    rows = []
    for system in outcome.systems:
        by_seed = {one.seed: one.values[outcome.metric] for one in system.scores}
        known = system.spread(outcome.metric)
        deviation = "" if known.deviation is None else outcome.shown(known.deviation)
        cells = [
            outcome.shown(value) if (value := by_seed.get(seed)) is not None else ""
            for seed in every
        ]
        rows.append([system.name, *cells, deviation])
    columns = ["system", *(f"seed {seed}" for seed in every), "deviation"]
    return Table(f"{outcome.metric_name} by seed", columns, rows)


def differences(outcome: Outcome) -> Table:
    """How the best system compares with every other one."""
    rows = []
    for other in outcome.ranking[1:]:
        pair = outcome.pair(outcome.best.name, other.name)
        gap = pair.difference
        interval = f"{outcome.shown(gap.low)} to {outcome.shown(gap.high)}"
        rows.append(
            [
                f"{outcome.best.name} − {other.name}",
                outcome.shown(gap.difference),
                interval,
                f"{gap.p:.3f}",
                f"{pair.p:.3f}",
                "yes" if pair.differs else "not decided",
            ]
        )
    columns = ["difference", outcome.metric_name, "95 % interval", "p", "p (Holm)", "differ?"]
    first = outcome.pairs[0].difference if outcome.pairs else None
    chance = "other seeds and other test examples"
    if first is not None and not first.knows_examples:
        chance = "other seeds"
    if first is not None and not first.knows_seeds:
        chance = "other test examples, but not other seeds"
    note = (
        f"p is how often chance alone shows such a difference; chance includes {chance}. Holm's "
        f"correction makes up for {len(outcome.pairs)} comparisons."
    )
    return Table("Which systems differ", columns, rows, note)


def lengths(outcome: Outcome) -> Table | None:
    """The score by length of the source."""
    unit, bins, counts, scores = outcome.by_length
    if not bins:
        return None
    metric = outcome.length_metric
    rows = [
        [name, *("" if value is None else outcome.shown(value, metric) for value in values)]
        for name, values in scores.items()
    ]
    rows.append(["examples", *(f"{count:,}" for count in counts)])
    title = f"{METRICS[metric]} by length of the source, in {unit}"
    return Table(title, ["system", *map(str, bins)], rows)


def settings(outcome: Outcome) -> Table:
    """The settings in which the systems differ."""
    names = [system.name for system in outcome.systems]
    rows = [
        [name, *("–" if value is None else str(value) for value in values)]
        for name, values in list(outcome.differing.items())[:MOST_SETTINGS]
    ]
    return Table("The settings that differ", ["setting", *names], rows)


def machine(outcome: Outcome) -> Table:
    """Hardware, versions and signatures."""
    one = outcome.systems[0].scores[0]
    budget = {name: value for name, value in outcome.plan.budget.items() if value is not None}
    rows = [
        ["machine", f"{one.machine['processor']}, {one.machine['system']}"],
        ["device", f"{one.device}, {one.machine['threads']} threads a run"],
        ["Python, PyTorch, Regard", _versions(one.machine)],
        ["same for all", ", ".join(f"{name} {value}" for name, value in budget.items()) or "–"],
        ["scored on", f"{one.examples:,} examples of {outcome.plan.split}"],
    ]
    if one.signature:
        rows.append(["sacreBLEU", one.signature])
    return Table("How it was measured", ["", ""], rows)


def _versions(machine: object) -> str:
    assert isinstance(machine, dict)
    return f"{machine['python']}, {machine['torch']}, {machine['regard']}"
