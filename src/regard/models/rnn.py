"""The recurrent encoder-decoder: the bottleneck, and two ways to look around it."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from regard.config import RNNConfig
from regard.models.seq2seq import Decoder, Encoder, Memory
from regard.nn import Attention, Embedding, KeyValue, Layout, Mask, Recurrent, Score
from regard.nn.kernels import dropout
from regard.nn.recurrent import Hidden


class RNNEncoder(Encoder):
    """Embedding, then layers of cells, from both ends if asked. The states are `width` wide either
    way.
    """

    def __init__(self, c: RNNConfig, embedding: Embedding) -> None:
        super().__init__()
        self.embedding = embedding
        self.directions = 2 if c.bidirectional else 1
        self.cells = Recurrent(
            c.cell,
            c.embedding,
            c.width // self.directions,
            layers=c.encoder_layers,
            bidirectional=c.bidirectional,
            dropout=c.dropout,
            fast=c.fast,
        )
        self.dropout = c.dropout

    def forward(
        self,
        source: Tensor,
        lengths: Tensor,
        *,
        positions: Tensor | None = None,
        extra: Tensor | None = None,
        layout: Layout | None = None,
    ) -> Memory:
        x = dropout(self.embedding(source), self.dropout, self.training)
        states, hidden = self.cells(x, lengths)
        # The top layer's end, both directions side by side: (B, width) each for h and c.
        final = tuple(torch.cat(list(part[-self.directions :]), dim=-1) for part in hidden)
        return Memory(dropout(states, self.dropout, self.training), lengths, final, extra)


@dataclass(frozen=True)
class RNNState:
    """Once per sentence (B): `memory` and `lengths`. Per hypothesis (B × K rows): `hidden`,
    (layers, B × K, width) each.
    """

    hidden: Hidden
    memory: KeyValue | None
    lengths: Tensor
    extra: Tensor | None
    beams: int

    def select(self, sentences: Tensor | None, beams: Tensor) -> RNNState:
        all_stay, width = sentences is None, beams.shape[1]
        sentences = (
            torch.arange(len(self.lengths), device=beams.device) if sentences is None else sentences
        )
        rows = (sentences[:, None] * self.beams + beams).flatten()
        hidden = tuple(part.index_select(1, rows) for part in self.hidden)
        if all_stay:
            return replace(self, hidden=hidden, beams=width)
        memory = self.memory.select(sentences) if self.memory is not None else None
        extra = (
            self.extra
            if self.extra is None or len(self.extra) == 1
            else self.extra.index_select(0, sentences)
        )
        return RNNState(hidden, memory, self.lengths.index_select(0, sentences), extra, width)

    def join(self, other: RNNState) -> RNNState:
        """The sentences of both."""
        assert self.extra is None, (
            "a mask of one's own belongs to its sentences: they cannot be joined"
        )
        hidden = tuple(torch.cat(parts, 1) for parts in zip(self.hidden, other.hidden, strict=True))
        memory = (
            self.memory.join(other.memory)
            if self.memory is not None and other.memory is not None
            else None
        )
        return RNNState(hidden, memory, torch.cat((self.lengths, other.lengths)), None, self.beams)


class RNNDecoder(Decoder):
    """Cells that write, with attention before them, after them, or none."""

    def __init__(self, c: RNNConfig, score: type[Score], embedding: Embedding, size: int) -> None:
        super().__init__()
        self.embedding = embedding
        self.attention_at = c.attention
        self.dropout = c.dropout
        parts = 2 if c.cell == "lstm" else 1
        self.bridge = nn.ModuleList(
            nn.Linear(c.width, c.width) for _ in range(parts * c.decoder_layers)
        )
        self.parts, self.layers = parts, c.decoder_layers
        inputs = c.embedding + (c.width if c.attention == "before" else 0)
        self.cells = Recurrent(
            c.cell, inputs, c.width, layers=c.decoder_layers, dropout=c.dropout, fast=c.fast
        )
        if c.attention != "none":
            self.attention = Attention(
                c.width, score=score, score_width=c.score_width or c.width, projections=False
            )
            self.readout = nn.Linear(2 * c.width, c.width)
        self.out = nn.Linear(c.width, size)
        if c.tie != "none":
            self.out.weight = embedding.weight

    def start(self, memory: Memory) -> RNNState:
        made = [
            torch.tanh(bridge(memory.final[i % self.parts])) for i, bridge in enumerate(self.bridge)
        ]
        hidden = tuple(torch.stack(made[part :: self.parts]) for part in range(self.parts))
        looked_at = self.attention.project(memory.states) if self.attention_at != "none" else None
        return RNNState(hidden, looked_at, memory.lengths, memory.extra, beams=1)

    def hidden(
        self,
        tokens: Tensor,
        state: RNNState,
        *,
        layout: Layout | None = None,
        positions: Tensor | None = None,
    ) -> tuple[Tensor, RNNState]:
        x = dropout(self.embedding(tokens), self.dropout, self.training)
        if self.attention_at == "before":
            out, hidden = self._look_then_write(x, state)
        else:
            out, hidden = self.cells(x, hidden=state.hidden)
            if self.attention_at == "after":
                out = self._read_out(out, self._look(out, state, self._mask(state)))
        out = dropout(out, self.dropout, self.training)
        state = RNNState(hidden, state.memory, state.lengths, state.extra, state.beams)
        return (layout.pack(out) if layout else out), state

    def _mask(self, state: RNNState) -> Mask:
        """A source holds at least <eos>, so that only a mask of the user's own can hide
        everything.
        """
        return Mask(key_lengths=state.lengths, extra=state.extra, filled=state.extra is None)

    def _look(self, query: Tensor, state: RNNState, mask: Mask) -> Tensor:
        """query (B × K, T, D) -> context of the same shape; hypotheses of a sentence share its
        memory.
        """
        assert state.memory is not None
        together = query.reshape(len(state.lengths), -1, query.shape[-1])  # (B, K × T, D)
        return self.attention(together, state.memory, mask).reshape(query.shape)

    def _read_out(self, states: Tensor, context: Tensor) -> Tensor:
        """tanh(W[context; state]) (Luong et al. 2015, eq. 5)."""
        return torch.tanh(self.readout(torch.cat((context, states), dim=-1)))

    def _look_then_write(self, x: Tensor, state: RNNState) -> tuple[Tensor, Hidden]:
        """Query: the previous top state; its context is joined to the input (Bahdanau et al. 2015).
        One step at a time.
        """
        mask = self._mask(state)
        hidden = state.hidden
        outputs = []
        for t in range(x.shape[1]):
            context = self._look(hidden[0][-1][:, None], state, mask)
            out, hidden = self.cells(torch.cat((x[:, t : t + 1], context), dim=-1), hidden=hidden)
            outputs.append(self._read_out(out, context))
        return torch.cat(outputs, dim=1), hidden
