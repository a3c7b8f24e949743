"""Attention as heatmaps: rows are the tokens that look, columns the tokens looked at (`regard.pictures.sides` names them)."""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from regard.errors import UserError
from regard.pictures import Axis, Figure, Place, blank, save, shown, text_style

LARGEST = 9.0  # points; label size where cells leave room for it
SMALLEST = 4.5  # points; below it only every second, third … label is written


def heatmap(weights: ArrayLike, rows: Sequence[str], columns: Sequence[str], *, title: str = "", out: Place = None) -> Figure:
    """One matrix of attention (T, S): the tokens that look down, those looked at across, one colour scale from 0 to 1."""
    count = max(len(rows), len(columns), 1)
    figure = _panels(np.asarray(weights)[None, None], rows, columns, min(0.42, max(0.2, 5 / count), 24 / count), title)
    figure.axes[0].xaxis.tick_top()
    return save(figure, out)


def head_grid(weights: ArrayLike, rows: Sequence[str], columns: Sequence[str], *, title: str = "", out: Place = None) -> Figure:
    """Every head (L, H, T, S) as a small heatmap: a row of them for each layer, one colour scale from 0 to 1."""
    count = max(len(rows), len(columns), 1)
    return save(_panels(np.asarray(weights), rows, columns, min(0.22, max(0.11, 1.8 / count), 5 / count), title), out)


def _panels(grid: np.ndarray, rows: Sequence[str], columns: Sequence[str], cell: float, title: str) -> Figure:
    """A panel for each matrix of `grid` (L, H, T, S), with cells of so many inches; tokens on the left and below."""
    if grid.ndim != 4 or grid.shape[2:] != (len(rows), len(columns)) or 0 in grid.shape:
        raise UserError(f"attention of shape {grid.shape}, expected (layers, heads, {len(rows)}, {len(columns)}), none of them 0")
    layers, heads = grid.shape[:2]
    left, below = (0.07 * max(len(shown(token)) for token in tokens) for tokens in (rows, columns))
    width = heads * (max(len(columns) * cell, 0.9) + 0.12) + left + 1.0
    height = layers * (len(rows) * cell + 0.35) + below + (0.5 if title else 0.2)
    figure = blank(max(width, 2.6), max(height, 1.8), title)
    panels = figure.subplots(layers, heads, squeeze=False)
    for (layer, head), axes in np.ndenumerate(panels):
        image = axes.imshow(grid[layer, head], vmin=0, vmax=1, cmap="viridis", interpolation="nearest")
        axes.spines[:].set_visible(False)
        if layers * heads > 1:
            axes.set_title(f"layer {layer + 1} · head {head + 1}", fontsize=7.5, pad=3)
        _name(axes.yaxis, rows if head == 0 else [], cell)
        _name(axes.xaxis, columns if layer == layers - 1 else [], cell, turn=True)
    # As long as the picture is high, but no longer than 3.5 inches: a tall one needs no tall bar.
    shrink = min(1.0, 3.5 / (layers * (len(rows) * cell + 0.3)))
    bar = figure.colorbar(image, ax=panels, ticks=[0, 0.5, 1], shrink=shrink, aspect=18, pad=0.02)
    bar.set_label("attention weight", fontsize=8)
    bar.ax.tick_params(labelsize=8, length=2)
    bar.outline.set_visible(False)
    return figure


def _name(axis: Axis, tokens: Sequence[str], cell: float, *, turn: bool = False) -> None:
    """Write the tokens along an axis of cells of so many inches, as large as fits; `turn` them where one is too long."""
    fitting = cell * 72 * 0.72  # points
    every = max(1, math.ceil(SMALLEST / fitting))
    size, places = min(LARGEST, fitting * every), range(0, len(tokens), every)
    names = [shown(tokens[i]) for i in places]
    turn = turn and max(map(len, names), default=0) * size * 0.75 >= cell * 72 * every
    axis.set_ticks(places, names, fontsize=size, rotation=90 if turn else 0, **text_style())
    axis.set_tick_params(length=2, pad=2)
