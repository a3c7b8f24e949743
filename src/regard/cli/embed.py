"""`regard embed`: texts in, vectors out; or the texts that are nearest to one."""

import os
import stat
import sys
from collections.abc import Iterator
from contextlib import suppress
from io import BytesIO
from itertools import chain
from pathlib import Path
from typing import Annotated, Any

import typer

import regard
from regard.cli.lines import is_typed, line_bursts, text_bursts
from regard.cli.parts import PartsOption, read_parts
from regard.cli.terms import BYTES_A_TOKEN, Device, RunFolder
from regard.display import note, say_bytes, table
from regard.errors import UserError, counted
from regard.files import whole_output


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
    if near is not None and output is not None:
        raise UserError("--near shows texts and writes no vectors: remove --output or --near")
    if near is None and output is None and sys.stdout.isatty():
        raise UserError("vectors are no text for a terminal: write them to a file with > FILE.npy")
    if near is None:
        _refuse_to_replace_texts(input, output)
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

    if output is None:
        say_bytes(_npy(model.embed(texts)))
        return
    with whole_output(output) as file:
        vectors = model.embed(texts)
        file.write(_npy(vectors))
    note(f"{counted(len(vectors), 'vector')} of {counted(vectors.shape[1], 'number')} in {output}")


def _refuse_to_replace_texts(input: Path | None, output: Path | None) -> None:
    """Refuse to write vectors into the file that the texts come from, whatever it is called."""
    with suppress(OSError):  # one of them is not there, which is told when it is opened
        source = os.fstat(0) if input is None else os.stat(input)
        target = os.fstat(1) if output is None else os.stat(output)
        if stat.S_ISREG(source.st_mode) and os.path.samestat(source, target):
            raise UserError(
                f"{output or 'standard output'}: this is the file of the texts, and vectors would "
                f"replace them; choose another file"
            )


def _npy(vectors: Any) -> bytes:
    """The vectors as the content of a .npy file."""
    import numpy as np

    content = BytesIO()
    np.save(content, vectors)
    return content.getvalue()


def _texts(path: Path | None) -> Iterator[str]:
    """The lines of a file, or of standard input; an empty one is a text, too."""
    return chain.from_iterable(text_bursts(line_bursts(path, lambda: 512)))
