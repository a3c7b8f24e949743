"""Data -> a run that is ready to train: settings decided, tokenizers learned, pairs encoded."""

from collections.abc import Iterable
from dataclasses import replace
from itertools import chain, islice
from typing import Any

import torch

from regard import config as settings
from regard import planning
from regard.config import Config, DataConfig, Settings
from regard.data.corpus import encode
from regard.data.pairs import Pair, Skipped
from regard.data.splits import Items, Splits, Stream, from_iterable, leaks, open_data, open_split
from regard.errors import UserError
from regard.models import build_model
from regard.nn.devices import cpu_has_bf16, pick_device
from regard.reporter import Reporter
from regard.run import Claim, Parts, Run
from regard.text.tokenizer import Tokenizer, train_tokenizer
from regard.text.vocabulary import normalise
from regard.training.paths import choose_path
from regard.trust import pieces


def open_splits(c: DataConfig) -> Splits:
    """The data a config speaks of."""
    return open_data(c.path, source=c.source or None, target=c.target or None, options=c.options, **_deal(c))


def open_split_of(c: DataConfig, split: str) -> Stream:
    """One split of it."""
    names = {"source": c.source or None, "target": c.target or None}
    return open_split(c.path, split, **names, options=c.options, **_deal(c))


def seen_in_training(c: DataConfig, pairs: Iterable[Pair], splits: Splits | None = None) -> int | None:
    """How many of the sources of these pairs stand in the training data of a config; None: it cannot be read (any more)."""
    if splits is None:
        try:
            splits = open_splits(c) if c.path else None  # no path: trained on pairs given from Python
        except UserError:
            splits = None
    return None if splits is None else splits.seen_in_training(pair.source for pair in pairs)


def _deal(c: DataConfig) -> dict[str, Any]:
    """How pairs are dealt out: 0 in the config is None for open_data."""
    return {"limit": c.limit or None, "group": c.group, "dev": c.dev or None, "test": c.test or None, "seed": c.seed}


def _inherit(given: Settings, old: Run) -> Settings:
    """Fine-tuning takes the old run's tokens and model, or its weights would mean nothing; dropout may change."""
    own = settings.to_settings(old.config)
    for section in ("model", "text"):
        asked = settings.to_settings(settings.build(settings.merge(own, {section: given.get(section, {})})))[section]
        if other := [n for n in asked if asked[n] != own[section].get(n) and not n.endswith("dropout")]:
            raise UserError(f"{section}.{other[0]} cannot differ from that of {old.path}, whose weights are taken over")
    return settings.merge({"model": own["model"], "text": own["text"]}, given)


def prepare(claim: Claim, given: Settings, pairs: Items | None, parts: Parts, *, planned: bool, reporter: Reporter) -> Run:
    """Read the data, choose what is open, learn tokenizers, encode; then the run appears in one rename."""
    start_from = given.get("train", {}).get("start_from")
    old = Run.open(start_from) if start_from else None
    if old is not None:
        given = _inherit(given, old)
        old.keep_start(claim.aside)
    data = settings.build({"data": given["data"]}).data
    splits = open_splits(data) if pairs is None else from_iterable(pairs, **_deal(data))
    if planned:
        chosen, reasons = planning.choose(splits, given)
        given = settings.merge(chosen, given)
        for reason in reasons:
            reporter.say(reason)
    c = _decide(settings.build(given))
    source, target = (old.source, old.target) if old is not None else _tokenizers(c, splits)
    long = Skipped()
    corpus = encode(splits.train, source, target, claim.aside / "data" / "train", max_length=c.data.max_length, skipped=long)
    if splits.dev is not None:
        encode(splits.dev, source, target, claim.aside / "data" / "dev", max_length=c.data.max_length, skipped=long)
    for line in [*splits.skipped.lines(), *long.lines(), *splits.notes]:
        reporter.warn(line)
    found = leaks(splits)
    if found.dev or found.near_dev:
        more = f", {found.near_dev:,} more but for case and punctuation" if found.near_dev else ""
        reporter.warn(f"{found.dev:,} of the dev sources also stand in the training data{more}: dev scores flatter")
    count = sum(p.numel() for p in build_model(c.model, source.size, target.size, parts).parameters())
    lengths = float(corpus.source_lengths.mean() + corpus.target_lengths.mean())
    examples = c.train.epochs * len(corpus) or c.train.steps * (c.data.batch_sentences or c.data.batch_tokens / lengths * 2)
    path = choose_path(c, pick_device(c.train.device), count, examples * lengths)
    c = replace(c, train=replace(c.train, path=path), data=replace(c.data, digest=corpus.digest))
    tokens = f"{source.size:,} tokens" if source is target else f"{source.size:,} + {target.size:,} tokens"
    reporter.say(f"{len(corpus):,} training pairs, {tokens}, {count:,} parameters")
    older = "" if old is None else old.manifest.get("characters")
    letters = set(chain.from_iterable(normalise(pair.source) for pair in splits.train))
    several = [len(pieces(pair.source)) > 1 for pair in islice(splits.train, 10_000)]
    facts = {
        "pairs": len(corpus),
        "longest_source": int(corpus.source_lengths.max()),
        "characters": "".join(sorted(letters.union(older))) if older is not None else "",  # not all are known
        "several_sentences": sum(several) / max(1, len(several)),
        "duplicates": found.duplicates,
        "leaks": found.dev,
        "skipped": len(splits.skipped) + len(long),
        "languages": {"source": c.data.source, "target": c.data.target},
        "parameters": count,
    }
    return Run.create(claim, c, source, target, facts)


def _decide(c: Config) -> Config:
    """Settle what depends on the machine, so that config.toml says what was done."""
    device = pick_device(c.train.device)
    precision = c.train.precision
    if precision == "bf16" and device.type == "cpu" and not cpu_has_bf16():
        raise UserError("train.precision=bf16: this CPU does not run torch's bfloat16 products; use fp32")
    if precision == "auto":
        precision = "bf16" if device.type == "cuda" and torch.cuda.is_bf16_supported() else "fp32"
    threads = c.train.threads or torch.get_num_threads()
    return replace(c, train=replace(c.train, precision=precision, threads=threads))


def _tokenizers(c: Config, splits: Splits) -> tuple[Tokenizer, Tokenizer]:
    kind = c.text.tokenizer
    target_kind = kind if c.text.target_tokenizer == "same" else c.text.target_tokenizer
    if c.text.dropout and {kind, target_kind} != {"bpe"}:
        raise UserError(f"text.dropout={c.text.dropout} leaves out merges of BPE: set text.tokenizer=bpe for both sides, or 0")
    if c.text.share and kind == target_kind:
        one = train_tokenizer(kind, (t for pair in splits.train for t in (pair.source, *pair.targets)), size=c.text.size)
        return one, one
    sources = (pair.source for pair in splits.train)
    targets = (text for pair in splits.train for text in pair.targets)
    return train_tokenizer(kind, sources, size=c.text.size), train_tokenizer(target_kind, targets, size=c.text.size)
