"""The Transformer encoder-decoder (Vaswani et al. 2017), on packed rows: no work is spent on padding."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.config import TransformerConfig
from regard.models.seq2seq import Decoder, Encoder, Memory
from regard.nn import Attention, Embedding, FeedForward, KeyValue, Layout, Mask, Position, Residual, Score
from regard.nn.layers import make_norm

MakePosition = Callable[[int, int], Position]


@dataclass(frozen=True)
class Parts:
    """The exchangeable parts, as classes: what a config's names stand for, or a user's own."""

    score: type[Score]
    position: type[Position]

    def make_position(self, c: TransformerConfig, *, in_attention: bool) -> Position:
        """The position object for the embeddings or for one attention; "none" where this kind acts elsewhere."""
        kind = self.position if self.position.in_attention == in_attention else Position
        return kind(c.width, c.heads, max_positions=c.max_positions, clip=c.relative_clip)


def _attention(c: TransformerConfig, parts: Parts, position: Position | None) -> Attention:
    return Attention(c.width, heads=c.heads, score=parts.score, position=position, bias=c.bias, dropout=c.attention_dropout)


def _residual(c: TransformerConfig) -> Residual:
    return Residual(c.width, norm=c.norm, placement=c.placement, dropout=c.dropout, residual=c.residual)


class EncoderBlock(nn.Module):
    """Self-attention, then feed-forward."""

    def __init__(self, c: TransformerConfig, parts: Parts) -> None:
        super().__init__()
        self.attention = _attention(c, parts, parts.make_position(c, in_attention=True))
        self.attention_residual = _residual(c)
        if c.feedforward:
            self.feed = FeedForward(c.width, c.ffn, activation=c.activation, dropout=c.activation_dropout)
            self.feed_residual = _residual(c)
        self.feedforward = c.feedforward

    def forward(self, x: Tensor, mask: Mask, positions: Tensor, layout: Layout) -> Tensor:
        def look(x: Tensor) -> Tensor:
            memory = self.attention.project(x, positions=positions, layout=layout)
            return self.attention(x, memory, mask, positions, layout)

        x = self.attention_residual(x, look)
        return self.feed_residual(x, self.feed) if self.feedforward else x


class TransformerEncoder(Encoder):
    """Embedding and position, then blocks."""

    def __init__(self, c: TransformerConfig, parts: Parts, embedding: Embedding) -> None:
        super().__init__()
        self.embedding = embedding
        self.position = parts.make_position(c, in_attention=False)
        self.blocks = nn.ModuleList(EncoderBlock(c, parts) for _ in range(c.encoder_layers))
        self.norm = make_norm(c.norm if c.placement == "pre" else "none", c.width)
        self.dropout = c.dropout

    def forward(self, source: Tensor, lengths: Tensor, *, positions: Tensor | None = None, extra: Tensor | None = None) -> Memory:
        layout = Layout.of(lengths, source.shape[1])
        if positions is None:
            positions = torch.arange(source.shape[1], device=source.device).expand_as(source)
        mask = Mask(key_lengths=None if layout.rows is None else lengths, extra=extra)
        x = self.position.embed(self.embedding(layout.pack(source)), layout.pack(positions))
        x = F.dropout(x, self.dropout, self.training)
        for block in self.blocks:
            x = block(x, mask, positions, layout)
        return Memory(layout.pad(self.norm(x)), lengths, extra=extra)


@dataclass(frozen=True)
class TransformerState:
    """Stored once per sentence (B): `cross` and `mask`. Stored per hypothesis (B × K rows): `own`, one KeyValue per block."""

    own: tuple[KeyValue, ...]
    cross: tuple[KeyValue, ...]
    lengths: Tensor
    extra: Tensor | None
    beams: int

    @property
    def length(self) -> int:
        """Target tokens read so far."""
        return len(self.own[0]) if self.own else 0

    @property
    def cross_mask(self) -> Mask:
        return Mask(key_lengths=self.lengths, extra=self.extra)

    def select(self, sentences: Tensor, beams: Tensor) -> TransformerState:
        rows = (sentences[:, None] * self.beams + beams).flatten()
        whole = len(sentences) == len(self.lengths) and bool(
            (sentences == torch.arange(len(sentences), device=sentences.device)).all()
        )
        keep = (lambda kv: kv) if whole else (lambda kv: kv.select(sentences))
        extra = self.extra if self.extra is None or len(self.extra) == 1 else self.extra.index_select(0, sentences)
        return TransformerState(
            tuple(kv.select(rows) for kv in self.own),
            tuple(keep(kv) for kv in self.cross),
            self.lengths.index_select(0, sentences),
            extra,
            beams.shape[1],
        )


class DecoderBlock(nn.Module):
    """Causal self-attention, attention to the source, feed-forward."""

    def __init__(self, c: TransformerConfig, parts: Parts) -> None:
        super().__init__()
        self.attention = _attention(c, parts, parts.make_position(c, in_attention=True))
        self.attention_residual = _residual(c)
        self.cross = _attention(c, parts, None)  # the source's places mean nothing to a target's
        self.cross_residual = _residual(c)
        if c.feedforward:
            self.feed = FeedForward(c.width, c.ffn, activation=c.activation, dropout=c.activation_dropout)
            self.feed_residual = _residual(c)
        self.feedforward = c.feedforward

    def forward(
        self,
        x: Tensor,
        own: KeyValue | None,
        cross: KeyValue,
        cross_mask: Mask,
        positions: Tensor,
        layout: Layout,
    ) -> tuple[Tensor, KeyValue]:
        def look_back(x: Tensor) -> Tensor:
            nonlocal own
            new = self.attention.project(x, positions=positions, layout=layout)
            mask = Mask(causal=True, offset=0 if own is None else len(own))
            own = new if own is None else own.append(new)
            return self.attention(x, own, mask, positions, layout)

        def look_across(x: Tensor) -> Tensor:
            beams = layout.batch // len(cross.key)
            if beams == 1:
                return self.cross(x, cross, cross_mask, layout=layout)
            # All hypotheses of a sentence look at its one memory: their queries stand side by side.
            together = Layout(len(cross.key), beams * layout.length, layout.rows)
            return self.cross(x, cross, cross_mask, layout=together)

        x = self.attention_residual(x, look_back)
        x = self.cross_residual(x, look_across)
        x = self.feed_residual(x, self.feed) if self.feedforward else x
        assert own is not None
        return x, own


class TransformerDecoder(Decoder):
    """Embedding and position, blocks, output."""

    def __init__(self, c: TransformerConfig, parts: Parts, embedding: Embedding, size: int) -> None:
        super().__init__()
        self.embedding = embedding
        self.position = parts.make_position(c, in_attention=False)
        self.blocks = nn.ModuleList(DecoderBlock(c, parts) for _ in range(c.decoder_layers))
        self.norm = make_norm(c.norm if c.placement == "pre" else "none", c.width)
        self.out = nn.Linear(c.width, size, bias=False)
        nn.init.normal_(self.out.weight, std=c.width**-0.5)
        if c.tie != "none":
            self.out.weight = embedding.weight
        self.dropout = c.dropout

    def start(self, memory: Memory) -> TransformerState:
        layout = Layout.of(memory.lengths, memory.states.shape[1])
        packed = layout.pack(memory.states)
        cross = tuple(block.cross.project(packed, layout=layout) for block in self.blocks)
        return TransformerState((), cross, memory.lengths, memory.extra, beams=1)

    def hidden(
        self, tokens: Tensor, state: TransformerState, *, layout: Layout | None = None, positions: Tensor | None = None
    ) -> tuple[Tensor, TransformerState]:
        places = layout or Layout(*tokens.shape, rows=None)
        if positions is None:
            end = state.length + tokens.shape[1]
            positions = torch.arange(state.length, end, device=tokens.device).expand_as(tokens)
        x = self.position.embed(self.embedding(places.pack(tokens)), places.pack(positions))
        x = F.dropout(x, self.dropout, self.training)
        own: list[KeyValue] = []
        for i, block in enumerate(self.blocks):
            before = state.own[i] if state.own else None
            x, after = block(x, before, state.cross[i], state.cross_mask, positions, places)
            own.append(after)
        x = self.norm(x)
        state = TransformerState(tuple(own), state.cross, state.lengths, state.extra, state.beams)
        return (x if layout else places.pad(x)), state

    def output(self, hidden: Tensor) -> Tensor:
        return self.out(hidden)
