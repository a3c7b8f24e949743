"""Learning curves of runs, from the records of `log.jsonl`."""

import math
from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

from regard.errors import UserError
from regard.pictures import COLOURS, MARKERS, Axes, Figure, Place, blank, save_figure, text_style

Records = Sequence[Mapping[str, Any]]
Points = list[tuple[float, float]]

# All from 0 to 1.
SCORES = {"bleu": "BLEU / 100", "exact_match": "exact match", "accuracy": "token accuracy"}
NAMES = {"loss": "loss per token", **SCORES}
STYLES: dict[str, dict[str, Any]] = {
    "train": {"linestyle": "--", "linewidth": 1.0, "markersize": 3.0, "alpha": 0.5},
    "dev": {"linestyle": "-", "linewidth": 1.8, "markersize": 4.5},
}
LEGEND_WIDTH = 130  # letters that fit below the figure


def curves(runs: Mapping[str, Records], out: Place = None) -> Figure:
    """Draw learning curves of runs: loss on the left, scores on the right.

    They are dashed in training and solid on dev. A star marks the best on dev, and the legend tells
    its value. One run shows every score it has; several show the first that all have of BLEU, exact
    match and token accuracy.
    """
    if not any(runs.values()):
        raise UserError("no curve to draw: the log has no records yet")

    alone = len(runs) == 1
    scores = _common_scores(runs)
    if not alone:
        scores = scores[:1]

    # Colours and markers tell the curves of one run apart, or else the runs.
    keys = ["loss", *scores] if alone else list(runs)
    looks = {key: _look(number) for number, key in enumerate(keys)}
    best: dict[str, list[str]] = {key: [] for key in keys}

    figure = blank(10, 4.4 + 0.15 * len(runs), next(iter(runs)) if alone else "")
    left, right = figure.subplots(1, 2)
    for axes, names in ((left, ["loss"]), (right, scores)):
        for run, name in product(runs, names):
            key = name if alone else run
            best[key].append(_draw(axes, runs[run], name, looks[key]))
        axes.set(xlabel="step", ylabel=NAMES[names[0]] if len(names) == 1 else "score")
        axes.xaxis.set_major_formatter(lambda x, _: f"{x:,.0f}" if x == round(x) else "")

    texts = []
    for key, values in best.items():
        prefix = "" if alone else f"{key:.60}: "
        texts.append(prefix + ", ".join(values))
    _draw_legend(figure, list(looks.values()), texts)
    return _finished(figure, out)


def _common_scores(runs: Mapping[str, Records]) -> list[str]:
    """The scores that every run has on dev; token accuracy if there is none."""
    scores = [
        name for name in SCORES if all(_points(records, "dev", name) for records in runs.values())
    ]
    return scores or ["accuracy"]


def _look(number: int) -> dict[str, Any]:
    """Colour and marker of the curve with this number."""
    return {"color": COLOURS[number % len(COLOURS)], "marker": MARKERS[number % len(MARKERS)]}


def _marker_distance(points: Sequence[Any]) -> int:
    """Points from one marker to the next: some ten markers, else they are all one sees."""
    return max(1, len(points) // 10)


def _points(records: Records, kind: str, name: str) -> Points:
    """Step and value of every record that has a finite one, by step."""
    scale = 100 if name == "bleu" else 1
    points = []
    for record in records:
        step = record.get("step")
        value = record.get(name)
        if record.get("kind") != kind or step is None or value is None:
            continue
        if math.isfinite(value):
            points.append((float(step), value / scale))
    return sorted(points)


def _draw(axes: Axes, records: Records, name: str, look: Mapping[str, Any]) -> str:
    """Draw the loss or one score of a run, and say what it was at its best."""
    for kind, style in STYLES.items():
        points = _points(records, kind, name)
        if points:
            axes.plot(*zip(*points), markevery=_marker_distance(points), **look, **style)

    dev_points = _points(records, "dev", name)
    if not dev_points:
        return NAMES[name]
    best_of = min if name == "loss" else max
    step, value = best_of(dev_points, key=lambda point: point[1])
    axes.plot(
        [step],
        [value],
        "*",
        markersize=13,
        markerfacecolor=look["color"],
        markeredgecolor="white",
        zorder=5,
    )
    return f"{NAMES[name]} {value:.4g} at step {step:,.0f}"


def _draw_legend(figure: Figure, looks: Sequence[Mapping[str, Any]], texts: Sequence[str]) -> None:
    """Explain the curves below the figure, in as many columns as fit."""
    columns = max(1, min(4, LEGEND_WIDTH // (max(map(len, texts)) + 8)))
    handles = [figure.axes[0].plot([], [], **look)[0] for look in looks]
    legend = figure.legend(
        handles, texts, loc="outside lower center", ncols=columns, frameon=False, fontsize=9
    )
    legend.set_title("dashed: training · solid: dev · ★ best on dev")


def _finished(figure: Figure, out: Place) -> Figure:
    """Add what all curves share, and save the figure."""
    for axes in figure.axes:
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    for text in figure.legends[0].get_texts():
        text.set(**text_style())
    return save_figure(figure, out)
