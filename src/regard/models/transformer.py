"""The Transformer encoder-decoder (Vaswani et al. 2017).

It computes on packed rows, so that no work is spent on padding.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from regard.config import PatternName, TransformerConfig
from regard.errors import UserError
from regard.models.long_texts import make_approximation
from regard.models.segments import SegmentLevel
from regard.models.seq2seq import Decoder, Encoder, Memory
from regard.models.slots import TransformerState
from regard.nn import (
    Attention,
    Block,
    Embedding,
    KeyValue,
    Layout,
    Mask,
    Pattern,
    Position,
    Score,
)
from regard.nn.blocks import Source
from regard.nn.kernels import dropout
from regard.nn.layers import make_norm
from regard.nn.masks import OwnMask, Rule
from regard.nn.precision import lowered
from regard.nn.state import spare_slots


@dataclass(frozen=True)
class BlockParts:
    """The exchangeable parts: the classes that a config names, or the user's own."""

    score: type[Score]
    position: type[Position]
    block: type[Block]
    encoder_mask: Rule | None = None
    decoder_mask: Rule | None = None
    cross_mask: Rule | None = None
    encoder_pattern: Pattern | None = None
    decoder_pattern: Pattern | None = None

    def make_block(
        self, config: TransformerConfig, pattern: PatternName, *, crossing: bool = False
    ) -> Block:
        """A new block; crossing: with attention to a source."""
        approximation = make_approximation(config, pattern)
        # A block of the user's own need not know what nobody asked for.
        options = {} if approximation is None else {"approximation": approximation}
        return self.block(
            config.width,
            heads=config.heads,
            inner=config.ffn,
            crossing=crossing,
            score=self.score,
            position=self.make_position(config, in_attention=True),
            norm=config.norm,
            placement=config.placement,
            activation=config.activation,
            residual=config.residual,
            feedforward=config.feedforward,
            bias=config.bias,
            dropout=config.dropout,
            attention_dropout=config.attention_dropout,
            activation_dropout=config.activation_dropout,
            **options,
        )

    def make_level(self, config: TransformerConfig) -> SegmentLevel | None:
        """The second level of the encoder, if it has one."""
        if config.levels == 1:
            return None
        blocks = [self.make_block(config, config.pattern) for _ in range(config.segment_layers)]
        return SegmentLevel(config, blocks, self.make_position(config, in_attention=False))

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


def check_no_mask(mask: Tensor | None) -> None:
    """Refuse a mask of the user's own for tokens, which a segment would go around."""
    if mask is not None:
        raise UserError(
            "encoder_mask does not work with model.levels=2, where a token sees the segments, with "
            "all of their tokens: leave it out, or set model.levels=1"
        )


