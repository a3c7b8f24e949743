"""Attention as heatmaps: rows are the tokens that look, columns the tokens looked at."""

import math
from collections.abc import Sequence
from os import PathLike
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from regard.errors import UserError
from regard.pictures import blank, save, shown, text_style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LARGEST = 9.0  # points; label size where cells leave room for it
SMALLEST = 4.5  # points; below it only every second, third … label is written


def heatmap(
    weights: ArrayLike,
    rows: Sequence[str],
    columns: Sequence[str],
    *,
    title: str = "",
    out: str | PathLike[str] | None = None,
) -> "Figure":
    """One matrix of attention (T, S): target tokens down, source tokens across, one colour scale from 0 to 1."""
    matrix = _checked(weights, 2, rows, columns)
    cell = min(0.42, max(0.2, 5 / max(matrix.shape)), 24 / max(matrix.shape))  # inches
    labels = [0.075 * max((len(shown(token)) for token in tokens), default=1) for tokens in (rows, columns)]
    width, height = len(columns) * cell + labels[0] + 1.1, len(rows) * cell + labels[1] + (0.6 if title else 0.3)
    figure = blank(max(width, 2.6), max(height, 1.8), "compressed")
    axes = figure.add_subplot()
    image = _draw(axes, matrix)
    _name_rows(axes, rows, cell)
    _name_columns(axes, columns, cell)
    axes.xaxis.tick_top()
    if title:
        figure.suptitle(title, fontsize=11, **text_style())
    _colour_bar(figure, image, axes, length=len(rows) * cell)
    return save(figure, out)


def head_grid(
    weights: ArrayLike,
    rows: Sequence[str],
    columns: Sequence[str],
    *,
    title: str = "",
    out: str | PathLike[str] | None = None,
) -> "Figure":
    """Every head (L, H, T, S) as a small heatmap: a row of them for each layer, one colour scale from 0 to 1."""
    grid = _checked(weights, 4, rows, columns)
    layers, heads = grid.shape[:2]
    cell = min(0.22, max(0.11, 1.8 / max(grid.shape[2:])), 5 / max(grid.shape[2:]))  # inches
    labels = [0.06 * max((len(shown(token)) for token in tokens), default=1) for tokens in (rows, columns)]
    width = heads * (max(len(columns) * cell, 0.9) + 0.12) + labels[0] + 1.0
    height = layers * (len(rows) * cell + 0.35) + labels[1] + (0.5 if title else 0.2)
    figure = blank(max(width, 2.6), max(height, 1.8), "compressed")
    panels = figure.subplots(layers, heads, squeeze=False)
    for (layer, head), axes in np.ndenumerate(panels):
        image = _draw(axes, grid[layer, head])
        axes.set_title(f"layer {layer + 1} · head {head + 1}", fontsize=7.5, pad=3)
        _name_rows(axes, rows if head == 0 else [], cell)
        _name_columns(axes, columns if layer == layers - 1 else [], cell)
    if title:
        figure.suptitle(title, fontsize=11, **text_style())
    _colour_bar(figure, image, panels, length=layers * (len(rows) * cell + 0.3))
    return save(figure, out)


def _checked(weights: ArrayLike, dimensions: int, rows: Sequence[str], columns: Sequence[str]) -> np.ndarray:
    matrix = np.asarray(weights, dtype=np.float64)
    expected = (len(rows), len(columns))
    if matrix.ndim != dimensions or matrix.shape[-2:] != expected:
        raise UserError(f"attention of shape {matrix.shape} does not fit {expected[0]} rows and {expected[1]} columns")
    if 0 in matrix.shape:
        raise UserError(f"attention of shape {matrix.shape} is empty: nothing to draw")
    return matrix


def _draw(axes: "Axes", matrix: np.ndarray) -> Any:
    for spine in axes.spines.values():
        spine.set_visible(False)
    return axes.imshow(matrix, vmin=0, vmax=1, cmap="viridis", interpolation="nearest")


def _label_size(cell: float) -> tuple[float, int]:
    """Points of a label that fits a cell of that many inches, and how many cells one label takes."""
    fitting = cell * 72 * 0.72
    every = max(1, math.ceil(SMALLEST / fitting))
    return min(LARGEST, fitting * every), every


def _name_rows(axes: "Axes", tokens: Sequence[str], cell: float) -> None:
    size, every = _label_size(cell)
    places = range(0, len(tokens), every)
    axes.set_yticks(places, [shown(tokens[i]) for i in places], fontsize=size, **text_style())
    axes.tick_params(axis="y", length=2, pad=2)


def _name_columns(axes: "Axes", tokens: Sequence[str], cell: float) -> None:
    size, every = _label_size(cell)
    places = range(0, len(tokens), every)
    names = [shown(tokens[i]) for i in places]
    fits_flat = max(map(len, names), default=0) * size * 0.75 < cell * 72 * every
    axes.set_xticks(places, names, fontsize=size, rotation=0 if fits_flat else 90, **text_style())
    axes.tick_params(axis="x", length=2, pad=2)


def _colour_bar(figure: "Figure", image: Any, axes: Any, *, length: float) -> None:
    # As long as the picture is high, but no longer than 3.5 inches: a tall one needs no tall bar.
    bar = figure.colorbar(image, ax=axes, ticks=[0, 0.5, 1], shrink=min(1.0, 3.5 / length), aspect=18, pad=0.02)
    bar.set_label("attention weight", fontsize=8)
    bar.ax.tick_params(labelsize=8, length=2)
    bar.outline.set_visible(False)
