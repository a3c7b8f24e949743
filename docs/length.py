"""Draw docs/figures/length.png from what benchmarks/length.py measured: docs/figures/length.tsv.

python docs/length.py [RESULTS.jsonl]: with results, the table is written first.
"""

import csv
import json
import sys
from pathlib import Path

from regard.pictures import COLOURS, MARKERS, blank, save_figure

HERE = Path(__file__).parent / "figures"
TABLE = HERE / "length.tsv"
COLUMNS = (
    "name",
    "length",
    "forward_seconds",
    "training_seconds",
    "forward_mb",
    "training_mb",
)
LINES = {
    "full": "--",
    "lstm": ":",
    "linformer": "-.",
    "performer": "-.",
    "lsh": "-.",
    "routing": "-.",
}
"""Exact patterns have solid lines, approximations dash-dotted ones."""
PANELS = {
    "training_seconds": "seconds, forward and backward",
    "training_mb": "MB at the peak, forward and backward",
}


def write_table(results: Path) -> None:
    """The measurements of a run of the benchmark, without its summary."""
    rows = [json.loads(line) for line in results.read_text(encoding="utf-8").splitlines()]
    with TABLE.open("w", encoding="utf-8", newline="") as file:
        table = csv.writer(file, delimiter="\t", lineterminator="\n")
        table.writerow(COLUMNS)
        for row in rows:
            if "length" in row:
                table.writerow([row[column] for column in COLUMNS])


def curves() -> dict[str, list[dict[str, str]]]:
    """The rows of each mechanism."""
    by_name: dict[str, list[dict[str, str]]] = {}
    with TABLE.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file, delimiter="\t"):
            by_name.setdefault(row["name"], []).append(row)
    return by_name


def draw() -> None:
    """Two panels: time and memory against the length, both axes logarithmic."""
    figure = blank(9.6, 4.6, "One layer of attention on two CPU cores, by the length of the text")
    panels = figure.subplots(1, len(PANELS))
    for axes, (column, label) in zip(panels, PANELS.items()):
        for number, (name, rows) in enumerate(curves().items()):
            lengths = [int(row["length"]) for row in rows]
            values = [float(row[column]) for row in rows]
            axes.plot(
                lengths,
                values,
                color=COLOURS[number % len(COLOURS)],
                marker=MARKERS[number % len(MARKERS)],
                linestyle=LINES.get(name, "-"),
                markersize=5,
                label=name,
            )
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        ticks = sorted({int(row["length"]) for rows in curves().values() for row in rows})
        axes.set_xticks(ticks, [f"{tick:,}" for tick in ticks], fontsize=8)
        axes.set(xlabel="tokens", ylabel=label)
        axes.grid(alpha=0.3)
    panels[0].legend(fontsize=8)
    save_figure(figure, HERE / "length.png")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        write_table(Path(sys.argv[1]))
    draw()
