"""`regard show positions`: positional encodings."""

import re
from pathlib import Path
from typing import Annotated, Any

import typer

import regard
from regard.cli.parts import PartsOption, read_parts
from regard.cli.show.terms import Open, Picture, wrote
from regard.errors import UserError, nearest

NAMED_POSITIONS = ("sinusoidal", "rotary", "alibi")
"""Positions that are the same in every model; the others are learned, so they need a run."""


def show_positions(
    name: Annotated[
        str, typer.Argument(help="sinusoidal, rotary, alibi, or a run.")
    ] = "sinusoidal",
    width: Annotated[
        int, typer.Option(min=1, max=4096, help="Dimensions of an embedding (rotary: of one head).")
    ] = 64,
    heads: Annotated[int, typer.Option(min=1, max=1024, help="Number of heads (alibi).")] = 4,
    length: Annotated[
        int, typer.Option(min=1, max=10_000, help="Number of positions to draw.")
    ] = 100,
    columns: Annotated[
        str,
        typer.Option(help="Dimensions to draw as curves, up to eight: 6-9, or 0,4,16."),
    ] = "",
    out: Picture = Path("positions.png"),
    open_it: Open = False,
    parts: PartsOption = None,
) -> None:
    """Positional encodings as a matrix and as curves.

    Example: `regard show positions sinusoidal --width 32 --columns 6-9`
    """
    from regard.nn.positions import POSITIONS

    chosen = _numbers(columns)
    if name in NAMED_POSITIONS:
        if name == "rotary" and width % 2:
            raise UserError(
                f"--width {width}: rotary rotates features in pairs, so the width must be even"
            )
        share = 1 if name == "rotary" else heads
        position = POSITIONS[name](width, share)
    else:
        position = _position_of_run(name, read_parts(parts))
    _draw_position(position, Path(name).name, length, chosen, out)
    wrote(out, open_it)


def _position_of_run(name: str, parts: Any) -> Any:
    """The position object of a run, of its first layer if each layer has one.

    It is that of the encoder, or of a decoder alone.
    """
    from regard.models.language import CausalModel
    from regard.models.transformer import TransformerDecoder, TransformerEncoder
    from regard.nn.positions import POSITIONS

    if not Path(name).exists():
        if name in POSITIONS:
            raise UserError(
                f"{name} positions are learned, so they need a run: regard show positions RUN"
            )
        raise UserError(
            f"{name!r} is neither a run nor a positional encoding{nearest(name, NAMED_POSITIONS)}"
        )
    model: Any = regard.Run.open(name).model(parts=parts)
    is_causal = isinstance(model, CausalModel)
    half = model.decoder if is_causal else model.encoder
    if not isinstance(half, TransformerEncoder | TransformerDecoder):
        raise UserError(f"{name}: a recurrent model has no positional encodings")
    block: Any = half.blocks[0]
    in_layer = block.attention.position
    return in_layer if in_layer.in_attention else half.position


def _numbers(words: str) -> list[int]:
    """The numbers of `6-9` or `0,4,16`."""
    numbers: list[int] = []
    for word in filter(None, (part.strip() for part in words.split(","))):
        match = re.fullmatch(r"(\d{1,4})(?:-(\d{1,4}))?", word)
        if match is None or (match[2] and int(match[2]) < int(match[1])):
            raise UserError(
                f"--columns {words:.40}: expected dimensions from 0, such as 6-9 or 0,4,16"
            )
        first = int(match[1])
        numbers += range(first, int(match[2] or first) + 1)
    return list(dict.fromkeys(numbers))


def _draw_position(position: Any, name: str, length: int, columns: list[int], out: Path) -> None:
    """Draw what a position does: to the embeddings, to queries and keys, or to the scores.

    columns: which dimensions to draw as curves; none: a choice of ours.
    """
    import torch

    from regard.nn.positions import Relative
    from regard.pictures.positions import bias_figure, positions_figure

    if isinstance(position, Relative):
        clip = position.clip
        vectors = position.keys.detach().numpy()  # (2·clip+1, D/H)
        title = f"{name}, added to the keys"
        positions_figure(vectors, title, out, axis="distance", first=-clip, columns=columns)
        return

    places = torch.arange(length)
    added = position.embed(torch.zeros(length, position.width), places).detach()  # (T, D)
    if added.any():
        positions_figure(added.numpy(), name, out, columns=columns)
        return

    size = position.width // position.heads
    unit = torch.zeros(1, position.heads, length, size)  # (1, H, T, D/H)
    unit[..., 0::2] = 1.0
    turned = position.rotate(unit, places[None])
    if not torch.equal(turned, unit):
        title = f"{name}, features (1, 0, 1, 0, …) rotated"
        positions_figure(turned[0, 0].numpy(), title, out, columns=columns)
        return

    bias = position.key_term(unit, places[None], places[None])  # (1, H, T, S)
    if bias is None:
        raise UserError(f"{name}: this model has no positional encodings")
    if columns:
        raise UserError(f"--columns: {name} adds to the scores of attention, and has no dimensions")
    bias_figure(bias[0].detach().numpy(), name, out)
