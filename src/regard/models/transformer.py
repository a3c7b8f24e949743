"""The Transformer encoder-decoder (Vaswani et al. 2017), on packed rows: no work is spent on
padding.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.config import TransformerConfig
from regard.models.seq2seq import Decoder, Encoder, Memory
from regard.nn import (
    Attention,
    Embedding,
    FeedForward,
    KeyValue,
    Layout,
    Mask,
    Position,
    Residual,
    Score,
    SelfAttention,
)
from regard.nn.kernels import dropout
from regard.nn.layers import make_norm
from regard.nn.precision import lowered


@dataclass(frozen=True)
class Parts:
    """The exchangeable parts, as classes: what a config's names stand for, or a user's own."""

    score: type[Score]
    position: type[Position]

    def make_position(self, c: TransformerConfig, *, in_attention: bool) -> Position:
        """The position object for the embeddings or for one attention; "none" where this kind acts
        elsewhere.
        """
        kind = self.position if self.position.in_attention == in_attention else Position
        return kind(c.width, c.heads, max_positions=c.max_positions, clip=c.relative_clip)


Source = tuple[KeyValue | Memory, Mask, Layout]
"""What a decoder's block looks at (not yet projected, in training), whom it may see, and the layout
of its queries.
"""


class Block(nn.Module):
    """Self-attention, attention to the source if this is a decoder's block, feed-forward."""

    def __init__(self, c: TransformerConfig, parts: Parts, *, crossing: bool) -> None:
        super().__init__()

        def attention(kind: type[Attention], position: Position | None) -> Attention:
            return kind(
                c.width,
                heads=c.heads,
                score=parts.score,
                position=position,
                bias=c.bias,
                dropout=c.attention_dropout,
            )

        def residual() -> Residual:
            return Residual(
                c.width, norm=c.norm, placement=c.placement, dropout=c.dropout, residual=c.residual
            )

        self.attention = attention(SelfAttention, parts.make_position(c, in_attention=True))
        self.attention_residual = residual()
        if crossing:
            self.cross = attention(
                Attention, None
            )  # the source's places mean nothing to a target's
            self.cross_residual = residual()
        self.feedforward = c.feedforward
        if c.feedforward:
            self.feed = FeedForward(
                c.width, c.ffn, activation=c.activation, dropout=c.activation_dropout
            )
            self.feed_residual = residual()

    def forward(
        self,
        x: Tensor,
        mask: Mask,
        positions: Tensor,
        layout: Layout,
        before: KeyValue | None = None,
        source: Source | None = None,
        *,
        keep: bool = False,
    ) -> tuple[Tensor, KeyValue | None]:
        """Packed rows (N, D), on top of what was read before -> the same, and, to keep, what has
        been read now.
        """
        own: list[KeyValue] = []

        def look(x: Tensor) -> Tensor:
            if not keep:
                return self.attention.itself(x, mask, positions, layout)
            q, new = self.attention.read(x, positions, layout)
            own.append(new if before is None else before.append(new))
            return self.attention.look(q, own[0], mask, positions, layout)

        x = self.attention_residual(x, look)
        if source is not None:
            memory, hidden, together = source

            def look_across(x: Tensor) -> Tensor:
                if isinstance(memory, KeyValue):
                    return self.cross(x, memory, hidden, positions, together)
                assert memory.layout is not None
                return self.cross.across(
                    x, memory.states, hidden, positions, together, memory.layout
                )

            x = self.cross_residual(x, look_across)
        return self.feed_residual(x, self.feed) if self.feedforward else x, own[0] if keep else None


def enter(
    embedding: Embedding,
    position: Position,
    tokens: Tensor,
    positions: Tensor,
    p: float,
    training: bool,
) -> Tensor:
    """Tokens (N,) at positions (N,) -> what the first block reads (N, D)."""
    return dropout(lowered(position.embed(embedding(tokens), positions)), p, training)


