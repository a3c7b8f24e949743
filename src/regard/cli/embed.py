"""`regard embed`: texts in, vectors out; or the texts that are nearest to one."""

import os
import sys
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Annotated, Any

import typer

import regard
from regard.cli.lines import is_typed, line_bursts
from regard.cli.parts import PartsOption, read_parts
from regard.cli.terms import BYTES_A_TOKEN, Device, RunFolder
from regard.display import note, table
from regard.errors import UserError, counted
from regard.files import write_output


def embed(
    run: RunFolder,
    input: Annotated[
        Path | None, typer.Option(help="Read texts from this file instead of stdin, one per line.")
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(help="Write the vectors to this file (.npy) instead of stdout."),
    ] = None,
    near: Annotated[
        str | None,
        typer.Option(help="Show the texts that are nearest to this one, instead of vectors."),
    ] = None,
    nbest: Annotated[int, typer.Option(min=1, help="Texts to show (with --near).")] = 5,
    device: Device = "auto",
    parts: PartsOption = None,
) -> None:
    """Give each text a vector, or find the texts nearest to one.

    A vector is the mean of the encoder's states. They are written as a NumPy array, one row a line.

    Example: `regard embed runs/notes < texts > vectors.npy`
    """
    if input is None and is_typed():
        raise UserError("give the texts with --input FILE, or on standard input: < FILE")
    if near is None and output is None and sys.stdout.isatty():
        raise UserError("vectors are no text for a terminal: write them to a file with > FILE.npy")
    model: Any = regard.load(run, device=device, parts=read_parts(parts))
    if not hasattr(model, "embed"):
        raise UserError(
            f"{run}: this run has no encoder (train.objective=causal), so it has no vectors; train "
            f"one with train.objective=masked"
        )

    texts = list(_texts(input))
    model.expect(sum(map(len, texts)) / BYTES_A_TOKEN)
    if near is not None:
        rows = [(f"{one.similarity:.3f}", one.text) for one in model.nearest(near, texts, nbest)]
        table(["similarity", "text"], rows)
        return

    import numpy as np

    vectors = model.embed(texts)
    content = BytesIO()
    np.save(content, vectors)
    if output is None:
        sys.stdout.buffer.write(content.getvalue())
        return
    write_output(output, content.getvalue())
    note(f"{counted(len(vectors), 'vector')} of {counted(vectors.shape[1], 'number')} in {output}")


def _texts(path: Path | None) -> Iterator[str]:
    """The lines of a file, or of standard input; an empty one is a text, too."""
    for burst in line_bursts(path, lambda: 512):
        for line in burst:
            yield os.fsdecode(line).rstrip("\r")
