"""Positional encodings: the whole table as a picture, a few of its columns as curves."""

from collections.abc import Sequence
from os import PathLike
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from regard.errors import UserError
from regard.pictures import COLOURS, blank, save, text_style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

STYLES = ("-", "--", "-.", ":")


def encoding_matrix(table: ArrayLike, out: str | PathLike[str] | None = None) -> "Figure":
    """The table (N, D): positions down, dimensions across."""
    figure = blank(5.5, 4.2)
    _draw_matrix(figure, figure.add_subplot(), _checked(table))
    return save(figure, out)


def encoding_curves(table: ArrayLike, columns: Sequence[int] | None = None, out: str | PathLike[str] | None = None) -> "Figure":
    """A few columns of the table (N, D) over the positions; without `columns`, four spread over the width."""
    figure = blank(6.5, 4.2)
    _draw_curves(figure.add_subplot(), _checked(table), columns)
    return save(figure, out)


def positions_figure(table: ArrayLike, name: str, out: str | PathLike[str] | None = None) -> "Figure":
    """Both side by side, under the name of the encoding."""
    checked = _checked(table)
    figure = blank(11, 4.2)
    left, right = figure.subplots(1, 2)
    _draw_matrix(figure, left, checked)
    _draw_curves(right, checked, None)
    figure.suptitle(f"{name}: {checked.shape[0]} positions × {checked.shape[1]} dimensions", fontsize=11, **text_style())
    return save(figure, out)


def _checked(table: ArrayLike) -> np.ndarray:
    checked = np.asarray(table, dtype=np.float64)
    if checked.ndim != 2 or 0 in checked.shape:
        raise UserError(f"a table of positions has two dimensions, (positions, width), not the shape {checked.shape}")
    return checked


def _draw_matrix(figure: "Figure", axes: "Axes", table: np.ndarray) -> None:
    reach = float(np.abs(table).max()) or 1.0
    image = axes.imshow(table, cmap="viridis", vmin=-reach, vmax=reach, aspect="auto", interpolation="nearest")
    axes.set_xlabel("dimension")
    axes.set_ylabel("position")
    figure.colorbar(image, ax=axes, label="value", pad=0.02)


def _draw_curves(axes: "Axes", table: np.ndarray, columns: Sequence[int] | None) -> None:
    count, width = table.shape
    # The first columns turn fastest: four from the first half show the range, the rest hardly moves.
    chosen = sorted({round(width * share) for share in (0, 1 / 8, 1 / 4, 1 / 2)} & set(range(width)))
    for i, column in enumerate(chosen if columns is None else columns):
        if not -width <= column < width:
            raise UserError(f"no dimension {column} in a table of {width}")
        axes.plot(
            table[:, column],
            color=COLOURS[i % len(COLOURS)],
            linestyle=STYLES[i % len(STYLES)],
            marker="o" if count == 1 else "",
            linewidth=1.6,
            label=f"dimension {column}",
        )
    axes.set_xlabel("position")
    axes.set_ylabel("value")
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=4, frameon=False, fontsize=8, handlelength=2.4)
