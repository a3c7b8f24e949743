"""`regard runs`: the runs in a folder, as a table."""

import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from regard.cli.terms import AsJson
from regard.display import say, say_json, table
from regard.errors import UserError


@dataclass(frozen=True)
class Entry:
    """What the table tells of a run."""

    path: str
    data: str
    pairs: int | None
    parameters: int | None
    score: dict[str, Any] | None  # the best dev score: metric, value, step; None: not scored
    date: str  # when training wrote to it last
    problem: str = ""  # why the run cannot be read


def runs(
    folder: Annotated[
        Path, typer.Argument(metavar="[FOLDER]", help="Folder to search, including subfolders.")
    ] = Path("runs"),
    as_json: AsJson = False,
) -> None:
    """List your runs: data, examples, parameters, best dev score, date.

    Example: `regard runs`
    """
    if not folder.is_dir() and folder != Path("runs"):
        raise UserError(f"{folder}: no such folder")
    entries = [_entry(path) for path in _run_folders(folder)]
    entries.sort(key=lambda entry: entry.date, reverse=True)
    if as_json:
        say_json([asdict(entry) for entry in entries])
    elif not entries:
        say(f"No runs in {folder}. Train one: regard train pairs.tsv")
    else:
        rows = map(_row, entries)
        table(["run", "data", "examples", "size", "dev score", "date"], rows, whole=["run", "date"])


def _run_folders(folder: Path) -> Iterator[Path]:
    """The runs in a folder and in the folders inside; a run itself is not searched."""
    if (folder / "manifest.json").exists() and (folder / "config.toml").exists():
        yield folder
    elif folder.is_dir():
        for path in sorted(folder.iterdir()):
            if path.is_dir() and not path.is_symlink() and not path.name.startswith("."):
                yield from _run_folders(path)


def _entry(path: Path) -> Entry:
    """Read what the table tells of a run."""
    import regard

    date = time.strftime("%Y-%m-%d %H:%M", time.localtime(_changed_at(path)))
    try:
        run = regard.Run.open(path)
    except UserError as error:
        problem = str(error).removeprefix(f"{path}: ").removeprefix(f"{path}/")
        return Entry(str(path), "", None, None, None, date, problem)

    metric = run.config.train.metric
    best = run.best_look()
    score = None
    if best is not None:
        score = {"metric": metric, "value": best[metric], "step": best["step"]}
    data = Path(run.config.data.path).name or "pairs from Python"
    facts = run.manifest
    return Entry(str(path), data, facts.get("pairs"), facts.get("parameters"), score, date)


def _changed_at(path: Path) -> float:
    """When training last wrote to the run, in seconds since 1970."""
    log = path / "log.jsonl"
    return (log if log.exists() else path / "manifest.json").stat().st_mtime


def _row(entry: Entry) -> tuple[str, ...]:
    """A run as a row of the table."""
    day = entry.date.split()[0]  # the table is wide already
    if entry.problem:
        return entry.path, entry.problem, "", "", "", day
    score = _score_words(entry.score)
    return (
        entry.path,
        entry.data,
        _rounded(entry.pairs),
        _rounded(entry.parameters),
        score,
        day,
    )


def _rounded(number: int | None) -> str:
    """A count in few letters: 950, 12.3k, 4.1M."""
    if number is None:
        return ""
    if number >= 999_500:
        return f"{number / 10**6:.3g}M"
    if number >= 1000:
        return f"{number / 1000:.3g}k"
    return str(number)


def _score_words(score: dict[str, Any] | None) -> str:
    """The best dev score, in words."""
    if score is None:
        return "not scored"
    value = score["value"]
    words = {
        "loss": f"loss {value:.3f}",
        "accuracy": f"accuracy {value:.1%}",
        "exact_match": f"exact match {value:.1%}",
        "bleu": f"BLEU {value:.1f}",
    }
    metric = str(score["metric"]).removeprefix("custom:")
    return words.get(metric, f"{metric} {value:.4g}")
