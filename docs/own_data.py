"""Draw the pictures of docs/how-to/own-data.md from what was measured: docs/figures/own-data.tsv.

Each line of the file is one training with nothing set, its score on the test data, and how it was
measured.
"""

import csv
from pathlib import Path

from regard.pictures import COLOURS, MARKERS, blank, save_figure

HERE = Path(__file__).parent / "figures"
AXES = {
    "pairs": (
        "pairs to train on",
        "Nothing set, on one GPU: the score against the number of pairs",
    ),
    "minutes": (
        "train.minutes",
        "Nothing set, 20,000 pairs, on two CPU cores: the score against the time",
    ),
}


def measured(picture: str) -> dict[str, list[tuple[float, float]]]:
    """The points of each curve of a picture."""
    curves: dict[str, list[tuple[float, float]]] = {}
    with open(HERE / "own-data.tsv", encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file, delimiter="\t"):
            if row["picture"] == picture:
                curves.setdefault(row["curve"], []).append((float(row["x"]), float(row["score"])))
    return curves


def has_close_above(curves: dict[str, list[tuple[float, float]]], x: float, score: float) -> bool:
    """Whether a point of another curve stands where this one's value would be written."""
    return any(x == place and 0 < other - score < 9 for p in curves.values() for place, other in p)


def draw(picture: str) -> None:
    """One picture: the test score against pairs or minutes, with the value beside each point."""
    label, title = AXES[picture]
    figure = blank(8, 4.6, title)
    axes = figure.subplots()
    curves = measured(picture)
    for number, (name, points) in enumerate(curves.items()):
        x, scores = zip(*sorted(points), strict=True)
        axes.plot(x, scores, color=COLOURS[number], marker=MARKERS[number], label=name)
        for place, score in zip(x, scores, strict=True):
            axes.annotate(
                f"{score:.1f}",
                (place, score),
                textcoords="offset points",
                xytext=(0, -15 if has_close_above(curves, place, score) else 7),
                ha="center",
                fontsize=8,
                color=COLOURS[number],
            )

    ticks = sorted({x for points in curves.values() for x, _ in points})
    axes.set_xscale("log")
    axes.set_xticks(ticks, [f"{tick:,g}" for tick in ticks])
    axes.minorticks_off()
    highest = max(score for points in curves.values() for _, score in points)
    axes.set(xlabel=label, ylabel="score on test data", ylim=(0, 1.1 * highest))
    axes.legend(loc="lower right", fontsize=9)
    save_figure(figure, HERE / f"own-data-{picture}.png")


if __name__ == "__main__":
    for name in AXES:
        if measured(name):
            draw(name)
