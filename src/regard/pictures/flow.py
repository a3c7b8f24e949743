"""How far back a model's last word reaches: gradient against distance."""

from collections.abc import Mapping

import numpy as np
from numpy.typing import ArrayLike

from regard.errors import UserError
from regard.pictures import COLOURS, MARKERS, Figure, Place, blank, save, text_style

DASHES = ("-", "--", "-.", ":")


def gradients(flows: Mapping[str, ArrayLike], *, title: str = "", answer: int = 0, out: Place = None) -> Figure:
    """A line for each model: the norm of the gradient (N,) at the distances 0, 1, 2 …, logarithmic.

    answer: how many of the nearest tokens belong to the answer; those behind them are the source.
    """
    if not flows:
        raise UserError("no gradient to draw")
    figure = blank(7.5, 4.6, title)
    axes = figure.subplots()
    for i, (name, flow) in enumerate(flows.items()):
        look = {"color": COLOURS[i % 7], "marker": MARKERS[i % 8], "linestyle": DASHES[i % 4], "linewidth": 1.8, "markersize": 5}
        axes.semilogy(values := np.asarray(flow), **look, markevery=max(1, len(values) // 10), label=f"{name:.40}")
    if answer:
        axes.axvline(answer - 0.5, color="black", linewidth=0.8)
        for word, side in (("← the answer  ", "right"), ("  the source →", "left")):
            axes.text(answer - 0.5, 1.01, word, ha=side, fontsize=8, transform=axes.get_xaxis_transform())
    axes.set(xlabel="tokens back from the one that is predicted", ylabel="norm of the gradient (nearest = 1)")
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    legend = figure.legend(loc="outside lower center", ncols=min(3, len(flows)), frameon=False, fontsize=9, handlelength=4)
    for text in legend.get_texts():
        text.set(**text_style())
    return save(figure, out)
