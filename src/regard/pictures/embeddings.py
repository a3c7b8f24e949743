"""Embeddings as a map: tokens that the model treats alike lie close together."""

from collections.abc import Sequence
from typing import Any

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
    save_figure,
    shown,
    sizes,
    text_style,
)

TURNS = np.arange(16) * np.pi / 8
DISTANCES = (0.08, 0.14, 0.22, 0.32, 0.45, 0.6, 0.8, 1.1, 1.5)
"""Where a label is tried around its dot: in these directions and at these distances in inches."""
LINE_FROM = 0.15
"""Inches; a label that is farther away is tied to its dot by a line."""


def embedding_map(
    vectors: ArrayLike,
    tokens: Sequence[str],
    *,
    title: str = "",
    labels: int = 60,
    joined: bool = False,
    out: Place = None,
) -> Figure:
    """Draw vectors (N, D) in two dimensions.

    If D is 2, they are drawn as they are; else by PCA, and the axes say how much of the variance
    they hold. Every token is a dot, the first `labels` of them are named. joined: a line from each
    to the next, in the order given.
    """
    matrix = np.asarray(vectors, dtype=np.float64)  # (N, D)
    if matrix.ndim != 2 or len(matrix) != len(tokens) or 0 in matrix.shape:
        raise UserError(
            f"embeddings of shape {matrix.shape} for {len(tokens)} tokens: expected (tokens, "
            f"width), none of them 0"
        )
    if matrix.shape[1] == 2:
        points = matrix
        names = ["dimension 0", "dimension 1"]
    else:
        points, names = _principal_components(matrix)

    figure = blank(7, 6.2, title)
    axes = figure.subplots()
    line = "-" if joined else "none"
    axes.plot(*points.T, linestyle=line, color="#bbbbbb", linewidth=1, zorder=1)
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
    _draw_labels(axes, points[:labels], [shown(token, 16) for token in tokens[:labels]])
    return save_figure(figure, out)


def _principal_components(matrix: np.ndarray) -> tuple[np.ndarray, list[str]]:
    """The first two principal components (N, 2) of vectors (N, D), and their names."""
    u, s, _ = np.linalg.svd(matrix - matrix.mean(0), full_matrices=False)
    # A single token or dimension has one component only: a second one of zeros makes it a line.
    points = np.pad(u * s, ((0, 0), (0, 1)))[:, :2]  # (N, 2)
    shares = np.pad(s**2 / max((s**2).sum(), 1e-300), (0, 1))
    names = [
        f"{name} principal component: {share:.0%} of the variance"
        for name, share in zip(("first", "second"), shares)
    ]
    return points, names


def _draw_labels(axes: Axes, points: np.ndarray, labels: Sequence[str]) -> None:
    """Write each label near its point (N, 2) where nothing else is; where all is full, not at all.

    All measures are in inches; boxes are left, bottom, right, top.
    """
    inch = axes.figure.dpi
    size = 8 if len(labels) > 25 else 11
    dots = axes.transData.transform(points) / inch  # (N, 2)
    frame = axes.get_window_extent().get_points() / inch  # (2, 2): lower left, upper right
    taken = np.concatenate((dots - 0.04, dots + 0.04), 1)  # (N, 4), and one more for each label

    turns, distances = np.meshgrid(TURNS, DISTANCES)  # (distances, turns) each
    directions = np.stack((np.cos(turns), np.sin(turns)), -1)  # (distances, turns, 2)
    style = _label_style(size)
    line = {"arrowstyle": "-", "color": "#999999", "linewidth": 0.5, "shrinkA": 0, "shrinkB": 2}

    for point, dot, label, extent in zip(points, dots, labels, sizes(labels, size)):
        half = np.array(extent) / 2
        offsets = (directions * (half + distances[..., None])).reshape(-1, 2)  # the nearest first
        boxes = np.concatenate((dot + offsets - half - 0.01, dot + offsets + half + 0.01), 1)
        free = np.flatnonzero(_are_free(boxes, taken, frame))
        if not len(free):
            continue

        place = free[0]
        style["arrowprops"] = line if distances.flat[place] > LINE_FROM else None
        offset_points = tuple(offsets[place] * 72)
        axes.annotate(label, point, offset_points, "data", "offset points", **style)
        taken = np.vstack((taken, boxes[place]))


def _label_style(size: float) -> dict[str, Any]:
    """Arguments for labels: centred, on a ground that lets lines shine through a little."""
    ground = {
        "boxstyle": "square,pad=0.05",
        "facecolor": "white",
        "edgecolor": "none",
        "alpha": 0.7,
    }
    return {"fontsize": size, "ha": "center", "va": "center", "bbox": ground, **text_style()}


def _are_free(boxes: np.ndarray, taken: np.ndarray, frame: np.ndarray) -> np.ndarray:
    """Which boxes (N, 4) lie inside the frame and touch none of those taken (M, 4)."""
    is_above = boxes[:, None, :2] > taken[None, :, 2:]  # (N, M, 2): right of it, above it
    is_below = boxes[:, None, 2:] < taken[None, :, :2]  # (N, M, 2): left of it, below it
    is_apart = (is_above | is_below).any(-1).all(-1)  # (N,)
    is_inside = (boxes[:, :2] > frame[0]).all(1) & (boxes[:, 2:] < frame[1]).all(1)  # (N,)
    return np.asarray(is_apart & is_inside)