class TransformerEncoder(Encoder):
    """Embedding and position, then blocks."""

    def __init__(self, c: TransformerConfig, parts: Parts, embedding: Embedding) -> None:
        super().__init__()
        self.embedding = embedding
        self.position = parts.make_position(c, in_attention=False)
        self.blocks = nn.ModuleList(
            Block(c, parts, crossing=False) for _ in range(c.encoder_layers)
        )
        self.norm = make_norm(c.norm if c.placement == "pre" else "none", c.width)
        self.dropout, self.enter = (
            c.dropout if c.embedding_dropout is None else c.embedding_dropout,
            enter,
        )
        self.causal = c.causal

    def forward(
        self,
        source: Tensor,
        lengths: Tensor,
        *,
        positions: Tensor | None = None,
        extra: Tensor | None = None,
        layout: Layout | None = None,
    ) -> Memory:
        given, layout = layout, layout or Layout.of(lengths, source.shape[1])
        if positions is None:
            positions = torch.arange(source.shape[1], device=source.device).expand_as(source)
        # A source holds at least <eos>, so that only a mask of the user's own can hide everything.
        known = None if layout.full else lengths
        mask = Mask(key_lengths=known, causal=self.causal, extra=extra, filled=extra is None)
        where = layout.pack(positions)
        x = self.enter(
            self.embedding, self.position, layout.pack(source), where, self.dropout, self.training
        )
        for block in self.blocks:
            x, _ = block(x, mask, positions, layout)
        x = self.norm(x)
        return Memory(x if given else layout.pad(x), lengths, extra=extra, layout=given)

    def extend(
        self, source: Tensor, before: tuple[KeyValue, ...] = ()
    ) -> tuple[Tensor, tuple[KeyValue, ...]]:
        """More source (B, S) after what was read before -> its states (B, S, D), and all that has
        been read. Causal only.
        """
        start, places = (
            len(before[0]) if before else 0,
            Layout(source.shape[0], source.shape[1], None),
        )
        positions = torch.arange(start, start + source.shape[1], device=source.device).expand_as(
            source
        )
        mask, where = Mask(causal=True, offset=start), places.pack(positions)
        x = self.enter(
            self.embedding, self.position, places.pack(source), where, self.dropout, self.training
        )
        own: list[KeyValue] = []
        for i, block in enumerate(self.blocks):
            x, read = block(x, mask, positions, places, before[i] if before else None, keep=True)
            own.append(read)
        return places.pad(self.norm(x)), tuple(own)


@dataclass(frozen=True)
class TransformerState:
    """All once per sentence (B). In `own`, one KeyValue a block, each token that any hypothesis has
    read has a slot; `seen` (B, K, S) says which slots are a hypothesis' own past. So to choose
    among hypotheses costs a few bits, and copies nothing.
    """

    own: tuple[KeyValue, ...]
    cross: tuple[KeyValue, ...]
    lengths: Tensor
    extra: Tensor | None
    at: Tensor
    """(B,): target tokens read so far."""
    seen: Tensor | None = None
    """None: there is one hypothesis, and all slots are its past."""
    raw: Memory | None = None
    """In training, instead of `cross`: the source's packed states, which each block projects
    itself.
    """
    wait: int = 0
    """The decoder's (Ma et al. 2019)."""
    around: Mask | None = None
    """The mask of the source in the step before, which is good as long as it is of the same
    lengths.
    """

    @property
    def slots(self) -> int:
        return len(self.own[0]) if self.own else 0

    def sight(self, beams: int, steps: int) -> Tensor:
        """(B, K · T, S + K · T): what each of T new tokens of every hypothesis may look at, these
        tokens included.
        """
        new = (
            torch.eye(beams, device=self.at.device)
            .kron(torch.ones(steps, steps, device=self.at.device).tril())
            .bool()
        )
        return torch.cat(
            (self._seen().repeat_interleave(steps, 1), new.expand(len(self.at), -1, -1)), -1
        )

    def masks(self, sight: Tensor | None, places: Tensor) -> tuple[Mask, Mask]:
        """Of the target, and of the source, for new tokens at these places (B, K · T) of the
        target.
        """
        past = Mask(causal=True, offset=self.slots)
        if sight is not None:
            past = Mask(extra=sight[:, None], filled=True)  # a token sees at least itself
        source = self.around
        if (
            source is None
            or source.key_lengths is not self.lengths
            or source.extra is not self.extra
        ):
            source = Mask(
                key_lengths=self.reach(places), extra=self.extra, filled=self.extra is None
            )
        return past, source

    def reach(self, places: Tensor) -> Tensor:
        """How much of the source may be seen: (B,), or from each place."""
        return (
            torch.minimum(self.lengths[:, None], places + self.wait) if self.wait else self.lengths
        )

    def _seen(self) -> Tensor:
        return (
            self.seen
            if self.seen is not None
            else self.at.new_ones(len(self.at), 1, self.slots, dtype=torch.bool)
        )

    def select(self, sentences: Tensor | None, beams: Tensor) -> TransformerState:
        one = self.seen is None and beams.shape[1] == 1
        if sentences is None:
            return (
                self
                if one
                else replace(
                    self, seen=self._seen().gather(1, beams[..., None].expand(-1, -1, self.slots))
                )
            )
        own, cross = (tuple(kv.select(sentences) for kv in side) for side in (self.own, self.cross))
        extra = self.extra if self.extra is None or len(self.extra) == 1 else self.extra[sentences]
        seen = None if one else self._seen()[sentences[:, None], beams]
        return TransformerState(
            own, cross, self.lengths[sentences], extra, self.at[sentences], seen, wait=self.wait
        )

    def join(self, other: TransformerState) -> TransformerState:
        """The sentences of both. What no hypothesis looks at any more is left behind."""
        assert self.extra is None, (
            "a mask of one's own belongs to its sentences: they cannot be joined"
        )
        one, two = self._tidy(), other._tidy()
        length = max(one.slots, two.slots)
        seen = torch.cat([F.pad(x._seen(), (0, length - x.slots)) for x in (one, two)])
        owns = [
            x.own or tuple(kv.gather(x.at.new_zeros(len(x.at), 0)) for kv in x.cross)
            for x in (one, two)
        ]
        own, cross = (
            tuple(a.join(b) for a, b in zip(*sides)) for sides in (owns, (one.cross, two.cross))
        )
        lengths, at = torch.cat((one.lengths, two.lengths)), torch.cat((one.at, two.at))
        return TransformerState(own, cross, lengths, None, at, seen, wait=self.wait)

    def _tidy(self) -> TransformerState:
        if self.seen is None or not self.own:
            return self
        used = self.seen.any(1)
        slots = used.byte().argsort(dim=1, descending=True, stable=True)[
            :, : int(used.sum(1).max())
        ]
        seen = self.seen.gather(2, slots[:, None].expand(-1, self.seen.shape[1], -1))
        return replace(self, own=tuple(kv.gather(slots) for kv in self.own), seen=seen)


