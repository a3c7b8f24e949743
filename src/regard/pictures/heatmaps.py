"""Attention as heatmaps: rows are the tokens that look, columns the tokens looked at
(`AttentionRecord.sides` names them).
"""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from regard.errors import UserError
from regard.pictures import Axis, Figure, Place, blank, save, shown, text_style

LARGEST = 9.0  # points; label size where cells leave room for it
SMALLEST = 4.5  # points; below it only every second, third … label is written
Tokens = Sequence[str]


def heatmap(
    weights: ArrayLike,
    rows: Tokens,
    columns: Tokens,
    *,
    title: str = "",
    signed: bool = False,
    label: str = "",
    out: Place = None,
) -> Figure:
    """One matrix (T, S): the tokens that look down, those looked at across, one colour scale from 0
    to 1, or to the largest where none is above a half.

    signed: values of both signs, such as evidence, on a scale as wide as the largest; a dash marks
    those below 0, also in grey.
    """
    figure = _panels(np.asarray(weights)[None, None], rows, columns, title, (), signed, label)
    figure.axes[0].xaxis.tick_top()
    return save(figure, out)


def head_grid(
    weights: ArrayLike, rows: Tokens, columns: Tokens, *, title: str = "", out: Place = None
) -> Figure:
    """Every head (L, H, T, S) as a small heatmap: a row of them for each layer, one colour scale
    from 0 to 1.
    """
    grid = np.asarray(weights)
    names = [f"layer {layer + 1} · head {head + 1}" for layer, head in np.ndindex(grid.shape[:2])]
    return save(_panels(grid, rows, columns, title, names), out)


def growth(
    matrices: Sequence[tuple[int, ArrayLike]],
    rows: Tokens,
    columns: Tokens,
    *,
    title: str = "",
    out: Place = None,
) -> Figure:
    """The same matrix (T, S) after so many steps of training each: small heatmaps in the order
    given, at most five to a row.
    """
    down = math.ceil(len(matrices) / 5)
    across = math.ceil(len(matrices) / down)
    panels = [np.asarray(matrix) for _, matrix in matrices]
    panels += panels[:1] * (down * across - len(panels))  # without a name, so not drawn
    grid = np.stack(panels).reshape(down, across, *panels[0].shape)
    return save(
        _panels(grid, rows, columns, title, [f"step {step:,}" for step, _ in matrices]), out
    )


def _panels(
    grid: np.ndarray,
    rows: Tokens,
    columns: Tokens,
    title: str,
    names: Tokens = (),
    signed: bool = False,
    label: str = "",
) -> Figure:
    """A panel for each matrix of `grid` (L, H, T, S); with names: small, and only those that have
    one. Tokens left and below.
    """
    if grid.ndim != 4 or grid.shape[2:] != (len(rows), len(columns)) or 0 in grid.shape:
        raise UserError(
            f"attention of shape {grid.shape}, expected (layers, heads, {len(rows)}, "
            f"{len(columns)}), none of them 0"
        )
    down, across, *_ = grid.shape
    count = max(len(rows), len(columns))
    cell = (
        min(0.22, max(0.11, 1.8 / count), 5.25 / count)
        if names
        else min(0.42, max(0.2, 5 / count), 24 / count)
    )  # inches
    left, below = (0.07 * max(len(shown(token)) for token in tokens) for tokens in (rows, columns))
    width = across * (max(len(columns) * cell, 0.9) + 0.12) + left + 1.0
    tall, wide = down * (len(rows) * cell + 0.35), across * len(columns) * cell
    height = tall + below + (0.5 if title else 0.2) + (0.7 if tall < 1 else 0)
    figure = blank(max(width, 2.6), max(height, 1.8), title)
    panels = figure.subplots(down, across, squeeze=False)
    most = float(np.nanmax(np.abs(grid), initial=1e-30))
    reach = most if signed or most <= 0.5 else 1.0
    low, colours = (-reach, "RdBu_r") if signed else (0.0, "viridis")
    for number, ((y, x), axes) in enumerate(np.ndenumerate(panels)):
        if names and number >= len(names):
            axes.remove()
            continue
        image = axes.imshow(grid[y, x], vmin=low, vmax=reach, cmap=colours, interpolation="nearest")
        axes.spines[:].set_visible(False)
        axes.set_title(names[number] if names else "", fontsize=7.5, pad=3)
        if signed:
            places = np.argwhere(grid[y, x] < -reach / 20)[:, ::-1]
            inks = [
                "white" if grid[y, x][row, column] < -0.6 * reach else "black"
                for column, row in places
            ]
            axes.scatter(*places.T, marker="_", s=(cell * 30) ** 2, c=inks, linewidths=0.8)
        _name(axes.yaxis, rows if x == 0 else [], cell)
        _name(axes.xaxis, columns if y == down - 1 else [], cell, turn=True)
    # As long as the picture is high, but no longer than 3.5 inches: a tall one needs no tall bar.
    # Below a flat one, 2 inches.
    where, shrink = ("right", min(1.0, 3.5 / tall)) if tall >= 1 else ("bottom", min(1.0, 2 / wide))
    ticks = [low, (low + reach) / 2, reach]
    bar = figure.colorbar(
        image,
        ax=figure.axes,
        location=where,
        ticks=ticks,
        format="%.2g",
        shrink=shrink,
        aspect=18,
        pad=0.02,
    )
    bar.set_label((label or "attention weight") + " (–: below 0)" * signed, fontsize=8)
    bar.ax.tick_params(labelsize=8, length=2)
    bar.outline.set_visible(False)
    return figure


def _name(axis: Axis, tokens: Tokens, cell: float, *, turn: bool = False) -> None:
    """Write the tokens along an axis of cells of so many inches, as large as fits; `turn` them
    where one is too long.
    """
    fitting = cell * 72 * 0.72  # points
    every = max(1, math.ceil(SMALLEST / fitting))
    size, places = min(LARGEST, fitting * every), range(0, len(tokens), every)
    names = [shown(tokens[i]) for i in places]
    turn = turn and max(map(len, names), default=0) * size * 0.75 >= cell * 72 * every
    axis.set_ticks(places, names, fontsize=size, rotation=90 if turn else 0, **text_style())
    axis.set_tick_params(length=2, pad=2)