def check_positions(name: str, positions: Tensor, tokens: Tensor) -> None:
    """Refuse positions of the user's own that do not fit tokens (B, T)."""
    if positions.shape != tokens.shape or positions.is_floating_point():
        raise UserError(
            f"{name}: {positions.dtype} of {tuple(positions.shape)}; positions must be whole "
            f"numbers of {tuple(tokens.shape)}, one for each token"
        )


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
            parts.make_block(config, config.pattern) for _ in range(config.encoder_layers)
        )
        self.norm = make_norm(config.norm if config.ends_with_norm else "none", config.width)
        self.level = parts.make_level(config)
        self.dropout = config.dropout
        if config.embedding_dropout is not None:
            self.dropout = config.embedding_dropout
        self.enter = enter  # an attribute, so that it can be compiled
        self.causal = config.causal
        self.heads = config.heads
        self.mask_rule = parts.encoder_mask
        self.pattern = parts.encoder_pattern

    def forward(
        self,
        source: Tensor,
        lengths: Tensor,
        *,
        positions: Tensor | None = None,
        mask: Tensor | None = None,
        layout: Layout | None = None,
    ) -> Memory:
        packed = layout is not None
        if layout is None:
            layout = Layout.of(lengths, source.shape[1])
        given = positions
        if positions is None:
            positions = torch.arange(source.shape[1], device=source.device).expand_as(source)
        check_positions("source_positions", positions, source)

        # A source holds at least <eos>, so only the user's own mask can hide all of it.
        known = None if layout.full else lengths
        # Under a pattern, padding may be out of sight of all tokens.
        sight = Mask(
            key_lengths=known,
            causal=self.causal,
            pattern=self.pattern,
            filled=self.pattern is None,
        )
        own = OwnMask("encoder_mask", self.mask_rule, mask, self.heads)
        sight = own.on_top_of(sight, positions, positions)

        x = self._entered(source, positions, layout)  # (N, D)
        for block in self.blocks:
            x, _ = block(x, sight, positions, layout)
        x = self.norm(x)
        if self.level is not None:
            check_no_mask(mask)
            x = self.level(x, lengths, layout)

        if packed:
            return Memory(x, lengths, positions=given, layout=layout)
        return Memory(layout.pad(x), lengths, positions=given)

    def _entered(self, tokens: Tensor, positions: Tensor, layout: Layout) -> Tensor:
        """Tokens (B, S) at positions (B, S) -> what the first block reads: packed rows (N, D)."""
        where = layout.pack(positions)
        rows = layout.pack(tokens)
        return self.enter(self.embedding, self.position, rows, where, self.dropout, self.training)

    def extend(
        self, source: Tensor, before: tuple[KeyValue, ...] | None = None
    ) -> tuple[Memory, tuple[KeyValue, ...]]:
        """Read more source (B, S) after what was read before: the keys and values of each block."""
        start = len(before[0]) if before else 0
        end = start + source.shape[1]
        layout = Layout(source.shape[0], source.shape[1], None)
        everything = torch.arange(end, device=source.device).expand(source.shape[0], -1)  # (B, end)
        positions = everything[:, start:]  # (B, S)
        own = OwnMask("encoder_mask", self.mask_rule, None, self.heads)
        past = Mask(causal=True, offset=start, pattern=self.pattern, filled=True)
        mask = own.on_top_of(past, positions, everything)

        x = self._entered(source, positions, layout)  # (N, D)
        read_by_blocks: list[KeyValue] = []
        for i, block in enumerate(self.blocks):
            earlier = before[i] if before else None
            x, read = block(x, mask, positions, layout, earlier, keep=True)
            read_by_blocks.append(read)

        lengths = torch.full_like(source[:, 0], source.shape[1])  # (B,)
        memory = Memory(layout.pad(self.norm(x)), lengths, positions=positions)
        return memory, tuple(read_by_blocks)


