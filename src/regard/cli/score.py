"""`regard score`: how likely given targets are."""

import math
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

import regard
from regard.cli.contrasts import print_contrasts, read_items
from regard.cli.parts import PartsOption, read_parts
from regard.cli.terms import BYTES_A_TOKEN, Device, RunFolder, how_to_read, refuse_options
from regard.display import note, say, say_answer, say_json, table, warn
from regard.errors import UserError, counted

UNKNOWN = "<unk>"
"""How a token that is not in the vocabulary is written."""


def score(
    run: RunFolder,
    pair: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[SOURCE TARGET]",
            help="With --input: a second file, aligned with the first, or settings such as "
            "data.encoding=latin-1.",
        ),
    ] = None,
    input: Annotated[
        Path | None,
        typer.Option(help="Score the pairs of this file: TSV, CSV, JSON, Parquet, TMX …"),
    ] = None,
    contrasts: Annotated[
        Path | None,
        typer.Option(
            help="Count how often the right target is more likely than the wrong one, by kind: "
            "TSV with source, right target, wrong target and perhaps a kind."
        ),
    ] = None,
    tokens: Annotated[
        bool,
        typer.Option(
            "--tokens", help="Show each token of the target beside the most likely one there."
        ),
    ] = False,
    ensemble: Annotated[
        list[Path] | None,
        typer.Option("--with", help="Another run, to score with both as an ensemble."),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object per line.")
    ] = False,
    device: Device = "auto",
    parts: PartsOption = None,
) -> None:
    """Show how likely a model finds given targets.

    Every token is predicted from the source and the target tokens before it (teacher forcing). For
    a file, each line has the log-probability of a target, its mean per token, source and target.

    Example: `regard score runs/demo "he's calm ." "il est calme ." --tokens`, or a file:
    `regard score runs/demo --input pairs.tsv`, or where it fails:
    `regard score runs/demo --contrasts contrasts.tsv`
    """
    words = pair or []
    refuse_options(words, score)
    if contrasts is not None:
        if input is not None or tokens:
            raise UserError("--contrasts cannot be combined with --input or --tokens")
        items = read_items(contrasts, words)
    elif input is None and len(words) != 2:
        raise UserError(
            "give a source and a target, or a file of pairs with --input, or one of contrastive "
            "pairs with --contrasts"
        )

    translator = regard.load(run, *ensemble or [], device=device, parts=read_parts(parts))
    if contrasts is not None:
        translator.expect(contrasts.stat().st_size / BYTES_A_TOKEN)
        print_contrasts(translator.contrasts(items), as_json)
        return
    if input is None:
        source, target = words
        likelihood = translator.score(source, target)
        _warn_of_unknown(translator, source, target)
        if as_json:
            say_json(likelihood.as_dict())
        else:
            _print_pair(likelihood, tokens)
        return

    pairs = _pairs_of_file(run, translator, input, words)
    _print_all(translator.scores(pairs), tokens, as_json)


def _pairs_of_file(
    run: Path, translator: Any, file: Path, words: list[str]
) -> Iterator[tuple[str, str]]:
    """Each source of a file with each of its targets; what was skipped is told at the end."""
    from regard.data.readers.pipes import is_open_pipe
    from regard.recipes.evaluation import open_pairs

    if not file.is_file() and not is_open_pipe(file):
        raise UserError(f"{file}: no such file")
    name = str(file) if is_open_pipe(file) else os.path.abspath(file)
    splits = open_pairs(regard.Run.open(run), name, how_to_read(name, words))
    for line in splits.reading:
        note(line)
    if file.is_file():
        translator.expect(file.stat().st_size / BYTES_A_TOKEN)

    for pair in splits.train:
        for target in pair.targets:
            yield pair.located, target
    for line in splits.skipped.lines():
        warn(line)


def _print_all(likelihoods: Iterable[Any], tokens: bool, as_json: bool) -> None:
    """Print each likelihood as it comes, and at the end all of them in one line of stderr."""
    pairs = 0
    places = 0
    correct = 0
    total = 0.0
    unknown = 0
    for likelihood in likelihoods:
        if as_json:
            say_json(likelihood.as_dict())
        elif tokens:
            _print_pair(likelihood, tokens)
        else:
            _print_line(likelihood)
        pairs += 1
        places += len(likelihood.tokens)
        correct += sum(likelihood.correct)
        total += likelihood.total
        unknown += UNKNOWN in likelihood.tokens

    mean = total / places
    perplexity = math.exp(min(-mean, 700.0))  # exp(710) is too large for a float
    note(
        f"{counted(pairs, 'pair')}: log-probability {total:.4f}, per token {mean:.4f} "
        f"(perplexity {perplexity:.4g}), token accuracy {correct / places:.2%}"
    )
    if unknown:
        warn(f"{counted(unknown, 'target')} with tokens that are not in the vocabulary ({UNKNOWN})")


def _print_line(likelihood: Any) -> None:
    """One line of fields with tabs between them."""
    texts = (likelihood.source, likelihood.target)
    fields = [text.replace("\t", " ") for text in texts]
    say_answer(f"{likelihood.total:.4f}", f"{likelihood.per_token:.4f}", *fields)


def _print_pair(likelihood: Any, tokens: bool) -> None:
    """What there is to say about one pair, with a row for each token if asked for."""
    say(
        f"{likelihood.source} → {likelihood.target}",
        f"log-probability {likelihood.total:.4f}, per token {likelihood.per_token:.4f} "
        f"(perplexity {likelihood.perplexity:.4g}), token accuracy {sum(likelihood.correct):,} of "
        f"{len(likelihood.tokens):,}",
    )
    if not tokens:
        return

    rows = zip(
        likelihood.tokens,
        map(_probability, likelihood.logprobs),
        likelihood.predicted,
        map(_probability, likelihood.predicted_logprobs),
        ("✓" if correct else "✗ wrong" for correct in likelihood.correct),
        strict=True,
    )
    table(["token", "probability", "most likely", "probability", ""], rows)


def _probability(logprob: float) -> str:
    probability = math.exp(logprob)
    return f"{probability:.2%}" if probability >= 1e-4 else f"{probability:.0e}"


def _warn_of_unknown(translator: Any, source: str, target: str) -> None:
    """Say which tokens of a pair are not in the vocabularies."""
    from regard.text.vocabulary import UNK

    sides = {"source": (translator.source, source), "target": (translator.target, target)}
    for side, (tokenizer, text) in sides.items():
        unknown = [piece.text for piece in tokenizer.pieces(text) if piece.id == UNK]
        if unknown:
            few = ", ".join(dict.fromkeys(unknown[:5]))
            warn(f"not in the vocabulary of the {side}, counted as {UNKNOWN}: {few}")
