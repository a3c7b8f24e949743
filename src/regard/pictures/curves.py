"""Learning curves of runs, from the records of `log.jsonl`."""

import math
from collections.abc import Mapping, Sequence
from itertools import product
from statistics import median
from typing import Any, Literal

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
By = Literal["step", "epoch"]
"""What a curve is drawn against."""
LEGEND_WIDTH = 130  # letters that fit below the figure


def curves(runs: Mapping[str, Records], out: Place = None, *, by: By = "step") -> Figure:
    """Draw learning curves of runs: loss on the left, scores on the right.

    by: what the x axis counts, steps or epochs (passes over the training data).

    They are dashed in training and solid on dev. A star marks the best on dev, and the legend tells
    its value. One run shows every score it has; several show the first that all have of BLEU, exact
    match and token accuracy.
    """
    if not any(runs.values()):
        raise UserError("no curve to draw: the log has no records yet")

    if by not in ("step", "epoch"):
        raise UserError(f"by={by!r}: choose step or epoch")
    if by == "epoch":
        runs = {name: _with_epochs(name, records) for name, records in runs.items()}
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
            best[key].append(_draw(axes, runs[run], name, looks[key], by))
        axes.set(xlabel=by, ylabel=NAMES[names[0]] if len(names) == 1 else "score")
        if by == "step":  # of which there is no half
            axes.xaxis.set_major_formatter(lambda x, _: f"{x:,.0f}" if x == round(x) else "")

    texts = []
    for key, values in best.items():
        if not alone:
            values += _speed(runs[key])
        prefix = "" if alone else f"{key:.60}: "
        texts.append(prefix + ", ".join(values))
    notes = _speed(next(iter(runs.values()))) if alone else []
    _draw_legend(figure, list(looks.values()), texts, notes)
    return _finished(figure, out)


def _with_epochs(name: str, records: Records) -> Records:
    """The records that have a step, each with its epoch: an older version did not log it."""
    stepped = [record for record in records if record.get("step")]
    told = [record["epoch"] / record["step"] for record in stepped if "epoch" in record]
    if stepped and not told:
        raise UserError(
            f"{name}: its log has no epochs, since an older version wrote it; draw it by step"
        )
    return [{"epoch": record["step"] * told[0], **record} for record in stepped]


def _speed(records: Records) -> list[str]:
    """How many examples a second training read, as its log has them; nothing if it has none."""
    speeds = [
        record["examples_per_second"]
        for record in records
        if math.isfinite(record.get("examples_per_second", math.nan))
    ]
    return [f"{median(speeds):,.0f} examples/s"] if speeds else []


def _common_scores(runs: Mapping[str, Records]) -> list[str]:
    """The scores that every run has on dev; token accuracy if there is none."""
    scores = [
        name
        for name in SCORES
        if all(_points(records, "dev", name, "step") for records in runs.values())
    ]
    return scores or ["accuracy"]


def _look(number: int) -> dict[str, Any]:
    """Colour and marker of the curve with this number."""
    return {"color": COLOURS[number % len(COLOURS)], "marker": MARKERS[number % len(MARKERS)]}


def _marker_distance(points: Sequence[Any]) -> int:
    """Points from one marker to the next: some ten markers, else they are all one sees."""
    return max(1, len(points) // 10)


def _points(records: Records, kind: str, name: str, by: By) -> Points:
    """Step or epoch, and value, of every record that has a finite one, in order."""
    scale = 100 if name == "bleu" else 1
    points = []
    for record in records:
        place = record.get(by)
        value = record.get(name)
        if record.get("kind") != kind or place is None or value is None:
            continue
        if math.isfinite(value):
            points.append((float(place), value / scale))
    return sorted(points)


def _draw(axes: Axes, records: Records, name: str, look: Mapping[str, Any], by: By) -> str:
    """Draw the loss or one score of a run, and say what it was at its best."""
    for kind, style in STYLES.items():
        points = _points(records, kind, name, by)
        if points:
            axes.plot(*zip(*points), markevery=_marker_distance(points), **look, **style)

    dev_points = _points(records, "dev", name, by)
    if not dev_points:
        return NAMES[name]
    best_of = min if name == "loss" else max
    place, value = best_of(dev_points, key=lambda point: point[1])
    axes.plot(
        [place],
        [value],
        "*",
        markersize=13,
        markerfacecolor=look["color"],
        markeredgecolor="white",
        zorder=5,
    )
    where = f"step {place:,.0f}" if by == "step" else f"epoch {place:,.4g}"
    return f"{NAMES[name]} {value:.4g} at {where}"


def _draw_legend(
    figure: Figure,
    looks: Sequence[Mapping[str, Any]],
    texts: Sequence[str],
    notes: Sequence[str],
) -> None:
    """Explain the curves below the figure, in as many columns as fit; notes go into the title."""
    columns = max(1, min(4, LEGEND_WIDTH // (max(map(len, texts)) + 8)))
    handles = [figure.axes[0].plot([], [], **look)[0] for look in looks]
    legend = figure.legend(
        handles, texts, loc="outside lower center", ncols=columns, frameon=False, fontsize=9
    )
    legend.set_title(" · ".join(["dashed: training", "solid: dev", "★ best on dev", *notes]))


def _finished(figure: Figure, out: Place) -> Figure:
    """Add what all curves share, and save the figure."""
    for axes in figure.axes:
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    for text in figure.legends[0].get_texts():
        text.set(**text_style())
    return save_figure(figure, out)
