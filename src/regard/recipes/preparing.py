"""Data -> a run that is ready to train: settings decided, tokenizers learned, pairs encoded."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from regard import config as settings
from regard.config import Config, DataConfig, Settings
from regard.data.corpus import Corpus, encode
from regard.data.kept import Kept
from regard.data.pairs import Pair, Skipped
from regard.data.splits import (
    Items,
    Keep,
    Overlap,
    Splits,
    Stream,
    from_iterable,
    open_data,
    open_split,
)
from regard.errors import UserError
from regard.models import build_model
from regard.nn.devices import cpu_has_bf16, pick_device
from regard.recipes import planning
from regard.recipes.reporter import Reporter
from regard.runs.claim import Claim
from regard.runs.run import Parts, Run
from regard.text.sentences import pieces
from regard.text.tokenizer import Tokenizer, train_tokenizer
from regard.training.paths import choose_path

TOKENIZER_SAMPLE = 200_000
"""Pairs that BPE and Unigram are learned from, at most, drawn evenly over the training data.
docs/log.md, 2026-11-16: held-out text needs 0.17 % more tokens than with a tokenizer learned from
all of a million pairs, which takes four times as long.
"""


def open_splits(c: DataConfig, keep: Keep | None = None) -> Splits:
    """The data a config speaks of."""
    names = {"source": c.source or None, "target": c.target or None}
    return open_data(c.path, **names, options=c.options, keep=keep, **_deal(c))


def open_split_of(c: DataConfig, split: str) -> Stream:
    """One split of it."""
    names = {"source": c.source or None, "target": c.target or None}
    return open_split(c.path, split, **names, options=c.options, **_deal(c))


def seen_in_training(
    c: DataConfig, pairs: Iterable[Pair], splits: Splits | None = None
) -> int | None:
    """How many of the sources of these pairs stand in the training data of a config; None: it
    cannot be read (any more).
    """
    if splits is None:
        try:
            splits = (
                open_splits(c) if c.path else None
            )  # no path: trained on pairs given from Python
        except UserError:
            splits = None
    return None if splits is None else splits.seen_in_training(pair.source for pair in pairs)


def _deal(c: DataConfig) -> dict[str, Any]:
    """How pairs are dealt out: 0 in the config is None for open_data."""
    return {
        "limit": c.limit or None,
        "group": c.group,
        "dev": c.dev or None,
        "test": c.test or None,
        "seed": c.seed,
    }


def _inherit(given: Settings, old: Run) -> Settings:
    """Fine-tuning takes the old run's tokens and model, or its weights would mean nothing; dropout
    may change.
    """
    own = settings.to_settings(old.config)
    for section in ("model", "text"):
        asked = settings.to_settings(
            settings.build(settings.merge(own, {section: given.get(section, {})}))
        )[section]
        if other := [
            n for n in asked if asked[n] != own[section].get(n) and not n.endswith("dropout")
        ]:
            raise UserError(
                f"{section}.{other[0]} cannot differ from that of {old.path}, whose weights are "
                f"taken over"
            )
    return settings.merge({"model": own["model"], "text": own["text"]}, given)


def prepare(
    claim: Claim,
    given: Settings,
    pairs: Items | None,
    parts: Parts,
    *,
    planned: bool,
    reporter: Reporter,
) -> Run:
    """Read the data, choose what is open, learn tokenizers, encode; then the run appears in one
    rename.
    """
    start_from = given.get("train", {}).get("start_from")
    old = Run.open(start_from) if start_from else None
    if old is not None:
        given = _inherit(given, old)
        old.keep_start(claim.aside)
    data = settings.build({"data": given["data"]}).data
    splits = _read_once(data, pairs, claim.folder, reporter)
    if planned:
        chosen, reasons = planning.choose(splits, given)
        given = settings.merge(chosen, given)
        for reason in reasons:
            reporter.say(reason)
    c = _decide(settings.build(given))
    source, target = (old.source, old.target) if old is not None else _tokenizers(c, splits)
    corpus, long, observed = _encode(c, splits, source, target, claim.aside / "data", reporter)
    for line in [*splits.skipped.lines(), *long.lines(), *splits.notes]:
        reporter.warn(line)

    overlap = observed.overlap.leaks()
    if overlap.dev or overlap.near_dev:
        near = (
            f" ({overlap.near_dev:,} more but for case and punctuation)" if overlap.near_dev else ""
        )
        effect = "scores on dev will be too high"
        reporter.warn(
            f"{overlap.dev:,} of the dev sources are in the training data too{near}: {effect}"
        )

    model = build_model(c.model, source.size, target.size, parts)
    count = sum(weight.numel() for weight in model.parameters())
    lengths = float(corpus.source_lengths.mean() + corpus.target_lengths.mean())
    batch = c.data.batch_sentences or c.data.batch_tokens / lengths * 2
    examples = c.train.epochs * len(corpus) or c.train.steps * batch
    path = choose_path(c, pick_device(c.train.device), count, examples * lengths)
    c = replace(c, train=replace(c.train, path=path), data=replace(c.data, digest=corpus.digest))
    tokens = (
        f"{source.size:,} tokens"
        if source is target
        else f"{source.size:,} + {target.size:,} tokens"
    )
    reporter.say(f"{len(corpus):,} training pairs, {tokens}, {count:,} parameters")

    older = "" if old is None else old.manifest.get("characters")  # None: not all are known
    several = [len(pieces(pair.source)) > 1 for pair in islice(splits.train, 10_000)]
    facts = {
        "pairs": len(corpus),
        "longest_source": int(corpus.source_lengths.max()),
        "characters": "" if older is None else "".join(sorted(observed.characters.union(older))),
        "several_sentences": sum(several) / max(1, len(several)),
        "duplicates": overlap.duplicates,
        "leaks": overlap.dev,
        "skipped": len(splits.skipped) + len(long),
        "languages": {"source": c.data.source, "target": c.data.target},
        "parameters": count,
    }
    return Run.create(claim, c, source, target, facts)


def _read_once(data: DataConfig, pairs: Items | None, folder: Path, reporter: Reporter) -> Splits:
    """The data, read to its end and kept beside where the run will be: everything after this reads
    the cleaned copy.
    """
    nearby = next(parent for parent in folder.resolve().parents if parent.is_dir())
    with reporter.progress("% of the data read") as tell:
        keep = partial(Kept, folder=nearby, tell=tell)
        splits = (
            open_splits(data, keep)
            if pairs is None
            else from_iterable(pairs, keep=keep, **_deal(data))
        )
        for stream in (splits.train, splits.dev):
            if stream is not None and isinstance(stream.read, Kept):
                stream.read.fill()
    return replace(
        splits, test=None, long=None, drawn=None
    )  # training has no use for them, and they hold memory


class _Observed:
    """What is noted of the training pairs while they go by."""

    def __init__(self, overlap: Overlap, total: int, tell: Callable[[float], None]) -> None:
        self.overlap = overlap
        self.characters: set[str] = set()  # of the sources
        self._total = total
        self._tell = tell
        self._done = 0

    def __call__(self, pairs: list[Pair]) -> None:
        self.overlap.add(pairs)
        self.characters.update("".join([pair.source for pair in pairs]))
        self._done += len(pairs)
        self._tell(self._done / self._total)


def _encode(
    c: Config,
    splits: Splits,
    source: Tokenizer,
    target: Tokenizer,
    folder: Path,
    reporter: Reporter,
) -> tuple[Corpus, Skipped, _Observed]:
    """Training and dev pairs as ids; the pairs that are too long; and what was noted of the
    training pairs meanwhile.
    """
    long = Skipped()
    lengths: dict[str, Any] = {"max_length": c.data.max_length, "skipped": long}
    with reporter.progress("% of the data encoded") as tell:
        observed = _Observed(Overlap(splits.dev or (), ()), splits.train.count(), tell)
        corpus = encode(splits.train, source, target, folder / "train", **lengths, watch=observed)
        if splits.dev is not None:
            encode(splits.dev, source, target, folder / "dev", **lengths)
    return corpus, long, observed


def _decide(c: Config) -> Config:
    """Settle what depends on the machine, so that config.toml says what was done."""
    device = pick_device(c.train.device)
    precision = c.train.precision
    if precision == "bf16" and device.type == "cpu" and not cpu_has_bf16():
        raise UserError(
            "train.precision=bf16: this CPU does not run torch's bfloat16 products; use fp32"
        )
    if precision == "auto":
        precision = "bf16" if device.type == "cuda" and torch.cuda.is_bf16_supported() else "fp32"
    threads = c.train.threads or torch.get_num_threads()
    return replace(c, train=replace(c.train, precision=precision, threads=threads))


def _tokenizers(c: Config, splits: Splits) -> tuple[Tokenizer, Tokenizer]:
    kind = c.text.tokenizer
    target_kind = kind if c.text.target_tokenizer == "same" else c.text.target_tokenizer
    if c.text.dropout and {kind, target_kind} != {"bpe"}:
        raise UserError(
            f"text.dropout={c.text.dropout} leaves out merges of BPE: set text.tokenizer=bpe for "
            f"both sides, or 0"
        )
    if c.text.share and kind == target_kind:
        pairs = _to_learn_from(splits.train, kind, c.data.seed)
        shared = train_tokenizer(
            kind,
            (text for pair in pairs for text in (pair.source, *pair.targets)),
            size=c.text.size,
        )
        return shared, shared

    sources = (pair.source for pair in _to_learn_from(splits.train, kind, c.data.seed))
    targets = (
        text
        for pair in _to_learn_from(splits.train, target_kind, c.data.seed)
        for text in pair.targets
    )
    source = train_tokenizer(kind, sources, size=c.text.size)
    target = train_tokenizer(target_kind, targets, size=c.text.size)
    return source, target


def _to_learn_from(train: Stream, kind: str, seed: int) -> Iterable[Pair]:
    """A sample for subwords; all pairs for words and characters, where a rare token must not be
    missed; none for bytes.
    """
    if kind == "bytes":
        return ()
    return train.sample(TOKENIZER_SAMPLE, seed) if kind in ("bpe", "unigram") else train
