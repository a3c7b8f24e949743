"""The Transformer encoder-decoder (Vaswani et al. 2017), on packed rows: no work is spent on padding."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.config import TransformerConfig
from regard.models.seq2seq import Decoder, Encoder, Memory
from regard.nn import Attention, Embedding, FeedForward, KeyValue, Layout, Mask, Position, Residual, Score
from regard.nn.layers import make_norm


@dataclass(frozen=True)
class Parts:
    """The exchangeable parts, as classes: what a config's names stand for, or a user's own."""

    score: type[Score]
    position: type[Position]

    def make_position(self, c: TransformerConfig, *, in_attention: bool) -> Position:
        """The position object for the embeddings or for one attention; "none" where this kind acts elsewhere."""
        kind = self.position if self.position.in_attention == in_attention else Position
        return kind(c.width, c.heads, max_positions=c.max_positions, clip=c.relative_clip)


class Block(nn.Module):
    """Self-attention, attention to the source if this is a decoder's block, feed-forward."""

    def __init__(self, c: TransformerConfig, parts: Parts, *, crossing: bool) -> None:
        super().__init__()

        def attention(position: Position | None) -> Attention:
            dropout = c.attention_dropout
            return Attention(c.width, heads=c.heads, score=parts.score, position=position, bias=c.bias, dropout=dropout)

        def residual() -> Residual:
            return Residual(c.width, norm=c.norm, placement=c.placement, dropout=c.dropout, residual=c.residual)

        self.attention = attention(parts.make_position(c, in_attention=True))
        self.attention_residual = residual()
        if crossing:
            self.cross = attention(None)  # the source's places mean nothing to a target's
            self.cross_residual = residual()
        self.feedforward = c.feedforward
        if c.feedforward:
            self.feed = FeedForward(c.width, c.ffn, activation=c.activation, dropout=c.activation_dropout)
            self.feed_residual = residual()

    def look(
        self, x: Tensor, mask: Mask, positions: Tensor, layout: Layout, before: KeyValue | None = None
    ) -> tuple[Tensor, KeyValue]:
        """Self-attention of packed rows (N, D), on top of what was read before; and what has been read now."""
        own = before

        def part(x: Tensor) -> Tensor:
            nonlocal own
            new = self.attention.project(x, positions=positions, layout=layout)
            own = new if before is None else before.append(new)
            return self.attention(x, own, mask, positions, layout)

        x = self.attention_residual(x, part)
        assert own is not None
        return x, own

    def look_across(self, x: Tensor, source: KeyValue, mask: Mask, layout: Layout) -> Tensor:
        """Attention to the source; the hypotheses of a sentence share its one memory, their queries side by side."""
        sentences = len(source.key)
        together = Layout(sentences, layout.batch // sentences * layout.length, layout.rows)
        return self.cross_residual(x, lambda x: self.cross(x, source, mask, layout=together))

    def think(self, x: Tensor) -> Tensor:
        """Feed-forward."""
        return self.feed_residual(x, self.feed) if self.feedforward else x


class TransformerEncoder(Encoder):
    """Embedding and position, then blocks."""

    def __init__(self, c: TransformerConfig, parts: Parts, embedding: Embedding) -> None:
        super().__init__()
        self.embedding = embedding
        self.position = parts.make_position(c, in_attention=False)
        self.blocks = nn.ModuleList(Block(c, parts, crossing=False) for _ in range(c.encoder_layers))
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
            assert isinstance(block, Block)
            x, _ = block.look(x, mask, positions, layout)
            x = block.think(x)
        return Memory(layout.pad(self.norm(x)), lengths, extra=extra)


@dataclass(frozen=True)
class TransformerState:
    """Once per sentence (B): `cross`, `lengths`, `extra`. Per hypothesis (B × K rows): `own`. One KeyValue per block each."""

    own: tuple[KeyValue, ...]
    cross: tuple[KeyValue, ...]
    lengths: Tensor
    extra: Tensor | None
    beams: int

    @property
    def length(self) -> int:
        """Target tokens read so far."""
        return len(self.own[0]) if self.own else 0

    def select(self, sentences: Tensor, beams: Tensor) -> TransformerState:
        rows = (sentences[:, None] * self.beams + beams).flatten()
        # The memory of the sentences is copied only when some of them leave; reordering beams does not touch it.
        same = len(sentences) == len(self.lengths) and bool((sentences.diff() == 1).all())
        return TransformerState(
            tuple(kv.select(rows) for kv in self.own),
            self.cross if same else tuple(kv.select(sentences) for kv in self.cross),
            self.lengths.index_select(0, sentences),
            self.extra if self.extra is None or len(self.extra) == 1 else self.extra.index_select(0, sentences),
            beams.shape[1],
        )


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
        self.dropout = c.dropout

    def start(self, memory: Memory) -> TransformerState:
        layout = Layout.of(memory.lengths, memory.states.shape[1])
        packed = layout.pack(memory.states)
        crossing = [block.cross for block in self.blocks if isinstance(block, Block)]
        cross = tuple(attention.project(packed, layout=layout) for attention in crossing)
        return TransformerState((), cross, memory.lengths, memory.extra, beams=1)

    def hidden(
        self, tokens: Tensor, state: TransformerState, *, layout: Layout | None = None, positions: Tensor | None = None
    ) -> tuple[Tensor, TransformerState]:
        places = layout or Layout(tokens.shape[0], tokens.shape[1], None)
        if positions is None:
            end = state.length + tokens.shape[1]
            positions = torch.arange(state.length, end, device=tokens.device).expand_as(tokens)
        x = self.position.embed(self.embedding(places.pack(tokens)), places.pack(positions))
        x = F.dropout(x, self.dropout, self.training)
        own: list[KeyValue] = []
        past, source = Mask(causal=True, offset=state.length), Mask(key_lengths=state.lengths, extra=state.extra)
        for i, block in enumerate(self.blocks):
            assert isinstance(block, Block)
            x, read = block.look(x, past, positions, places, state.own[i] if state.own else None)
            x = block.think(block.look_across(x, state.cross[i], source, places))
            own.append(read)
        x = self.norm(x)
        state = TransformerState(tuple(own), state.cross, state.lengths, state.extra, state.beams)
        return (x if layout else places.pad(x)), state

    def output(self, hidden: Tensor) -> Tensor:
        return self.out(hidden)
