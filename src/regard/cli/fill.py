"""`regard fill`: a text with masks in, the tokens behind them out."""

from typing import Annotated

import typer

import regard
from regard.cli.parts import PartsOption, read_parts
from regard.cli.terms import Device, RunFolder, refuse_options
from regard.display import say, say_json, table, warn


def fill(
    run: RunFolder,
    text: Annotated[
        list[str], typer.Argument(help="Texts with <mask> where a token is missing, in quotes.")
    ],
    nbest: Annotated[int, typer.Option(min=1, help="Tokens to list for each mask.")] = 5,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object per line.")
    ] = False,
    device: Device = "auto",
    parts: PartsOption = None,
) -> None:
    """Fill the gaps of a text (train.objective=masked).

    Example: `regard fill runs/notes "the <mask> sat"`
    """
    refuse_options(text, fill)
    model = regard.load(
        run, kind=regard.MaskedLanguageModel, device=device, parts=read_parts(parts)
    )
    for one in text:
        filling = model.fill(one, nbest)
        for warning in filling.warnings:
            warn(warning)
        if as_json:
            say_json(filling.as_dict())
            continue
        say(filling.text)
        for number, options in enumerate(filling.options, 1):
            rows = [(option.token, f"{option.probability:.2%}", option.text) for option in options]
            table([f"mask {number}", "probability", "text"], rows)
