"""Embeddings as a map: tokens that the model treats alike lie close together."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from regard.errors import UserError
from regard.pictures import COLOURS, Axes, Figure, Place, any_glyph, blank, save, shown, sizes, text_style

ANGLES = np.arange(16) * np.pi / 8


def embedding_map(
    vectors: ArrayLike, tokens: Sequence[str], *, title: str = "", labels: int = 60, joined: bool = False, out: Place = None
) -> Figure:
    """Vectors (N, D) in two dimensions: the plane itself if D is 2, else by PCA, whose axes say how much they tell.

    Every token is a dot, the first `labels` of them are named. joined: a line from each to the next, in the order given.
    """
    matrix = np.asarray(vectors, dtype=np.float64)
    if matrix.ndim != 2 or len(matrix) != len(tokens) or 0 in matrix.shape:
        raise UserError(
            f"embeddings of shape {matrix.shape} for {len(tokens)} tokens: expected (tokens, width), neither of them 0"
        )
    points, names = _plane(matrix)
    figure = blank(7, 6.2, title)
    axes = figure.subplots()
    if joined:
        axes.plot(*points.T, color="#bbbbbb", linewidth=1, zorder=1)
    axes.plot(*points[labels:].T, "o", markersize=2, color="#bbbbbb", zorder=1)
    axes.plot(*points[:labels].T, "o", markersize=4, color=COLOURS[0], zorder=3)
    axes.set(xlabel=names[0], ylabel=names[1])
    axes.set_aspect("equal", adjustable="datalim")
    axes.margins(0.1)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    with any_glyph():
        figure.draw_without_rendering()  # from here on nothing moves
    figure.set_layout_engine("none")
    _label(axes, points[:labels], [shown(token, 16) for token in tokens[:labels]])
    return save(figure, out)


def _plane(matrix: np.ndarray) -> tuple[np.ndarray, list[str]]:
    """(N, 2), and what its axes are."""
    if matrix.shape[1] == 2:
        return matrix, ["dimension 0", "dimension 1"]
    u, s, _ = np.linalg.svd(matrix - matrix.mean(0), full_matrices=False)
    u = np.pad(u * s, ((0, 0), (0, 1)))[:, :2]  # a single token or dimension gives a line
    shares = np.pad(s**2 / max((s**2).sum(), 1e-300), (0, 1))
    return u, [f"{name} principal component: {share:.0%} of the variance" for name, share in zip(("first", "second"), shares)]


def _label(axes: Axes, points: np.ndarray, labels: Sequence[str]) -> None:
    """Write each label beside its dot, or farther away on a thin line, where nothing else is; where all is full, not at all."""
    from matplotlib.patheffects import withStroke

    inch, size = axes.figure.dpi, 8 if len(labels) > 25 else 11
    style: dict[str, Any] = {
        "textcoords": "offset points",
        "ha": "center",
        "va": "center",
        "fontsize": size,
        "path_effects": [withStroke(linewidth=2, foreground="white")],
    }
    line = {"arrowstyle": "-", "color": "#999999", "linewidth": 0.5, "shrinkA": 0, "shrinkB": 2}
    dots = axes.transData.transform(points) / inch
    taken = np.concatenate((dots - 0.04, dots + 0.04), 1)  # boxes: left, bottom, right, top
    frame = axes.get_window_extent()
    for point, dot, label, (width, height) in zip(points, dots, labels, sizes(labels, size)):
        for far in (0.08, 0.14, 0.22, 0.32, 0.45, 0.6, 0.8, 1.1, 1.5):
            ways = np.stack((np.cos(ANGLES) * (far + width / 2), np.sin(ANGLES) * (far + height / 2)), 1)
            half = np.array((width / 2 + 0.02, height / 2))
            boxes = np.concatenate((dot + ways - half, dot + ways + half), 1)
            apart = (boxes[:, None, :2] > taken[None, :, 2:]) | (boxes[:, None, 2:] < taken[None, :, :2])
            inside = (boxes[:, :2] * inch > frame.min).all(1) & (boxes[:, 2:] * inch < frame.max).all(1)
            free = np.flatnonzero(apart.any(-1).all(-1) & inside)
            if len(free):
                axes.annotate(
                    label, point, tuple(ways[free[0]] * 72), **style, arrowprops=line if far > 0.15 else None, **text_style()
                )
                taken = np.vstack((taken, boxes[free[0]]))
                break
