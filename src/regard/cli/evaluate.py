"""`regard evaluate`: the scores of a run."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

import regard
from regard.cli.lengths import LengthScores
from regard.cli.parts import PartsOption, read_parts
from regard.cli.terms import AsJson, Beam, Device, FileAndSets, RunFolder, how_to_read
from regard.display import say, say_json, table
from regard.errors import UserError, counted
from regard.pictures import check_suffix


def evaluate(
    run: RunFolder,
    data: Annotated[
        str | None, typer.Argument(help="Data to score on, instead of the run's own.")
    ] = None,
    settings: FileAndSets = None,
    split: Annotated[
        str, typer.Option(help="Split to score: train, dev, test, or (for some tasks) long.")
    ] = "test",
    beam: Beam = None,
    against: Annotated[
        Path | None,
        typer.Option(help="A run to compare with, by paired bootstrap (RUN minus this one)."),
    ] = None,
    by_length: Annotated[
        bool, typer.Option("--by-length", help="Also show the scores by length of the source.")
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(help="Draw the scores by length: .png, .svg or .pdf (with --by-length)."),
    ] = None,
    sentence_bleu: Annotated[
        int | None,
        typer.Option(
            metavar="K",
            min=1,
            max=100,
            help="Also list every answer with its BLEU, by n-grams of up to K words (d2l: 2).",
        ),
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

    A language model is scored by how well it predicts texts: perplexity, bits per character.

    Example: `regard evaluate runs/demo --split dev`

    Two files side by side: `regard evaluate runs/demo text.en text.fr`
    """
    reading = how_to_read(data, settings)
    if out is not None:
        if not by_length:
            raise UserError("--out draws the scores by length: add --by-length")
        check_suffix(out)  # before what takes long
    if wait is not None:
        if beam or against or by_length or sentence_bleu:
            raise UserError(
                "--wait decodes greedily and scores one run as a whole: remove --beam, --against, "
                "--by-length and --sentence-bleu"
            )
        _evaluate_waiting(run, wait, data, reading, split, as_json, device, read_parts(parts))
        return
    if regard.Run.open(run).config.train.objective != "translate":
        asked = {
            "--beam": beam,
            "--against": against,
            "--by-length": by_length,
            "--out": out,
            "--sentence-bleu": sentence_bleu,
        }
        _refuse_for_texts(run, [option for option, value in asked.items() if value])
        report = regard.evaluate_texts(
            run, data, reading=reading, split=split, device=device, parts=read_parts(parts)
        )
        _print_texts(report, as_json)
        return

    evaluation = regard.evaluate(
        run,
        data,
        reading=reading,
        split=split,
        beam=beam,
        against=against,
        device=device,
        parts=read_parts(parts),
    )
    lengths = LengthScores.of(evaluation, str(run), str(against)) if by_length else None
    sentences = evaluation.by_sentence(sentence_bleu) if sentence_bleu else []
    if as_json:
        say_json(_evaluation_fields(evaluation, lengths, sentences))
    else:
        if sentences:
            _print_sentences(sentences, sentence_bleu)
        _print_evaluation(evaluation)
        if lengths is not None:
            lengths.print()

    if lengths is not None and out is not None:
        lengths.draw(out)
        if not as_json:
            say(out)


def _refuse_for_texts(run: Path, options: list[str]) -> None:
    """Refuse options that compare answers with references."""
    if options:
        raise UserError(
            f"{run} is a language model, which has no answers to compare with references: remove "
            f"{', '.join(options)}"
        )


def _print_texts(report: Any, as_json: bool) -> None:
    """Print the scores of a language model."""
    if as_json:
        say_json(report.as_dict())
    else:
        table(["score", "value", "meaning"], report.rows())


def _evaluation_fields(
    evaluation: Any, lengths: LengthScores | None, sentences: list[Any]
) -> dict[str, Any]:
    """The scores of an evaluation, for JSON; those by length and by sentence if asked for."""
    values: dict[str, Any] = evaluation.report.as_dict()
    values.update(evaluation.metrics)
    values["seen_in_training"] = evaluation.seen_in_training
    if evaluation.comparison is not None:
        values["against"] = evaluation.comparison._asdict()
    if sentences:
        values["sentences"] = [one.as_dict() for one in sentences]
    if lengths is not None:
        values |= lengths.as_dict()
    return values


def _print_evaluation(evaluation: Any) -> None:
    """Print the scores of an evaluation, and how it compares with another run."""
    table(["score", "value", "meaning"], evaluation.rows())
    if evaluation.seen_in_training is not None:
        occur = "occurs" if evaluation.seen_in_training == 1 else "occur"
        say(
            f"{evaluation.seen_in_training:,} of {counted(len(evaluation.pairs), 'source')} also "
            f"{occur} in the training data"
        )

    if evaluation.comparison is not None:
        say(_compared(evaluation.comparison))


def _print_sentences(sentences: list[Any], order: int | None) -> None:
    """Print every answer beside its reference; a wrong one is marked."""
    rows = [
        (
            one.source,
            one.answer,
            one.reference,
            f"{one.bleu:.3f}",
            "✓" if one.correct else "✗ wrong",
        )
        for one in sentences
    ]
    table(["source", "answer", "reference", f"BLEU, k = {order}", ""], rows)


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
    run: Path,
    wait: str,
    data: str | None,
    reading: dict[str, Any],
    split: str,
    as_json: bool,
    device: str,
    parts: Any,
) -> None:
    """Score a run that translates simultaneously, for each number of `wait`."""
    from regard.recipes.evaluation import evaluate_waiting

    waits = [_wait(word) for word in wait.split(",")]
    rows = evaluate_waiting(
        run, waits, data, reading=reading, split=split, device=device, parts=parts
    )
    if as_json:
        say_json([asdict(row) | {"wait": f"{row.wait:g}"} for row in rows])
        return

    has_bleu = any(row.bleu is not None for row in rows)
    quality = "BLEU" if has_bleu else "exact match"
    cells = []
    for row in rows:
        score = f"{row.exact_match:.1%}" if row.bleu is None else f"{row.bleu:.2f}"
        cells.append((f"{row.wait:g}", score, f"{row.average_lagging:.2f}", f"{row.laal:.2f}"))
    table(["wait", quality, "AL", "LAAL"], cells)


def _wait(word: str) -> float:
    """A whole number from 1, or inf."""
    if word != "inf" and not (word.isdecimal() and len(word) < 10 and int(word)):
        raise UserError(
            f"--wait {word[:20]!r}: expected whole numbers from 1, or inf, separated by commas, "
            f"such as 1,3,5,inf"
        )
    return float(word)