class TransformerDecoder(Decoder):
    """Embedding and position, blocks, output.

    crossing: whether its blocks attend to a source; those of a language model do not.
    """

    def __init__(
        self,
        config: TransformerConfig,
        parts: BlockParts,
        embedding: Embedding,
        size: int,
        *,
        crossing: bool = True,
    ) -> None:
        super().__init__()
        self.crossing = crossing
        self.embedding = embedding
        self.position = parts.make_position(config, in_attention=False)
        self.blocks = nn.ModuleList(
            parts.make_block(config, config.decoder_pattern, crossing=crossing)
            for _ in range(config.decoder_layers)
        )
        self.norm = make_norm(config.norm if config.ends_with_norm else "none", config.width)
        self.out = nn.Linear(config.width, size, bias=config.output_bias)
        nn.init.normal_(self.out.weight, std=config.width**-0.5)
        if config.output_bias:
            nn.init.zeros_(self.out.bias)
        if config.tie in ("target", "all"):
            self.out.weight = embedding.weight
        self.dropout = config.dropout
        if config.embedding_dropout is not None:
            self.dropout = config.embedding_dropout
        self.enter = enter  # an attribute, so that it can be compiled
        self.wait = config.wait
        self.heads = config.heads
        self.mask_rule = parts.decoder_mask
        self.pattern = parts.decoder_pattern
        self.cross_rule = parts.cross_mask

    def decoding_bytes(self, beams: int, tokens: int) -> int:
        """Keys and values of every slot; and, in one block at a time, who looks at which slot.

        The source is taken to be as long as the target may become.
        """
        slots = beams * tokens
        if beams == 1:
            slots += spare_slots(tokens)  # of a beam, dropped hypotheses leave as many unused
        width = self.embedding.weight.shape[1]
        bytes_of_slot = 2 * len(self.blocks) * width * 4
        bytes_of_slot += self._approximation_bytes()
        bytes_of_look = 2 * 4 * self.heads + 2  # weights before and after the softmax, and masks
        return (tokens + slots) * bytes_of_slot + beams * slots * bytes_of_look

    def _approximation_bytes(self) -> int:
        """What one block's approximation needs for each cached token, if it has one."""
        approximations = [attention.approximation for attention in self._looking_back()]
        return max((a.bytes_of_key for a in approximations if a is not None), default=0)

    def start(self, memory: Memory) -> TransformerState:
        """The state before the first token; in training, with the packed memory as it is."""
        before_first = torch.zeros_like(memory.lengths)  # (B,)
        start = TransformerState(
            own=(),
            cross=(),
            lengths=memory.lengths,
            at=before_first,
            wait=self.wait,
            pattern=self.pattern,
        )
        if memory.layout is not None:
            return replace(start, raw=memory)

        if not self.crossing:
            return start
        layout = Layout.of(memory.lengths, memory.states.shape[1])
        packed = layout.pack(memory.states)  # (N, D)
        cross = tuple(
            attention.project(packed, positions=memory.positions, layout=layout)
            for attention in self._crossing()
        )
        return replace(start, cross=cross)

    def read(self, tokens: Tensor, lengths: Tensor, memory: Memory) -> TransformerState:
        """All prompts in one pass, unless most of it would be padding; padding is never seen."""
        places = len(lengths) * int(lengths.max())
        if not places or 2 * int(lengths.sum()) < places:
            state: TransformerState = super().read(tokens, lengths, memory)
            return state
        _, state = self.hidden(tokens[:, : int(lengths.max())], self.start(memory))
        return state.seen_up_to(lengths)

    def _crossing(self) -> list[Attention]:
        """Of each block, its attention to the source; none in a language model."""
        if not self.crossing:
            return []
        return [block.cross for block in self.blocks if isinstance(block, Block)]

    def _looking_back(self) -> list[Attention]:
        """Of each block, its attention to the target."""
        return [block.attention for block in self.blocks if isinstance(block, Block)]

    def extend(self, state: TransformerState, memory: Memory) -> TransformerState:
        cross = tuple(
            before.append(attention.project(memory.states, positions=memory.positions))
            for before, attention in zip(state.cross, self._crossing())
        )
        return replace(state, cross=cross, lengths=state.lengths + memory.lengths)

    def hidden(
        self,
        tokens: Tensor,
        state: TransformerState,
        *,
        layout: Layout | None = None,
        positions: Tensor | None = None,
        mask: Tensor | None = None,
        cross_mask: Tensor | None = None,
    ) -> tuple[Tensor, TransformerState]:
        """Tokens (B · K, T) after a state -> hidden (B · K, T, D) and the state after them.

        The K hypotheses of a sentence stand side by side: they share its memory, and the slots of
        what they have read. With a layout, in training: targets (B, T) from their beginning ->
        packed rows (N, D), and the state as it was. Masks of the user's own are for K · T queries.
        """
        if positions is not None:
            check_positions("target_positions", positions, tokens)
            if self.pattern is not None:
                raise UserError(
                    "target_positions do not work with model.decoder_pattern, which goes by the "
                    "places of tokens: leave out one of them"
                )
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

        if mask is None:  # one of the user's own was made for these slots
            state = state.with_room(beams * steps)
        sight = None  # one hypothesis, which sees everything before it
        if beams > 1 or state.seen is not None or (self.pattern is not None and state.own):
            sight = state.sight(beams, steps)  # (B, K · T, S + K · T)
        target_mask, source_sight = state.masks(sight, order)
        source_mask = source_sight
        own_mask = OwnMask("decoder_mask", self.mask_rule, mask, self.heads)
        own_cross = OwnMask("cross_mask", self.cross_rule, cross_mask, self.heads)
        if own_mask.forbids:
            read = torch.cat((state.slot_positions, positions), 1)  # (B, S + K · T)
            target_mask = own_mask.on_top_of(target_mask, positions, read)
        if own_cross.forbids:
            source_mask = own_cross.on_top_of(source_sight, positions, state.source_positions)

        x = self._entered(tokens, positions, layout)  # (N, D)
        x, own = self._through_blocks(
            x, state, target_mask, source_mask, positions, layout, keep=not packed
        )
        if packed:
            return x, state

        seen = None
        if sight is not None:
            seen = sight[:, steps - 1 :: steps]  # of each hypothesis' last token: (B, K, S + K · T)
        state = replace(state, own=own, at=state.at + steps, seen=seen, source_mask=source_sight)
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
            source = self._source(state, i, source_mask, layout)
            x, read = block(x, target_mask, positions, layout, before, source, keep=keep)
            if read is not None:
                own.append(read)
        return self.norm(x), tuple(own)

    def _source(
        self, state: TransformerState, layer: int, mask: Mask, layout: Layout
    ) -> Source | None:
        """What a block attends to in the source; None: it does not."""
        if not self.crossing:
            return None
        if state.raw is None:
            return state.cross[layer], mask, layout, None
        return state.raw.states, mask, layout, state.raw.layout
