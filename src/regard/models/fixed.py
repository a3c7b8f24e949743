"""A Transformer's state in reserved memory: every step writes into the same tensors, so that a GPU can repeat it as one graph."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from regard.models.seq2seq import Seq2Seq
from regard.models.transformer import Block, TransformerDecoder, TransformerState
from regard.nn import KeyValue, Layout
from regard.nn.positions import Learned


@dataclass(frozen=True)
class FixedKeyValue(KeyValue):
    """Slots for K hypotheses at each of T places: what hypothesis k reads at place t is written to slot t · K + k."""

    def append(self, new: KeyValue) -> KeyValue:
        beams = len(new)
        slots = new.positions * beams + torch.arange(beams, device=new.positions.device)
        where = slots[:, None, :, None].expand_as(new.key)
        self.key.scatter_(2, where, new.key)
        self.value.scatter_(2, where, new.value)
        return self


@dataclass(frozen=True)
class FixedState(TransformerState):
    """All slots are there from the start; `seen` tells which of them count."""

    def sight(self, beams: int, steps: int) -> Tensor:
        assert self.seen is not None
        slots = self.at[:, None] * beams + torch.arange(beams, device=self.at.device)
        self.own[0].positions.scatter_(1, slots, self.at[:, None].expand_as(slots))  # all blocks share this tensor
        return self.seen.scatter(2, slots[..., None], True)


def fits(model: Seq2Seq) -> bool:
    """Whether nothing in a step of this model asks the GPU how far it is."""
    return isinstance(model.decoder, TransformerDecoder) and not isinstance(model.decoder.position, Learned)


def reserve(model: Seq2Seq, source: Tensor, lengths: Tensor, beams: int, steps: int) -> FixedState:
    """Read a padded batch (B, S) without asking how much of it is padding; slots for `steps` of `beams` hypotheses."""
    places = Layout(source.shape[0], source.shape[1], None, full=False)
    states = model.encoder(source, lengths, layout=places).states
    crossing = [block for block in model.decoder.blocks if isinstance(block, Block)]  # type: ignore[union-attr]
    cross = tuple(block.cross.project(states, layout=places) for block in crossing)
    slots, at = beams * steps, torch.zeros_like(lengths)
    positions = at.new_zeros(len(at), slots)

    def room_like(x: Tensor) -> Tensor:
        return x.new_zeros(*x.shape[:2], slots, x.shape[3])

    own = tuple(FixedKeyValue(room_like(kv.key), room_like(kv.value), positions) for kv in cross)
    seen = torch.zeros(len(at), beams, slots, dtype=torch.bool, device=at.device)
    return FixedState(own, cross, lengths, None, at, seen)
