"""Draw docs/figures/length.png and length-gpu.png from what benchmarks/length.py measured.

python docs/length.py [TABLE RESULTS.jsonl]: with results, docs/figures/TABLE.tsv is written first.
"""

import csv
import json
import sys
from pathlib import Path

from regard.pictures import COLOURS, MARKERS, blank, save_figure

HERE = Path(__file__).parent / "figures"
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
CPU_PANELS = [
    ("length", "training_seconds", "seconds, forward and backward"),
    ("length", "training_mb", "MB at the peak, forward and backward"),
]
GPU_PANELS = [
    ("length-gpu-fp32", "training_seconds", "seconds, forward and backward, float32"),
    ("length-gpu-bf16", "training_seconds", "seconds, forward and backward, bfloat16"),
]
"""A table, one of its columns, and what that is."""


def write_table(table: str, results: Path) -> None:
    """The measurements of a run of the benchmark, without its summary."""
    rows = [json.loads(line) for line in results.read_text(encoding="utf-8").splitlines()]
    with (HERE / f"{table}.tsv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, delimiter="\t", lineterminator="\n")
        writer.writerow(COLUMNS)
        for row in rows:
            if "length" in row:
                writer.writerow([row[column] for column in COLUMNS])


def curves(table: str) -> dict[str, list[dict[str, str]]]:
    """The rows of each mechanism."""
    by_name: dict[str, list[dict[str, str]]] = {}
    with (HERE / f"{table}.tsv").open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file, delimiter="\t"):
            by_name.setdefault(row["name"], []).append(row)
    return by_name


def draw(picture: str, where: str, panels: list[tuple[str, str, str]]) -> None:
    """Time or memory against the length, both axes logarithmic."""
    figure = blank(9.6, 4.6, f"One layer of attention on {where}, by the length of the text")
    for axes, (table, column, label) in zip(figure.subplots(1, len(panels)), panels):
        mechanisms = curves(table)
        for number, (name, rows) in enumerate(mechanisms.items()):
            axes.plot(
                [int(row["length"]) for row in rows],
                [float(row[column]) for row in rows],
                color=COLOURS[number % len(COLOURS)],
                marker=MARKERS[number % len(MARKERS)],
                linestyle=LINES.get(name, "-"),
                markersize=5,
                label=name,
            )
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        ticks = sorted({int(row["length"]) for rows in mechanisms.values() for row in rows})
        axes.set_xticks(ticks, [f"{tick:,}" for tick in ticks], fontsize=8)
        axes.set(xlabel="tokens", ylabel=label)
        axes.grid(alpha=0.3)
    handles, names = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside right center", fontsize=8)
    save_figure(figure, HERE / f"{picture}.png")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        write_table(sys.argv[1], Path(sys.argv[2]))
    draw("length", "two CPU cores", CPU_PANELS)
    draw("length-gpu", "an H200", GPU_PANELS)
