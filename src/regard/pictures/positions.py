"""Positional encodings: a whole table or bias as a picture, a few of its columns as curves."""

from collections.abc import Sequence
from itertools import cycle

import numpy as np
from numpy.typing import ArrayLike

from regard.errors import UserError
from regard.pictures import COLOURS, Axes, Figure, Place, blank, save_figure

STYLES = ("-", "--", "-.", ":")
MOST = 8
"""Curves that can be told apart."""


def positions_figure(
    table: ArrayLike,
    name: str,
    out: Place = None,
    *,
    axis: str = "position",
    first: int = 0,
    columns: Sequence[int] = (),
) -> Figure:
    """Draw a table of positions (N, D) as a picture, and some of its columns as curves beside it.

    In the picture positions go down and dimensions across. axis: what the rows are; first: the
    number of the first row. columns: up to eight to draw, such as range(6, 10); default: four.
    """
    matrix = np.asarray(table, dtype=np.float64)  # (N, D)
    if matrix.ndim != 2 or 0 in matrix.shape:
        raise UserError(f"expected a table of shape (positions, width), got {matrix.shape}")

    count, width = matrix.shape
    figure = blank(11, 4.2, f"{name}: {count} {axis}s × {width} dimensions")
    left, right = figure.subplots(1, 2)

    reach = float(np.abs(matrix).max()) or 1.0
    image = left.imshow(
        matrix,
        cmap="viridis",
        vmin=-reach,
        vmax=reach,
        aspect="auto",
        interpolation="nearest",
        extent=(-0.5, width - 0.5, first + count - 0.5, first - 0.5),
    )
    left.set(xlabel="dimension", ylabel=axis)
    figure.colorbar(image, ax=left, label="value", pad=0.02)

    rows = np.arange(first, first + count)
    drawn = _checked(columns, width) if columns else _spread(width)
    curves = {f"dimension {column}": matrix[:, column] for column in drawn}
    _draw_curves(right, rows, curves, xlabel=axis, ylabel="value")
    return save_figure(figure, out)


def _checked(columns: Sequence[int], width: int) -> list[int]:
    """The columns, if a table of this width has them."""
    if len(columns) > MOST or not all(0 <= column < width for column in columns):
        few = ", ".join(map(str, columns[:MOST]))
        more = ", …" if len(columns) > MOST else ""
        raise UserError(f"columns {few}{more}: choose up to {MOST} from 0 to {width - 1}")
    return list(columns)


def _spread(width: int) -> list[int]:
    """Four columns that show the range.

    The first columns of a table turn fastest; the second half hardly moves.
    """
    wanted = {round(width * share) for share in (0, 1 / 8, 1 / 4, 1 / 2)}
    return sorted(column for column in wanted if column < width)


def bias_figure(bias: ArrayLike, name: str, out: Place = None) -> Figure:
    """Draw what positions add to the scores of attention (H, T, S).

    The picture shows the first head, queries down and keys across; the curves show up to four
    heads, for the query in the middle.
    """
    heads = np.asarray(bias, dtype=np.float64)  # (H, T, S)
    count, queries, keys = heads.shape
    figure = blank(11, 4.2, f"{name}: what {queries} positions add to the attention scores")
    left, right = figure.subplots(1, 2)

    image = left.imshow(heads[0], cmap="viridis", aspect="auto", interpolation="nearest")
    left.set(xlabel="position of the key", ylabel="position of the query", title="head 1")
    figure.colorbar(image, ax=left, label="added to the score", pad=0.02)

    middle = queries // 2
    distances = np.arange(keys) - middle
    curves = {f"head {head + 1}": heads[head, middle] for head in range(min(count, 4))}
    _draw_curves(
        right, distances, curves, xlabel="key position − query position", ylabel="added to score"
    )
    return save_figure(figure, out)


def _draw_curves(
    axes: Axes, x: np.ndarray, curves: dict[str, np.ndarray], *, xlabel: str, ylabel: str
) -> None:
    """Draw up to eight curves, by name."""
    looks = zip(curves.items(), cycle(COLOURS), cycle(STYLES))
    for (label, values), colour, style in looks:
        axes.plot(x, values, color=colour, linestyle=style, linewidth=1.6, label=label)

    axes.set(xlabel=xlabel, ylabel=ylabel)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(
        loc="lower center",
        bbox_to_anchor=(0.5, 1.0),
        ncols=4,
        frameon=False,
        fontsize=8,
        columnspacing=1,
    )
