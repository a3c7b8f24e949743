"""The beam as a tree: what was tried at each step, what went on, and what became the answer."""

import math
from collections.abc import Sequence
from typing import Any

from regard.errors import UserError
from regard.pictures import COLOURS, Figure, Place, blank, save, shown, sizes, text_style
from regard.records.tree import Node

MOST = 60  # rows; with more of them, what was dropped at once is left out
LOOKS: dict[str, dict[str, Any]] = {
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
SAID = {
    "chosen": "the answer",
    "kept": "went on",
    "ended": "ended, not the best",
    "dropped": "dropped at once",
}
ORDER = list(LOOKS)


def beam_tree(nodes: Sequence[Node], *, title: str = "", out: Place = None) -> Figure:
    """Steps from left to right; below each token its probability, behind a whole answer the sum and
    mean of its logprobs.

    The likeliest way on stays in its row, each other one gets a row of its own.
    """
    if not nodes:
        raise UserError("no tree to draw: nothing was tried")
    rows = _rows(nodes, ORDER)
    rows = rows if max(rows.values()) < MOST else _rows(nodes, ORDER[:-1])
    last = [i for i in rows if nodes[i].fate == "ended"] + [
        i for i in rows if nodes[i].fate == "chosen"
    ][-1:]
    labels = {i: shown(nodes[i].token, 16) for i in rows}
    widths = {
        i: max(width, 0.3) for i, (width, _) in zip(labels, sizes(list(labels.values()), 8.5))
    }
    starts = [0.25]  # inches from the left, of each step
    for step in range(1 + max(nodes[i].step for i in rows)):
        starts.append(starts[-1] + max(widths[i] for i in rows if nodes[i].step == step) + 0.38)
    right = max(4.5, starts[-1] + 1.8)
    figure = blank(right, (1 + max(rows.values())) * 0.28 + 0.9, title)
    axes = figure.subplots()
    axes.set(xlim=(0, right), ylim=(max(rows.values()) + 0.6, -0.6))
    axes.axis("off")
    for i in sorted(rows, key=lambda i: -ORDER.index(nodes[i].fate)):  # the answer on top
        node, x, y = nodes[i], starts[nodes[i].step], rows[i]
        before = (starts[node.step - 1], rows[node.parent]) if node.parent >= 0 else (0.05, 0)
        axes.plot(
            [before[0], x - 0.16, x - 0.16, x],
            [before[1], before[1], y, y],
            **LOOKS[node.fate] | {"marker": ""},
        )
        axes.plot([x], [y], **LOOKS[node.fate], zorder=3)
        ink, probability = "#666666" if node.fate == "dropped" else "black", math.exp(node.logprob)
        axes.text(
            x + 0.07, y - 0.06, labels[i], fontsize=8.5, va="bottom", color=ink, **text_style()
        )
        said = f"{probability:.2f}" if probability >= 0.005 else "< 0.01"
        axes.text(x + 0.07, y + 0.11, said, fontsize=6, va="top", color=ink)
        if i in last:
            score = f"log p {node.total:.2f}, {node.total / (node.step + 1):.2f} a token".replace(
                "-", "−"
            )
            axes.text(x + widths[i] + 0.2, y, score, fontsize=7.5, va="center")
    for fate in dict.fromkeys(
        nodes[i].fate for i in sorted(rows, key=lambda i: ORDER.index(nodes[i].fate))
    ):
        axes.plot([], [], **LOOKS[fate], label=SAID[fate])
    hidden = (
        f"{len(nodes) - len(rows):,} more were dropped at once; they are not drawn"
        if len(rows) < len(nodes)
        else None
    )
    columns = min(4, int(right / 1.7))
    figure.legend(
        loc="outside lower center",
        ncols=columns,
        frameon=False,
        fontsize=8,
        title=hidden,
        title_fontsize=8,
    )
    return save(figure, out)


def _rows(nodes: Sequence[Node], fates: Sequence[str]) -> dict[int, int]:
    """The row of each node of these fates, by its number."""
    children: dict[int, list[int]] = {}
    for i, node in enumerate(nodes):
        if node.fate in fates:
            children.setdefault(node.parent, []).append(i)
    rows, lowest, waiting = {-1: 0}, 0, [-1]
    while waiting:
        at = waiting.pop()
        if at not in rows:
            lowest += 1
            rows[at] = lowest
        ways = sorted(
            children.get(at, []), key=lambda i: (ORDER.index(nodes[i].fate), -nodes[i].logprob)
        )
        rows.update(dict.fromkeys(ways[:1], rows[at]))
        waiting += reversed(ways)
    del rows[-1]
    return rows
