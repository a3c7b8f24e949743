"""Curves: of learning, of one run or several, from the records of `log.jsonl`; of gradients against
distance.
"""

import math
from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

from regard.errors import UserError
from regard.pictures import COLOURS, MARKERS, Axes, Figure, Place, blank, save, text_style

Records = Sequence[Mapping[str, Any]]
SCORES = {
    "bleu": "BLEU / 100",
    "exact_match": "exact match",
    "accuracy": "token accuracy",
}  # all from 0 to 1
NAMES = {"loss": "loss per token", **SCORES}
STYLES: dict[str, dict[str, Any]] = {
    "train": {"linestyle": "--", "linewidth": 1.0, "markersize": 3.0, "alpha": 0.5},
    "dev": {"linestyle": "-", "linewidth": 1.8, "markersize": 4.5},
}


def curves(runs: Mapping[str, Records], out: Place = None) -> Figure:
    """Loss on the left, scores on the right; dashed in training, solid on dev, a star and its value
    at the best on dev.

    One run shows every score it has; several show the first that all have of BLEU, exact match and
    token accuracy.
    """
    if not any(runs.values()):
        raise UserError("no curve to draw: the log has no records yet")
    alone = len(runs) == 1
    figure = blank(10, 4.4 + 0.15 * len(runs), next(iter(runs)) if alone else "")
    scores = [
        name for name in SCORES if all(_points(records, "dev", name) for records in runs.values())
    ] or ["accuracy"]
    keys = ["loss", *scores] if alone else list(runs)  # what colours and markers tell apart
    looks = {
        key: {"color": COLOURS[i % len(COLOURS)], "marker": MARKERS[i % len(MARKERS)]}
        for i, key in enumerate(keys)
    }
    best: dict[str, list[str]] = {key: [] for key in keys}
    for axes, names in zip(figure.subplots(1, 2), (["loss"], scores if alone else scores[:1])):
        for run, name in product(runs, names):
            key = name if alone else run
            best[key].append(_draw(axes, runs[run], name, looks[key]))
        axes.set(xlabel="step", ylabel=NAMES[names[0]] if len(names) == 1 else "score")
        axes.xaxis.set_major_formatter(lambda x, _: f"{x:,.0f}" if x == round(x) else "")
    texts = [("" if alone else f"{key:.60}: ") + ", ".join(its) for key, its in best.items()]
    columns = max(1, min(4, 130 // (max(map(len, texts)) + 8)))  # some 130 letters fit the width
    handles = [
        figure.axes[0].plot([], [], color=look["color"], marker=look["marker"])[0]
        for look in looks.values()
    ]
    legend = figure.legend(
        handles, texts, loc="outside lower center", ncols=columns, frameon=False, fontsize=9
    )
    legend.set_title("dashed: training · solid: dev · ★ best on dev")
    return _finished(figure, out)


def gradients(
    flows: Mapping[str, Any], *, title: str = "", answer: int = 0, out: Place = None
) -> Figure:
    """How far back a prediction reaches: for each model the norm of the gradient (N,) at the
    distances 0, 1, 2 …, logarithmic.

    answer: how many of the nearest tokens belong to the answer; those behind them are the source.
    """
    figure = blank(7.5, 4.6, title)
    axes = figure.subplots()
    for i, (name, flow) in enumerate(flows.items()):
        look = {
            "color": COLOURS[i % 7],
            "marker": MARKERS[i % 8],
            "linestyle": ("-", "--", "-.", ":")[i % 4],
            "linewidth": 1.8,
        }
        axes.semilogy(
            flow, **look, markersize=5, markevery=max(1, len(flow) // 10), label=f"{name:.40}"
        )
    if answer:
        axes.axvline(answer - 0.5, color="black", linewidth=0.8)
        for word, side in (("← the answer  ", "right"), ("  the source →", "left")):
            axes.text(
                answer - 0.5, 1.01, word, ha=side, fontsize=8, transform=axes.get_xaxis_transform()
            )
    axes.set(
        xlabel="tokens back from the one that is predicted",
        ylabel="norm of the gradient (nearest = 1)",
    )
    figure.legend(
        loc="outside lower center",
        ncols=min(3, len(flows)),
        frameon=False,
        fontsize=9,
        handlelength=4,
    )
    return _finished(figure, out)


def _finished(figure: Figure, out: Place) -> Figure:
    for axes in figure.axes:
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    for text in figure.legends[0].get_texts():
        text.set(**text_style())
    return save(figure, out)


def _points(records: Records, kind: str, name: str) -> list[tuple[float, float]]:
    """(step, value) of every record that has a finite one, by step."""
    found = [(r.get("step"), r.get(name)) for r in records if r.get("kind") == kind]
    scale = 100 if name == "bleu" else 1
    return sorted(
        (float(x), y / scale)
        for x, y in found
        if x is not None and y is not None and math.isfinite(y)
    )


def _draw(axes: Axes, records: Records, name: str, look: Mapping[str, Any]) -> str:
    """One score of one run; says what it was at its best."""
    for kind, style in STYLES.items():
        points = _points(records, kind, name)
        if points:  # ten markers, else they are all one sees
            axes.plot(*zip(*points), markevery=max(1, len(points) // 10), **look, **style)
    if not points:
        return NAMES[name]
    x, y = (min if name == "loss" else max)(points, key=lambda point: point[1])
    axes.plot(
        [x],
        [y],
        "*",
        markersize=13,
        markerfacecolor=look["color"],
        markeredgecolor="white",
        zorder=5,
    )
    return f"{NAMES[name]} {y:.4g} at step {x:,.0f}"
