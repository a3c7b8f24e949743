"""`regard show gradients`: how far back they reach, and how deep."""

from pathlib import Path
from typing import Annotated, Any

import typer

import regard
from regard.cli.parts import PartsOption, read_parts
from regard.cli.show.terms import Open, Picture, wrote
from regard.display import say


def show_gradients(
    runs: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[RUN]...",
            help="Runs to compare. Default: untrained models, in six panels.",
        ),
    ] = None,
    length: Annotated[
        int,
        typer.Option(min=2, max=2000, help="Number of random tokens, source and answer together."),
    ] = 100,
    out: Picture = Path("gradients.png"),
    open_it: Open = False,
    parts: PartsOption = None,
) -> None:
    """How far back gradients reach: vanishing, exploding, clipped, by depth.

    Without a run it draws untrained models: recurrent cells as Regard starts them and as textbooks
    do, attention, a linear cell that explodes, clipping, and depth with and without residual
    connections.

    Example: `regard show gradients --length 60`
    """
    from regard.pictures.gradients import gradients

    if runs:
        panels = _panels_of_runs(runs, length, read_parts(parts))
        title = "How far back the gradient of the last token reaches"
    else:
        from regard.inspection import gradient_panels

        panels = gradient_panels(length)
        title = "Gradients of the last token’s loss in untrained models"
        for panel in panels[:2]:
            say(panel.title.replace("\n", ". "), *(f"  {name}" for name in panel.curves))
    gradients(panels, title=title, out=out)
    wrote(out, open_it)


def _panels_of_runs(runs: list[Path], length: int, parts: Any) -> list[Any]:
    """The gradients of runs against distance and, for those with blocks, against depth."""
    from regard.inference.loading import translating_model
    from regard.inspection import gradient_by_depth, gradient_flow
    from regard.pictures.gradients import Panel

    flows = {}
    depths = {}
    sentences = max(1, min(16, 1600 // length))
    for path in runs:
        run = regard.Run.open(path)
        model = translating_model(run, "best", parts)
        name = str(path) if len(runs) > 1 else run.path.name
        first = run.source.first
        flows[name] = gradient_flow(model, length, sentences=sentences, first=first)
        if len(getattr(model.encoder, "blocks", [])) > 1:
            depths[name] = gradient_by_depth(model, first=first)

    nearest = "norm of the gradient (nearest = 1)"
    panels = [
        Panel("Distance", flows, "tokens before the predicted one", nearest, answer=length // 2)
    ]
    if depths:
        last = "norm of the gradient (last layer = 1)"
        panels.append(Panel("Depth of the encoder", depths, "layers below the last one", last))
    return panels
