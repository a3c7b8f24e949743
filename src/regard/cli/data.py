"""`regard data`: list, fetch, make and inspect data."""

import os
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from regard.bounds import is_none
from regard.cli.terms import TEXTS, AsJson, Data, FileAndSets, second_file
from regard.config import DataConfig, merge, parse_overrides
from regard.display import console, note, plain, say, say_answer, say_json, shell_word, table
from regard.errors import UserError, counted, nearest

if TYPE_CHECKING:
    from regard.recipes.inspecting import Inspection, Split, Words

MOST_CHARACTERS = 160  # of a sample that are shown
BAR_WIDTH = 14

data = typer.Typer(help="List, fetch, inspect and generate data.", no_args_is_help=True)


@data.command("list")
def data_list(as_json: AsJson = False) -> None:
    """List the built-in tasks, the corpora in $REGARD_DATA, and those that can be fetched."""
    from regard.data.remote import remote_corpora
    from regard.data.tasks import TASKS

    entries: list[dict[str, Any]] = []
    for task in TASKS.values():
        options = dict(task.options)
        if task.apart == "drawn":
            options["overlap"] = False
        entries.append({"name": task.name, "what": task.summary, "options": options})
    entries += [
        {"name": path.name, "what": f"corpus in {path}", "options": {}} for path in _corpora()
    ]
    entries += [
        {
            "name": name,
            "what": f"{corpus.summary} To get it: regard data fetch {name}",
            "options": {},
        }
        for name, corpus in remote_corpora().items()
        if name not in [entry["name"] for entry in entries]
    ]

    if as_json:
        say_json(entries)
        return
    rows = []
    for entry in entries:
        options_text = " ".join(f"{name}={value}" for name, value in entry["options"].items())
        rows.append((entry["name"], entry["what"], options_text))
    table(["name", "what", "options"], rows)


def _corpora() -> list[Path]:
    """The folders in $REGARD_DATA."""
    home = os.environ.get("REGARD_DATA")
    if not home or not Path(home).is_dir():
        return []
    return sorted(path for path in Path(home).iterdir() if path.is_dir())


def _remote_names(incomplete: str) -> list[str]:
    from regard.data.remote import remote_corpora

    return [name for name in remote_corpora() if name.startswith(incomplete)]


@data.command("fetch")
def data_fetch(
    name: Annotated[str, typer.Argument(metavar="NAME", autocompletion=_remote_names)],
    out: Annotated[
        Path | None,
        typer.Option(help="Folder to put it in. Default: $REGARD_DATA/NAME, or data/NAME."),
    ] = None,
) -> None:
    """Fetch a corpus from the network; `regard data list` tells which there are.

    Example: `regard data fetch tatoeba-fra-eng`
    """
    from regard.data.remote import fetch, remote_corpora
    from regard.recipes.reporter import Reporter

    reporter = Reporter()
    with reporter.progress("% fetched") as tell:
        folder = fetch(name, out, say=reporter.say, tell=tell)
    say("", f"Saved in {folder}. Try next:")
    say(f"  regard train {shell_word(folder)} {remote_corpora()[name].train}")


