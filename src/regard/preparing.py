"""Data -> a run that is ready to train: settings decided, tokenizers learned, pairs encoded."""

from __future__ import annotations

import dataclasses
import os
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from regard import config as settings
from regard import planning
from regard.config import Config, DataConfig, Settings
from regard.data.corpus import encode
from regard.data.pairs import Skipped
from regard.data.splits import Splits, from_iterable, leaks, open_data
from regard.errors import UserError
from regard.models import build_model
from regard.reporter import Reporter
from regard.run import Run
from regard.text.tokenizer import Tokenizer, train_tokenizer

Parts = Mapping[str, type[nn.Module]] | None
"""The user's own classes for `score` or `position`."""


def open_splits(c: DataConfig) -> Splits:
    """The data a config speaks of."""
    return open_data(
        c.path,
        source=c.source or None,
        target=c.target or None,
        limit=c.limit or None,
        group=c.group,
        dev=c.dev or None,
        test=c.test or None,
        seed=c.seed,
        options=c.options,
    )


def prepare(
    folder: Path, given: Settings, pairs: Iterable[Any] | None, parts: Parts, *, planned: bool, reporter: Reporter
) -> Run:
    """Read the data, choose what is open, learn tokenizers, encode; then the run appears in one rename."""
    data = settings.build({"data": given["data"]}).data
    splits = (
        open_splits(data) if pairs is None else from_iterable(pairs, dev=data.dev or None, test=data.test or None, seed=data.seed)
    )
    start_from = given.get("train", {}).get("start_from")
    old = Run.open(start_from) if start_from else None
    if old is not None:  # the old run's model and tokens, or its weights would mean nothing
        own = settings.to_settings(old.config)
        given = settings.merge(given, {"model": own["model"], "text": own["text"]})
    if planned:
        chosen, reasons = planning.choose(splits, given)
        given = settings.merge(chosen, given)
        for reason in reasons:
            reporter.say(reason)
    c = _decide(settings.build(given))
    for left in folder.parent.glob(f".{folder.name}.*.tmp"):  # by a process that was killed while it prepared this run
        shutil.rmtree(left, ignore_errors=True)
    aside = folder.with_name(f".{folder.name}.{os.getpid()}.tmp")
    aside.mkdir(parents=True)
    try:
        source, target = (old.source, old.target) if old is not None else _tokenizers(c, splits)
        long = Skipped()
        corpus = encode(splits.train, source, target, aside / "data" / "train", max_length=c.data.max_length, skipped=long)
        if splits.dev is not None:
            encode(splits.dev, source, target, aside / "data" / "dev", max_length=c.data.max_length, skipped=long)
        for line in [*splits.skipped.lines(), *long.lines(), *splits.notes]:
            reporter.warn(line)
        found = leaks(splits)
        facts = {
            "pairs": len(corpus),
            "longest_source": int(corpus.source_lengths.max()),
            "duplicates": found.duplicates,
            "leaks": found.dev,
            "skipped": len(splits.skipped) + len(long),
            "languages": {"source": c.data.source, "target": c.data.target},
        }
        if found.dev:
            reporter.warn(f"{found.dev:,} of the dev sources also stand in the training data: dev scores flatter")
        facts["parameters"] = sum(p.numel() for p in build_model(c.model, source.size, target.size, parts).parameters())
        c = dataclasses.replace(c, data=dataclasses.replace(c.data, digest=corpus.digest))
        tokens = f"{source.size:,} tokens" if source is target else f"{source.size:,} + {target.size:,} tokens"
        reporter.say(f"{len(corpus):,} training pairs, {tokens}, {facts['parameters']:,} parameters")
        folder.parent.mkdir(parents=True, exist_ok=True)
        return Run.create(folder, c, source, target, facts, aside)
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _decide(c: Config) -> Config:
    """Settle what depends on the machine, so that config.toml says what was done."""
    device = pick_device(c.train.device)
    precision = c.train.precision
    if precision == "auto":
        precision = "bf16" if device.type == "cuda" and torch.cuda.is_bf16_supported() else "fp32"
    threads = c.train.threads or torch.get_num_threads()
    return dataclasses.replace(c, train=dataclasses.replace(c.train, precision=precision, threads=threads))


def pick_device(name: str) -> torch.device:
    """auto: the GPU if there is one."""
    if name == "cuda" and not torch.cuda.is_available():
        raise UserError("train.device=cuda, but torch sees no GPU here; use train.device=cpu")
    return torch.device("cuda" if name == "auto" and torch.cuda.is_available() else "cpu" if name == "auto" else name)


def _tokenizers(c: Config, splits: Splits) -> tuple[Tokenizer, Tokenizer]:
    kind = c.text.tokenizer
    target_kind = kind if c.text.target_tokenizer == "same" else c.text.target_tokenizer
    sources = (pair.source for pair in splits.train)
    targets = (text for pair in splits.train for text in pair.targets)
    if c.text.share and kind == target_kind:
        one = train_tokenizer(kind, (t for pair in splits.train for t in (pair.source, *pair.targets)), size=c.text.size)
        return one, one
    return train_tokenizer(kind, sources, size=c.text.size), train_tokenizer(target_kind, targets, size=c.text.size)
