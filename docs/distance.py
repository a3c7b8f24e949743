"""Draw docs/figures/distance.png from what benchmarks/distance.py measured.

python docs/distance.py [RESULTS.jsonl]: with results, docs/figures/distance.tsv is written first.
"""

import csv
import json
import sys
from pathlib import Path
from statistics import mean

from regard.pictures import COLOURS, MARKERS, blank, save_figure

HERE = Path(__file__).parent / "figures"
TABLE = HERE / "distance.tsv"
GUESSING = 1 / 8
LINES = ("-", "--", "-.", ":")
SIZES = (4, 6, 7, 11)
"""Of markers, so that lines that lie on each other can be told apart."""


def write_table(results: Path) -> None:
    """A row for each model, seed and distance."""
    with TABLE.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, delimiter="\t", lineterminator="\n")
        writer.writerow(["model", "seed", "distance", "accuracy"])
        for line in results.read_text(encoding="utf-8").splitlines():
            found = json.loads(line)
            for distance, share in found["accuracy"].items():
                writer.writerow([found["model"], found["seed"], distance, share])


def by_distance() -> dict[str, dict[int, list[float]]]:
    """For each model and distance, the accuracy of each seed."""
    found: dict[str, dict[int, list[float]]] = {}
    with TABLE.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file, delimiter="\t"):
            shares = found.setdefault(row["model"], {}).setdefault(int(row["distance"]), [])
            shares.append(float(row["accuracy"]))
    return found


def draw() -> None:
    """A line for each model: the mean of its seeds."""
    figure = blank(7.2, 4.2, "One word decides another: how often it is right, by distance")
    axes = figure.subplots()
    for number, (name, found) in enumerate(by_distance().items()):
        means = [100 * mean(shares) for shares in found.values()]
        colour = COLOURS[number]
        axes.plot(
            list(found),
            means,
            color=colour,
            linestyle=LINES[number],
            marker=MARKERS[number],
            markersize=SIZES[number],
            markerfacecolor="white" if number % 2 else colour,
            zorder=3 - number / 10,  # the larger markers of what comes later lie behind
            label=name,
        )
    axes.axhline(100 * GUESSING, color="grey", linewidth=0.8)
    axes.text(
        1.01,
        100 * GUESSING,
        "guessing",
        transform=axes.get_yaxis_transform(),
        va="center",
        color="grey",
        fontsize=8,
    )
    axes.set(xlabel="words in between", ylabel="right, %", ylim=(0, 103))
    axes.grid(alpha=0.3)
    figure.legend(loc="outside lower center", ncols=4, fontsize=8)
    save_figure(figure, HERE / "distance.png")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        write_table(Path(sys.argv[1]))
    draw()
