"""What a plan is: settings for what was left open, and for a person what was chosen and why."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from regard.config import Settings
from regard.recipes.survey import Kind

Model = dict[str, Any]
Value = TypeVar("Value")


@dataclass(frozen=True)
class Choice:
    """One thing that the plan decided: for a person."""

    what: str
    value: str
    reason: str

    def __str__(self) -> str:
        return f"{self.what}: {self.value} ({self.reason})" if self.reason else self.value


@dataclass(frozen=True)
class Plan:
    """One way to train on the data."""

    kind: Kind  # what the data is taken for
    settings: Settings  # for what was left open
    choices: list[Choice]  # what was chosen, and why

    @property
    def tokens(self) -> str:
        """What texts are split into, for a person."""
        return tokens_text(self.settings["text"])

    @property
    def architecture(self) -> str:
        """The kind of model, for a person; empty if the user has chosen it."""
        model = self.settings["model"]
        if "width" not in model:
            return ""
        return "LSTM" if model.get("kind") == "rnn" else "Transformer"

    @property
    def name(self) -> str:
        """What tells it from another plan."""
        return ", ".join(part for part in (self.architecture, self.tokens) if part)


def tokens_text(text: Mapping[str, Any]) -> str:
    """The tokens of both sides, for a person."""
    if text["tokenizer"] == "bpe":
        return f"BPE, up to {text['size']:,}"
    if "target_tokenizer" in text:
        return f"{text['tokenizer']} in the source, {text['target_tokenizer']} in the target"
    return str(text["tokenizer"])


def transformer(width: int, ffn: int, heads: int, layers: int) -> Model:
    """A Transformer with so many layers on each side that it has."""
    return {
        "width": width,
        "ffn": ffn,
        "heads": heads,
        "encoder_layers": layers,
        "decoder_layers": layers,
    }


def suited(table: Sequence[tuple[float, Value]], amount: float) -> Value:
    """The value of a table for this amount: each is for less than the number before it."""
    return next(value for most, value in table if amount < most)


def rate_of(model: Mapping[str, Any]) -> float:
    """The learning rate. A small Transformer learns at twice the rate of a larger one."""
    is_transformer = model.get("kind", "transformer") == "transformer"
    width = int(model["width"])
    return 2e-3 if is_transformer and width <= 128 else 1e-3


def epochs_text(epochs: float) -> str:
    """A number of epochs for a person: 12, or 0.35."""
    return f"{epochs:,.0f}" if epochs >= 2 else f"{epochs:.2g}"


def power_of_two(number: float) -> int:
    """The smallest power of two that is not below a number."""
    return int(2 ** math.ceil(math.log2(max(1.0, number))))
