"""`regard show curves`: how training went."""

from pathlib import Path
from typing import Annotated, Literal

import typer

import regard
from regard.cli.completion import run_folders
from regard.cli.show.terms import Open, Picture, wrote


def show_curves(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", autocompletion=run_folders)],
    by: Annotated[Literal["step", "epoch"], typer.Option(help="What the x axis counts.")] = "step",
    out: Picture = Path("curves.png"),
    open_it: Open = False,
) -> None:
    """Learning curves of one run or several.

    Example: `regard show curves runs/a runs/b --out curves.svg`
    """
    from regard.pictures.curves import curves

    opened = [regard.Run.open(run) for run in runs]
    names = [run.path.name for run in opened]
    if len(set(names)) < len(names):
        names = [str(run.path) for run in opened]
    records = {name: run.records("train", "dev") for name, run in zip(names, opened)}
    curves(records, out, by=by)
    wrote(out, open_it)