@data.command("generate", context_settings=TEXTS)
def data_generate(
    task: Annotated[str, typer.Argument(metavar="TASK")],
    options: Annotated[list[str] | None, typer.Argument(metavar="[name=value]...")] = None,
    count: Annotated[int, typer.Option(min=0, max=10**12)] = 10,
    seed: Annotated[str, typer.Option(metavar="N|none", help="Random seed; none: draw one.")] = str(
        DataConfig.seed
    ),
    split: Annotated[
        str | None, typer.Option(help="Default: train; with --contrasts: test.")
    ] = None,
    contrasts: Annotated[
        bool,
        typer.Option(
            "--contrasts",
            help="Print contrastive pairs for `regard score --contrasts`: source, right target, "
            "wrong target, and what is wrong in it. Only phrases has them.",
        ),
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object per line.")
    ] = False,
) -> None:
    """Print pairs from a task, as TSV.

    Example: `regard data generate arithmetic --count 5 --seed 123456 complexity=3`, or
    `regard data generate phrases --contrasts --count 700 > contrasts.tsv`
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

    number = DataConfig(seed=seed).seed  # type: ignore[arg-type]  # which it converts and checks
    if is_none(seed):
        note(f"drew --seed {number} (pass it to repeat this)")
    if contrasts:
        TASKS[task].chosen(values)
        for item in TASKS[task].contrasts(count, number, split=split or "test"):
            _print_fields(item._asdict(), as_json)
        return
    for source, target in TASKS[task].pairs(count, number, split=split or "train", options=values):
        _print_fields({"source": source, "target": target}, as_json)


def _print_fields(fields: dict[str, str], as_json: bool) -> None:
    """Print texts as one line: a JSON object, or with tabs between them."""
    if as_json:
        say_json(fields)
    else:
        say_answer(*fields.values())


@data.command("inspect")
def data_inspect(
    data: Data,
    settings: FileAndSets = None,
    as_json: AsJson = False,
) -> None:
    """Show what is in some data, what would be skipped, and what `train` would choose.

    Example: `regard data inspect pairs.tsv`, or for a language model:
    `regard data inspect notes.txt train.objective=causal`
    """
    from regard.recipes.inspecting import inspect_data
    from regard.recipes.training import two_files

    target_file, words = second_file(settings)
    files = {"path": data, **two_files(data, target_file)}
    inspection = inspect_data(merge({"data": files}, parse_overrides(words)))
    if as_json:
        say_json(asdict(inspection))
    else:
        _print_inspection(inspection)


def _print_inspection(inspection: "Inspection") -> None:
    """Print an inspection for a person."""
    is_text = inspection.holds == "text"
    columns = ["split", "texts", "words"] if is_text else ["split", "pairs", "source", "target"]
    table(columns, [_row(split) for split in inspection.splits])
    if inspection.reading:
        say(*inspection.reading)

    training = f"training {inspection.holds}"
    say("", f"{counted(len(inspection.samples), training)}, as text and as tokens:", "")
    for sample in inspection.samples:
        _print_text("text" if is_text else "source", sample.source, sample.source_tokens)
        for target, tokens in zip(sample.targets, sample.target_tokens):
            _print_text("target", target, tokens)
        say()

    if is_text:
        say(f"About {inspection.tokens:,} tokens in all training texts.", "")
    _print_lengths(inspection)
    say("", *_problems(inspection), "", "`regard train` would choose:")
    say(*(f"  {reason}" for reason in inspection.plan))


def _row(split: "Split") -> list[str]:
    """What the table says of a split."""
    sides = [split.source] if split.target is None else [split.source, split.target]
    return [split.name, f"{split.pairs:,}", *map(_words, sides)]


def _words(words: "Words") -> str:
    return f"{words.mean_words:.1f} words, {words.different_words:,} different"


def _print_text(name: str, text: str, tokens: list[str]) -> None:
    """Print the beginning of a text, and below it its tokens with bars between them."""
    for label, line in ((name, text), ("", "|".join(tokens))):
        shown = plain(line)
        cut = f"{shown[:MOST_CHARACTERS]}…" if len(shown) > MOST_CHARACTERS else shown
        say(f"  {label:6}  {cut}")


def _print_lengths(inspection: "Inspection") -> None:
    """Print the lengths of the training pairs, or texts, as bars."""
    source = [bar.source for bar in inspection.lengths]
    target = [bar.target for bar in inspection.lengths]
    rows = []
    for bar, source_bar, target_bar in zip(inspection.lengths, _bars(source), _bars(target)):
        if bar.high is None:
            label = f"{bar.low} or more"
        elif bar.high == bar.low:
            label = str(bar.low)
        else:
            label = f"{bar.low} to {bar.high}"
        rows.append((label, source_bar, target_bar))
    if inspection.holds == "text":
        table(["tokens", "texts"], [row[:2] for row in rows])
        return
    table(["tokens", "source", "target"], rows)


def _bars(counts: list[int]) -> list[str]:
    """A bar and a percentage for each count."""
    block = "#" if console().options.ascii_only else "█"
    total = max(1, sum(counts))
    most = max(1, *counts)
    bars = []
    for count in counts:
        percent = f"{100 * count / total:.0f}%"
        if count and percent == "0%":
            percent = "<1%"
        bars.append(f"{percent:>4} {block * round(BAR_WIDTH * count / most)}")
    return bars


def _verb(count: int, verb: str) -> str:
    """A verb for so many subjects: 1 repeats, 2 repeat."""
    return verb if count == 1 else verb.removesuffix("s")


def _problems(inspection: "Inspection") -> list[str]:
    """What may be wrong with the data, a line each."""
    leaks = inspection.leaks
    items = f"{inspection.holds}s"
    sources = "texts" if inspection.holds == "text" else "sources"
    lines = [
        f"{leaks.duplicates:,} of the training {items} {_verb(leaks.duplicates, 'repeats')} an "
        f"earlier one",
        f"{leaks.dev:,} dev and {leaks.test:,} test {sources} also occur in the training data",
    ]
    if leaks.near_dev or leaks.near_test:
        lines.append(
            f"{leaks.near_dev:,} dev and {leaks.near_test:,} test {sources} differ from a training "
            f"{sources.removesuffix('s')} only in case or punctuation"
        )
    if inspection.too_long:
        longer = f"more than {inspection.max_length:,} tokens"
        outcome = "on a side and will be skipped"
        if inspection.holds == "text":
            outcome = "and will be cut into rows"
        lines.append(
            f"{inspection.too_long:.1%} of the training {items} have {longer} {outcome} "
            f"(data.max_length)"
        )
    return [*lines, *inspection.skipped, *inspection.notes]
