"""The command line: parse, call a recipe, print.

Whatever is slow to import is imported where it is used.
"""

import gc
import io
import json
import os
import sys
import warnings
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
import typer.main

import regard
from regard.cli.completion import data_names, preset_names
from regard.cli.data import data as data_commands
from regard.cli.parts import PartsOption, read_parts
from regard.cli.runs import runs
from regard.cli.settings import setting_meant, settings
from regard.cli.show import show
from regard.cli.terms import (
    TEXTS,
    AsJson,
    Beam,
    Device,
    FileAndSets,
    Out,
    RunFolder,
    second_file,
    table,
)
from regard.cli.translate import translate
from regard.config import parse_overrides
from regard.errors import Interrupted, UserError, counted
from regard.presets import preset as read_preset
from regard.presets import presets as all_presets

app = typer.Typer(
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"regard {regard.__version__}")
        raise typer.Exit


@app.callback()
def regard_command(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """Train your own text-to-text model on pairs, look inside it, and use it."""


def main() -> None:
    """Run the command line.

    What went wrong is told in one line, with exit code 2 if the caller can put it right. With
    --debug it is a traceback.
    """
    # Importing torch makes a million objects that stay: look for garbage less often.
    gc.set_threshold(50_000, 20, 20)
    debug = "--debug" in sys.argv
    warnings.showwarning = _warn
    _write_utf8()
    sys.argv = [word for word in sys.argv if word != "--debug"]
    try:
        sys.exit(_command()(standalone_mode=False))
    except (KeyboardInterrupt, typer.Abort):
        sys.exit(130)
    except Interrupted as stopped:
        print(f"\n{stopped}", file=sys.stderr)
        sys.exit(stopped.code)
    except Exception as error:
        message = _message(error)
        if debug or message is None:
            raise
        if not message:  # a command without a verb: its help was printed
            sys.exit(0)
        print(f"error: {message}", file=sys.stderr)
        sys.exit(getattr(error, "code", 2))
    finally:
        # The process ends: looking for garbage among all objects of torch would take 0.4 s.
        gc.freeze()


def _write_utf8() -> None:
    """Write UTF-8 to pipes and files, too: Windows has its own encoding there, without "→"."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors=stream.errors)


def _command() -> Any:
    """The command line, with the two options about completion in one line of its help."""
    command: Any = typer.main.get_command(app)
    for parameter in command.params:
        if parameter.name == "show_completion":
            parameter.hidden = True
        if parameter.name == "install_completion":
            parameter.help = "Install tab completion for this shell."
    return command


def _message(error: Exception) -> str | None:
    """What went wrong, in one line; None: it is a fault of ours. Empty: typer printed a help."""
    format_message = getattr(error, "format_message", None)
    if format_message is not None:  # typer's own: an unknown option, a missing argument
        return setting_meant(error, sys.argv[1:]) or str(format_message())
    if isinstance(error, OSError) and error.filename:  # such as a folder where a picture should be
        return f"{error.filename}: {error.strerror}"
    if isinstance(error, UserError):
        return str(error)
    return None


def _warn(message: Warning | str, *_: Any, **__: Any) -> None:
    """Print a warning in one line for a person, without the place in our code."""
    print(f"warning: {message}", file=sys.stderr)


@app.command()
def demo(out: Out = None) -> None:
    """Train English → French on built-in sentences (three minutes)."""
    from regard.recipes.demo import demo as run_demo

    run_demo(out)


@app.command()
def train(
    data: Annotated[
        str,
        typer.Argument(
            metavar="DATA",
            help="A built-in task, a named corpus, a file or a folder.",
            autocompletion=data_names,
        ),
    ],
    settings: FileAndSets = None,
    preset: Annotated[
        str | None,
        typer.Option(
            help="Start from a preset; `regard presets` lists them.", autocompletion=preset_names
        ),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(help="Read settings from a TOML file, such as another run's config.toml."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder to write the run to. Default: runs/NAME.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Resume a run that stopped.")] = False,
    start_from: Annotated[
        Path | None, typer.Option("--from", help="Fine-tune: start from the weights of this run.")
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace an existing run in the folder.")
    ] = False,
    parts: PartsOption = None,
) -> None:
    """Train a model.

    Example: `regard train pairs.tsv train.steps=5000`

    Two files side by side: `regard train text.en text.de`
    """
    from regard.runs.claim import Taken

    target_file, words = second_file(settings)
    sections: dict[str, Any] = parse_overrides(words)
    try:
        run = regard.train(
            data,
            target_file,
            preset=preset,
            config=config,
            out=out,
            resume=resume,
            overwrite=overwrite,
            start_from=start_from,
            parts=read_parts(parts),
            **sections,
        )
    except Taken as error:
        if error.folder is None:
            raise
        raise UserError(
            f"{error.folder} already exists: resume it with --resume, replace it with "
            f"--overwrite, or choose another folder with --out"
        ) from None
    if os.environ.get("RANK", "0") == "0":  # one of several processes speaks
        folder = f'"{run.path}"' if " " in str(run.path) else run.path
        print(f"\nSaved in {run.path}. Try next:")
        print(f'  regard translate {folder} "a text"')
        print(f"  regard evaluate {folder}")


app.command(context_settings=TEXTS)(translate)


@app.command()
def evaluate(
    run: RunFolder,
    data: Annotated[
        str | None, typer.Argument(help="Data to score on, instead of the run's own.")
    ] = None,
    split: Annotated[
        str, typer.Option(help="Split to score: train, dev, test, or (for some tasks) long.")
    ] = "test",
    beam: Beam = None,
    against: Annotated[
        Path | None,
        typer.Option(help="A run to compare with, by paired bootstrap (RUN minus this one)."),
    ] = None,
    as_json: AsJson = False,
    wait: Annotated[
        str | None,
        typer.Option(help="Simultaneous translation, k source tokens behind (wait-k): 1,3,5,inf."),
    ] = None,
    device: Device = "auto",
    parts: PartsOption = None,
) -> None:
    """Score a run.

    Example: `regard evaluate runs/demo --split dev`
    """
    if wait is not None:
        if beam or against:
            raise UserError(
                "--wait decodes greedily and scores one run: remove --beam and --against"
            )
        _evaluate_waiting(run, wait, data, split, as_json, device, read_parts(parts))
        return
    evaluation = regard.evaluate(
        run,
        data,
        split=split,
        beam=beam,
        against=against,
        device=device,
        parts=read_parts(parts),
    )
    if as_json:
        print(_evaluation_json(evaluation))
    else:
        _print_evaluation(evaluation)


def _evaluation_json(evaluation: Any) -> str:
    """The scores of an evaluation as a JSON object."""
    values = evaluation.report.as_dict()
    values.update(evaluation.metrics)
    values["seen_in_training"] = evaluation.seen_in_training
    if evaluation.comparison is not None:
        values["against"] = evaluation.comparison._asdict()
    return json.dumps(values, ensure_ascii=False)


def _print_evaluation(evaluation: Any) -> None:
    """Print the scores of an evaluation, and how it compares with another run."""
    table(["score", "value", "meaning"], evaluation.rows())
    if evaluation.seen_in_training is not None:
        occur = "occurs" if evaluation.seen_in_training == 1 else "occur"
        print(
            f"{evaluation.seen_in_training:,} of the {len(evaluation.pairs):,} sources also "
            f"{occur} in the training data"
        )

    if evaluation.comparison is not None:
        print(_compared(evaluation.comparison))


def _compared(comparison: Any) -> str:
    """A comparison in one line, its scores from 0 to 100."""
    name = "exact match" if comparison.metric == "exact_match" else "BLEU"
    scale = 100 if comparison.metric == "exact_match" else 1
    low = f"{scale * comparison.low:+.2f}"
    high = f"{scale * comparison.high:+.2f}"
    return (
        f"{name} {scale * comparison.a:.2f} against {scale * comparison.b:.2f}: difference "
        f"{scale * comparison.difference:+.2f} (95% confidence interval {low} to {high}, p = "
        f"{comparison.p:.3f})"
    )


def _evaluate_waiting(
    run: Path, wait: str, data: str | None, split: str, as_json: bool, device: str, parts: Any
) -> None:
    """Score a run that translates simultaneously, for each number of `wait`."""
    from regard.recipes.evaluation import evaluate_waiting

    waits = [_wait(word) for word in wait.split(",")]
    rows = evaluate_waiting(run, waits, data, split=split, device=device, parts=parts)
    if as_json:
        print(json.dumps([asdict(row) | {"wait": f"{row.wait:g}"} for row in rows]))
        return

    cells = [
        (f"{row.wait:g}", f"{row.bleu:.2f}", f"{row.average_lagging:.2f}", f"{row.laal:.2f}")
        for row in rows
    ]
    table(["wait", "BLEU", "AL", "LAAL"], cells)


def _wait(word: str) -> float:
    """A whole number from 1, or inf."""
    if word != "inf" and not (word.isdecimal() and len(word) < 10 and int(word)):
        raise UserError(
            f"--wait {word[:20]!r}: expected whole numbers from 1, or inf, separated by commas, "
            f"such as 1,3,5,inf"
        )
    return float(word)


@app.command()
def doctor(
    run: RunFolder, as_json: AsJson = False, device: Device = "auto", parts: PartsOption = None
) -> None:
    """Check a run: its files, its data and its model.

    Example: `regard doctor runs/demo`
    """
    from regard.inspection.doctor import doctor as run_doctor

    rows = run_doctor(run, read_parts(parts), device=device)
    if as_json:
        print(json.dumps([asdict(row) for row in rows], ensure_ascii=False))
    else:
        cells = []
        for row in rows:
            advice = f"\n→ {row.advice}" if row.advice else ""
            cells.append((row.mark, row.name, row.found + advice))
        table(["", "check", "result"], cells)
    if any(row.passed is False for row in rows):
        raise typer.Exit(1)


@app.command()
def prune(
    run: RunFolder,
    out: Annotated[Path, typer.Option(help="Folder to write the new run to.")],
    tolerance: Annotated[
        float, typer.Option(min=0, help="Largest allowed relative increase in dev perplexity.")
    ] = 0.01,
    points: Annotated[
        float,
        typer.Option(
            min=0, help="Largest allowed drop in BLEU and exact match, in points (0 to 100)."
        ),
    ] = 0.5,
    as_json: AsJson = False,
    device: Device = "auto",
    parts: PartsOption = None,
) -> None:
    """Turn off the attention heads that a model can do without.

    Example: `regard prune runs/demo --out runs/less`
    """
    from regard.recipes.pruning import prune as run_prune

    pruned = run_prune(
        run, out, tolerance=tolerance, points=points, device=device, parts=read_parts(parts)
    )
    facts = pruned.manifest["pruned"]
    if as_json:
        print(json.dumps(facts))
        return

    scores = [
        (name, f"{facts['before'][name]:.4f}", f"{after:.4f}")
        for name, after in facts["after"].items()
    ]
    table(["dev", "before", "after"], scores)
    heads = [
        f"{head['block']} layer {head['layer'] + 1} head {head['head'] + 1}"
        for head in facts["heads"]
    ]
    print(
        f"{len(heads)} of {counted(facts['of'], 'head')} turned off in {out} (its size and speed "
        f"stay the same): {', '.join(heads) or 'none'}"
    )


@app.command()
def presets(as_json: AsJson = False) -> None:
    """List the presets and their measured results."""
    summaries = all_presets()
    if not as_json:
        table(["preset", "description and measured results"], summaries.items())
        return
    entries = [
        {"name": name, "what": summary, "settings": read_preset(name)}
        for name, summary in summaries.items()
    ]
    print(json.dumps(entries, ensure_ascii=False))


app.command()(runs)
app.command()(settings)
app.add_typer(show, name="show")
app.add_typer(data_commands, name="data")
