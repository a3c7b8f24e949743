"""The command line: parse, call a recipe, print. Whatever is slow to import is imported where it is used."""

import difflib
import inspect
import json
import os
import select
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

import regard
from regard.config import build, merge, parse_overrides
from regard.errors import UserError
from regard.presets import presets as all_presets

app = typer.Typer(
    help="Train your own text-to-text model from a file of pairs, look inside it, and use it.",
    no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, rich_markup_mode="markdown",
)  # fmt: skip
show = typer.Typer(help="Draw pictures: learning curves, attention, positions.", no_args_is_help=True)
data = typer.Typer(help="List, inspect and make data.", no_args_is_help=True)
app.add_typer(show, name="show")
app.add_typer(data, name="data")

TEXTS = {"ignore_unknown_options": True}  # a text may begin with a dash: -940-819
RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="The folder that `regard train` wrote.")]
Sets = Annotated[list[str] | None, typer.Argument(metavar="[section.name=value]...", help="Settings, such as train.steps=1000.")]
Out = Annotated[Path | None, typer.Option(help="Where to write it.")]
Beam = Annotated[int | None, typer.Option(min=1, help="Beam width. Default: the run's search.width.")]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON object.")]


def main() -> None:
    """Run the command line; what went wrong is one line, exit code 2 if the caller can put it right. --debug: the traceback."""
    debug = "--debug" in sys.argv
    sys.argv = [word for word in sys.argv if word != "--debug"]
    try:
        sys.exit(app(standalone_mode=False))
    except (KeyboardInterrupt, typer.Abort):
        sys.exit(130)
    except Exception as error:
        typers_own = getattr(error, "format_message", None)  # an unknown option, a missing argument
        if debug or not (typers_own or isinstance(error, UserError)):
            raise
        print(f"error: {typers_own() if typers_own else error}", file=sys.stderr)
        sys.exit(getattr(error, "code", 2))


@app.command()
def demo(out: Out = None) -> None:
    """Two minutes: train English → French on built-in sentences, and look at the result."""
    from regard.demo import demo as run_demo

    _stopping(lambda: run_demo(out))


@app.command()
def train(
    data: Annotated[str, typer.Argument(metavar="DATA", help="A task, a named corpus, a file or a folder.")],
    settings: Sets = None,
    preset: Annotated[str | None, typer.Option(help="A measured configuration; `regard presets` lists them.")] = None,
    config: Annotated[Path | None, typer.Option(help="A TOML file of settings, such as another run's config.toml.")] = None,
    out: Annotated[Path | None, typer.Option(help="The run's folder. Default: runs/NAME.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with a run that was stopped.")] = False,
    start_from: Annotated[Path | None, typer.Option("--from", help="Fine-tune: start from this run's weights.")] = None,
) -> None:
    """Train a model.  Example: `regard train pairs.tsv train.steps=5000`"""
    sets = parse_overrides(settings or [])
    given: dict[str, Any] = {"preset": preset, "config": config, "out": out, "resume": resume, "start_from": start_from, **sets}
    run = _stopping(lambda: regard.train(data, **given))
    if os.environ.get("RANK", "0") == "0":  # one of several processes speaks
        print(f'\nDone: {run.path}\n  regard translate {run.path} "a text"\n  regard evaluate {run.path}')


def _stopping(work: Any) -> Any:
    """Call it; if it was asked to stop and has saved everything, say so and leave with the signal's exit code."""
    from regard.fitting import Interrupted

    try:
        return work()
    except Interrupted as stopped:
        print(f"\n{stopped}", file=sys.stderr)
        sys.exit(stopped.code)


