"""A Transformer's state in reserved memory.

Every step writes into the same tensors, so that a GPU can repeat it as one captured graph.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from regard.models.seq2seq import Seq2Seq
from regard.models.slots import TransformerState
from regard.models.transformer import TransformerDecoder
from regard.nn import Attention, Block, KeyValue, Layout, Mask
from regard.nn.positions import Learned


@dataclass(frozen=True)
class FixedKeyValue(KeyValue):
    """Reserved slots for K hypotheses at each of T places.

    What hypothesis k reads at place t is written to slot t · K + k.
    """

    now: Tensor = field(default_factory=lambda: torch.empty(0))
    """(B, K): the slots of this step."""

    def append(self, new: KeyValue) -> KeyValue:
        """Write the new keys and values (B, H, K, D) into the slots of this step."""
        where = self.now[:, None, :, None].expand_as(new.key)  # (B, H, K, D)
        self.key.scatter_(2, where, new.key)
        self.value.scatter_(2, where, new.value)
        return self


@dataclass(frozen=True)
class FixedState(TransformerState):
    """All slots are there from the start, and `seen` tells which of them count.

    The blocks share `now` and the positions of their slots.
    """

    source: Mask = field(default_factory=Mask)
    """The mask of the source, the same in every step unless the decoder waits."""
    numbers: tuple[Tensor, Tensor, Tensor] = ()  # type: ignore[assignment]
    """0 … K - 1; 0 and -inf: constants that need not be made in every step."""

    def sight(self, beams: int, steps: int) -> Tensor:
        """(B, K, slots): what the new token of every hypothesis may look at, itself included.

        It also works out the slots of this step, `now`. steps is always 1.
        """
        assert self.seen is not None
        first = self.own[0]
        assert isinstance(first, FixedKeyValue)
        hypotheses, _, _ = self.numbers  # (K,)
        torch.add(hypotheses, self.at[:, None], alpha=beams, out=first.now)  # (B, K)
        first.positions.scatter_(1, first.now, self.at[:, None].expand_as(first.now))
        return self.seen.scatter_(2, first.now[..., None], True)  # (B, K, slots)

    def masks(self, sight: Tensor | None, places: Tensor) -> tuple[Mask, Mask]:
        assert sight is not None
        allowed = sight[:, None]  # (B, 1, K, slots)
        _, zero, low = self.numbers
        past = Mask.known(allowed, torch.where(allowed, zero, low))

        source = self.source
        if self.wait:
            source = Mask(key_lengths=self.reach(places), filled=True)
        return past, source


def fits(model: Seq2Seq) -> bool:
    """Whether a step of this model never waits for a number from the GPU, so it can be captured."""
    decoder = model.decoder
    if not isinstance(decoder, TransformerDecoder) or not decoder.crossing:
        return False
    rules = (model.encoder.mask_rule, decoder.mask_rule, decoder.cross_rule)
    if any(rule is not None for rule in rules):
        return False  # nobody knows what the user's own rules do
    if model.encoder.pattern is not None or decoder.pattern is not None:
        return False  # whose blocks depend on lengths
    attentions = [part for part in model.modules() if isinstance(part, Attention)]
    if any(attention.approximation is not None for attention in attentions):
        return False
    return not isinstance(decoder.position, Learned)  # which checks the largest position


def reserve(model: Seq2Seq, source: Tensor, lengths: Tensor, beams: int, steps: int) -> FixedState:
    """The state before the first token, with slots for `steps` tokens of `beams` hypotheses.

    It reads a padded batch (B, S) without asking how much of it is padding.
    """
    layout = Layout(source.shape[0], source.shape[1], None, full=False)
    states = model.encoder(source, lengths, layout=layout).states  # (B · S, D)
    blocks: Any = model.decoder.blocks
    crossing = [block for block in blocks if isinstance(block, Block)]
    cross = tuple(block.cross.project(states, layout=layout) for block in crossing)

    sentences = len(lengths)
    slots = beams * steps
    at = torch.zeros_like(lengths)  # (B,)
    positions = at.new_zeros(sentences, slots)
    now = at.new_zeros(sentences, beams)
    seen = torch.zeros(sentences, beams, slots, dtype=torch.bool, device=at.device)

    def room_like(x: Tensor) -> Tensor:
        """x (B, H, S, D) -> zeros (B, H, slots, D)."""
        return x.new_zeros(*x.shape[:2], slots, x.shape[3])

    own = tuple(
        FixedKeyValue(room_like(kv.key), room_like(kv.value), positions, now=now) for kv in cross
    )

    like = cross[0].key
    source_mask = Mask(key_lengths=lengths, filled=True)
    source_mask.bias(beams, source.shape[1], like)  # made here, so that no step makes it
    zero = like.new_zeros(())
    low = like.new_full((), -torch.inf)
    return FixedState(
        own=own,
        cross=cross,
        lengths=lengths,
        at=at,
        seen=seen,
        wait=model.decoder.wait,
        source=source_mask,
        numbers=(torch.arange(beams, device=at.device), zero, low),
    )
