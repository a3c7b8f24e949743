"""A trained run -> scores."""

import dataclasses
import math
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import compress, islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from regard.config import DataConfig, Documents
from regard.data.corpus import Corpus, encode
from regard.data.items import Items, named_splits, open_items
from regard.data.pairs import Pair, Skipped
from regard.data.readers import fitting_layout, is_table
from regard.data.readers.pipes import is_open_pipe
from regard.data.readers.reader import Layout
from regard.data.splits import Splits, group_references, named_data, open_data
from regard.data.tasks import TASKS
from regard.display import html_table
from regard.errors import UserError
from regard.inference.loading import load_translator
from regard.inference.online import check_online
from regard.inference.translator import Translator
from regard.models.parts import Parts, listed
from regard.nn.devices import pick_device
from regard.recipes.preparing import open_split_of, open_splits, seen_in_training
from regard.records.result import Result
from regard.runs.run import Run
from regard.scoring import (
    LengthScore,
    Report,
    SentenceScore,
    bleu,
    bleu_applies,
    exact_match,
    report,
    scores_by_length,
    sentence_scores,
)
from regard.scoring.latency import average_lagging, delays, laal
from regard.scoring.lengths import Bin, OwnMetric, length_bins
from regard.scoring.significance import Comparison, Metric, paired_bootstrap
from regard.training.loss import RowLoss, mean_loss, row_losses

SHOWN = 5
"""Answers that a notebook shows below the scores."""


class ReferenceLoss(NamedTuple):
    """Loss and accuracy on references, each token given those before it."""

    loss: float
    accuracy: float
    tokens: int


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """A report, with the answers it judges. In a notebook it is a table."""

    report: Report
    pairs: list[Pair] = dataclasses.field(repr=False)
    answers: list[str] = dataclasses.field(repr=False)
    comparison: Comparison | None = None
    # How many of the sources; None: the training data is not there any more.
    seen_in_training: int | None = None
    # By metrics of the user's own.
    metrics: dict[str, float] = dataclasses.field(default_factory=dict)
    # Of each pair, as the run writes them: lower-cased if it lower-cases.
    references: list[list[str]] = dataclasses.field(default_factory=list, repr=False)
    # Of each source, in tokens.
    lengths: list[int] = dataclasses.field(default_factory=list, repr=False)
    # Loss and accuracy on the references, by length of the source.
    reference_losses: Mapping[Bin, ReferenceLoss] = dataclasses.field(
        default_factory=dict, repr=False
    )
    # Of the run that it was compared with.
    other_answers: list[str] | None = dataclasses.field(default=None, repr=False)
    own_metrics: Mapping[str, OwnMetric] = dataclasses.field(default_factory=dict, repr=False)
    tokenize: str = dataclasses.field(default="13a", repr=False)

    def rows(self) -> list[tuple[str, str, str]]:
        """For a table: name, value, and what it means in one line."""
        own = [(name, f"{value:.4g}", "your own metric") for name, value in self.metrics.items()]
        return [*self.report.rows(), *own]

    def by_length(self, answers: Sequence[str] | None = None) -> list[LengthScore]:
        """The scores in bins of source length.

        answers: of another system to the same sources, such as `other_answers`; its loss is not
        known.
        """
        scores = scores_by_length(
            self.answers if answers is None else answers,
            self.references,
            self.lengths,
            tokenize=self.tokenize,
            own=self.own_metrics,
        )
        if answers is not None:
            return scores
        return [self._with_loss(score) for score in scores]

    def _with_loss(self, score: LengthScore) -> LengthScore:
        """The scores of a bin, with loss and accuracy on its references."""
        known = self.reference_losses.get(score.bin)
        if known is None:
            return score
        return dataclasses.replace(score, loss=known.loss, token_accuracy=known.accuracy)

    def by_sentence(self, order: int = 2) -> list[SentenceScore]:
        """Each answer with its sentence BLEU, by n-grams of up to `order` words."""
        sources = [pair.source for pair in self.pairs]
        return sentence_scores(sources, self.answers, self.references, order)

    def _repr_html_(self) -> str:
        """For a notebook: the scores, and the first answers beside their references."""
        scores = html_table(("score", "value", "meaning"), self.rows())
        samples = [
            (pair.source, answer, "✓ the same" if answer in pair.targets else pair.targets[0])
            for pair, answer in zip(self.pairs[:SHOWN], self.answers)
        ]
        caption = f"The first {len(samples)} of {len(self.pairs):,} answers"
        answers = html_table(("source", "answer", "reference"), samples)
        return f"{scores}<p>{caption}</p>{answers}"


