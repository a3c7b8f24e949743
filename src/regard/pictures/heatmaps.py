"""Attention as heatmaps.

Rows are the tokens that look, columns the tokens looked at (`AttentionRecord.sides` names them).
"""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from regard.errors import UserError
from regard.pictures import (
    CIRCLE,
    TATWEEL,
    Axes,
    Axis,
    Figure,
    Place,
    blank,
    save_figure,
    shown,
    text_style,
)
from regard.text.vocabulary import SPECIALS

if TYPE_CHECKING:
    from matplotlib.image import AxesImage
else:
    AxesImage = Any

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
    xlabel: str = "",
    ylabel: str = "",
    out: Place = None,
) -> Figure:
    """Draw one matrix (T, S) as a heatmap.

    The tokens that look are written down the left side, those looked at across the top. Colours
    reach from 0 to 1, or to the largest weight where none is above a half.

    signed: values of both signs, such as evidence. Colours reach as far below 0 as above it, to the
    largest value of either sign; a dash marks values below 0, also in grey. label: what the colours
    mean. xlabel, ylabel: what the columns and rows are, such as "keys" and "queries".
    """
    grid = np.asarray(weights)[None, None]  # (1, 1, T, S)
    figure = _panels(grid, rows, columns, title, signed=signed, label=label)
    axes = figure.axes[0]
    axes.xaxis.tick_top()
    axes.xaxis.set_label_position("top")
    axes.set(xlabel=xlabel, ylabel=ylabel)
    return save_figure(figure, out)


def head_grid(
    weights: ArrayLike, rows: Tokens, columns: Tokens, *, title: str = "", out: Place = None
) -> Figure:
    """Draw every head of (L, H, T, S) as a small heatmap, one row for each layer.

    All of them share one colour scale: from 0 to 1, or to the largest weight where none is above a
    half.
    """
    grid = np.asarray(weights)  # (L, H, T, S)
    captions = [
        f"layer {layer + 1} · head {head + 1}" for layer, head in np.ndindex(grid.shape[:2])
    ]
    figure = _panels(grid, rows, columns, title, captions)
    return save_figure(figure, out)


def growth(
    matrices: Sequence[tuple[int, ArrayLike]],
    rows: Tokens,
    columns: Tokens,
    *,
    title: str = "",
    out: Place = None,
) -> Figure:
    """Draw how one matrix (T, S) changes during training.

    matrices: pairs of a training step and the matrix after it. They become small heatmaps in the
    order given, at most five to a row.
    """
    if not matrices:
        raise UserError("no attention to draw: pass at least one training step")

    down = math.ceil(len(matrices) / 5)
    across = math.ceil(len(matrices) / down)

    panels = [np.asarray(matrix) for _, matrix in matrices]
    missing = down * across - len(panels)
    panels += panels[:1] * missing  # they get no caption, so they are not drawn
    grid = np.stack(panels).reshape(down, across, *panels[0].shape)  # (down, across, T, S)

    captions = [f"step {step:,}" for step, _ in matrices]
    figure = _panels(grid, rows, columns, title, captions)
    return save_figure(figure, out)


class ColourScale(NamedTuple):
    """The values at both ends of the colours, and Matplotlib's name of the colours."""

    low: float
    high: float
    colours: str


class FigureSize(NamedTuple):
    """Sizes in inches: one cell, the whole figure, and all panels together."""

    cell: float
    width: float
    height: float
    panels_width: float
    panels_height: float
    is_flat: bool
    """Too low for a colour bar at the right of the panels: it goes below them."""


def _panels(
    grid: np.ndarray,
    rows: Tokens,
    columns: Tokens,
    title: str,
    captions: Sequence[str] | None = None,
    signed: bool = False,
    label: str = "",
) -> Figure:
    """Draw a panel for each matrix of `grid` (L, H, T, S), and one colour bar for all.

    captions: one above each panel; then panels are small, and those after the last caption are left
    out. Tokens are written left of the first panel of each row and below the last panel of each
    column.
    """
    if grid.ndim != 4 or grid.shape[2:] != (len(rows), len(columns)) or 0 in grid.shape:
        raise UserError(
            f"attention of shape {grid.shape}, expected (layers, heads, {len(rows)}, "
            f"{len(columns)}), none of them 0"
        )

    down, across = grid.shape[:2]
    is_small = captions is not None
    layout = _layout(down, across, rows, columns, titled=bool(title), small=is_small)
    scale = _colour_scale(grid, signed)
    figure = blank(layout.width, layout.height, title)
    panels = figure.subplots(down, across, squeeze=False)
    if captions is None:
        captions = [""] * panels.size

    for number, ((y, x), axes) in enumerate(np.ndenumerate(panels)):
        if number >= len(captions):
            axes.remove()
            continue

        matrix = grid[y, x]  # (T, S)
        image = _draw_matrix(axes, matrix, scale)
        axes.set_title(captions[number], fontsize=7.5, pad=3)
        if signed:
            _mark_negatives(axes, matrix, scale, layout.cell)

        is_leftmost = x == 0
        is_lowest = number + across >= len(captions)
        _label_axis(axes.yaxis, rows if is_leftmost else [], layout.cell)
        _label_axis(axes.xaxis, columns if is_lowest else [], layout.cell, may_turn=True)

    bar_label = label or "attention weight"
    if signed:
        bar_label += " (–: below 0)"
    _colour_bar(figure, image, scale, layout, bar_label)
    return figure


