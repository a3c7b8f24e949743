"""The beam as a tree: what was tried at each step, what went on, and what became the answer."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from regard.errors import UserError
from regard.pictures import (
    COLOURS,
    Axes,
    Figure,
    Place,
    blank,
    save_figure,
    shown,
    sizes,
    text_style,
)
from regard.records.tree import Node

MAX_ROWS = 60  # with more of them, what was dropped at once is left out
TOKEN_SIZE = 8.5  # points
# What became of a node, the most important first, and how it is drawn.
STYLES: dict[str, dict[str, Any]] = {
    "chosen": {"color": COLOURS[0], "linewidth": 2.6, "marker": "o", "markersize": 7},
    "kept": {
        "color": "#555555",
        "linewidth": 1.1,
        "marker": "o",
        "markersize": 5,
        "markerfacecolor": "white",
    },
    "ended": {"color": COLOURS[1], "linewidth": 1.1, "marker": "s", "markersize": 6},
    "dropped": {
        "color": "#999999",
        "linewidth": 0.7,
        "marker": "x",
        "markersize": 4,
        "linestyle": ":",
    },
}
LEGEND = {
    "chosen": "the answer",
    "kept": "continued",
    "ended": "ended, not the best",
    "dropped": "dropped immediately",
}
FATES = list(STYLES)
RANKS = {fate: rank for rank, fate in enumerate(FATES)}
ROOT = -1  # the parent of the nodes of the first step
Point = tuple[float, float]


def beam_tree(nodes: Sequence[Node], *, title: str = "", out: Place = None) -> Figure:
    """Draw what a beam search tried as a tree, its steps from left to right.

    Below each token is its probability, behind a finished answer the sum and the mean of its
    logprobs. The answer's own continuation stays in the row of its parent, or else the likeliest
    one; each other one gets a row of its own.
    """
    if not nodes:
        raise UserError("no tree to draw: the search has no nodes")

    rows = _rows(nodes, FATES)
    if max(rows.values()) >= MAX_ROWS:
        rows = _rows(nodes, [fate for fate in FATES if fate != "dropped"])
    labels = {number: shown(nodes[number].token, 16) for number in rows}
    widths = _label_widths(labels)
    columns = _columns(nodes, widths)
    points = {number: (columns[nodes[number].step], row) for number, row in rows.items()}

    lowest = max(rows.values())
    right = max(4.5, columns[-1] + 1.8)
    figure = blank(right, (1 + lowest) * 0.28 + 0.9, title)
    axes = figure.subplots()
    axes.set(xlim=(0, right), ylim=(lowest + 0.6, -0.6))
    axes.axis("off")

    finished = _finished(nodes, rows)
    for number in sorted(rows, key=lambda number: -RANKS[nodes[number].fate]):  # the answer on top
        node = nodes[number]
        point = points[number]
        parent = (0.05, 0.0) if node.parent == ROOT else points[node.parent]
        _draw_node(axes, node, labels[number], point, parent)
        if number in finished:
            _draw_score(axes, node, point, widths[number])

    _draw_legend(
        figure,
        axes,
        fates={nodes[number].fate for number in rows},
        hidden=len(nodes) - len(rows),
        columns=min(4, int(right / 1.7)),
    )
    return save_figure(figure, out)


def _rows(nodes: Sequence[Node], fates: Sequence[str]) -> dict[int, int]:
    """The row of each node that has one of these fates, by the number of the node."""
    children: dict[int, list[int]] = {}
    for number, node in enumerate(nodes):
        if node.fate in fates:
            children.setdefault(node.parent, []).append(number)

    rows = {ROOT: 0}
    lowest = 0
    stack = [ROOT]  # depth first, so that the rows below a node are those of its own branches
    while stack:
        number = stack.pop()
        if number not in rows:
            lowest += 1
            rows[number] = lowest

        continuations = sorted(
            children.get(number, []),
            key=lambda child: (RANKS[nodes[child].fate], -nodes[child].logprob),
        )
        if continuations:
            rows[continuations[0]] = rows[number]
        stack.extend(reversed(continuations))

    del rows[ROOT]
    return rows


def _label_widths(labels: Mapping[int, str]) -> dict[int, float]:
    """The width of each label in inches, and at least that of a probability below it."""
    label_sizes = sizes(list(labels.values()), TOKEN_SIZE)
    return {number: max(width, 0.3) for number, (width, _) in zip(labels, label_sizes)}


def _columns(nodes: Sequence[Node], widths: Mapping[int, float]) -> list[float]:
    """Where each step starts, in inches from the left, and at last where the last one ends."""
    steps = 1 + max(nodes[number].step for number in widths)
    columns = [0.25]
    for step in range(steps):
        widest = max(width for number, width in widths.items() if nodes[number].step == step)
        columns.append(columns[-1] + widest + 0.38)
    return columns


def _finished(nodes: Sequence[Node], rows: Mapping[int, int]) -> set[int]:
    """The last nodes of finished answers: all that ended, and the last one of the chosen."""
    ended = [number for number in rows if nodes[number].fate == "ended"]
    chosen = [number for number in rows if nodes[number].fate == "chosen"]
    return {*ended, *chosen[-1:]}


def _draw_node(axes: Axes, node: Node, label: str, point: Point, parent: Point) -> None:
    """Draw a node, the way to it from its parent, its token and its probability."""
    x, y = point
    parent_x, parent_y = parent
    style = STYLES[node.fate]
    bend = x - 0.16
    axes.plot([parent_x, bend, bend, x], [parent_y, parent_y, y, y], **style | {"marker": ""})
    axes.plot([x], [y], **style, zorder=3)

    ink = "#666666" if node.fate == "dropped" else "black"
    axes.text(
        x + 0.07, y - 0.06, label, fontsize=TOKEN_SIZE, va="bottom", color=ink, **text_style()
    )

    probability = math.exp(node.logprob)
    probability_text = f"{probability:.2f}" if probability >= 0.005 else "< 0.01"
    axes.text(x + 0.07, y + 0.11, probability_text, fontsize=6, va="top", color=ink)


def _draw_score(axes: Axes, node: Node, point: Point, label_width: float) -> None:
    """Write the sum and the mean of the logprobs behind the last token of an answer."""
    x, y = point
    mean = node.total / (node.step + 1)
    score = f"log p {node.total:.2f}, {mean:.2f} per token".replace("-", "−")
    axes.text(x + label_width + 0.2, y, score, fontsize=7.5, va="center")


def _draw_legend(figure: Figure, axes: Axes, fates: set[str], hidden: int, columns: int) -> None:
    """Explain the fates that are drawn, and say how many nodes are hidden."""
    for fate in FATES:
        if fate in fates:
            axes.plot([], [], **STYLES[fate], label=LEGEND[fate])

    note = f"{hidden:,} more were dropped immediately; they are not drawn" if hidden else None
    figure.legend(
        loc="outside lower center",
        ncols=columns,
        frameon=False,
        fontsize=8,
        title=note,
        title_fontsize=8,
    )