@app.command(context_settings=TEXTS)
def translate(
    run: RunFolder,
    text: Annotated[list[str] | None, typer.Argument(help="Texts; none: lines of --input or of standard input.")] = None,
    input: Annotated[Path | None, typer.Option(help="A file, one text a line.")] = None,
    output: Annotated[Path | None, typer.Option(help="Write the answers here, not to standard output.")] = None,
    beam: Beam = None,
    nbest: Annotated[int, typer.Option(min=1, help="Answers per text.")] = 1,
    sample: Annotated[bool, typer.Option("--sample", help="Draw the answer at random.")] = False,
    temperature: Annotated[float, typer.Option(help="Of --sample.")] = 1.0,
    top_k: Annotated[int, typer.Option(help="Of --sample: from the so many likeliest tokens. 0: all.")] = 0,
    top_p: Annotated[float, typer.Option(help="Of --sample: from the likeliest tokens that hold this share.")] = 1.0,
    seed: Annotated[int, typer.Option(help="Of --sample.")] = 0,
    risk: Annotated[int, typer.Option(help="Draw so many samples, give the one most like the others (minimum Bayes risk).")] = 0,
    prefix: Annotated[str, typer.Option(help="The answer begins with this.")] = "",
    must: Annotated[list[str] | None, typer.Option(help="A word or phrase that the answer holds; may be given again.")] = None,
    forbid: Annotated[list[str] | None, typer.Option(help="A word or phrase that it does not hold; may be given again.")] = None,
    at: Annotated[int | None, typer.Option(help="Show what else could stand at this position (from 0), and its answer.")] = None,
    ensemble: Annotated[list[Path] | None, typer.Option("--with", help="Another run, to answer together with this one.")] = None,
    settings: Annotated[list[str] | None, typer.Option("--set", help="A search setting, such as search.no_repeat=3.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a line.")] = False,
    attention: Annotated[Path | None, typer.Option(help="Write an attention page of the first text, .html.")] = None,
    wait: Annotated[int | None, typer.Option(min=1, help="Answer while reading, so many source tokens behind; greedy.")] = None,
    coverage: Annotated[bool, typer.Option("--coverage", help="Warn of source words hardly looked at; slower.")] = False,
) -> None:
    """Answer texts.  Example: `regard translate runs/demo "he's calm ."`, or a file: `regard translate runs/demo < in > out`"""
    _refuse_options(text or [], translate)
    if wait is not None:
        whole = input, output, beam, sample, risk, prefix, must, forbid, at is not None, ensemble, as_json, attention, nbest > 1
        if any(whole):
            raise UserError("--wait goes from standard input to standard output, greedily; of the other options it knows --set")
        from regard.online import follow

        with _reader_may_leave():
            blocks = ["\n".join(text).encode()] if text else iter(lambda: os.read(0, 1 << 16), b"")
            follow(regard.load(run, **_search_settings(settings)).online(wait), blocks)
        return
    from regard.translator import Sampling
    from regard.trust import HARDLY

    translator, warned, number = regard.load(run, *ensemble or [], beam=beam, **_search_settings(settings)), 0, 0
    sampling = Sampling(temperature, top_k, top_p, seed, risk) if sample or risk else None
    if at is not None:
        for result in translator.translate(text or [], prefix=prefix):
            rows = ((one.token, f"{one.probability:.2%}", one.text) for one in translator.options(result, at, max(nbest, 5)))
            _table([f"token {at}", "probability", "the answer then"], rows)
        return
    wishes: dict[str, Any] = {"prefix": prefix, "must": must or [], "forbid": forbid or []}
    with _reader_may_leave(), output.open("w", encoding="utf-8") if output else nullcontext(sys.stdout) as sink:
        for burst in [list(map(os.fsencode, text))] if text else _bursts(input):
            lines = [line.decode("utf-8", "replace").rstrip("\r") for line in burst]
            for raw, result in zip(burst, translator.translate(lines, n_best=nbest, sampling=sampling, **wishes)):
                number += 1
                if result.source.count("\ufffd") > raw.count("\ufffd".encode()):
                    result.warnings.insert(0, f"line {number} is not UTF-8: the bytes that are none were replaced by U+FFFD")
                if coverage and result.overlooked:
                    result.warnings.append(f"hardly looked at (attention under {HARDLY}): {' '.join(result.overlooked[:5])}")
                print(_line(result, as_json, nbest, coverage), file=sink)
                for warning in [] if as_json or warned >= 5 else result.warnings:
                    print(f"warning: {result.source[:40]!r}: {warning}", file=sys.stderr)
                warned += bool(result.warnings)
                if attention is not None:
                    result.write_page(attention)
                    attention = None
            sink.flush()
    if warned > 5 and not as_json:
        print(f"warning: {warned - 5:,} more texts like these; --json tells each", file=sys.stderr)


