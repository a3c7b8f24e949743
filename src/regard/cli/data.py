"""`regard data`: list, make and inspect data."""

import os
import tempfile
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from regard.cli.terms import TEXTS, FileAndSets, reader_may_leave, second_file, table
from regard.config import build, merge, parse_overrides
from regard.errors import UserError, nearest

if TYPE_CHECKING:
    from regard.data.splits import Stream

data = typer.Typer(help="List, inspect and make data.", no_args_is_help=True)


@data.command("list")
def data_list() -> None:
    """Tasks that are made on the spot, and corpora found below $REGARD_DATA."""
    from regard.data.tasks import TASKS

    rows = []
    for task in TASKS.values():
        options = dict(task.options)
        if task.apart == "drawn":
            options["overlap"] = False
        options_text = " ".join(f"{name}={value}" for name, value in options.items())
        rows.append((task.name, task.summary, options_text))

    rows += [(path.name, f"corpus in {path}", "") for path in _corpora()]
    table(["name", "what", "options"], rows)


def _corpora() -> list[Path]:
    """The folders in $REGARD_DATA."""
    home = os.environ.get("REGARD_DATA")
    if not home or not Path(home).is_dir():
        return []
    return sorted(path for path in Path(home).iterdir() if path.is_dir())


@data.command("generate", context_settings=TEXTS)
def data_generate(
    task: Annotated[str, typer.Argument(metavar="TASK")],
    options: Annotated[list[str] | None, typer.Argument(metavar="[name=value]...")] = None,
    count: Annotated[int, typer.Option(min=0)] = 10,
    seed: Annotated[int | None, typer.Option()] = None,
    split: Annotated[str, typer.Option()] = "train",
) -> None:
    """Pairs of a task, as TSV.
    Example: `regard data generate arithmetic --count 5 --seed 123456 complexity=3`
    """
    from regard.data.tasks import TASKS

    if task not in TASKS:
        raise UserError(f"no task {task!r}{nearest(task, TASKS)}")
    values = {}
    for word in options or []:
        name, equals, value = word.partition("=")
        if not equals or word.startswith("-"):
            raise UserError(f"{word!r} is not an option: write name=value, such as complexity=3")
        values[name] = value

    with reader_may_leave():
        for source, target in TASKS[task].pairs(count, seed, split=split, options=values):
            print(f"{source}\t{target}")


@data.command("inspect")
def data_inspect(
    data: Annotated[str, typer.Argument(metavar="DATA")], settings: FileAndSets = None
) -> None:
    """What is in some data, what would be skipped, and what `train` would choose.
    Example: `regard data inspect pairs.tsv`
    """
    from regard.data.kept import Kept
    from regard.data.splits import leaks
    from regard.recipes.planning import choose
    from regard.recipes.preparing import open_splits
    from regard.recipes.training import two_files

    target_file, words = second_file(settings)
    files = {"path": data, **two_files(data, target_file)}
    given = merge({"data": files}, parse_overrides(words))
    keep = partial(Kept, folder=Path(tempfile.gettempdir()))  # the data is read several times
    splits = open_splits(build(given).data, keep=keep)
    streams = {name: getattr(splits, name) for name in ("train", "dev", "test", "long")}
    rows = [_split_row(name, stream) for name, stream in streams.items() if stream is not None]
    table(["split", "pairs", "source", "target"], rows)

    shared = leaks(splits)
    print(f"{shared.duplicates:,} training pairs repeat an earlier one")
    print(f"{shared.dev:,} dev and {shared.test:,} test sources also stand in training")
    told = [*splits.reading, *splits.skipped.lines(), *splits.notes]
    print(*told, "train would choose:", sep="\n")
    _, reasons = choose(splits, given)
    print(*(f"  {reason}" for reason in reasons), sep="\n")


def _split_row(name: str, stream: "Stream") -> tuple[str, str, str, str]:
    """A split as a row of a table: its name, pairs, source and target."""
    from regard.recipes.planning import Side, survey

    def words(side: Side) -> str:
        return f"{side.mean_words:.1f} words, {len(side.words):,} different"

    measured = survey(stream)
    return name, f"{measured.pairs:,}", words(measured.source), words(measured.target)
