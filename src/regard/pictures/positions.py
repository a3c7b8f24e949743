"""Positional encodings: the whole table as a picture, a few of its columns as curves."""

import numpy as np
from numpy.typing import ArrayLike

from regard.errors import UserError
from regard.pictures import COLOURS, Axes, Figure, Place, blank, save_figure


def positions_figure(table: ArrayLike, name: str, out: Place = None) -> Figure:
    """Draw a table of positions (N, D) as a picture, and four of its columns as curves beside it.

    In the picture positions go down and dimensions across.
    """
    matrix = np.asarray(table, dtype=np.float64)  # (N, D)
    if matrix.ndim != 2 or 0 in matrix.shape:
        raise UserError(
            f"a table of positions has two dimensions, (positions, width), not the shape "
            f"{matrix.shape}"
        )

    count, width = matrix.shape
    figure = blank(11, 4.2, f"{name}: {count} positions × {width} dimensions")
    left, right = figure.subplots(1, 2)

    reach = float(np.abs(matrix).max()) or 1.0
    image = left.imshow(
        matrix, cmap="viridis", vmin=-reach, vmax=reach, aspect="auto", interpolation="nearest"
    )
    left.set(xlabel="dimension", ylabel="position")
    figure.colorbar(image, ax=left, label="value", pad=0.02)

    _draw_columns(right, matrix)
    return save_figure(figure, out)


def _draw_columns(axes: Axes, matrix: np.ndarray) -> None:
    """Draw up to four columns of a table (N, D) as curves.

    The first columns turn fastest: four from the first half show the range, the rest hardly moves.
    """
    width = matrix.shape[1]
    wanted = {round(width * share) for share in (0, 1 / 8, 1 / 4, 1 / 2)}
    columns = sorted(column for column in wanted if column < width)
    for column, colour, style in zip(columns, COLOURS, ("-", "--", "-.", ":")):
        axes.plot(
            matrix[:, column],
            color=colour,
            linestyle=style,
            linewidth=1.6,
            label=f"dimension {column}",
        )

    axes.set(xlabel="position", ylabel="value")
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
