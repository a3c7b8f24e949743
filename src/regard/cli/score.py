"""`regard score`: how likely given targets are."""

import math
import os
from collections.abc import Callable, Iterable, Iterator
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
            help="Of a language model: a text. With --input: a second file, aligned with the "
            "first, or settings such as data.encoding=latin-1.",
        ),
    ] = None,
    input: Annotated[
        Path | None,
        typer.Option(
            help="Score the pairs of this file: TSV, CSV, JSON, Parquet, TMX …; of a language "
            "model: its texts."
        ),
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
    """Show how likely given targets are, or given texts.

    Every token is predicted from the source and the target tokens before it (teacher forcing); by a
    masked language model, from all other tokens of the text; by a denoising one, from the text with
    gaps and the tokens before it. For a file, each line has the log-probability of a target, its
    mean per token, source and target.

    Example: `regard score runs/demo "he's calm ." "il est calme ." --tokens`, or a file:
    `regard score runs/demo --input pairs.tsv`, or where it fails:
    `regard score runs/demo --contrasts contrasts.tsv`
    """
    words = pair or []
    refuse_options(words, score)
    objective = regard.Run.open(run).config.train.objective
    if objective in ("causal", "masked"):
        if contrasts is not None or ensemble:
            raise UserError(
                f"{run} is a language model: --contrasts and --with are for models that translate"
            )
        model: Any = regard.load(run, device=device, parts=read_parts(parts))
        _score_texts(run, model, model.scores, input, words, tokens, as_json)
        return
    reads_texts = objective == "denoise" and (input is not None or len(words) == 1)
    if contrasts is not None:
        if input is not None or tokens:
            raise UserError("--contrasts cannot be combined with --input or --tokens")
        items = read_items(contrasts, words)
    elif input is None and len(words) != 2 and not reads_texts:
        raise UserError(
            "give a source and a target, or a file of pairs with --input, or one of contrastive "
            "pairs with --contrasts"
        )

    translator = regard.load(
        run, *ensemble or [], kind=regard.Translator, device=device, parts=read_parts(parts)
    )
    if contrasts is not None:
        translator.expect(contrasts.stat().st_size / BYTES_A_TOKEN)
        print_contrasts(translator.contrasts(items), as_json)
        return
    if reads_texts:
        assert isinstance(translator, regard.DenoisingModel)
        _score_texts(run, translator, translator.text_scores, input, words, tokens, as_json)
        return
    if input is None:
        source, target = words
        likelihood = translator.score(source, target)
        sides = {"source": (translator.source, source), "target": (translator.target, target)}
        _warn_of_unknown({f"the vocabulary of the {side}": one for side, one in sides.items()})
        if as_json:
            say_json(likelihood.as_dict())
        else:
            _print_pair(likelihood, tokens)
        return

    pairs = _targets_of(_pairs_of_file(run, translator, input, words))
    _print_all(translator.scores(pairs), tokens, as_json, "pair")


def _score_texts(
    run: Path,
    model: Any,
    scores: Callable[[Iterable[str]], Iterable[Any]],
    file: Path | None,
    words: list[str],
    tokens: bool,
    as_json: bool,
) -> None:
    """How likely a language model finds a text, or those of a file; scores: its method."""
    if file is not None:
        texts = (pair.source for pair in _pairs_of_file(run, model, file, words))
        _print_all(scores(texts), tokens, as_json, "text")
        return
    if len(words) != 1:
        raise UserError(f"{run} is a language model: give one text, or a file with --input")
    [text] = words
    [likelihood] = scores([text])
    if not likelihood.tokens:
        raise UserError(f"{text[:40]!r} has no tokens to predict: give a text with some")
    tokenizer = getattr(model, "tokenizer", None) or model.target
    _warn_of_unknown({"the vocabulary": (tokenizer, text)})
    if as_json:
        say_json(likelihood.as_dict())
    else:
        _print_pair(likelihood, tokens)


def _targets_of(pairs: Iterable[Any]) -> Iterator[tuple[str, str]]:
    """Each source with each of its targets."""
    for pair in pairs:
        for target in pair.targets:
            yield pair.located, target


def _pairs_of_file(run: Path, model: Any, file: Path, words: list[str]) -> Iterator[Any]:
    """The pairs of a file; what was skipped is told at the end."""
    from regard.data.readers.files import check_file
    from regard.data.readers.pipes import is_open_pipe
    from regard.recipes.evaluation import open_pairs

    check_file(file)
    name = str(file) if is_open_pipe(file) else os.path.abspath(file)
    splits = open_pairs(regard.Run.open(run), name, how_to_read(name, words))
    for line in splits.reading:
        note(line)
    if file.is_file():
        model.expect(file.stat().st_size / BYTES_A_TOKEN)

    yield from splits.train
    for line in splits.skipped.lines():
        warn(line)


def _print_all(likelihoods: Iterable[Any], tokens: bool, as_json: bool, what: str) -> None:
    """Print each likelihood as it comes, and at the end all of them in one line of stderr.

    what: a pair or a text.
    """
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

    if not places:
        note(f"{counted(pairs, what)} without tokens to predict")
        return
    mean = total / places
    perplexity = math.exp(min(-mean, 700.0))  # exp(710) is too large for a float
    note(
        f"{counted(pairs, what)}: log-probability {total:.4f}, per token {mean:.4f} "
        f"(perplexity {perplexity:.4g}), token accuracy {correct / places:.2%}"
    )
    if unknown:
        side = "target" if what == "pair" else what
        warn(f"{counted(unknown, side)} with tokens that are not in the vocabulary ({UNKNOWN})")


def _print_line(likelihood: Any) -> None:
    """One line of fields with tabs between them."""
    texts = (likelihood.source, likelihood.target) if likelihood.source else (likelihood.target,)
    fields = [text.replace("\t", " ") for text in texts]
    say_answer(f"{likelihood.total:.4f}", f"{likelihood.per_token:.4f}", *fields)


def _print_pair(likelihood: Any, tokens: bool) -> None:
    """What there is to say about one pair, with a row for each token if asked for."""
    pair = f"{likelihood.source} → {likelihood.target}"
    say(
        pair if likelihood.source else likelihood.target,
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


def _warn_of_unknown(sides: dict[str, tuple[Any, str]]) -> None:
    """Say which tokens of texts are not in the vocabularies; sides: tokenizer and text of each."""
    from regard.text.vocabulary import UNK

    for vocabulary, (tokenizer, text) in sides.items():
        unknown = [piece.text for piece in tokenizer.pieces(text) if piece.id == UNK]
        if unknown:
            few = ", ".join(dict.fromkeys(unknown[:5]))
            warn(f"not in {vocabulary}, counted as {UNKNOWN}: {few}")
