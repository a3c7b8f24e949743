"""Learning curves of one run, or of several beside each other, from the records of `log.jsonl`."""

import math
from collections.abc import Mapping, Sequence
from os import PathLike
from typing import TYPE_CHECKING, Any

from regard.errors import UserError
from regard.pictures import COLOURS, MARKERS, blank, save, text_style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Records = Sequence[Mapping[str, Any]]
NAMES = {"loss": "loss per token", "accuracy": "token accuracy", "exact_match": "exact match", "bleu": "BLEU"}


def curves(runs: Mapping[str, Records], out: str | PathLike[str] | None = None) -> "Figure":
    """Loss on the left, accuracy or score on the right; dashed in training, solid on dev, a star at the best dev point.

    One run shows every score it has; several show the first that all have of BLEU, exact match and token accuracy.
    """
    if not any(runs.values()):
        raise UserError("no curve to draw: the log has no records yet")
    figure = blank(10, 4.2 + 0.1 * len(runs))
    left, right = figure.subplots(1, 2)
    if len(runs) == 1:
        _draw_one(left, right, next(iter(runs.values())))
        figure.suptitle(next(iter(runs)), fontsize=11, **text_style())
    else:
        _draw_several(left, right, runs)
    for axes in (left, right):
        _finish(axes)
    _legend(figure, left, right)
    return save(figure, out)


def _draw_one(left: "Axes", right: "Axes", records: Records) -> None:
    """Colour tells the score, dashes tell training from dev."""
    reached = []
    for axes, name, place in ((left, "loss", 0), (right, "accuracy", 0), (right, "exact_match", 1), (right, "bleu", 2)):
        scale, label = (100, "BLEU / 100") if name == "bleu" else (1, NAMES[name])  # one axis from 0 to 1
        if place == 0:
            _line(axes, _points(records, "train", name), place, "train", dashed=True)
        points = [(x, y / scale) for x, y in _points(records, "dev", name)]
        _line(axes, points, place, "dev" if place == 0 else f"dev {label}")
        _star(axes, points, name, place)
        if points and axes is left:
            x, y = _best(points, name)
            _caption(left, f"best dev loss {y:.4g} at step {x:,.0f}")
        elif points:
            reached.append(f"{NAMES[name]} {_best(points, name)[1] * scale:.3g}")
    left.set_ylabel(NAMES["loss"])
    right.set_ylabel("score" if len(reached) > 1 else NAMES["accuracy"])
    right.set_ylim(-0.02, 1.02)
    if reached:
        _caption(right, "best on dev: " + " · ".join(reached))


def _draw_several(left: "Axes", right: "Axes", runs: Mapping[str, Records]) -> None:
    """Colour and marker tell the run."""
    named = [name for name in ("bleu", "exact_match", "accuracy") if all(_points(r, "dev", name) for r in runs.values())]
    score = named[0] if named else "accuracy"
    for i, (run, records) in enumerate(runs.items()):
        for axes, name in ((left, "loss"), (right, score)):
            trained, points = _points(records, "train", name), _points(records, "dev", name)
            if axes is left or not points:
                _line(axes, trained, i, "" if points else run, dashed=True, faint=bool(points))
            _line(axes, points, i, run)
            _star(axes, points, name, i)
    _caption(left, "solid: dev · dashed: training · ★ best on dev")
    left.set_ylabel(NAMES["loss"])
    right.set_ylabel(f"{NAMES[score]} on dev" if named else NAMES[score])
    if score != "bleu":
        right.set_ylim(-0.02, 1.02)


def _points(records: Records, kind: str, name: str) -> list[tuple[float, float]]:
    """(step, value) of every record that has a finite one, by step."""
    found = ((r.get("step"), r.get(name)) for r in records if r.get("kind") == kind)
    return sorted((float(x), float(y)) for x, y in found if x is not None and y is not None and math.isfinite(y))


def _best(points: Sequence[tuple[float, float]], name: str) -> tuple[float, float]:
    return (min if name == "loss" else max)(points, key=lambda point: point[1])


def _line(
    axes: "Axes",
    points: Sequence[tuple[float, float]],
    place: int,
    label: str,
    *,
    dashed: bool = False,
    faint: bool = False,
) -> None:
    if not points:
        return
    # Ten markers at most, else they are all one sees; a single point needs one to be seen.
    few = len(points) == 1 or not dashed
    (line,) = axes.plot(
        *zip(*points),
        color=COLOURS[place % len(COLOURS)],
        linestyle=(0, (4, 2)) if dashed else "-",
        linewidth=1.0 if dashed else 1.8,
        alpha=0.4 if faint else 0.65 if dashed else 1.0,
        marker=MARKERS[place % len(MARKERS)] if few else "",
        markersize=4.5,
        markevery=max(1, len(points) // 10),
    )
    line.set_gid(label)  # not a label: matplotlib drops those that begin with "_", as a run's name may


def _star(axes: "Axes", points: Sequence[tuple[float, float]], name: str, place: int) -> None:
    if points:
        colour = COLOURS[place % len(COLOURS)]
        x, y = _best(points, name)
        axes.plot([x], [y], "*", markersize=13, markerfacecolor=colour, markeredgecolor="white", zorder=5)


def _caption(axes: "Axes", text: str) -> None:
    axes.set_title(text, fontsize=9, color="0.35")


def _finish(axes: "Axes") -> None:
    axes.set_xlabel("step")
    axes.xaxis.set_major_formatter(lambda x, _: f"{x:,.0f}" if x == round(x) else "")
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    axes.margins(x=0.03)


def _legend(figure: "Figure", left: "Axes", right: "Axes") -> None:
    """One legend below both panels, so that it never hides a point."""
    lines: dict[str, Any] = {}
    for line in (*left.get_lines(), *right.get_lines()):
        name = line.get_gid()
        if name:
            lines.setdefault(name, line)
    names = [name if len(name) <= 60 else name[:59] + "…" for name in lines]
    columns = max(1, min(4, 130 // (max(map(len, names), default=0) + 8)))  # some 130 letters fit the width
    legend = figure.legend(
        lines.values(), names, loc="outside lower center", ncols=columns, frameon=False, fontsize=9, handlelength=3
    )
    for text in legend.get_texts():
        text.set(**text_style())