def evaluate(
    run: str | Path | Run,
    data: str | Path | Items | None = None,
    *,
    reading: Mapping[str, str] | None = None,
    split: str = "test",
    beam: int | None = None,
    against: str | Path | Run | None = None,
    device: str = "auto",
    parts: Parts = None,
) -> Evaluation:
    """Judge a run on a split of its own data, or on `data`.

    `data` may also be pairs, in any form that `train` takes. A file or pairs are judged as a whole.
    reading: how to read the file, with settings of the section data: reading={"encoding":
    "latin-1"}, or of two aligned files reading={"target_file": "text.de"}.
    Each source is translated once, and judged against all its references. `against`: another run to
    compare with, by BLEU, or by exact match where BLEU says nothing. parts: classes of your own
    that the runs need, and metrics of your own: parts={"metric": share_of_short_answers}, a
    function of the answers and of the references of each.
    """
    run = run if isinstance(run, Run) else Run.open(run)
    _check_translates(run)
    pairs, seen = _judged_and_seen(run, data, reading or {}, split)
    sources = [pair.located for pair in pairs]
    tokenize = run.config.data.bleu_tokenize

    translator = load_translator(run, beam=beam, device=device, parts=parts)
    # A run that lower-cases cannot write capitals: its references are lower-cased, too.
    normalise = translator.target.normalise
    references = [[normalise(target) for target in pair.targets] for pair in pairs]
    began = time.monotonic()
    results = list(translator.translate(sources))
    seconds = time.monotonic() - began
    answers = [result.text for result in results]

    comparison = None
    other_answers = None
    if against is not None:
        other = load_translator(against, beam=beam, device=device, parts=parts)
        other_answers = [
            normalise(text) for text in _answers_of_another(other, translator, sources)
        ]
        metric: Metric = "bleu" if bleu_applies(references, tokenize) else "exact_match"
        comparison = paired_bootstrap(
            answers, other_answers, references, metric=metric, tokenize=tokenize
        )

    lengths = [len(ids) for ids in translator.source.encode_batch(sources)]
    losses = _reference_losses(run, translator, pairs, lengths)
    scores = report(
        answers,
        references,
        sources,
        **_totals(losses),
        seconds=seconds,
        generated_tokens=sum(len(result.logprobs) for result in results),
        tokenize=tokenize,
    )
    if normalise.lowercase:
        scores = _of_lower_case(scores)
    own = {part.name: part.value for part in listed(parts) if part.kind == "metric"}
    return Evaluation(
        scores,
        pairs,
        answers,
        comparison,
        seen,
        metrics={name: float(metric(answers, references)) for name, metric in own.items()},
        references=references,
        lengths=lengths,
        reference_losses=losses,
        other_answers=other_answers,
        own_metrics=own,
        tokenize=tokenize,
    )


def _answers_of_another(
    other: Translator, translator: Translator, sources: list[str]
) -> Iterator[str]:
    """The answers of another run to sources that were written for `translator`."""
    if not other.source.tags:  # it was trained without tags
        sources = list(map(translator.source.text_of, sources))
    return (result.text for result in other.translate(sources))


def _totals(losses: Mapping[Bin, ReferenceLoss]) -> dict[str, Any]:
    """Mean loss, tokens and right tokens of all bins, for a report."""
    tokens = sum(known.tokens for known in losses.values())
    return {
        "loss": sum(known.loss * known.tokens for known in losses.values()) / tokens,
        "tokens": tokens,
        "correct": round(sum(known.accuracy * known.tokens for known in losses.values())),
    }


def _of_lower_case(scores: Report) -> Report:
    """The same scores; the signature says that references were lower-cased."""
    if scores.bleu_signature is None:
        return scores
    signature = scores.bleu_signature.replace("case:mixed", "case:lc")
    return dataclasses.replace(scores, bleu_signature=signature)


def _check_translates(run: Run) -> None:
    objective = run.config.train.objective
    if objective != "translate":
        raise UserError(
            f"{run.path}: a language model (train.objective={objective}) has no answers to judge: "
            f"use regard.evaluate_texts, or regard evaluate without --wait"
        )


def _reference_losses(
    run: Run, translator: Translator, pairs: list[Pair], lengths: list[int]
) -> dict[Bin, ReferenceLoss]:
    """Loss and accuracy on the references of the pairs of each bin of source length."""
    places = np.asarray(lengths)
    losses = {}
    for one in length_bins(places):
        some = list(compress(pairs, one.holds(places)))
        if some:
            losses[one] = _reference_loss(run, translator, some)
    return losses


