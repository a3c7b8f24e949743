"""A trained run -> scores."""

import dataclasses
import math
import tempfile
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from regard.data.corpus import encode
from regard.data.pairs import Pair, Skipped
from regard.data.readers import plain_name
from regard.data.splits import grouped, named_data, open_data
from regard.data.tasks import TASKS
from regard.errors import UserError
from regard.inference.online import check_online
from regard.inference.translator import Translator, load
from regard.recipes.preparing import open_split_of, open_splits, seen_in_training
from regard.records.result import Result
from regard.runs.run import Run
from regard.scoring import Report, bleu, report
from regard.scoring.latency import average_lagging, delays, laal
from regard.scoring.significance import Comparison, paired_bootstrap
from regard.text.vocabulary import normalise
from regard.training.loss import mean_loss


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """A report, with the answers it judges."""

    report: Report
    pairs: list[Pair]
    answers: list[str]
    comparison: Comparison | None = None
    seen_in_training: int | None = (
        None  # of the sources; None: the training data is not there any more
    )


def evaluate(
    run: str | Path | Run,
    data: str | Path | None = None,
    *,
    split: str = "test",
    beam: int | None = None,
    against: str | Path | Run | None = None,
    device: str = "auto",
) -> Evaluation:
    """Judge a run on a split of its own data, or on `data` (a file: all of it); each source once,
    against all references.
    """
    run = run if isinstance(run, Run) else Run.open(run)
    pairs, seen = _judged_and_seen(run, data, split)
    sources, references = [pair.source for pair in pairs], [pair.targets for pair in pairs]
    translator = load(run, beam=beam, device=device)
    began = time.monotonic()
    results = list(translator.translate(sources))
    seconds = time.monotonic() - began
    answers, comparison = [result.text for result in results], None
    if against is not None:
        other = load(against, beam=beam, device=device).translate(sources)
        theirs = [result.text for result in other]
        comparison = paired_bootstrap(
            answers, theirs, references, tokenize=run.config.data.bleu_tokenize
        )
    with (
        tempfile.TemporaryDirectory() as folder
    ):  # the references, each token given what came before
        corpus = encode(
            pairs,
            run.source,
            run.target,
            Path(folder) / "pairs",
            max_length=10**9,
            skipped=Skipped(),
        )
        found = mean_loss(translator.model, corpus, run.config.data.batch_tokens, translator.device)
    read: dict[str, Any] = {
        "tokens": int(found["tokens"]),
        "correct": round(found["accuracy"] * found["tokens"]),
    }
    written: dict[str, Any] = {
        "seconds": seconds,
        "generated_tokens": sum(len(result.logprobs) for result in results),
    }
    tokenize = run.config.data.bleu_tokenize
    made = report(
        answers, references, sources, loss=found["loss"], **read, **written, tokenize=tokenize
    )
    return Evaluation(made, pairs, answers, comparison, seen)


@dataclasses.dataclass(frozen=True)
class Waiting:
    """How good a run is that stays `wait` source tokens behind, and how far it lags, in source
    words: mean of the sentences.
    """

    wait: float
    bleu: float
    average_lagging: float
    laal: float


def evaluate_waiting(
    run: str | Path | Run,
    waits: Sequence[float],
    data: str | Path | None = None,
    *,
    split: str = "test",
    device: str = "auto",
) -> list[Waiting]:
    """Judge simultaneous translation, which is greedy. Lagging is counted against the first
    reference; inf reads all first.
    """
    run = run if isinstance(run, Run) else Run.open(run)
    pairs, rows = [pair for pair in grouped(_judged(run, data, split)) if pair.source.strip()], []
    for wait in waits:
        translator = load(run, beam=1, device=device)
        check_online(translator.model)
        translator.model.decoder.wait = 0 if wait == math.inf else int(wait)
        results = list(translator.translate([pair.source for pair in pairs]))
        lags: list[tuple[float, float]] = []
        for pair, result in zip(pairs, results):
            late = delays(*_words(translator, result), wait)
            lengths = len(pair.source.split()), max(1, len(pair.targets[0].split()))
            lags.append((average_lagging(late, *lengths), laal(late, *lengths)))
        answers = [result.text for result in results]
        score = bleu(answers, [pair.targets for pair in pairs], run.config.data.bleu_tokenize).score
        rows.append(Waiting(wait, score, *(sum(column) / len(lags) for column in zip(*lags))))
    return rows


def _words(translator: Translator, result: Result) -> tuple[list[int], list[int]]:
    """The number of words after each token of the source, <eos> too, and of the answer."""
    text = normalise(result.source)
    source = [*(piece.end for piece in translator.source.pieces(text)), len(text)]
    target = (end for _, end in translator.target.spans(result.ids))
    return [len(text[:end].split()) for end in source], [
        len(result.text[:end].split()) for end in target
    ]


def _judged_and_seen(
    run: Run, data: str | Path | None, split: str
) -> tuple[list[Pair], int | None]:
    """The pairs to judge a run by, each source once, and how many of those sources stand in its
    training data.
    """
    own = open_splits(run.config.data) if data is None and run.config.data.path else None
    pairs = grouped(own.split(split) if own is not None else _judged(run, data, split))
    return pairs, seen_in_training(run.config.data, pairs, own)


def _judged(run: Run, data: str | Path | None, split: str) -> Iterable[Pair]:
    """The pairs to judge a run by: of a split, or a whole file."""
    c = run.config.data
    if data is None and not c.path:
        raise UserError(
            f"{run.path}: trained on pairs given from Python; say which data to judge it on"
        )
    if data is None:
        return open_split_of(c, split)

    spec = named_data(data)
    if Path(spec).is_file() and spec not in TASKS:
        named = not plain_name(Path(spec)).endswith(
            ".tsv"
        )  # a TSV can judge what was trained on two files
        source = c.source if named else None
        target = c.target if named else None
        return open_data(spec, source=source, target=target, dev=0, test=0).train

    options = c.options if spec == c.path else {}  # those of the run's own task
    return open_split_of(dataclasses.replace(c, path=spec, options=options, limit=0), split)
