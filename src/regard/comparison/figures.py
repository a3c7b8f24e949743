"""The figures of a report: which values of an outcome are drawn, and what is said below them."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from regard.comparison.axes import (
    MANY_TIMES,
    Axis,
    axis,
    axis_of_names,
    axis_of_numbers,
    time_axis,
)
from regard.comparison.charts import Look, Point, Row, Series, chart, dot_plot
from regard.comparison.experiment import LOWER_IS_BETTER, METRICS, SHARES
from regard.comparison.outcome import Outcome, SystemOutcome
from regard.training.forecast import duration

THE_SAME = 0.03
"""Costs that differ by less than this share are the same, so there is nothing to draw."""
MOST_THIN = 8
"""Systems whose every seed is drawn as a thin line; with more, nobody could follow one."""
LOSSES = 3.0
"""Losses have a logarithmic scale from here on, since the end of a curve is what counts."""
FEWEST_NUMBERS = 3
"""Values of a setting that a chart is drawn against."""
FOLLOWING: Mapping[str, Sequence[str]] = {
    "parameters": ("model.width", "model.ffn", "model.embedding"),
    "tokens": ("train.steps", "train.epochs"),
    "minutes": ("train.steps", "train.epochs"),
}
"""Settings that follow from a budget, so that nobody asked about them."""
DEPTH = ("model.encoder_layers", "model.decoder_layers")
Curve = Sequence[tuple[int, float, float]]


@dataclass(frozen=True)
class Figure:
    """A chart with its caption."""

    title: str
    svg: str
    caption: str
    looks: Mapping[str, Look]
    """What its legend names."""
    has_lines: bool = False
    has_thin: bool = False
    """Whether thin lines are drawn behind the others."""


def titled(words: str) -> str:
    """The words as a title. Names such as chrF keep their first letter."""
    first = words.partition(" ")[0]
    return words[:1].upper() + words[1:] if first.islower() else words


def looks(outcome: Outcome) -> dict[str, Look]:
    """How each system is drawn: the same in every chart, and while other runs are missing."""
    places = {name: Look(number) for number, name in enumerate(outcome.plan.systems())}
    return {system.name: places[system.name] for system in outcome.systems}


def quality(outcome: Outcome) -> Figure:
    """The mean of every system, its interval and its seeds, the best first."""
    look_of = looks(outcome)
    rows = []
    values: list[float] = []
    for system in outcome.ranking:
        point = _quality(outcome, system, 0.0)
        seeds = []
        if len(system.scores) > 1:
            seeds = [
                (_plotted(outcome, one.values[outcome.metric]), f"{system.name}, seed {one.seed}")
                for one in system.scores
            ]
        score = outcome.shown_spread(system.spread(outcome.metric))
        look = look_of[system.name]
        rows.append(Row(system.name, look, score, point.y, point.low, point.high, seeds))
        values += [*_ends(point), *(value for value, _ in seeds)]

    across = axis(_axis_name(outcome.metric), values, limits=_limits(outcome.metric))
    title = titled(f"{outcome.metric_name} of every system")
    description = "; ".join(f"{row.name}: {row.score}" for row in rows)
    caption = ""
    if any(row.seeds for row in rows):
        caption = (
            "Large marks: means of the seeds. Lines: their 95 % confidence intervals. Small "
            "circles: the seeds, each a training of its own."
        )
    svg = dot_plot("quality", title, description, across, rows)
    return Figure(title, svg, caption, {})


# quality against what it costs


def costs(outcome: Outcome) -> list[Figure]:
    """Quality against training time, parameters and speed of decoding, where these differ."""
    times = [system.mean("seconds") for system in outcome.systems]
    parameters = [system.mean("parameters") for system in outcome.systems]
    speeds = [system.decoding for system in outcome.systems]
    figures = []
    if _differ(times):
        across, unit = time_axis("training time", times, log_from=MANY_TIMES)
        scaled = [value / unit for value in times]
        told = [f"trained for {duration(value)}" for value in times]
        figures.append(_against(outcome, "training time", across, scaled, told, "left"))
    if _differ(parameters):
        across = axis("parameters", parameters, limits=(0.0, math.inf), log_from=MANY_TIMES)
        told = [f"{value:,.0f} parameters" for value in parameters]
        figures.append(_against(outcome, "parameters", across, parameters, told, "left"))
    known = [speed for speed in speeds if speed is not None]
    if len(known) == len(speeds) and _differ(known):
        name = "tokens/s in decoding"
        across = axis(name, known, limits=(0.0, math.inf), log_from=MANY_TIMES)
        told = [f"{value:,.0f} tokens/s" for value in known]
        figures.append(_against(outcome, "decoding speed", across, known, told, "right"))
    return figures


def _differ(values: Sequence[float]) -> bool:
    """Whether costs differ enough for a chart."""
    return len(values) > 1 and max(values) - min(values) > THE_SAME * max(values)


def _against(
    outcome: Outcome,
    cost: str,
    across: Axis,
    places: Sequence[float],
    told: Sequence[str],
    cheap: str,
) -> Figure:
    """Quality against a cost of every system; told: that cost in words; cheap: left or right."""
    look_of = looks(outcome)
    series = []
    for system, place, words in zip(outcome.systems, places, told, strict=True):
        point = _quality(outcome, system, place, words)
        series.append(Series(system.name, look_of[system.name], [point]))
    up = _quality_axis(outcome, series)
    title = titled(f"{outcome.metric_name} against {cost}")
    description = "; ".join(one.points[0].words for one in series)
    key = f"against-{cost.replace(' ', '-')}"
    svg = chart(key, title, description, across, up, series, has_names=True)
    good = "bottom" if outcome.sign < 0 else "top"
    return Figure(title, svg, f"Better and cheaper is at the {good} {cheap}.", look_of)


# quality against a setting


@dataclass(frozen=True)
class _Numbers:
    """A setting that is a number, or several that go together, with its value in each system."""

    names: Sequence[str]
    label: str
    values: Sequence[float]


def settings(outcome: Outcome) -> list[Figure]:
    """Quality against every setting that takes several numbers, such as heads or depth."""
    return [_against_setting(outcome, numbers) for numbers in _numeric_settings(outcome)]


def _numeric_settings(outcome: Outcome) -> list[_Numbers]:
    """The settings that the experiment varies as numbers. Those with equal values are one."""
    numeric = {
        name: values
        for name, values in outcome.differing.items()
        if name not in _following(outcome) and all(_is_number(value) for value in values)
    }
    found = []
    if all(name in numeric for name in DEPTH):
        encoder = numeric.pop(DEPTH[0])
        decoder = numeric.pop(DEPTH[1])
        layers = [a + b for a, b in zip(encoder, decoder)]
        found.append(_Numbers(DEPTH, "layers of encoder and decoder together", layers))
        if encoder != decoder:
            found.append(_Numbers(DEPTH[:1], "layers of the encoder", encoder))
            found.append(_Numbers(DEPTH[1:], "layers of the decoder", decoder))

    together: dict[tuple[float, ...], list[str]] = {}
    for name, values in numeric.items():
        together.setdefault(tuple(values), []).append(name)
    for numbers, names in together.items():
        found.append(_Numbers(names, ", ".join(_told(name, numeric) for name in names), numbers))
    return [one for one in found if len(set(one.values)) >= FEWEST_NUMBERS]


def _following(outcome: Outcome) -> set[str]:
    """Settings that nobody chose, since they follow from a budget."""
    budget = outcome.plan.budget
    return {
        name for kind, names in FOLLOWING.items() if budget.get(kind) is not None for name in names
    }


def _told(name: str, others: Iterable[str]) -> str:
    """A setting for a person: its section, too, where another one has the same name there."""
    same = [other for other in others if _short(other) == _short(name)]
    return _short(name) if len(same) == 1 else name


def _is_number(value: Any) -> bool:
    is_plain = isinstance(value, int | float) and not isinstance(value, bool)
    return is_plain and math.isfinite(value)


def _short(name: str) -> str:
    """A setting without its section."""
    return name.rpartition(".")[2]


def _against_setting(outcome: Outcome, numbers: _Numbers) -> Figure:
    """Quality against a setting. Systems that differ in nothing else are joined by a line."""
    groups = _alike(outcome, numbers)
    has_lines = all(len({x for _, x in group}) == len(group) for group in groups.values())
    has_lines = has_lines and len(groups) < len(outcome.systems)
    if has_lines:
        series = [
            Series(name, Look(place), *_line(outcome, group))
            for place, (name, group) in enumerate(groups.items())
        ]
    else:
        look_of = looks(outcome)
        series = [
            Series(system.name, look_of[system.name], [_quality(outcome, system, value)])
            for system, value in zip(outcome.systems, numbers.values, strict=True)
        ]
    across = axis_of_numbers(numbers.label, numbers.values)
    up = _quality_axis(outcome, series)
    title = titled(f"{outcome.metric_name} against {numbers.label}")
    description = "; ".join(point.words for one in series for point in one.points)
    key = "setting-" + "-".join(numbers.names).replace(".", "-")
    svg = chart(key, title, description, across, up, series, has_names=not has_lines)
    named = {one.name: one.look for one in series} if len(series) > 1 else {}
    has_seeds = any(len(system.scores) > 1 for system in outcome.systems)
    caption = ""
    if has_lines and has_seeds:
        caption = "Marks: means, with their 95 % confidence intervals. Small circles: the seeds."
    return Figure(title, svg, caption, named, has_lines)


def _alike(outcome: Outcome, numbers: _Numbers) -> dict[str, list[tuple[SystemOutcome, float]]]:
    """The systems that differ in nothing but these numbers, under what they have in common."""
    not_chosen = {*numbers.names, *_following(outcome)}
    others = {name: values for name, values in outcome.differing.items() if name not in not_chosen}
    groups: dict[str, list[tuple[SystemOutcome, float]]] = {}
    for place, (system, value) in enumerate(zip(outcome.systems, numbers.values, strict=True)):
        shared = [f"{_short(name)} = {values[place]}" for name, values in others.items()]
        groups.setdefault(", ".join(shared), []).append((system, value))
    return groups


def _line(
    outcome: Outcome, group: Sequence[tuple[SystemOutcome, float]]
) -> tuple[list[Point], list[list[Point]], list[Point]]:
    """The points of a line, no thin lines, and the seeds as dots."""
    points = []
    dots = []
    for system, place in sorted(group, key=lambda pair: pair[1]):
        points.append(_quality(outcome, system, place))
        for one in system.scores:
            value = _plotted(outcome, one.values[outcome.metric])
            dots.append(Point(place, value, words=f"{system.name}, seed {one.seed}"))
    return points, [], dots


# learning curves


def curves(outcome: Outcome) -> list[Figure]:
    """Dev loss in the course of training: by steps, and by time where that tells more."""
    systems = [system for system in outcome.systems if _curves_of(system)]
    if not systems:
        return []
    figures = []
    if outcome.plan.budget.get("minutes") is None:
        last = max(curve[-1][0] for system in systems for curve in _curves_of(system))
        across = axis("training steps", [0.0, last], limits=(0.0, last))
        figures.append(_curve_figure(outcome, systems, "steps", across, column=0, unit=1.0))
    times = [system.mean("seconds") for system in systems]
    if not figures or _differ(times):
        last_second = max(curve[-1][1] for system in systems for curve in _curves_of(system))
        across, unit = time_axis("training time", [0.0, last_second])
        figures.append(_curve_figure(outcome, systems, "time", across, column=1, unit=unit))
    return figures


def _curves_of(system: SystemOutcome) -> list[Curve]:
    """The curves of the seeds that have one."""
    return [one.curve for one in system.scores if len(one.curve) > 1]


def _curve_figure(
    outcome: Outcome,
    systems: Sequence[SystemOutcome],
    words: str,
    across: Axis,
    *,
    column: int,
    unit: float,
) -> Figure:
    """Dev loss against the numbers in a column of the curves."""
    look_of = looks(outcome)
    series = []
    for system in systems:
        lines = [_points(curve, column, unit) for curve in _curves_of(system)]
        thin = lines if len(lines) > 1 and len(systems) <= MOST_THIN else []
        series.append(Series(system.name, look_of[system.name], _mean_line(lines), thin))
    losses = [point.y for one in series for line in (one.points, *one.thin) for point in line]
    up = axis("loss on the dev set (lower is better)", losses, log_from=LOSSES)
    title = f"Learning curves, by {words}"
    description = "; ".join(
        f"{one.name} ends at a loss of {one.points[-1].y:.3f}" for one in series if one.points
    )
    drawn = {system.name: look_of[system.name] for system in systems}
    svg = chart(f"curves-{words}", title, description, across, up, series)
    has_thin = any(one.thin for one in series)
    return Figure(title, svg, "", drawn, has_lines=True, has_thin=has_thin)


def _points(curve: Curve, column: int, unit: float) -> list[Point]:
    return [Point(float(entry[column]) / unit, float(entry[2])) for entry in curve]


def _mean_line(lines: Sequence[Sequence[Point]]) -> list[Point]:
    """The mean of several curves, from where all of them have begun to where the first one ends."""
    first = max(line[0].x for line in lines)
    last = min(line[-1].x for line in lines)
    places = sorted({point.x for line in lines for point in line if first <= point.x <= last})
    means = np.mean(
        [np.interp(places, [one.x for one in line], [one.y for one in line]) for line in lines], 0
    )
    return [Point(place, float(mean)) for place, mean in zip(places, means)]


# quality by length


def lengths(outcome: Outcome) -> Figure | None:
    """Quality by the length of the source."""
    unit, bins, _, scores = outcome.by_length
    if not bins:
        return None
    metric = outcome.length_metric
    look_of = looks(outcome)
    series = []
    for name, values in scores.items():
        points = [
            Point(place, math.nan if value is None else _scaled(metric, value))
            for place, value in enumerate(values)
        ]
        series.append(Series(name, look_of[name], points))
    across = axis_of_names(f"{unit} in the source", dict(enumerate(map(str, bins))))
    known = [point.y for one in series for point in one.points]
    up = axis(_axis_name(metric), known, limits=_limits(metric))
    title = titled(f"{METRICS[metric]} by length of the source")
    description = f"Mean of the seeds, for sources of {', '.join(map(str, bins))} {unit}."
    svg = chart("lengths", title, description, across, up, series)
    return Figure(title, svg, "", look_of, has_lines=True)


# values and their axes


def _quality(outcome: Outcome, system: SystemOutcome, place: float, words: str = "") -> Point:
    """The mean of a system with its interval, at a place of the other axis."""
    known = system.spread(outcome.metric)
    low = None if known.low is None else _plotted(outcome, known.low)
    high = None if known.high is None else _plotted(outcome, known.high)
    told = f"{system.name}: {outcome.metric_name} {outcome.shown_spread(known)}"
    if words:
        told += f", {words}"
    return Point(place, _plotted(outcome, known.mean), low, high, told)


def _plotted(outcome: Outcome, value: float | None) -> float:
    return math.nan if value is None else _scaled(outcome.metric, value)


def _scaled(metric: str, value: float) -> float:
    """Shares are drawn in per cent."""
    return 100 * value if metric in SHARES else value


def _limits(metric: str) -> tuple[float, float]:
    """What a metric cannot go beyond, as it is drawn."""
    return (0.0, math.inf) if metric in LOWER_IS_BETTER else (0.0, 100.0)


def _axis_name(metric: str) -> str:
    name = METRICS.get(metric, metric)
    unit = ", %" if metric in SHARES else ""
    better = "lower" if metric in LOWER_IS_BETTER else "higher"
    return f"{name}{unit} ({better} is better)"


def _quality_axis(outcome: Outcome, series: Sequence[Series]) -> Axis:
    values = [end for one in series for point in one.points for end in _ends(point)]
    values += [dot.y for one in series for dot in one.dots]
    return axis(_axis_name(outcome.metric), values, limits=_limits(outcome.metric))


def _ends(point: Point) -> list[float]:
    """The values that a point has to have room for."""
    return [value for value in (point.y, point.low, point.high) if value is not None]
