"""What the commands share: options that mean the same everywhere, and care with texts."""

import difflib
import inspect
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import typer

from regard.cli.completion import data_names, run_folders, setting_names
from regard.config import parse_overrides
from regard.errors import UserError

READING = ("source", "target", "features", "header", "encoding", "target_file")
"""Settings that say how a file is read."""
BYTES_A_TOKEN = 4
"""About so many bytes of a file make a token, to tell how much there is to translate."""
TEXTS = {"ignore_unknown_options": True}  # a text may begin with a dash: -940-819
RunFolder = Annotated[
    Path,
    typer.Argument(
        metavar="RUN", help="The folder that `regard train` wrote.", autocompletion=run_folders
    ),
]
Sets = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[section.name=value]...",
        help="Settings, such as train.steps=1000; `regard settings` lists them.",
        autocompletion=setting_names,
    ),
]
Data = Annotated[
    str,
    typer.Argument(
        metavar="DATA",
        help="A built-in task, a named corpus, a file or a folder.",
        autocompletion=data_names,
    ),
]
FileAndSets = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[FILE] [section.name=value]...",
        help="A second file, aligned with the first; then settings, such as train.steps=1000.",
        autocompletion=setting_names,
    ),
]
Out = Annotated[Path | None, typer.Option(help="File to write.")]
Beam = Annotated[
    int | None, typer.Option(min=1, help="Beam width. Default: the run's search.width.")
]
Device = Annotated[
    str,
    typer.Option(
        metavar="auto|cpu|cuda|cuda:1|mps",
        help="Device to compute on; auto: a GPU if it is faster.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def second_file(words: list[str] | None) -> tuple[str | None, list[str]]:
    """The second file among the words after DATA, if there is one, and the settings."""
    first, *settings = words or [""]
    if not os.path.isfile(first):
        if "=" not in first and (os.sep in first or "." in first):
            raise UserError(f"{first}: no such file, and not a setting (section.name=value)")
        return None, words or []
    for word in settings:
        if os.path.isfile(word):
            raise UserError(f"{word}: a third file; give one file of pairs, or two aligned files")
    return first, settings


def refuse_options(texts: Iterable[str], command: Any) -> None:
    """Refuse a text such as `--beem`, which is a misspelt option of the command."""
    for word in texts:
        if word.startswith("--") and word[2:3].isalpha():
            parameters = inspect.signature(command).parameters
            names = [name.replace("_", "-") for name in parameters]
            near = difflib.get_close_matches(word[2:], names, n=1)
            hint = f"; did you mean --{near[0]}?" if near else ""
            raise UserError(
                f"no option {word}{hint} (to pass a text that starts with two dashes, use --input "
                f"or stdin)"
            )


def how_to_read(data: str | None, words: list[str] | None) -> dict[str, Any]:
    """How to read the data: a second file beside it, or settings such as data.encoding=latin-1."""
    if not words:
        return {}
    from regard.recipes.training import two_files

    target_file, settings = second_file(words)
    given = parse_overrides(settings)
    for section, values in given.items():
        for name in values:
            if section != "data" or name not in READING:
                known = ", ".join(f"data.{one}" for one in READING)
                raise UserError(f"{section}.{name} cannot be set here; only {known} can")
    return two_files(data, target_file) | given.get("data", {})
