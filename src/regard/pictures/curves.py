"""Learning curves of one run, or of several beside each other, from the records of `log.jsonl`."""

import math
from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

from regard.errors import UserError
from regard.pictures import COLOURS, MARKERS, Axes, Figure, Place, blank, save, text_style

Records = Sequence[Mapping[str, Any]]
SCORES = {"bleu": "BLEU / 100", "exact_match": "exact match", "accuracy": "token accuracy"}  # all from 0 to 1
NAMES = {"loss": "loss per token", **SCORES}
STYLES: dict[str, dict[str, Any]] = {
    "train": {"linestyle": "--", "linewidth": 1.0, "markersize": 3.0, "alpha": 0.5},
    "dev": {"linestyle": "-", "linewidth": 1.8, "markersize": 4.5},
}


def curves(runs: Mapping[str, Records], out: Place = None) -> Figure:
    """Loss on the left, scores on the right; dashed in training, solid on dev, a star and its value at the best on dev.

    One run shows every score it has; several show the first that all have of BLEU, exact match and token accuracy.
    """
    if not any(runs.values()):
        raise UserError("no curve to draw: the log has no records yet")
    alone = len(runs) == 1
    figure = blank(10, 4.4 + 0.15 * len(runs), next(iter(runs)) if alone else "")
    scores = [name for name in SCORES if all(_points(records, "dev", name) for records in runs.values())] or ["accuracy"]
    keys = ["loss", *scores] if alone else list(runs)  # what colours and markers tell apart
    looks = {key: {"color": COLOURS[i % len(COLOURS)], "marker": MARKERS[i % len(MARKERS)]} for i, key in enumerate(keys)}
    best: dict[str, list[str]] = {key: [] for key in keys}
    for axes, names in zip(figure.subplots(1, 2), (["loss"], scores if alone else scores[:1])):
        for run, name in product(runs, names):
            key = name if alone else run
            best[key].append(_draw(axes, runs[run], name, looks[key]))
        axes.set(xlabel="step", ylabel=NAMES[names[0]] if len(names) == 1 else "score")
        axes.xaxis.set_major_formatter(lambda x, _: f"{x:,.0f}" if x == round(x) else "")
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    texts = [("" if alone else f"{key:.60}: ") + ", ".join(its) for key, its in best.items()]
    columns = max(1, min(4, 130 // (max(map(len, texts)) + 8)))  # some 130 letters fit the width
    handles = [figure.axes[0].plot([], [], color=look["color"], marker=look["marker"])[0] for look in looks.values()]
    legend = figure.legend(handles, texts, loc="outside lower center", ncols=columns, frameon=False, fontsize=9)
    legend.set_title("dashed: training · solid: dev · ★ best on dev")
    for text in legend.get_texts():
        text.set(**text_style())
    return save(figure, out)


def _points(records: Records, kind: str, name: str) -> list[tuple[float, float]]:
    """(step, value) of every record that has a finite one, by step."""
    found = [(r.get("step"), r.get(name)) for r in records if r.get("kind") == kind]
    scale = 100 if name == "bleu" else 1
    return sorted((float(x), y / scale) for x, y in found if x is not None and y is not None and math.isfinite(y))


def _draw(axes: Axes, records: Records, name: str, look: Mapping[str, Any]) -> str:
    """One score of one run; says what it was at its best."""
    for kind, style in STYLES.items():
        points = _points(records, kind, name)
        if points:  # ten markers, else they are all one sees
            axes.plot(*zip(*points), markevery=max(1, len(points) // 10), **look, **style)
    if not points:
        return NAMES[name]
    x, y = (min if name == "loss" else max)(points, key=lambda point: point[1])
    axes.plot([x], [y], "*", markersize=13, markerfacecolor=look["color"], markeredgecolor="white", zorder=5)
    return f"{NAMES[name]} {y:.4g} at step {x:,.0f}"
