"""`regard data`: list, make and inspect data."""

import os
import tempfile
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from regard.cli.terms import TEXTS, Sets, reader_may_leave, table
from regard.config import build, merge, parse_overrides
from regard.errors import UserError, nearest

data = typer.Typer(help="List, inspect and make data.", no_args_is_help=True)


@data.command("list")
def data_list() -> None:
    """Tasks that are made on the spot, and corpora found below $REGARD_DATA."""
    from regard.data.tasks import TASKS

    rows = []
    for task in TASKS.values():
        options = {**task.options, "overlap": False} if task.apart == "drawn" else task.options
        rows.append(
            (
                task.name,
                task.summary,
                " ".join(f"{name}={value}" for name, value in options.items()),
            )
        )
    home = os.environ.get("REGARD_DATA")
    found = (
        sorted(path for path in Path(home).iterdir() if path.is_dir())
        if home and Path(home).is_dir()
        else []
    )
    table(
        ["name", "what", "options"],
        [*rows, *((path.name, f"corpus in {path}", "") for path in found)],
    )


@data.command("generate", context_settings=TEXTS)
def data_generate(
    task: Annotated[str, typer.Argument(metavar="TASK")],
    options: Annotated[list[str] | None, typer.Argument(metavar="[name=value]...")] = None,
    count: Annotated[int, typer.Option(min=0)] = 10,
    seed: Annotated[int | None, typer.Option()] = None,
    split: Annotated[str, typer.Option()] = "train",
) -> None:
    """Pairs of a task, as TSV.  Example: `regard data generate arithmetic --count 5 --seed 123456
    complexity=3`
    """
    from regard.data.tasks import TASKS

    if task not in TASKS:
        raise UserError(f"no task {task!r}{nearest(task, TASKS)}")
    if wrong := [word for word in options or [] if "=" not in word or word.startswith("-")]:
        raise UserError(f"{wrong[0]!r} is not an option: write name=value, such as complexity=3")
    values = dict(word.split("=", 1) for word in options or [])
    with reader_may_leave():
        for source, target in TASKS[task].pairs(count, seed, split=split, options=values):
            print(f"{source}\t{target}")


@data.command("inspect")
def data_inspect(
    data: Annotated[str, typer.Argument(metavar="DATA")], settings: Sets = None
) -> None:
    """What is in some data, what would be skipped, and what `train` would choose.  Example: `regard
    data inspect pairs.tsv`
    """
    from regard.data.kept import Kept
    from regard.data.splits import leaks
    from regard.recipes.planning import choose, survey
    from regard.recipes.preparing import open_splits

    given = merge({"data": {"path": data}}, parse_overrides(settings or []))
    splits = open_splits(
        build(given).data, keep=partial(Kept, folder=Path(tempfile.gettempdir()))
    )  # it is read several times
    rows = []
    for name in ("train", "dev", "test", "long"):
        stream = getattr(splits, name)
        if stream is not None:
            found = survey(stream)
            sides = [
                f"{side.mean_words:.1f} words, {len(side.words):,} different"
                for side in (found.source, found.target)
            ]
            rows.append((name, f"{found.pairs:,}", *sides))
    table(["split", "pairs", "source", "target"], rows)
    shared = leaks(splits)
    print(f"{shared.duplicates:,} training pairs repeat an earlier one")
    print(f"{shared.dev:,} dev and {shared.test:,} test sources also stand in training")
    print(*splits.skipped.lines(), *splits.notes, "train would choose:", sep="\n")
    print(*(f"  {reason}" for reason in choose(splits, given)[1]), sep="\n")
