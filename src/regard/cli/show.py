"""`regard show`: pictures."""

from pathlib import Path
from typing import Annotated

import typer

import regard
from regard.cli.terms import TEXTS, Out, RunFolder, refuse_options
from regard.errors import UserError

show = typer.Typer(help="Draw pictures: learning curves, attention, positions.", no_args_is_help=True)


@show.command("curves")
def show_curves(runs: Annotated[list[Path], typer.Argument(metavar="RUN...")], out: Out = None) -> None:
    """Learning curves of one run or several.  Example: `regard show curves runs/a runs/b --out curves.svg`"""
    from regard.pictures.curves import curves

    curves({run.path.name: run.records() for run in map(regard.Run.open, runs)}, path := out or Path("curves.png"))
    print(path)


@show.command("attention", context_settings=TEXTS)
def show_attention(
    run: RunFolder,
    text: Annotated[str, typer.Argument(help="What to translate.")],
    out: Annotated[
        Path | None, typer.Option(help="A picture (.png, .svg, .pdf) or a page (.html). Default: one of each.")
    ] = None,
    heads: Annotated[bool, typer.Option("--heads", help="A grid of all layers and heads, not the last layer's mean.")] = False,
) -> None:
    """Where the model looks.  Example: `regard show attention runs/demo "he's calm ."`"""
    refuse_options([text], show_attention)
    from regard.pictures.heatmaps import head_grid, heatmap

    result = next(regard.load(run).translate([text]))
    record = result.attention
    if "cross" not in record.blocks:
        raise UserError(f"{run}: this model has no attention to show (model.attention=none)")
    cross, title = record.blocks["cross"], f"{text} → {result.text}"
    for path in [out] if out else [Path("attention.png"), Path("attention.html")]:
        if path.suffix == ".html":
            result.write_page(path)
        elif heads:
            head_grid(cross, record.target, record.source, title=title, out=path)
        else:
            heatmap(cross[-1].mean(0), record.target, record.source, title=title, out=path)
        print(path)


@show.command("positions")
def show_positions(
    name: Annotated[str, typer.Argument(help="sinusoidal, or a run whose table to show.")] = "sinusoidal",
    width: Annotated[int, typer.Option(min=1)] = 64,
    length: Annotated[int, typer.Option(min=1)] = 100,
    out: Out = None,
) -> None:
    """Positional encodings as a matrix and as curves.  Example: `regard show positions --width 32`"""
    import torch

    from regard.nn import Position, sinusoids
    from regard.pictures.positions import positions_figure

    table = sinusoids(torch.arange(length), width)
    if name != "sinusoidal":
        from regard.models.transformer import TransformerEncoder

        encoder = regard.Run.open(name).model().encoder
        if not isinstance(encoder, TransformerEncoder) or type(encoder.position) is Position:
            raise UserError(f"{name}: its positions are not a table that is added to the embeddings")
        table = encoder.position.embed(torch.zeros(length, encoder.position.width), torch.arange(length)).detach()
    positions_figure(table.numpy(), Path(name).name, path := out or Path("positions.png"))
    print(path)
