"""Gradients against distance, length or depth: curves on a logarithmic scale, panel by panel."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from regard.errors import UserError
from regard.pictures import COLOURS, MARKERS, Axes, Figure, Place, blank, save_figure, text_style

DASHES = ("-", "--", "-.", ":")
LOWEST = 1e-6
"""What is smaller has vanished: it is not drawn."""


@dataclass(frozen=True)
class Panel:
    """Curves of one panel; all values are above 0."""

    title: str
    curves: Mapping[str, ArrayLike]
    """By name: (N,) each."""
    xlabel: str
    ylabel: str
    x: ArrayLike | None = None
    """(N,); None: 0, 1, 2 …"""
    answer: int = 0
    """How many of the nearest tokens belong to the answer; those behind them are the source."""
    mark: float | None = None
    """A height to draw a line at."""


def gradients(panels: Sequence[Panel], *, title: str = "", out: Place = None) -> Figure:
    """Draw panels of gradients, up to three in a row."""
    if not panels or not all(panel.curves for panel in panels):
        raise UserError("no gradients to draw: pass at least one panel with a curve")

    across = min(3, len(panels))
    down = math.ceil(len(panels) / across)
    width = 7.5 if across == 1 else 5.2 * across
    figure = blank(width, 4.7 * down, title)
    grid = figure.subplots(down, across, squeeze=False)
    for axes, panel in zip(grid.flat, panels):
        _draw_panel(axes, panel)
    for axes in grid.flat[len(panels) :]:
        axes.remove()
    return save_figure(figure, out)


def _draw_panel(axes: Axes, panel: Panel) -> None:
    """Draw the curves of a panel, and explain them below it."""
    from matplotlib.ticker import MaxNLocator

    for number, (name, curve) in enumerate(panel.curves.items()):
        heights = np.asarray(curve, dtype=np.float64)  # (N,)
        axes.semilogy(
            np.arange(len(heights)) if panel.x is None else np.asarray(panel.x),
            heights,
            color=COLOURS[number % len(COLOURS)],
            marker=MARKERS[number % len(MARKERS)],
            linestyle=DASHES[number % len(DASHES)],
            linewidth=1.8,
            markersize=5,
            markevery=max(1, len(heights) // 10),
            label=f"{name:.48}",
        )
    low, high = axes.get_ylim()
    axes.set_ylim(max(LOWEST, min(low, 0.1)), max(high, 3))
    if panel.mark is not None:
        axes.axhline(panel.mark, color="#777777", linewidth=0.8, linestyle=":", zorder=0)
    if panel.answer:
        _draw_border(axes, panel.answer - 0.5)

    axes.set_title(panel.title, fontsize=9.5, pad=16 if panel.answer else 6, **text_style())
    axes.set(xlabel=panel.xlabel, ylabel=panel.ylabel)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))
    axes.minorticks_off()
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    legend = axes.legend(
        loc="upper center",
        bbox_to_anchor=(0.5, -0.16),
        ncols=2 if len(panel.curves) > 3 else 1,
        frameon=False,
        fontsize=8,
        handlelength=3.5,
    )
    for text in legend.get_texts():
        text.set(**text_style())


def _draw_border(axes: Axes, x: float) -> None:
    """Draw the border between the answer, on the left, and the source."""
    axes.axvline(x, color="black", linewidth=0.8)
    style: dict[str, Any] = {"fontsize": 8, "transform": axes.get_xaxis_transform()}
    axes.text(x, 1.01, "← the answer  ", ha="right", **style)
    axes.text(x, 1.01, "  the source →", ha="left", **style)
