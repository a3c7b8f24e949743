"""A Transformer's state in reserved memory: every step writes into the same tensors, so that a GPU
can repeat it as one graph.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from regard.models.seq2seq import Seq2Seq
from regard.models.slots import TransformerState
from regard.models.transformer import Block, TransformerDecoder
from regard.nn import KeyValue, Layout, Mask
from regard.nn.positions import Learned


@dataclass(frozen=True)
class FixedKeyValue(KeyValue):
    """Slots for K hypotheses at each of T places: what hypothesis k reads at place t is written to
    slot t · K + k.
    """

    now: Tensor = field(default_factory=lambda: torch.empty(0))
    """(B, K): the slots of this step."""

    def append(self, new: KeyValue) -> KeyValue:
        where = self.now[:, None, :, None].expand_as(new.key)
        self.key.scatter_(2, where, new.key)
        self.value.scatter_(2, where, new.value)
        return self


@dataclass(frozen=True)
class FixedState(TransformerState):
    """All slots are there from the start; `seen` tells which of them count. The blocks share `now`
    and their positions.
    """

    source: Mask = field(default_factory=Mask)
    numbers: tuple[Tensor, Tensor, Tensor] = ()  # type: ignore[assignment]
    """0 … K - 1; 0 and -inf: constants that need not be made in every step."""

    def sight(self, beams: int, steps: int) -> Tensor:
        assert self.seen is not None
        first = self.own[0]
        assert isinstance(first, FixedKeyValue)
        torch.add(self.numbers[0], self.at[:, None], alpha=beams, out=first.now)
        first.positions.scatter_(1, first.now, self.at[:, None].expand_as(first.now))
        return self.seen.scatter_(2, first.now[..., None], True)

    def masks(self, sight: Tensor | None, places: Tensor) -> tuple[Mask, Mask]:
        assert sight is not None
        allowed, (_, zero, low) = sight[:, None], self.numbers
        past = Mask.known(allowed, torch.where(allowed, zero, low))
        return past, Mask(key_lengths=self.reach(places), filled=True) if self.wait else self.source


def fits(model: Seq2Seq) -> bool:
    """Whether nothing in a step of this model asks the GPU how far it is."""
    return isinstance(model.decoder, TransformerDecoder) and not isinstance(
        model.decoder.position, Learned
    )


def reserve(model: Seq2Seq, source: Tensor, lengths: Tensor, beams: int, steps: int) -> FixedState:
    """Read a padded batch (B, S) without asking how much of it is padding; slots for `steps` of
    `beams` hypotheses.
    """
    places = Layout(source.shape[0], source.shape[1], None, full=False)
    states = model.encoder(source, lengths, layout=places).states
    crossing = [block for block in model.decoder.blocks if isinstance(block, Block)]  # type: ignore[union-attr]
    cross = tuple(block.cross.project(states, layout=places) for block in crossing)
    at, slots = torch.zeros_like(lengths), beams * steps
    positions, now = at.new_zeros(len(at), slots), at.new_zeros(len(at), beams)

    def room_like(x: Tensor) -> Tensor:
        return x.new_zeros(*x.shape[:2], slots, x.shape[3])

    own = tuple(
        FixedKeyValue(room_like(kv.key), room_like(kv.value), positions, now=now) for kv in cross
    )
    seen = torch.zeros(len(at), beams, slots, dtype=torch.bool, device=at.device)
    around, like = Mask(key_lengths=lengths, filled=True), cross[0].key
    around.bias(beams, source.shape[1], like)
    numbers = (
        torch.arange(beams, device=at.device),
        like.new_zeros(()),
        like.new_full((), -torch.inf),
    )
    return FixedState(
        own, cross, lengths, None, at, seen, wait=model.decoder.wait, source=around, numbers=numbers
    )