def _reference_loss(run: Run, translator: Translator, pairs: list[Pair]) -> ReferenceLoss:
    """Loss and accuracy on the references, each token given those before it."""
    with _encoded(run, pairs) as corpus:
        budget = run.config.data.batch_tokens
        means = mean_loss(translator.model, corpus, budget, translator.device)
    return ReferenceLoss(means["loss"], means["accuracy"], int(means["tokens"]))


@contextmanager
def _encoded(run: Run, pairs: list[Pair]) -> Iterator[Corpus]:
    """The pairs in the tokens of a run, a row for each reference, as long as this is open."""
    with tempfile.TemporaryDirectory() as folder:
        yield encode(
            pairs,
            run.source,
            run.target,
            Path(folder) / "pairs",
            max_length=10**9,
            skipped=Skipped(),
            positions=any(pair.positions for pair in pairs),
            name="evaluate",
        )


def reference_losses(
    run: Run, pairs: list[Pair], *, device: str = "auto", parts: Parts = None
) -> list[RowLoss]:
    """The loss on the references of each pair, each token given those before it."""
    place = pick_device(device, "device")
    model = run.model(parts=parts).to(place)
    with _encoded(run, pairs) as corpus:
        rows = iter(row_losses(model, corpus, place))
        return [RowLoss(*map(sum, zip(*islice(rows, len(pair.targets))))) for pair in pairs]


@dataclasses.dataclass(frozen=True)
class Waiting:
    """How good a run is that stays `wait` source tokens behind, and how far it lags.

    Lags are in source words, as the mean over the sentences.
    """

    wait: float
    bleu: float | None  # None: it says nothing about answers like these
    exact_match: float
    average_lagging: float
    laal: float


def evaluate_waiting(
    run: str | Path | Run,
    waits: Sequence[float],
    data: str | Path | Items | None = None,
    *,
    reading: Mapping[str, str] | None = None,
    split: str = "test",
    device: str = "auto",
    parts: Parts = None,
) -> list[Waiting]:
    """Judge simultaneous translation, which is greedy, once for each of `waits`.

    A wait of inf reads the whole source first. Lagging is counted against the first reference.
    """
    run = run if isinstance(run, Run) else Run.open(run)
    _check_translates(run)
    judged = group_references(judged_pairs(run, data, reading or {}, split))
    pairs = [pair for pair in judged if pair.source.strip()]
    return [_evaluate_wait(run, pairs, wait, device, parts) for wait in waits]


def _evaluate_wait(run: Run, pairs: list[Pair], wait: float, device: str, parts: Parts) -> Waiting:
    """Quality and lag of a run that stays `wait` source tokens behind."""
    translator = load_translator(run, beam=1, device=device, parts=parts)
    check_online(translator.model)
    translator.model.wait_for(0 if wait == math.inf else int(wait))
    results = list(translator.translate([pair.located for pair in pairs]))

    lags = []
    adaptive_lags = []
    for pair, result in zip(pairs, results):
        source_words, target_words = _words(translator, result)
        late = delays(source_words, target_words, wait)
        source_length = len(pair.source.split())
        target_length = max(1, len(pair.targets[0].split()))
        lags.append(average_lagging(late, source_length, target_length))
        adaptive_lags.append(laal(late, source_length, target_length))

    answers = [result.text for result in results]
    references = [pair.targets for pair in pairs]
    tokenize = run.config.data.bleu_tokenize
    return Waiting(
        wait,
        bleu(answers, references, tokenize).score if bleu_applies(references, tokenize) else None,
        exact_match(answers, references),
        sum(lags) / len(lags),
        sum(adaptive_lags) / len(adaptive_lags),
    )


def _words(translator: Translator, result: Result) -> tuple[list[int], list[int]]:
    """The number of words after each token of the source, <eos> too, and of the answer."""
    text = translator.source.normalise(result.source)
    source_ends = [piece.end for piece in translator.source.pieces(text)]
    source_ends.append(len(text))  # <eos>
    target_ends = [end for _, end in translator.target.spans(result.ids)]

    source_words = [len(text[:end].split()) for end in source_ends]
    target_words = [len(result.text[:end].split()) for end in target_ends]
    return source_words, target_words


