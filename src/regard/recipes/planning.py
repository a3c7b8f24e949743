"""What to train when nobody said: look at the data, choose, and say why."""

import math
from collections import Counter
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from regard.config import Settings, build, merge
from regard.data.splits import Splits, Stream
from regard.data.tasks import TASKS

SAMPLE = 50_000
TUNED = {"arithmetic": "calculator", "phrases": "demo"}
SIZES = (  # of the model, for fewer training pairs than this
    (
        3_000,
        {
            "width": 128,
            "ffn": 256,
            "heads": 4,
            "encoder_layers": 2,
            "decoder_layers": 2,
            "dropout": 0.3,
        },
    ),
    (
        300_000,
        {
            "width": 256,
            "ffn": 1024,
            "heads": 4,
            "encoder_layers": 3,
            "decoder_layers": 3,
            "dropout": 0.2,
        },
    ),
    (
        math.inf,
        {
            "width": 512,
            "ffn": 2048,
            "heads": 8,
            "encoder_layers": 4,
            "decoder_layers": 4,
            "dropout": 0.1,
        },
    ),
)


@dataclass
class Side:
    """One side of the pairs, measured over a sample."""

    texts: int = 0
    characters: int = 0
    words: Counter[str] = field(default_factory=Counter)
    longest: int = 0

    def add(self, text: str) -> None:
        self.texts += 1
        self.characters += len(text)
        self.words.update(text.split())
        self.longest = max(self.longest, len(text))

    @property
    def mean_words(self) -> float:
        return self.words.total() / max(1, self.texts)

    def tokens(self, tokenizer: str) -> float:
        """About how many tokens a text has, its <eos> included."""
        per_text = {"words": self.words.total(), "bpe": self.characters / 4}.get(
            tokenizer, self.characters
        )
        return per_text / max(1, self.texts) + 1

    def tokenizer(self) -> tuple[str, str]:
        """Kind, and why."""
        if self.mean_words < 1.2 and self.characters / max(1, self.texts) <= 40:
            return "characters", "one word a line"
        if self.words.total() >= 20 * len(self.words) and len(self.words) <= 3000:
            return "words", f"only {len(self.words):,} different words, each seen often"
        return "bpe", f"{len(self.words):,} different words, many of them rare"


@dataclass
class Survey:
    """What a look at the training pairs found."""

    pairs: int
    source: Side
    target: Side


def survey(pairs: Stream) -> Survey:
    """The first SAMPLE pairs are measured, all are counted."""
    source = Side()
    target = Side()
    measured = 0
    for pair in islice(pairs, SAMPLE):
        measured += 1
        source.add(pair.source)
        for text in pair.targets:
            target.add(text)
    total = measured if measured < SAMPLE else pairs.count()
    return Survey(total, source, target)


def choose(splits: Splits, given: Settings) -> tuple[Settings, list[str]]:
    """Settings for what `given` leaves open, and a line of reason for each choice."""
    found = survey(splits.train)
    text, reason = _text(found, splits.name)
    chosen: Settings = {"text": text, "model": {}, "train": {}, "data": {}, "search": {}}
    reasons = [] if {"tokenizer", "size"} & set(given.get("text", {})) else [reason]
    if given.get("model", {}).get("kind", "transformer") == "transformer":
        chosen["model"] = size = next(dict(size) for most, size in SIZES if found.pairs < most)
        size = size | {
            name: value for name, value in given.get("model", {}).items() if name in size
        }
        layers = (
            f"{size['encoder_layers']}+{size['decoder_layers']} layers of width {size['width']}"
        )
        reasons.append(
            f"model: {layers}, dropout {size['dropout']} ({found.pairs:,} training pairs)"
        )
    length = _length_and_steps(found, chosen)
    if {"steps", "epochs"} & set(given.get("train", {})):
        del chosen["train"]["epochs"]
    else:
        reasons.append(length)
    if not build(merge({"text": text}, {"text": given.get("text", {})})).text.share:
        chosen["model"]["tie"] = "target" if chosen["model"] else "none"
    if splits.name in TUNED:
        reasons.append(f"(--preset {TUNED[splits.name]} was tuned for this task)")
    return chosen, reasons


def _text(found: Survey, name: str) -> tuple[dict[str, Any], str]:
    if name in TASKS:
        kind = TASKS[name].tokenizer
        return {"tokenizer": kind, "share": True}, f"tokens: {kind} (made for the task)"
    (source, why_source), (target, why_target) = found.source.tokenizer(), found.target.tokenizer()
    if "bpe" in (source, target):
        size = (
            1000
            if found.pairs < 5_000
            else 4000
            if found.pairs < 100_000
            else 8000
            if found.pairs < 1_000_000
            else 16000
        )
        why = why_source if source == "bpe" else why_target
        return {
            "tokenizer": "bpe",
            "size": size,
            "share": True,
        }, f"tokens: BPE, up to {size:,} ({why})"
    if source == target:
        return {"tokenizer": source, "share": True}, f"tokens: {source} ({why_source})"
    reason = f"tokens: {source} in the source ({why_source}), {target} in the target ({why_target})"
    return {"tokenizer": source, "target_tokenizer": target, "share": False}, reason


def _length_and_steps(found: Survey, chosen: Settings) -> str:
    tokenizer = chosen["text"]["tokenizer"]
    if max(found.source.longest, found.target.longest) > 2000 and tokenizer != "bpe":
        chosen["data"]["max_length"] = 1024
    batch = 1024 if found.pairs < 3_000 else 2048 if found.pairs < 100_000 else 4096
    # Few pairs want more passes, and no model learns in fewer than a thousand steps; patience ends
    # what no longer helps.
    # On two cores 20,000 pairs of sentences take about ten minutes.
    steps = (
        found.pairs * max(found.source.tokens(tokenizer), found.target.tokens(tokenizer)) / batch
    )
    usual = 30 if found.pairs < 10_000 else 10 if found.pairs < 100_000 else 4
    epochs = max(usual, round(1000 / max(1.0, steps)))
    every = 100 if found.pairs < 10_000 else 500
    chosen["data"]["batch_tokens"] = batch
    chosen["train"] |= {
        "epochs": epochs,
        "schedule": "linear",
        "warmup": 200,
        "evaluate_every": every,
        "patience": 10,
    }
    return (
        f"length: {epochs} passes over the data in batches of {batch:,} tokens (train.epochs=… "
        f"for more)"
    )
