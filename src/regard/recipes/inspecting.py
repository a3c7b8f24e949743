"""Data -> what training would see of it: splits, samples, lengths, leaks, and the plan."""

import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path

import numpy as np
import numpy.typing as npt

from regard.config import Settings, build, merge
from regard.data.kept import Kept
from regard.data.pairs import Pair
from regard.data.splits import Leaks, Splits, Stream, leaks
from regard.recipes.planning import plans
from regard.recipes.preparing import learn_tokenizers, open_splits, questionable
from regard.recipes.reporter import Reporter
from regard.recipes.survey import Side, survey, survey_texts
from regard.recipes.trials import most_trials
from regard.scoring.lengths import length_bins
from regard.text.encoder import encoder_for
from regard.text.tokenizer import Tokenizer

SAMPLES = 3  # pairs that are shown
MEASURED = 10_000  # pairs whose lengths are counted
Lengths = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Words:
    """The words of one side of a split."""

    mean_words: float  # of a text
    different_words: int


@dataclass(frozen=True)
class Split:
    """The size of a split. Texts of a language model are sources without targets."""

    name: str
    pairs: int
    source: Words
    target: Words | None


@dataclass(frozen=True)
class Sample:
    """A training pair, as text and as the tokens that a model will read."""

    source: str
    targets: list[str]
    source_tokens: list[str]
    target_tokens: list[list[str]]  # of each target


@dataclass(frozen=True)
class Bar:
    """How many texts have a length from `low` to `high` tokens; None: or more."""

    low: int
    high: int | None
    source: int
    target: int


@dataclass(frozen=True)
class Inspection:
    """What `regard data inspect` tells."""

    data: str
    holds: str  # pair, or text
    splits: list[Split]
    reading: list[str]  # how the files are read: header, columns, encoding
    leaks: Leaks
    skipped: list[str]
    notes: list[str]
    samples: list[Sample]
    lengths: list[Bar]
    tokens: int  # of all training texts, about; of pairs, on both sides
    max_length: int  # data.max_length: longer pairs are left out, longer texts are cut
    too_long: float  # the share of the training pairs or texts that are
    plan: list[str]  # what `train` would choose, and why
    settings: Settings  # the same as settings


def inspect_data(given: Settings, reporter: Reporter | None = None) -> Inspection:
    """Read the data that the settings name, and find out what `train` would make of it."""
    splits = _read_once(given, reporter or Reporter())
    first, *others = plans(splits, given, most=most_trials(given, splits))
    chosen = first.settings
    choices = [str(choice) for choice in first.choices]
    if others:
        names = "; ".join(plan.name for plan in others)
        choices.append(
            f"(it would first try this and also {names}, and train the one that is better on dev)"
        )
    config = build(merge(chosen, given))
    source, target = learn_tokenizers(config, splits)

    is_text = config.train.objective != "translate"
    shown = splits.train.sample(SAMPLES, config.data.seed)
    measured = list(splits.train.sample(MEASURED, config.data.seed))
    if is_text:
        source_lengths = _lengths(source, (pair.source for pair in measured))
        target_lengths = np.zeros(0, np.int64)
        longest_sides = source_lengths + 1  # with <eos>
    else:
        source_lengths = _lengths(source, (pair.source for pair in measured for _ in pair.targets))
        target_lengths = _lengths(target, chain.from_iterable(pair.targets for pair in measured))
        longest_sides = np.maximum(source_lengths, target_lengths) + 1
    share = splits.train.count() / max(1, len(measured))
    return Inspection(
        data=config.data.path,
        holds="text" if is_text else "pair",
        splits=_sizes(splits, is_text=is_text, has_tags=bool(config.data.features)),
        leaks=leaks(splits),
        reading=list(splits.reading),
        skipped=splits.skipped.lines(),
        notes=[*splits.notes, *questionable(config.data, splits)],
        samples=[_sample(pair, source, None if is_text else target) for pair in shown],
        lengths=_histogram(source_lengths, target_lengths),
        tokens=round(share * int(source_lengths.sum() + target_lengths.sum())),
        max_length=config.data.max_length,
        too_long=float((longest_sides > config.data.max_length).mean()),
        plan=choices,
        settings=chosen,
    )


def _read_once(given: Settings, reporter: Reporter) -> Splits:
    """Read the data to its end, and keep a cleaned copy, which is read several times."""
    with reporter.progress("% of the data read") as tell:
        keep = partial(Kept, folder=Path(tempfile.gettempdir()), tell=tell)
        splits = open_splits(build(given).data, keep=keep)
        splits.train.count()
    return splits


def _sizes(splits: Splits, *, is_text: bool, has_tags: bool) -> list[Split]:
    """The size of each split that there is."""
    sizes = []
    for name in ("train", "dev", "test", "long"):
        stream: Stream | None = getattr(splits, name)
        if stream is None:
            continue
        if is_text:
            texts = survey_texts(stream)
            sizes.append(Split(name, texts.texts, _words(texts.side), None))
            continue
        measured = survey(stream, has_tags=has_tags)
        source = _words(measured.source)
        sizes.append(Split(name, measured.pairs, source, _words(measured.target)))
    return sizes


def _words(side: Side) -> Words:
    return Words(side.mean_words, len(side.words))


def _sample(pair: Pair, source: Tokenizer, target: Tokenizer | None) -> Sample:
    """A pair as text and as tokens; without a tokenizer for targets, of its source alone."""
    targets = list(pair.targets) if target is not None else []
    return Sample(
        pair.source,
        targets,
        source.token_texts(source.encode(pair.source)),
        [target.token_texts(target.encode(text)) for text in targets] if target else [],
    )


def _lengths(tokenizer: Tokenizer, texts: Iterable[str]) -> Lengths:
    """How many tokens each text has, without its <eos>."""
    _, lengths = encoder_for(tokenizer)(list(texts))
    return lengths


def _histogram(source: Lengths, target: Lengths) -> list[Bar]:
    """The lengths in a few bars of equal width."""
    bins = length_bins(np.concatenate([source, target]))
    return [
        Bar(one.low, one.high, int(one.holds(source).sum()), int(one.holds(target).sum()))
        for one in bins
    ]