def _judged_and_seen(
    run: Run, data: str | Path | Items | None, reading: Mapping[str, str], split: str
) -> tuple[list[Pair], int | None]:
    """The pairs to judge a run by, and how many of their sources are in its training data.

    Each source comes once, with all its targets.
    """
    trained_on = run.config.data
    if data is None and trained_on.path and not reading:
        splits = open_splits(trained_on)
        pairs = group_references(splits.split(split))
        return pairs, seen_in_training(trained_on, pairs, splits)

    pairs = group_references(judged_pairs(run, data, reading, split))
    return pairs, seen_in_training(trained_on, pairs)


def judged_pairs(
    run: Run, data: str | Path | Items | None, reading: Mapping[str, str], split: str
) -> Iterable[Pair]:
    """The pairs to judge a run by: of a split, a whole file, or given from Python.

    Of a language model they are texts, each the source of a pair.
    """
    trained_on = run.config.data
    is_file = isinstance(data, str | Path) and str(data) not in TASKS and Path(data).is_file()
    if reading and not is_file:
        raise UserError(f"data.{next(iter(reading))} says how to read a file: give the file too")
    if data is None and not trained_on.path:
        return _kept(run, split)
    if data is None:
        return open_split_of(trained_on, split)
    if not isinstance(data, str | Path):
        return _given(run, data, split)

    spec = named_data(data)
    is_file = Path(spec).is_file() or is_open_pipe(Path(spec))
    if is_file and spec not in TASKS:
        return open_pairs(run, spec, reading).train

    if spec == trained_on.path:
        everything = dataclasses.replace(trained_on, limit=0)
        # In order, what is held out begins where the training pairs end.
        return open_split_of(trained_on if trained_on.order == "file" else everything, split)
    elsewhere = dataclasses.replace(
        trained_on,
        path=spec,
        options={},
        limit=0,
        target_file="",
        dev_file="",
        test_file="",
        encoding="",
        documents=_documents(trained_on, Path(spec)),
    )
    return open_split_of(elsewhere, split)


def open_pairs(run: Run, file: str, reading: Mapping[str, str]) -> Splits:
    """All pairs of a file, by the columns that the run was trained on, if it has them."""
    trained_on = run.config.data
    layout = Layout(trained_on.source or None, trained_on.target or None)
    layout = fitting_layout(Path(file), layout)
    columns: dict[str, Any] = {"source": layout.source, "target": layout.target}
    if trained_on.positions:
        columns["positions"] = trained_on.positions
    if trained_on.features:
        columns["features"] = trained_on.features
    if trained_on.documents != "no":
        columns["documents"] = _documents(trained_on, Path(file), reading.get("encoding"))
    if reading.get("features") and not run.source.tags:
        raise UserError(
            f"data.features={reading['features']}: {run.path} was trained without tags; leave it "
            f"out, or train a run with data.features"
        )
    if "target_file" in reading:
        columns = {}  # two files side by side have none
    return open_data(file, **columns | dict(reading), dev=0, test=0)


def _documents(trained_on: DataConfig, path: Path, encoding: str | None = None) -> Documents:
    """What the texts of another file or folder are than a run was trained on.

    Texts are read by the same lines or paragraphs. Of a table they are a column, unless the run has
    read its own table as lines.
    """
    unit = trained_on.documents
    if unit in ("no", "auto"):
        return unit
    if unit == "source":
        return "auto"
    reads_tables_so = trained_on.path != "" and is_table(Path(trained_on.path))
    return "auto" if is_table(path, encoding) and not reads_tables_so else unit


def _kept(run: Run, split: str) -> list[Pair]:
    """The pairs of a split that a run trained on pairs from Python has kept."""
    pairs = run.held_out(split)
    if pairs is None:
        files = sorted((run.path / "data").glob("*.jsonl"))
        names = " and ".join(file.stem for file in files) or "none"
        is_text = run.config.train.objective != "translate"
        items = "texts" if is_text else "pairs"
        call = "evaluate_texts" if is_text else "evaluate"
        raise UserError(
            f"{run.path}: trained on {items} from Python, of which it kept {names}, not {split!r}: "
            f"pass the {items} to score, {call}(run, {items})"
        )
    return pairs


def _given(run: Run, data: Items, split: str) -> Iterable[Pair]:
    """The pairs that the caller gives: all of them, or the split of a dict of splits."""
    splits = named_splits(data)
    if splits is not None:
        if split not in splits:
            raise UserError(f"the data has no split {split!r}; it has {', '.join(splits)}")
        data = splits[split]
    trained_on = run.config.data
    table = open_items(
        data,
        trained_on.source,
        trained_on.target,
        trained_on.positions,
        trained_on.features,
        strict=False,
        has_texts=trained_on.documents != "no",
    )
    return table.pairs(Skipped("item"))
