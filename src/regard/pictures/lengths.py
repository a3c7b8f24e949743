"""Scores against the length of the source, above how many sentences there are."""

import math
from collections.abc import Mapping, Sequence

from regard.errors import UserError
from regard.pictures import COLOURS, MARKERS, Figure, Place, blank, save_figure, text_style

STYLES = ("-", "--", "-.", ":")


def length_figure(
    bins: Sequence[str],
    sentences: Sequence[int],
    scores: Mapping[str, Sequence[float | None]],
    *,
    title: str = "",
    out: Place = None,
) -> Figure:
    """Draw scores from 0 to 100 in bins of length, and below them the number of sentences.

    bins: the name of each, such as "11–20". scores: a curve each, by name; None is left out.
    """
    if not bins or any(len(values) != len(bins) for values in (sentences, *scores.values())):
        raise UserError("scores by length: pass as many sentences and scores as bins, at least one")

    figure = blank(max(6.0, 2.5 + 0.75 * len(bins)), 5.2, title)
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
    places = range(len(bins))
    for number, (name, values) in enumerate(scores.items()):
        heights = [math.nan if value is None else value for value in values]
        above.plot(
            places,
            heights,
            color=COLOURS[number % len(COLOURS)],
            marker=MARKERS[number % len(MARKERS)],
            linestyle=STYLES[number % len(STYLES)],
            linewidth=1.8,
            label=f"{name:.60}",
        )
    known = [value for values in scores.values() for value in values if value is not None]
    above.set(ylabel="score", ylim=_limits(known))

    bars = below.bar(places, sentences, color="#bbbbbb", width=0.7)
    below.bar_label(bars, [f"{count:,}" for count in sentences], fontsize=8, padding=1)
    below.set(xlabel="source tokens", ylabel="sentences")
    below.yaxis.set_major_formatter("{x:,.0f}")
    below.margins(y=0.25)
    below.set_xticks(places, bins)

    for axes in (above, below):
        axes.grid(alpha=0.25, axis="y")
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
    legend = figure.legend(
        loc="outside lower center",
        ncols=min(4, len(scores)),
        frameon=False,
        fontsize=9,
        handlelength=4,
    )
    for text in legend.get_texts():
        text.set(**text_style())
    return save_figure(figure, out)


def _limits(values: Sequence[float]) -> tuple[float, float]:
    """From where to where scores from 0 to 100 are drawn, with a margin.

    Up to 100 if any is high, and from 0 unless all are: among scores from 92 to 97 one wants to see
    differences.
    """
    highest = max(values, default=100)
    lowest = min(values, default=0)
    top = 100 if highest > 80 else max(20, 1.1 * highest)
    bottom = 0 if lowest < 50 else 10 * math.floor((lowest - 1) / 10)
    margin = 0.03 * (top - bottom)
    return bottom - margin, top + margin
