"""What to train when nobody said: look at the data, choose, and say why."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, TypeVar

from regard.config import Settings, build, merge
from regard.data.splits import Splits, Stream
from regard.data.tasks import TASKS
from regard.errors import counted
from regard.text.tags import split_tags

SAMPLE = 50_000
TUNED = {"arithmetic": "calculator", "phrases": "demo"}
SMALL = {
    "width": 128,
    "ffn": 256,
    "heads": 4,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "dropout": 0.3,
}
MEDIUM = {
    "width": 256,
    "ffn": 1024,
    "heads": 4,
    "encoder_layers": 3,
    "decoder_layers": 3,
    "dropout": 0.2,
}
LARGE = {
    "width": 512,
    "ffn": 2048,
    "heads": 8,
    "encoder_layers": 4,
    "decoder_layers": 4,
    "dropout": 0.1,
}

# What suits a number of training pairs: each value is for fewer pairs than the number before it.
MODELS = ((3_000, SMALL), (300_000, MEDIUM), (math.inf, LARGE))
VOCABULARIES = ((5_000, 1000), (100_000, 4000), (1_000_000, 8000), (math.inf, 16000))
BATCHES = ((3_000, 1024), (100_000, 2048), (math.inf, 4096))  # tokens
EPOCHS = ((10_000, 30), (100_000, 10), (math.inf, 4))
EVALUATIONS = ((10_000, 100), (math.inf, 500))  # steps between two
LEAST_STEPS = 1000  # no model learns in fewer

Value = TypeVar("Value")


def _suited(table: Sequence[tuple[float, Value]], pairs: int) -> Value:
    """The value of a table for this number of training pairs."""
    return next(value for most, value in table if pairs < most)


@dataclass
class Side:
    """One side of the pairs, measured over a sample."""

    texts: int = 0
    characters: int = 0
    words: Counter[str] = field(default_factory=Counter)
    longest: int = 0
    tags: int = 0

    def add(self, text: str, tags: int = 0) -> None:
        """Measure one more text, which has so many tags."""
        self.texts += 1
        self.tags += tags
        self.characters += len(text)
        self.words.update(text.split())
        self.longest = max(self.longest, len(text))

    @property
    def mean_words(self) -> float:
        """Words of a text."""
        return self.words.total() / max(1, self.texts)

    def tokens(self, tokenizer: str) -> float:
        """About how many tokens a text has, its <eos> included."""
        if tokenizer == "words":
            total: float = self.words.total()
        elif tokenizer == "bpe":
            total = self.characters / 4
        else:
            total = self.characters
        return (total + self.tags) / max(1, self.texts) + 1

    def tokenizer(self) -> tuple[str, str]:
        """The kind of tokenizer that suits these texts, and why."""
        if self.mean_words < 1.2 and self.characters / max(1, self.texts) <= 40:
            return "characters", "one word per line"
        if self.words.total() >= 20 * len(self.words) and len(self.words) <= 3000:
            return "words", f"only {len(self.words):,} different words, each seen often"
        return "bpe", f"{len(self.words):,} different words, many of them rare"


@dataclass
class Survey:
    """What a look at the training pairs found."""

    pairs: int
    source: Side
    target: Side


def survey(pairs: Stream, *, has_tags: bool = False) -> Survey:
    """Measure the first SAMPLE pairs, and count all. has_tags: whether the sources have tags."""
    source = Side()
    target = Side()
    measured = 0
    for pair in islice(pairs, SAMPLE):
        measured += 1
        if has_tags:
            text, tags = split_tags(pair.source)
            source.add(text, len(tags))
        else:
            source.add(pair.source)
        for text in pair.targets:
            target.add(text)
    total = measured if measured < SAMPLE else pairs.count()
    return Survey(total, source, target)


def choose(splits: Splits, given: Settings) -> tuple[Settings, list[str]]:
    """Settings for what `given` leaves open, and a line of reason for each choice."""
    measured = survey(splits.train, has_tags=bool(given.get("data", {}).get("features")))
    chosen: Settings = {"text": {}, "model": {}, "train": {}, "data": {}, "search": {}}
    reasons = []

    chosen["text"], reason = _text(measured, splits.name)
    if not {"tokenizer", "size"} & set(given.get("text", {})):
        reasons.append(reason)

    given_model = given.get("model", {})
    if given_model.get("kind", "transformer") == "transformer":
        chosen["model"] = dict(_suited(MODELS, measured.pairs))
        reasons.append(_model_reason(chosen["model"] | given_model, measured.pairs))

    chosen["data"], chosen["train"], reason = _data_and_length(measured, chosen["text"])
    if {"steps", "epochs"} & set(given.get("train", {})):
        del chosen["train"]["epochs"]
    else:
        reasons.append(reason)

    text = build(merge({"text": chosen["text"]}, {"text": given.get("text", {})})).text
    has_ties = not str(given_model.get("kind", "")).startswith("custom:")
    if not text.share and has_ties:
        chosen["model"]["tie"] = "target" if chosen["model"] else "none"
    if splits.name in TUNED:
        reasons.append(f"(--preset {TUNED[splits.name]} was tuned for this task)")
    return chosen, reasons


def _text(measured: Survey, name: str) -> tuple[dict[str, Any], str]:
    """Settings of the section text, and why."""
    if name in TASKS:
        kind = TASKS[name].tokenizer
        return {"tokenizer": kind, "share": True}, f"tokens: {kind} (set by the task)"

    source, why_source = measured.source.tokenizer()
    target, why_target = measured.target.tokenizer()
    if "bpe" in (source, target):
        size = _suited(VOCABULARIES, measured.pairs)
        why = why_source if source == "bpe" else why_target
        reason = f"tokens: BPE, up to {size:,} ({why})"
        return {"tokenizer": "bpe", "size": size, "share": True}, reason
    if source == target:
        return {"tokenizer": source, "share": True}, f"tokens: {source} ({why_source})"

    reason = f"tokens: {source} in the source ({why_source}), {target} in the target ({why_target})"
    return {"tokenizer": source, "target_tokenizer": target, "share": False}, reason


def _model_reason(model: dict[str, Any], pairs: int) -> str:
    """Why the model is as large as it is."""
    return (
        f"model: {model['encoder_layers']}+{model['decoder_layers']} layers of width "
        f"{model['width']}, dropout {model['dropout']} ({counted(pairs, 'training pair')})"
    )


def _data_and_length(
    measured: Survey, text: dict[str, Any]
) -> tuple[dict[str, Any], dict[str, Any], str]:
    """Settings of the sections data and train, and why training is as long as it is.

    Few pairs want more passes; patience ends what no longer helps. On two cores 20,000 pairs of
    sentences take about ten minutes.
    """
    tokenizer = text["tokenizer"]
    batch_tokens = _suited(BATCHES, measured.pairs)
    pair_tokens = max(measured.source.tokens(tokenizer), measured.target.tokens(tokenizer))
    steps_per_epoch = measured.pairs * pair_tokens / batch_tokens
    least_epochs = round(LEAST_STEPS / max(1.0, steps_per_epoch))
    epochs = max(_suited(EPOCHS, measured.pairs), least_epochs)

    data = {"batch_tokens": batch_tokens}
    if max(measured.source.longest, measured.target.longest) > 2000 and tokenizer != "bpe":
        data["max_length"] = 1024
    train = {
        "epochs": epochs,
        "schedule": "linear",
        "warmup": 200,
        "evaluate_every": _suited(EVALUATIONS, measured.pairs),
        "patience": 10,
    }
    reason = (
        f"length: {counted(epochs, 'epoch')}, in batches of {batch_tokens:,} tokens (to change "
        f"it, set train.epochs)"
    )
    return data, train, reason