class TransformerDecoder(Decoder):
    """Embedding and position, blocks, output."""

    def __init__(self, c: TransformerConfig, parts: Parts, embedding: Embedding, size: int) -> None:
        super().__init__()
        self.embedding = embedding
        self.position = parts.make_position(c, in_attention=False)
        self.blocks = nn.ModuleList(Block(c, parts, crossing=True) for _ in range(c.decoder_layers))
        self.norm = make_norm(c.norm if c.placement == "pre" else "none", c.width)
        self.out = nn.Linear(c.width, size, bias=False)
        nn.init.normal_(self.out.weight, std=c.width**-0.5)
        if c.tie != "none":
            self.out.weight = embedding.weight
        self.dropout, self.enter = (
            c.dropout if c.embedding_dropout is None else c.embedding_dropout,
            enter,
        )
        self.wait = c.wait

    def start(self, memory: Memory) -> TransformerState:
        at = torch.zeros_like(memory.lengths)
        if memory.layout is not None:
            return TransformerState(
                (), (), memory.lengths, memory.extra, at, raw=memory, wait=self.wait
            )
        layout = Layout.of(memory.lengths, memory.states.shape[1])
        packed = layout.pack(memory.states)
        crossing = [block.cross for block in self.blocks if isinstance(block, Block)]
        cross = tuple(attention.project(packed, layout=layout) for attention in crossing)
        return TransformerState((), cross, memory.lengths, memory.extra, at, wait=self.wait)

    def extend(self, state: TransformerState, states: Tensor) -> TransformerState:
        """More of the source has arrived: its states (B, S, D)."""
        crossing = [block.cross for block in self.blocks if isinstance(block, Block)]
        cross = tuple(
            old.append(attention.project(states)) for old, attention in zip(state.cross, crossing)
        )
        return replace(state, cross=cross, lengths=state.lengths + states.shape[1])

    def hidden(
        self,
        tokens: Tensor,
        state: TransformerState,
        *,
        layout: Layout | None = None,
        positions: Tensor | None = None,
    ) -> tuple[Tensor, TransformerState]:
        # The hypotheses of a sentence stand side by side: they share its memory, and the slots of
        # what they have read.
        sentences, (rows, steps) = len(state.lengths), tokens.shape
        beams = rows // sentences
        places = layout or Layout(sentences, beams * steps, None)
        order = torch.arange(steps, device=tokens.device).expand(sentences, -1)
        order = order if layout else (state.at[:, None] + order).repeat(1, beams)
        positions = order if positions is None else positions.reshape(sentences, -1)
        tokens = tokens.reshape(sentences, -1)
        sight = None if beams == 1 and state.seen is None else state.sight(beams, steps)
        past, source = state.masks(sight, order)
        where = places.pack(positions)
        x = self.enter(
            self.embedding, self.position, places.pack(tokens), where, self.dropout, self.training
        )
        own: list[KeyValue] = []
        for i, block in enumerate(self.blocks):
            before = state.own[i] if state.own else None
            seen = state.raw or state.cross[i], source, places
            x, read = block(x, past, positions, places, before, seen, keep=layout is None)
            own += [] if read is None else [read]
        x = self.norm(x)
        if layout is not None:
            return x, state
        state = replace(
            state,
            own=tuple(own),
            at=state.at + steps,
            seen=None if sight is None else sight[:, steps - 1 :: steps],
            around=source,
        )
        return x.view(rows, steps, -1), state
