"""Several models as one: their probabilities of the next token are averaged."""

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
    """The states of all members."""

    of_members: tuple[Any, ...]

    def select(self, sentences: Tensor | None, beams: Tensor) -> States:
        """Keep these sentences (B',) and hypotheses (B', K') in every member's state."""
        return States(tuple(state.select(sentences, beams) for state in self.of_members))

    def join(self, other: States) -> States:
        """The sentences of both."""
        pairs = zip(self.of_members, other.of_members, strict=True)
        return States(tuple(mine.join(theirs) for mine, theirs in pairs))


class Encoders(Encoder):
    """All encoders read the source, and each makes its own memory."""

    needs_end = "an ensemble needs the whole source before it can start: load one of its runs alone"

    def __init__(self, members: Sequence[Seq2Seq]) -> None:
        super().__init__()
        self.members = nn.ModuleList(model.encoder for model in members)

    def forward(self, source: Tensor, lengths: Tensor, **more: Any) -> Any:
        return [member(source, lengths, **more) for member in self.members]


class Decoders(Decoder):
    """All decoders read the same target, and predict its next token together."""

    def __init__(self, members: Sequence[Seq2Seq]) -> None:
        super().__init__()
        self.members = nn.ModuleList(model.decoder for model in members)

    def decoding_bytes(self, beams: int, tokens: int) -> int:
        needed = [
            decoder.decoding_bytes(beams, tokens)  # type: ignore[operator]
            for decoder in self.members
        ]
        return sum(needed)

    def start(self, memory: Any) -> States:
        """memory: of all members, as `Encoders` gives it."""
        states = [
            decoder.start(of_member)  # type: ignore[operator]
            for decoder, of_member in zip(self.members, memory, strict=True)
        ]
        return States(tuple(states))

    def forward(self, tokens: Tensor, state: States, **looking: Tensor) -> tuple[Tensor, States]:
        """Tokens (R, T) -> the logarithm of the members' mean probability (R, T, V)."""
        logprobs: list[Tensor] = []
        states: list[Any] = []
        for decoder, before in zip(self.members, state.of_members, strict=True):
            logits, after = decoder(tokens, before, **looking)
            logprobs.append(logits.to(at_least_single(logits.dtype)).log_softmax(-1))
            states.append(after)

        total = torch.stack(logprobs).logsumexp(0)  # (R, T, V)
        return total - math.log(len(logprobs)), States(tuple(states))


def ensemble(models: Sequence[Seq2Seq]) -> Seq2Seq:
    """One model that predicts what these models predict on average."""
    return Seq2Seq(Encoders(models), Decoders(models))
