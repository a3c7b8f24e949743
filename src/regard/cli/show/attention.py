"""`regard show attention`: where the model looks."""

from pathlib import Path
from typing import Annotated

import typer

from regard.cli.parts import PartsOption, read_parts
from regard.cli.show.terms import (
    Block,
    Head,
    Layer,
    Open,
    TextToRead,
    caption_of,
    chosen_weights,
    read_by,
    wrote,
)
from regard.cli.terms import Device, RunFolder, refuse_options
from regard.display import say_answer
from regard.errors import UserError


def show_attention(
    run: RunFolder,
    text: TextToRead,
    out: Annotated[
        Path,
        typer.Option(
            help=(
                "A picture (.png, .svg, .pdf), or a page with all layers, heads and evidence "
                "(.html; slower)."
            )
        ),
    ] = Path("attention.png"),
    heads: Annotated[
        bool,
        typer.Option("--heads", help="Draw a grid of all layers and heads."),
    ] = False,
    layer: Layer = None,
    head: Head = None,
    how: Annotated[
        str,
        typer.Option(help="How to combine heads: mean, max, norm or rollout (over all layers)."),
    ] = "mean",
    block: Block = "",
    words: Annotated[bool, typer.Option("--words", help="Show words instead of tokens.")] = False,
    open_it: Open = False,
    device: Device = "auto",
    parts: PartsOption = None,
) -> None:
    """Where the model looks.

    Example: `regard show attention runs/demo "he's calm ." --layer 1 --head 2`
    """
    refuse_options([text], show_attention)
    from regard.pictures.heatmaps import head_grid, heatmap

    is_page = out.suffix.lower() in (".html", ".htm")
    _refuse_conflicts(is_page, heads, bool(layer), bool(head), how, words)

    reading = read_by(run, text, device=device, parts=read_parts(parts))
    record = reading.record.words() if words else reading.record
    block = block or record.main_block
    matrix = chosen_weights(record, block, how, layer, head)  # (T, S); refuses what is not there
    title = reading.title
    if is_page:
        reading.write_page(out)
    elif heads:
        head_grid(record.blocks[block], *record.sides(block), title=f"{title} ({block})", out=out)
    else:
        labels = {
            "rollout": "share of information from this token (rollout)",
            "norm": "share of attention, weighted by value norm",
        }
        heatmap(
            matrix,
            *record.sides(block),
            title=f"{title} ({caption_of(record, block, how, layer, head)})",
            label=labels.get(how, ""),
            out=out,
        )
    say_answer(reading.answer)
    wrote(out, open_it)


def _refuse_conflicts(
    is_page: bool, heads: bool, has_layer: bool, has_head: bool, how: str, words: bool
) -> None:
    """Refuse options of `show attention` that contradict each other."""
    is_choice = has_layer or has_head
    if is_page and (is_choice or heads or how != "mean" or words):
        raise UserError(
            "a page (.html) shows all layers and heads: choose them there, or write a picture "
            "(.png)"
        )
    if heads and (is_choice or how != "mean"):
        raise UserError("--heads draws all layers and heads: remove --layer, --head and --how")
    if how == "rollout" and is_choice:
        raise UserError("--how rollout combines all layers and heads: remove --layer and --head")
    if how == "max" and has_head:
        raise UserError("--how max combines heads: remove it, or remove --head")
    if how == "norm" and words:
        raise UserError("--how norm works on tokens, not on words: remove --words")
