"""Positional encodings: the whole table as a picture, a few of its columns as curves."""

import numpy as np
from numpy.typing import ArrayLike

from regard.errors import UserError
from regard.pictures import COLOURS, Figure, Place, blank, save


def positions_figure(table: ArrayLike, name: str, out: Place = None) -> Figure:
    """The table (N, D) on the left, positions down and dimensions across; four of its columns as
    curves on the right.
    """
    matrix = np.asarray(table, dtype=np.float64)
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
    # The first columns turn fastest: four from the first half show the range, the rest hardly
    # moves.
    chosen = sorted(
        {round(width * share) for share in (0, 1 / 8, 1 / 4, 1 / 2)} & set(range(width))
    )
    for column, colour, style in zip(chosen, COLOURS, ("-", "--", "-.", ":")):
        right.plot(
            matrix[:, column],
            color=colour,
            linestyle=style,
            linewidth=1.6,
            label=f"dimension {column}",
        )
    right.set(xlabel="position", ylabel="value")
    right.grid(alpha=0.25)
    right.spines[["top", "right"]].set_visible(False)
    right.legend(
        loc="lower center",
        bbox_to_anchor=(0.5, 1.0),
        ncols=4,
        frameon=False,
        fontsize=8,
        columnspacing=1,
    )
    return save(figure, out)
