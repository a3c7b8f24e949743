"""The Transformer encoder-decoder (Vaswani et al. 2017).

It computes on packed rows, so that no work is spent on padding.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from regard.config import TransformerConfig
from regard.models.seq2seq import Decoder, Encoder, Memory
from regard.models.slots import TransformerState
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
class BlockParts:
    """The classes of the exchangeable parts: those a config names, or the user's own."""

    score: type[Score]
    position: type[Position]

    def make_position(self, config: TransformerConfig, *, in_attention: bool) -> Position:
        """The position object of the embeddings, or of one attention.

        A kind of position acts in one of the two; the other gets one that does nothing.
        """
        kind = self.position if self.position.in_attention == in_attention else Position
        return kind(
            config.width,
            config.heads,
            max_positions=config.max_positions,
            clip=config.relative_clip,
        )


Source = tuple[KeyValue | Memory, Mask, Layout]
"""What a decoder's block attends to in the source, the mask for it, and the layout of its queries.

In training the source is not projected yet: it is a Memory.
"""


class Block(nn.Module):
    """Self-attention, attention to the source if this is a decoder's block, then feed-forward."""

    def __init__(self, config: TransformerConfig, parts: BlockParts, *, crossing: bool) -> None:
        super().__init__()

        def attention(kind: type[Attention], position: Position | None) -> Attention:
            return kind(
                config.width,
                heads=config.heads,
                score=parts.score,
                position=position,
                bias=config.bias,
                dropout=config.attention_dropout,
            )

        def residual() -> Residual:
            return Residual(
                config.width,
                norm=config.norm,
                placement=config.placement,
                dropout=config.dropout,
                residual=config.residual,
            )

        self.attention = attention(SelfAttention, parts.make_position(config, in_attention=True))
        self.attention_residual = residual()
        if crossing:
            no_position = None  # positions in the source cannot be compared with the target's
            self.cross = attention(Attention, no_position)
            self.cross_residual = residual()

        self.feedforward = config.feedforward
        if config.feedforward:
            self.feed = FeedForward(
                config.width,
                config.ffn,
                activation=config.activation,
                dropout=config.activation_dropout,
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
        """Packed rows (N, D), on top of what was read before -> the same shape.

        keep: also return the keys and values of all that has been read by now, for the next call.
        """
        kept: list[KeyValue] = []

        def look(x: Tensor) -> Tensor:
            if not keep:
                return self.attention.itself(x, mask, positions, layout)
            queries, new = self.attention.read(x, positions, layout)
            kept.append(new if before is None else before.append(new))
            return self.attention.look(queries, kept[0], mask, positions, layout)

        x = self.attention_residual(x, look)
        if source is not None:
            memory, source_mask, query_layout = source

            def look_across(x: Tensor) -> Tensor:
                if isinstance(memory, KeyValue):
                    return self.cross(x, memory, source_mask, positions, query_layout)
                assert memory.layout is not None
                return self.cross.across(
                    x, memory.states, source_mask, positions, query_layout, memory.layout
                )

            x = self.cross_residual(x, look_across)

        if self.feedforward:
            x = self.feed_residual(x, self.feed)
        return x, kept[0] if keep else None


def enter(
    embedding: Embedding,
    position: Position,
    tokens: Tensor,
    positions: Tensor,
    p: float,
    training: bool,
) -> Tensor:
    """Tokens (N,) at positions (N,) -> what the first block reads (N, D)."""
    vectors = position.embed(embedding(tokens), positions)
    return dropout(lowered(vectors), p, training)


class TransformerEncoder(Encoder):
    """Embedding and position, then blocks."""

    def __init__(self, config: TransformerConfig, parts: BlockParts, embedding: Embedding) -> None:
        super().__init__()
        self.embedding = embedding
        self.position = parts.make_position(config, in_attention=False)
        self.blocks = nn.ModuleList(
            Block(config, parts, crossing=False) for _ in range(config.encoder_layers)
        )
        self.norm = make_norm(config.norm if config.placement == "pre" else "none", config.width)
        self.dropout = config.dropout
        if config.embedding_dropout is not None:
            self.dropout = config.embedding_dropout
        self.enter = enter  # an attribute, so that it can be compiled
        self.causal = config.causal

    def forward(
        self,
        source: Tensor,
        lengths: Tensor,
        *,
        positions: Tensor | None = None,
        extra: Tensor | None = None,
        layout: Layout | None = None,
    ) -> Memory:
        packed = layout is not None
        if layout is None:
            layout = Layout.of(lengths, source.shape[1])
        if positions is None:
            positions = torch.arange(source.shape[1], device=source.device).expand_as(source)

        # A source holds at least <eos>, so only the user's own mask can hide all of it.
        known = None if layout.full else lengths
        mask = Mask(key_lengths=known, causal=self.causal, extra=extra, filled=extra is None)

        x = self._entered(source, positions, layout)  # (N, D)
        for block in self.blocks:
            x, _ = block(x, mask, positions, layout)
        x = self.norm(x)

        if packed:
            return Memory(x, lengths, extra=extra, layout=layout)
        return Memory(layout.pad(x), lengths, extra=extra)

    def _entered(self, tokens: Tensor, positions: Tensor, layout: Layout) -> Tensor:
        """Tokens (B, S) at positions (B, S) -> what the first block reads: packed rows (N, D)."""
        where = layout.pack(positions)
        rows = layout.pack(tokens)
        return self.enter(self.embedding, self.position, rows, where, self.dropout, self.training)

    def extend(
        self, source: Tensor, before: tuple[KeyValue, ...] = ()
    ) -> tuple[Tensor, tuple[KeyValue, ...]]:
        """Read more source (B, S) after what was read before. For a causal encoder only.

        Gives the states (B, S, D) of the new part, and all that has been read.
        """
        start = len(before[0]) if before else 0
        end = start + source.shape[1]
        layout = Layout(source.shape[0], source.shape[1], None)
        positions = torch.arange(start, end, device=source.device).expand_as(source)
        mask = Mask(causal=True, offset=start)

        x = self._entered(source, positions, layout)  # (N, D)
        read_by_blocks: list[KeyValue] = []
        for i, block in enumerate(self.blocks):
            earlier = before[i] if before else None
            x, read = block(x, mask, positions, layout, earlier, keep=True)
            read_by_blocks.append(read)
        return layout.pad(self.norm(x)), tuple(read_by_blocks)


class TransformerDecoder(Decoder):
    """Embedding and position, blocks, output."""

    def __init__(
        self, config: TransformerConfig, parts: BlockParts, embedding: Embedding, size: int
    ) -> None:
        super().__init__()
        self.embedding = embedding
        self.position = parts.make_position(config, in_attention=False)
        self.blocks = nn.ModuleList(
            Block(config, parts, crossing=True) for _ in range(config.decoder_layers)
        )
        self.norm = make_norm(config.norm if config.placement == "pre" else "none", config.width)
        self.out = nn.Linear(config.width, size, bias=False)
        nn.init.normal_(self.out.weight, std=config.width**-0.5)
        if config.tie != "none":
            self.out.weight = embedding.weight
        self.dropout = config.dropout
        if config.embedding_dropout is not None:
            self.dropout = config.embedding_dropout
        self.enter = enter  # an attribute, so that it can be compiled
        self.wait = config.wait

    def start(self, memory: Memory) -> TransformerState:
        """The state before the first token; in training, with the packed memory as it is."""
        before_first = torch.zeros_like(memory.lengths)  # (B,)
        start = TransformerState(
            own=(),
            cross=(),
            lengths=memory.lengths,
            extra=memory.extra,
            at=before_first,
            wait=self.wait,
        )
        if memory.layout is not None:
            return replace(start, raw=memory)

        layout = Layout.of(memory.lengths, memory.states.shape[1])
        packed = layout.pack(memory.states)  # (N, D)
        cross = tuple(attention.project(packed, layout=layout) for attention in self._crossing())
        return replace(start, cross=cross)

    def _crossing(self) -> list[Attention]:
        """Of each block, its attention to the source."""
        return [block.cross for block in self.blocks if isinstance(block, Block)]

    def extend(self, state: TransformerState, states: Tensor) -> TransformerState:
        """The state after more of the source has arrived: its states (B, S, D)."""
        cross = tuple(
            before.append(attention.project(states))
            for before, attention in zip(state.cross, self._crossing())
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
        """Tokens (B · K, T) after a state -> hidden (B · K, T, D) and the state after them.

        The K hypotheses of a sentence stand side by side: they share its memory, and the slots of
        what they have read. With a layout, in training: targets (B, T) from their beginning ->
        packed rows (N, D), and the state as it was. positions, of the shape of tokens: where they
        stand (default: one after the other).
        """
        rows, steps = tokens.shape
        sentences = len(state.lengths)
        beams = rows // sentences
        packed = layout is not None
        if layout is None:
            layout = Layout(sentences, beams * steps, None)

        order = torch.arange(steps, device=tokens.device).expand(sentences, -1)  # (B, T)
        if not packed:
            order = (state.at[:, None] + order).repeat(1, beams)  # (B, K · T)
        positions = order if positions is None else positions.reshape(sentences, -1)
        tokens = tokens.reshape(sentences, -1)  # (B, K · T)

        sight = None  # one hypothesis, which sees everything before it
        if beams > 1 or state.seen is not None:
            sight = state.sight(beams, steps)  # (B, K · T, S + K · T)
        target_mask, source_mask = state.masks(sight, order)

        x = self._entered(tokens, positions, layout)  # (N, D)
        x, own = self._through_blocks(
            x, state, target_mask, source_mask, positions, layout, keep=not packed
        )
        if packed:
            return x, state

        seen = None
        if sight is not None:
            seen = sight[:, steps - 1 :: steps]  # of each hypothesis' last token: (B, K, S + K · T)
        state = replace(state, own=own, at=state.at + steps, seen=seen, source_mask=source_mask)
        return x.view(rows, steps, -1), state

    def _entered(self, tokens: Tensor, positions: Tensor, layout: Layout) -> Tensor:
        """Tokens (B, T) at positions (B, T) -> what the first block reads: packed rows (N, D)."""
        where = layout.pack(positions)
        rows = layout.pack(tokens)
        return self.enter(self.embedding, self.position, rows, where, self.dropout, self.training)

    def _through_blocks(
        self,
        x: Tensor,
        state: TransformerState,
        target_mask: Mask,
        source_mask: Mask,
        positions: Tensor,
        layout: Layout,
        *,
        keep: bool,
    ) -> tuple[Tensor, tuple[KeyValue, ...]]:
        """Packed rows (N, D) through all blocks and the last norm -> the same shape.

        keep: also return, of each block, the keys and values of all that has been read by now.
        """
        own: list[KeyValue] = []
        for i, block in enumerate(self.blocks):
            before = state.own[i] if state.own else None
            memory = state.cross[i] if state.raw is None else state.raw
            source = (memory, source_mask, layout)
            x, read = block(x, target_mask, positions, layout, before, source, keep=keep)
            if read is not None:
                own.append(read)
        return self.norm(x), tuple(own)
