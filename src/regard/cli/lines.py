"""Lines that a command reads: from a file, from standard input as they come, or typed."""

import os
import select
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TextIO

from regard.display import note, warn
from regard.errors import UserError
from regard.files import disk_faults_told

BLOCK = 1 << 16
"""Bytes that are read at once."""
LONGEST = 100_000_000
"""Bytes of a line: /dev/zero has no end of one."""


def line_bursts(path: Path | None, enough: Callable[[], int]) -> Iterator[list[bytes]]:
    """Groups of lines of a file, or of standard input as they come.

    No line waits more than 20 ms for the next. enough: how many lines make a group.
    """
    if path is None:
        yield from _lines_together(read_stdin, enough, _more_soon)
        return

    from regard.data.readers.files import check_file

    check_file(path)
    with path.open("rb", buffering=0) as file:

        def read() -> bytes:
            with disk_faults_told(path):
                return file.read(BLOCK)

        yield from _lines_together(read, enough, lambda: True)


def text_bursts(bursts: Iterable[list[bytes]]) -> Iterator[list[str]]:
    """The lines as texts; the first one that is not UTF-8 is told."""
    number = 0
    has_warned = False
    for burst in bursts:
        texts = [line.decode("utf-8", "replace").rstrip("\r") for line in burst]
        for line, text in zip(burst, texts):
            number += 1
            if not has_warned and text.count("\ufffd") > line.count("\ufffd".encode()):
                has_warned = True
                warn(
                    f"line {number} is not valid UTF-8; invalid bytes are replaced by U+FFFD, here "
                    f"and in the lines below"
                )
        yield texts


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
    rest: list[bytes] = []  # the parts of a line whose end has not come yet
    size = 0  # of these
    while block := read():
        *lines, last = block.split(b"\n")
        if lines:
            group += [b"".join((*rest, lines[0])), *lines[1:]]
            rest = []
            size = 0
        rest.append(last)
        size += len(last)
        if size > LONGEST:
            raise UserError(f"a line of more than {LONGEST:,} bytes: write one text on each line")
        if group and (len(group) >= enough() or not more_soon()):
            yield group
            group = []
    if size:  # the last line may lack its end
        group.append(b"".join(rest))
    if group:
        yield group
