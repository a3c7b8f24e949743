"""`regard show gradients`: how far back they reach."""

from pathlib import Path
from typing import Annotated

import typer

import regard
from regard.cli.parts import PartsOption, read_parts
from regard.cli.show.terms import Open, Picture, wrote


def show_gradients(
    runs: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[RUN]...", help="Runs to compare. Default: three untrained models."
        ),
    ] = None,
    length: Annotated[
        int,
        typer.Option(
            min=2, max=10_000, help="Number of random tokens, source and answer together."
        ),
    ] = 100,
    out: Picture = Path("gradients.png"),
    open_it: Open = False,
    parts: PartsOption = None,
) -> None:
    """How far back the gradient of an RNN, LSTM, Transformer or run reaches.

    Example: `regard show gradients --length 60`
    """
    from regard.inspection.flow import gradient_flow, textbook
    from regard.pictures.curves import gradients

    title = "How far back the gradient reaches"
    if runs:
        opened = [regard.Run.open(run) for run in runs]
        own = read_parts(parts)
        flows = {
            run.path.name: gradient_flow(run.model(parts=own), length, first=run.source.first)
            for run in opened
        }
    else:
        flows = {name: gradient_flow(model, length) for name, model in textbook().items()}
        title += ": untrained, RNN and LSTM without attention"

    gradients(flows, title=title, answer=length // 2, out=out)
    wrote(out, open_it)