def _draw_matrix(axes: Axes, matrix: np.ndarray, scale: ColourScale) -> AxesImage:
    """Draw a matrix (T, S), a cell for each value."""
    image = axes.imshow(
        matrix, vmin=scale.low, vmax=scale.high, cmap=scale.colours, interpolation="nearest"
    )
    axes.spines[:].set_visible(False)
    return image


def _layout(
    down: int, across: int, rows: Tokens, columns: Tokens, *, titled: bool, small: bool
) -> FigureSize:
    """Sizes for `down` × `across` panels with room for tokens, title and colour bar."""
    count = max(len(rows), len(columns))
    if small:
        cell = min(0.22, max(0.11, 1.8 / count), 5.25 / count)
    else:
        cell = min(0.42, max(0.2, 5 / count), 24 / count)

    panels_width = across * len(columns) * cell
    panels_height = down * (len(rows) * cell + 0.35)
    is_flat = panels_height < 1

    room_left = 0.07 * max(len(shown(token)) for token in rows)
    room_below = 0.07 * max(len(shown(token)) for token in columns)
    room_for_title = 0.5 if titled else 0.2
    room_for_bar = 0.7 if is_flat else 0

    width = across * (max(len(columns) * cell, 0.9) + 0.12) + room_left + 1.0
    height = panels_height + room_below + room_for_title + room_for_bar
    return FigureSize(
        cell=cell,
        width=max(width, 2.6),
        height=max(height, 1.8),
        panels_width=panels_width,
        panels_height=panels_height,
        is_flat=is_flat,
    )


def _colour_scale(grid: np.ndarray, signed: bool) -> ColourScale:
    """One scale for all panels, so that their colours can be compared."""
    largest = float(np.nanmax(np.abs(grid), initial=1e-30))
    if signed:
        return ColourScale(-largest, largest, "RdBu_r")

    # On a scale up to 1, weights that are all small would be one dark colour.
    high = largest if largest <= 0.5 else 1.0
    return ColourScale(0.0, high, "viridis")


def _mark_negatives(axes: Axes, matrix: np.ndarray, scale: ColourScale, cell: float) -> None:
    """Put a dash on the cells below 0, so that the sign can be read without colours.

    Values very near 0 get none.
    """
    rows, columns = np.nonzero(matrix < -scale.high / 20)
    values = matrix[rows, columns]
    inks = ["white" if value < -0.6 * scale.high else "black" for value in values]
    axes.scatter(columns, rows, marker="_", s=(cell * 30) ** 2, c=inks, linewidths=0.8)


def _colour_bar(
    figure: Figure, image: AxesImage, scale: ColourScale, layout: FigureSize, label: str
) -> None:
    """Draw the colour bar at the right of the panels, or below flat ones.

    At the right it is as long as the panels are high, but no longer than 3.5 inches: a tall picture
    needs no tall bar. Below it is at most 2 inches long.
    """
    if layout.is_flat:
        location = "bottom"
        shrink = min(1.0, 2 / layout.panels_width)
    else:
        location = "right"
        shrink = min(1.0, 3.5 / layout.panels_height)

    bar = figure.colorbar(
        image,
        ax=figure.axes,
        location=location,
        ticks=[scale.low, (scale.low + scale.high) / 2, scale.high],
        format="%.2g",
        shrink=shrink,
        aspect=18,
        pad=0.02,
    )
    bar.set_label(label, fontsize=8)
    bar.ax.tick_params(labelsize=8, length=2)
    bar.outline.set_visible(False)


def _label_axis(axis: Axis, tokens: Tokens, cell: float, *, may_turn: bool = False) -> None:
    """Write the tokens along an axis, as large as its cells allow.

    cell: its length in inches. may_turn: turn labels by 90° if one is too long for its cell; single
    characters are not turned where all tokens are characters.
    """
    cell_points = cell * 72
    fitting_size = cell_points * 0.72  # leaves a gap between two labels
    every = max(1, math.ceil(SMALLEST / fitting_size))
    size = min(LARGEST, fitting_size * every)

    places = range(0, len(tokens), every)
    labels = [shown(tokens[place]) for place in places]
    longest = max(map(len, labels), default=0) * size * 0.75  # points, if every letter is wide
    is_turned = may_turn and longest >= cell_points * every

    axis.set_ticks(places, labels, fontsize=size, rotation=90 if is_turned else 0, **text_style())
    axis.set_tick_params(length=2, pad=2)
    if is_turned and all(_is_character(token) or token in SPECIALS for token in tokens):
        for label, tick in zip(labels, axis.get_major_ticks()):
            for text in (tick.label1, tick.label2):  # below, and above if they are moved there
                text.set_rotation(0 if _is_character(label) else 90)


def _is_character(token: str) -> bool:
    """Whether a label is one character, or a mark and what it is written on."""
    return len(shown(token).lstrip(CIRCLE + TATWEEL)) <= 1
