"""Embeddings as a map: tokens that the model treats alike lie close together."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from regard.errors import UserError
from regard.pictures import COLOURS, Axes, Figure, Place, any_glyph, blank, save, shown, sizes, text_style


def embedding_map(
    vectors: ArrayLike, tokens: Sequence[str], *, title: str = "", labels: int = 60, joined: bool = False, out: Place = None
) -> Figure:
    """Vectors (N, D) in two dimensions: the plane itself if D is 2, else by PCA, whose axes say how much they tell.

    Every token is a dot, the first `labels` of them are named. joined: a line from each to the next, in the order given.
    """
    points, names = np.asarray(vectors, dtype=np.float64), ["dimension 0", "dimension 1"]
    if points.ndim != 2 or len(points) != len(tokens) or 0 in points.shape:
        raise UserError(f"embeddings of shape {points.shape} for {len(tokens)} tokens: expected (tokens, width), none of them 0")
    if points.shape[1] != 2:
        u, s, _ = np.linalg.svd(points - points.mean(0), full_matrices=False)
        points = np.pad(u * s, ((0, 0), (0, 1)))[:, :2]  # a single token or dimension gives a line
        shares = np.pad(s**2 / max((s**2).sum(), 1e-300), (0, 1))
        names = [f"{name} principal component: {share:.0%} of the variance" for name, share in zip(("first", "second"), shares)]
    figure = blank(7, 6.2, title)
    axes = figure.subplots()
    axes.plot(*points.T, "-" if joined else "", color="#bbbbbb", linewidth=1, zorder=1)
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
    """Write each label beside its dot, or farther away on a thin line, where nothing else is; where all is full, not at all."""
    from matplotlib.patheffects import withStroke

    inch, size, halo = axes.figure.dpi, 8 if len(labels) > 25 else 11, [withStroke(linewidth=2, foreground="white")]
    look = {"fontsize": size, "ha": "center", "va": "center", "path_effects": halo, **text_style()}
    line = {"arrowstyle": "-", "color": "#999999", "linewidth": 0.5, "shrinkA": 0, "shrinkB": 2}
    angles = np.arange(16) * np.pi / 8
    circle = np.stack((np.cos(angles), np.sin(angles)), 1)
    dots = axes.transData.transform(points) / inch
    taken = np.concatenate((dots - 0.04, dots + 0.04), 1)  # boxes: left, bottom, right, top
    frame = axes.get_window_extent()
    for point, dot, label, extent in zip(points, dots, labels, sizes(labels, size)):
        half = np.array(extent) / 2
        for far in (0.08, 0.14, 0.22, 0.32, 0.45, 0.6, 0.8, 1.1, 1.5):
            ways = circle * (half + far)
            boxes = np.concatenate((dot + ways - half - 0.01, dot + ways + half + 0.01), 1)
            apart = (boxes[:, None, :2] > taken[None, :, 2:]) | (boxes[:, None, 2:] < taken[None, :, :2])
            inside = (boxes[:, :2] * inch > frame.min).all(1) & (boxes[:, 2:] * inch < frame.max).all(1)
            if len(free := np.flatnonzero(apart.any(-1).all(-1) & inside)):
                look["arrowprops"] = line if far > 0.15 else None
                axes.annotate(label, point, tuple(ways[free[0]] * 72), "data", "offset points", **look)
                taken = np.vstack((taken, boxes[free[0]]))
                break