def _search_settings(words: list[str] | None) -> dict[str, Any]:
    """`search.no_repeat=3` or `no_repeat=3` -> {"no_repeat": 3}"""
    sections = parse_overrides([word if word.startswith("search.") else f"search.{word}" for word in words or []])
    return dict(sections.get("search", {}))


@contextmanager
def _reader_may_leave() -> Iterator[None]:
    """A reader such as `head` that has seen enough is no error; typer would make it exit code 1."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what is still in the buffer goes nowhere


def _line(result: Any, as_json: bool, nbest: int, coverage: bool) -> str:
    if as_json:
        names = ("source", "text", "score", "tokens", "logprobs", "alternatives", "warnings", *(["coverage"] * coverage))
        return json.dumps({name: getattr(result, name) for name in names}, ensure_ascii=False, default=asdict)
    answers = [result, *result.alternatives]
    return "\n".join(a.text if nbest == 1 else f"{a.score:.4f}\t{a.text}" for a in answers)


def _refuse_options(texts: Iterable[str], command: Any) -> None:
    """`--beem 3` is a slip, not a text to translate."""
    for word in texts:
        if word.startswith("--") and word[2:3].isalpha():
            near = difflib.get_close_matches(word[2:], [n.replace("_", "-") for n in inspect.signature(command).parameters], n=1)
            hint = f"; did you mean --{near[0]}?" if near else ""
            raise UserError(f"no option {word}{hint} (a text that begins with two dashes goes in by --input or a pipe)")


def _bursts(path: Path | None) -> Iterator[list[bytes]]:
    """Lines as they come: up to 512 together, but none waits more than 20 ms for the next."""
    if path is not None and not path.is_file():
        raise UserError(f"{path}: no such file")
    with path.open("rb", buffering=0) if path else open(0, "rb", buffering=0, closefd=False) as stream:
        rest, block = b"", b"\n"
        while block:
            burst: list[bytes] = []
            while block and len(burst) < 512 and (not burst or path or select.select([stream], [], [], 0.02)[0]):
                block = stream.read(1 << 16)
                *whole, rest = (rest + block).split(b"\n")
                if not block and rest:  # the last line may lack its end
                    whole = [rest]
                burst += whole
            if burst:
                yield burst


@app.command()
def evaluate(
    run: RunFolder,
    data: Annotated[str | None, typer.Argument(help="Other data than the run's own.")] = None,
    split: Annotated[str, typer.Option(help="train, dev, test, or long for some tasks.")] = "test",
    beam: Beam = None,
    against: Annotated[Path | None, typer.Option(help="A second run to compare with, by paired bootstrap.")] = None,
    as_json: AsJson = False,
    wait: Annotated[str | None, typer.Option(help="Simultaneous, so many source tokens behind, such as 1,3,5,inf.")] = None,
) -> None:
    """Score a run.  Example: `regard evaluate runs/demo --split dev`"""
    if wait is not None:
        if beam or against:
            raise UserError("--wait is greedy, and judges one run: it goes without --beam and --against")
        _evaluate_waiting(run, wait, data, split, as_json)
        return
    found = regard.evaluate(run, data, split=split, beam=beam, against=against)
    c = found.comparison
    if as_json:
        extra = {"against": c._asdict()} if c else {}
        print(json.dumps({**found.report.as_dict(), **extra}, ensure_ascii=False))
        return
    _table(["score", "value", "meaning"], found.report.rows())
    if c is not None:
        doubt = f"95 %: {c.low:+.2f} … {c.high:+.2f}, p = {c.p:.3f}"
        print(f"BLEU {c.a:.2f}, the other {c.b:.2f}: a difference of {c.difference:+.2f} ({doubt})")


def _evaluate_waiting(run: Path, wait: str, data: str | None, split: str, as_json: bool) -> None:
    from regard.recipes import evaluate_waiting

    if wrong := [word for word in wait.split(",") if word != "inf" and not (word.isdecimal() and int(word))]:
        raise UserError(f"--wait {wrong[0]!r}: write whole numbers from 1, or inf, with commas between them: 1,3,5,7,inf")
    rows = evaluate_waiting(run, [float(word) for word in wait.split(",")], data, split=split)
    shown = [(f"{row.wait:g}", f"{row.bleu:.2f}", f"{row.average_lagging:.2f}", f"{row.laal:.2f}") for row in rows]
    if as_json:
        print(json.dumps([asdict(row) | {"wait": name} for row, (name, *_) in zip(rows, shown)]))
    else:
        _table(["wait", "BLEU", "AL", "LAAL"], shown)


def _table(columns: list[str], rows: Iterable[Iterable[str]]) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Column, Table

    table = Table(*(Column(name, overflow="fold") for name in columns))
    for row in rows:
        table.add_row(*map(escape, row))
    Console().print(table)


@show.command("curves")
def show_curves(runs: Annotated[list[Path], typer.Argument(metavar="RUN...")], out: Out = None) -> None:
    """Learning curves of one run or several.  Example: `regard show curves runs/a runs/b --out curves.svg`"""
    from regard.pictures.curves import curves

    curves({run.path.name: run.records() for run in map(regard.Run.open, runs)}, path := out or Path("curves.png"))
    print(path)


@show.command("attention", context_settings=TEXTS)
def show_attention(
    run: RunFolder,
    text: Annotated[str, typer.Argument(help="What to translate.")],
    out: Annotated[
        Path | None, typer.Option(help="A picture (.png, .svg, .pdf) or a page (.html). Default: one of each.")
    ] = None,
    heads: Annotated[bool, typer.Option("--heads", help="A grid of all layers and heads, not the last layer's mean.")] = False,
) -> None:
    """Where the model looks.  Example: `regard show attention runs/demo "he's calm ."`"""
    _refuse_options([text], show_attention)
    from regard.pictures.heatmaps import head_grid, heatmap

    result = next(regard.load(run).translate([text]))
    record = result.attention
    if "cross" not in record.blocks:
        raise UserError(f"{run}: this model has no attention to show (model.attention=none)")
    cross, title = record.blocks["cross"], f"{text} → {result.text}"
    for path in [out] if out else [Path("attention.png"), Path("attention.html")]:
        if path.suffix == ".html":
            result.write_page(path)
        elif heads:
            head_grid(cross, record.target, record.source, title=title, out=path)
        else:
            heatmap(cross[-1].mean(0), record.target, record.source, title=title, out=path)
        print(path)


@show.command("positions")
def show_positions(
    name: Annotated[str, typer.Argument(help="sinusoidal, or a run whose table to show.")] = "sinusoidal",
    width: Annotated[int, typer.Option(min=1)] = 64,
    length: Annotated[int, typer.Option(min=1)] = 100,
    out: Out = None,
) -> None:
    """Positional encodings as a matrix and as curves.  Example: `regard show positions --width 32`"""
    import torch

    from regard.nn import Position, sinusoids
    from regard.pictures.positions import positions_figure

    table = sinusoids(torch.arange(length), width)
    if name != "sinusoidal":
        from regard.models.transformer import TransformerEncoder

        encoder = regard.Run.open(name).model().encoder
        if not isinstance(encoder, TransformerEncoder) or type(encoder.position) is Position:
            raise UserError(f"{name}: its positions are not a table that is added to the embeddings")
        table = encoder.position.embed(torch.zeros(length, encoder.position.width), torch.arange(length)).detach()
    positions_figure(table.numpy(), Path(name).name, path := out or Path("positions.png"))
    print(path)


@data.command("list")
def data_list() -> None:
    """Tasks that are made on the spot, and corpora found below $REGARD_DATA."""
    from regard.data.tasks import TASKS

    rows = [(task.name, task.summary, " ".join(f"{k}={v}" for k, v in task.options.items())) for task in TASKS.values()]
    home = os.environ.get("REGARD_DATA")
    found = sorted(path for path in Path(home).iterdir() if path.is_dir()) if home and Path(home).is_dir() else []
    _table(["name", "what", "options"], [*rows, *((path.name, f"corpus in {path}", "") for path in found)])


@data.command("generate", context_settings=TEXTS)
def data_generate(
    task: Annotated[str, typer.Argument(metavar="TASK")],
    options: Annotated[list[str] | None, typer.Argument(metavar="[name=value]...")] = None,
    count: Annotated[int, typer.Option(min=0)] = 10,
    seed: Annotated[int | None, typer.Option()] = None,
    split: Annotated[str, typer.Option()] = "train",
) -> None:
    """Pairs of a task, as TSV.  Example: `regard data generate arithmetic --count 5 --seed 123456 complexity=3`"""
    from regard.data.tasks import TASKS, nearest

    if task not in TASKS:
        raise UserError(f"no task {task!r}{nearest(task, TASKS)}")
    if wrong := [word for word in options or [] if "=" not in word or word.startswith("-")]:
        raise UserError(f"{wrong[0]!r} is not an option: write name=value, such as complexity=3")
    values = dict(word.split("=", 1) for word in options or [])
    with _reader_may_leave():
        for source, target in TASKS[task].pairs(count, seed, split=split, options=values):
            print(f"{source}\t{target}")


@data.command("inspect")
def data_inspect(data: Annotated[str, typer.Argument(metavar="DATA")], settings: Sets = None) -> None:
    """What is in some data, what would be skipped, and what `train` would choose.  Example: `regard data inspect pairs.tsv`"""
    from regard.data.splits import leaks
    from regard.planning import choose, survey
    from regard.preparing import open_splits

    given = merge({"data": {"path": data}}, parse_overrides(settings or []))
    splits = open_splits(build(given).data)
    rows = []
    for name in ("train", "dev", "test", "long"):
        stream = getattr(splits, name)
        if stream is not None:
            found = survey(stream)
            sides = [f"{side.mean_words:.1f} words, {len(side.words):,} different" for side in (found.source, found.target)]
            rows.append((name, f"{found.pairs:,}", *sides))
    _table(["split", "pairs", "source", "target"], rows)
    shared = leaks(splits)
    print(f"{shared.duplicates:,} training pairs repeat an earlier one")
    print(f"{shared.dev:,} dev and {shared.test:,} test sources also stand in training")
    print(*splits.skipped.lines(), *splits.notes, "train would choose:", sep="\n")
    print(*(f"  {reason}" for reason in choose(splits, given)[1]), sep="\n")


@app.command()
def doctor(run: RunFolder, as_json: AsJson = False) -> None:
    """Prove that a run is sound.  Example: `regard doctor runs/demo`"""
    from regard.doctor import doctor as run_doctor

    rows = run_doctor(run)
    if as_json:
        print(json.dumps([asdict(row) for row in rows], ensure_ascii=False))
    else:
        marks = {True: "✓", False: "✗", None: "–"}
        lines = ((marks[row.passed], row.name, row.found + (f"\n→ {row.advice}" if row.advice else "")) for row in rows)
        _table(["", "proof", "found"], lines)
    if any(row.passed is False for row in rows):
        raise typer.Exit(1)


@app.command()
def presets() -> None:
    """Measured configurations, and what was measured."""
    _table(["preset", "what it is and what it reached"], all_presets().items())
