"""What is printed. Nothing outside this room prints."""

import sys
from collections.abc import Iterable, Sequence
from typing import IO, TYPE_CHECKING, Any

from regard.display.markup import json_text
from regard.display.text import bounded, one_line, plain, safe

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

WIDEST = 40
"""Characters of a cell that is not folded."""


def say(*lines: object) -> None:
    """Print each text as one line, on standard output."""
    for line in lines or ("",):
        print(plain(line))


def say_answer(*fields: object, end: str = "\n", flush: bool = False) -> None:
    """Print an answer, or fields with tabs between them, as one line of standard output.

    A pipe or file gets the text itself, with spaces for control characters; a terminal shows them.
    """
    visible = plain if sys.stdout.isatty() else one_line
    print(*map(visible, fields), sep="\t", end=end, flush=flush)


def say_json(value: Any) -> None:
    """Print a value as JSON, on one line of standard output."""
    print(json_text(value))


def note(*lines: object) -> None:
    """Print each text as one line, on standard error."""
    for line in lines or ("",):
        print(plain(line), file=sys.stderr)


def warn(text: object) -> None:
    """Print a warning, on one line of standard error."""
    print(f"warning: {bounded(text)}", file=sys.stderr)


def fail(text: object) -> None:
    """Print an error, on one line of standard error."""
    print(f"error: {bounded(text)}", file=sys.stderr)


def console(stream: IO[str] | None = None, **options: Any) -> "Console":
    """A console of rich, on standard output if no other stream is given.

    It takes markup for text. Whoever prints on it makes the text `safe` first.
    """
    from rich.console import Console

    return Console(file=stream, highlight=False, markup=False, emoji=False, **options)


def table(
    columns: Sequence[str],
    rows: Iterable[Iterable[str]],
    *,
    whole: Sequence[str] = (),
    stream: IO[str] | None = None,
    title: str | None = None,
) -> None:
    """Print a table; long cells are folded, but for those of the columns named in `whole`."""
    cells = [[safe(cell) for cell in row] for row in rows]
    console(stream).print(_rich_table(columns, cells, whole, title))


def _rich_table(
    columns: Sequence[str], cells: list[list[str]], whole: Sequence[str], title: str | None
) -> "Table":
    """The table as rich draws it."""
    from rich.table import Column, Table
    from rich.text import Text

    headings = []
    for number, name in enumerate(columns):
        longest = max((len(row[number]) for row in cells), default=0)
        least = min(longest, WIDEST) if name in whole else None
        headings.append(Column(Text(safe(name)), overflow="fold", min_width=least))
    content = Table(*headings, title=title, title_justify="left")
    for row in cells:
        content.add_row(*map(Text, row))
    return content
