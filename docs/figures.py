"""Draw the figures of the README and the book: `make docs`. Trains the demo's model first, unless runs/demo is there."""

from pathlib import Path

import torch

import regard
from regard.demo import demo
from regard.nn import sinusoids
from regard.pictures.curves import curves
from regard.pictures.heatmaps import head_grid, heatmap
from regard.pictures.positions import positions_figure

HERE = Path(__file__).parent / "figures"
SENTENCE = "will your young strange tourists be in front of the restaurant ?"


def main() -> None:
    folder = Path("runs/demo")
    run = regard.Run.open(folder if folder.exists() else demo(folder))
    result = regard.load(run)(SENTENCE)
    record = result.attention
    cross = record.blocks["cross"]
    heatmap(cross[-1].mean(0), record.target, record.source, title="", out=HERE / "attention.png")
    head_grid(cross, record.target, record.source, title="", out=HERE / "heads.png")
    curves({"demo": run.records()}, HERE / "curves.png")
    positions_figure(sinusoids(torch.arange(100), 64).numpy(), "sinusoidal", HERE / "positions.png")
    print(f"{SENTENCE} → {result.text}\n{HERE}")


if __name__ == "__main__":
    main()
