"""What the commands share: options that mean the same everywhere, tables, and manners towards texts
and readers.
"""

import difflib
import inspect
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from regard.errors import UserError

TEXTS = {"ignore_unknown_options": True}  # a text may begin with a dash: -940-819
RunFolder = Annotated[
    Path, typer.Argument(metavar="RUN", help="The folder that `regard train` wrote.")
]
Sets = Annotated[
    list[str] | None,
    typer.Argument(metavar="[section.name=value]...", help="Settings, such as train.steps=1000."),
]
Out = Annotated[Path | None, typer.Option(help="Where to write it.")]
Beam = Annotated[
    int | None, typer.Option(min=1, help="Beam width. Default: the run's search.width.")
]
Device = Annotated[
    str,
    typer.Option(
        metavar="auto|cpu|cuda|cuda:1|mps", help="Where to compute. auto: a GPU, where it pays."
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON object.")]


@contextmanager
def reader_may_leave() -> Iterator[None]:
    """A reader such as `head` that has seen enough is no error; typer would make it exit code 1."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(
            os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno()
        )  # what is still in the buffer goes nowhere


def refuse_options(texts: Iterable[str], command: Any) -> None:
    """`--beem 3` is a slip, not a text to translate."""
    for word in texts:
        if word.startswith("--") and word[2:3].isalpha():
            near = difflib.get_close_matches(
                word[2:], [n.replace("_", "-") for n in inspect.signature(command).parameters], n=1
            )
            hint = f"; did you mean --{near[0]}?" if near else ""
            raise UserError(
                f"no option {word}{hint} (a text that begins with two dashes goes in by --input "
                f"or a pipe)"
            )


def table(columns: list[str], rows: Iterable[Iterable[str]]) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Column, Table

    made = Table(*(Column(name, overflow="fold") for name in columns))
    for row in rows:
        made.add_row(*map(escape, row))
    Console().print(made)
