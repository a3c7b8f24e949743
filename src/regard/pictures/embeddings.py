"""Embeddings as a map: tokens that the model treats alike lie close together."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from regard.errors import UserError
from regard.pictures import (
    COLOURS,
    Axes,
    Figure,
    Place,
    any_glyph,
    blank,
    save,
    shown,
    sizes,
    text_style,
)


def embedding_map(
    vectors: ArrayLike,
    tokens: Sequence[str],
    *,
    title: str = "",
    labels: int = 60,
    joined: bool = False,
    out: Place = None,
) -> Figure:
    """Vectors (N, D) in two dimensions: the plane itself if D is 2, else by PCA, whose axes say how
    much they tell.

    Every token is a dot, the first `labels` of them are named. joined: a line from each to the
    next, in the order given.
    """
    points, names = np.asarray(vectors, dtype=np.float64), ["dimension 0", "dimension 1"]
    if points.ndim != 2 or len(points) != len(tokens) or 0 in points.shape:
        raise UserError(
            f"embeddings of shape {points.shape} for {len(tokens)} tokens: expected (tokens, "
            f"width), none of them 0"
        )
    if points.shape[1] != 2:
        u, s, _ = np.linalg.svd(points - points.mean(0), full_matrices=False)
        points = np.pad(u * s, ((0, 0), (0, 1)))[:, :2]  # a single token or dimension gives a line
        shares = np.pad(s**2 / max((s**2).sum(), 1e-300), (0, 1))
        names = [
            f"{name} principal component: {share:.0%} of the variance"
            for name, share in zip(("first", "second"), shares)
        ]
    figure = blank(7, 6.2, title)
    axes = figure.subplots()
    axes.plot(
        *points.T, linestyle="-" if joined else "none", color="#bbbbbb", linewidth=1, zorder=1
    )
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


def _label(axes: Axes, points: np.ndarray, labels: Sequence[str]) -> None:
    """Write each label beside its dot, or farther away on a thin line, where nothing else is; where
    all is full, not at all.
    """
    inch, size = axes.figure.dpi, 8 if len(labels) > 25 else 11
    ground = {
        "boxstyle": "square,pad=0.05",
        "facecolor": "white",
        "edgecolor": "none",
        "alpha": 0.7,
    }
    look = {"fontsize": size, "ha": "center", "va": "center", "bbox": ground, **text_style()}
    line = {"arrowstyle": "-", "color": "#999999", "linewidth": 0.5, "shrinkA": 0, "shrinkB": 2}
    turn, far = np.meshgrid(
        np.arange(16) * np.pi / 8, (0.08, 0.14, 0.22, 0.32, 0.45, 0.6, 0.8, 1.1, 1.5)
    )
    circles = np.stack((np.cos(turn), np.sin(turn)), -1)
    dots, frame = (
        axes.transData.transform(points) / inch,
        axes.get_window_extent().get_points() / inch,
    )
    taken = np.concatenate((dots - 0.04, dots + 0.04), 1)  # boxes: left, bottom, right, top
    for point, dot, label, extent in zip(points, dots, labels, sizes(labels, size)):
        half = np.array(extent) / 2
        ways = (circles * (half + far[..., None])).reshape(-1, 2)  # the nearest first
        boxes = np.concatenate((dot + ways - half - 0.01, dot + ways + half + 0.01), 1)
        apart = (boxes[:, None, :2] > taken[None, :, 2:]) | (
            boxes[:, None, 2:] < taken[None, :, :2]
        )
        inside = (boxes[:, :2] > frame[0]).all(1) & (boxes[:, 2:] < frame[1]).all(1)
        for free in np.flatnonzero(apart.any(-1).all(-1) & inside)[:1]:
            look["arrowprops"] = line if far.flat[free] > 0.15 else None
            axes.annotate(label, point, tuple(ways[free] * 72), "data", "offset points", **look)
            taken = np.vstack((taken, boxes[free]))
