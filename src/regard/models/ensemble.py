"""Several models as one: what they think of the next token is averaged, as probabilities."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from regard.models.seq2seq import Decoder, Encoder, Seq2Seq
from regard.nn.precision import at_least_single


@dataclass(frozen=True)
class States:
    """The state of each."""

    each: tuple[Any, ...]

    def select(self, sentences: Tensor | None, beams: Tensor) -> States:
        return States(tuple(state.select(sentences, beams) for state in self.each))

    def join(self, other: States) -> States:
        return States(tuple(one.join(two) for one, two in zip(self.each, other.each, strict=True)))


class Encoders(Encoder):
    """All encoders read; each leaves its own memory."""

    def __init__(self, members: Sequence[Seq2Seq]) -> None:
        super().__init__()
        self.members = nn.ModuleList(model.encoder for model in members)

    def forward(self, source: Tensor, lengths: Tensor, **more: Any) -> Any:
        return [member(source, lengths, **more) for member in self.members]


class Decoders(Decoder):
    """All decoders write the same token."""

    def __init__(self, members: Sequence[Seq2Seq]) -> None:
        super().__init__()
        self.members = nn.ModuleList(model.decoder for model in members)

    def start(self, memory: Any) -> States:
        pairs = zip(self.members, memory, strict=True)
        return States(tuple(member.start(its) for member, its in pairs))  # type: ignore[operator]

    def forward(self, tokens: Tensor, state: States) -> tuple[Tensor, States]:
        """The logarithm of the mean of their probabilities."""
        found = [member(tokens, its) for member, its in zip(self.members, state.each, strict=True)]
        wide = [logits.to(at_least_single(logits.dtype)) for logits, _ in found]
        likely = torch.stack([logits.log_softmax(-1) for logits in wide])  # (members, R, T, V)
        return likely.logsumexp(0) - math.log(len(found)), States(
            tuple(after for _, after in found)
        )


def ensemble(models: Sequence[Seq2Seq]) -> Seq2Seq:
    return Seq2Seq(Encoders(models), Decoders(models))
