"""Lines that a command reads: from a file, from standard input as they come, or typed."""

import os
import select
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TextIO

from regard.display import note
from regard.errors import UserError

BLOCK = 1 << 16
"""Bytes that are read at once."""


def line_bursts(path: Path | None, enough: Callable[[], int]) -> Iterator[list[bytes]]:
    """Groups of lines of a file, or of standard input as they come.

    No line waits more than 20 ms for the next. enough: how many lines make a group.
    """
    if path is not None and (path.is_dir() or not path.exists()):
        raise UserError(f"{path}: no such file")
    if path is not None:
        with path.open("rb", buffering=0) as file:
            yield from _lines_together(lambda: file.read(BLOCK), enough, lambda: True)
    else:
        yield from _lines_together(read_stdin, enough, _more_soon)


def read_stdin() -> bytes:
    """What there is to read on standard input; empty at its end."""
    try:
        return os.read(0, BLOCK)
    except OSError as error:
        raise UserError(f"standard input cannot be read ({error.strerror})") from error


def typed_lines() -> Iterator[list[bytes]]:
    """Lines that a person types at a prompt, one by one; Ctrl-D ends them."""
    with suppress(ImportError):  # Windows has no readline, and edits lines by itself
        import readline  # noqa: F401 - input() uses it: arrow keys, history

    end = "Ctrl-Z and Enter" if sys.platform == "win32" else "Ctrl-D"
    note(f"Type a text and press Enter. To end, press {end}.")
    while True:
        try:
            line = input("> ")
        except EOFError:
            note()
            return
        if line.strip():
            yield [os.fsencode(line)]


def is_typed() -> bool:
    """Whether a person types what is read from standard input."""
    stream: TextIO | None = sys.stdin
    if stream is None:  # as Python has it where the caller closed it
        raise UserError("standard input is closed: give a text, or a file with --input")
    return stream.isatty()


def _more_soon() -> bool:
    """Whether there is more to read on standard input within 20 ms.

    On Windows, where only sockets can be asked, the answer is no.
    """
    if sys.platform == "win32":
        return False
    readable, _, _ = select.select([0], [], [], 0.02)
    return bool(readable)


def _lines_together(
    read: Callable[[], bytes], enough: Callable[[], int], more_soon: Callable[[], bool]
) -> Iterator[list[bytes]]:
    """Groups of lines: a group ends with `enough` lines, or where no more come soon."""
    group: list[bytes] = []
    rest = b""  # a line whose end has not come yet
    while block := read():
        *lines, rest = (rest + block).split(b"\n")
        group += lines
        if group and (len(group) >= enough() or not more_soon()):
            yield group
            group = []
    if rest:  # the last line may lack its end
        group.append(rest)
    if group:
        yield group
