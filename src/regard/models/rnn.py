"""The recurrent encoder-decoder, without attention or with one of two kinds of it."""

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
    """Embedding, then layers of cells, in both directions if asked.

    The states are `width` wide in either case.
    """

    def __init__(self, config: RNNConfig, embedding: Embedding) -> None:
        super().__init__()
        self.embedding = embedding
        self.directions = 2 if config.bidirectional else 1
        self.cells = Recurrent(
            config.cell,
            config.embedding,
            config.width // self.directions,
            layers=config.encoder_layers,
            bidirectional=config.bidirectional,
            dropout=config.dropout,
            fast=config.fast,
        )
        self.dropout = config.dropout

    def forward(
        self,
        source: Tensor,
        lengths: Tensor,
        *,
        positions: Tensor | None = None,
        extra: Tensor | None = None,
        layout: Layout | None = None,
    ) -> Memory:
        x = dropout(self.embedding(source), self.dropout, self.training)  # (B, S, embedding)
        states, hidden = self.cells(x, lengths)  # (B, S, width)

        # Both directions side by side: (layers, B, width) for h, and for c of an LSTM.
        final = tuple(_side_by_side(part, self.directions) for part in hidden)
        states = dropout(states, self.dropout, self.training)
        return Memory(states, lengths, final, extra)


def _side_by_side(states: Tensor, directions: int) -> Tensor:
    """(layers × directions, B, D) -> (layers, B, directions × D)."""
    by_direction = [states[direction::directions] for direction in range(directions)]
    return torch.cat(by_direction, dim=-1)


@dataclass(frozen=True)
class RNNState:
    """How far a decoder has come with B sentences, K hypotheses each."""

    hidden: Hidden
    """Of the cells: (layers, B · K, width) each."""
    memory: KeyValue | None
    """What is attended to in the source, of B rows. None: there is no attention."""
    lengths: Tensor
    """(B,): of the sources."""
    extra: Tensor | None
    """The user's own mask of the source."""
    beams: int
    """K."""

    def select(self, sentences: Tensor | None, beams: Tensor) -> RNNState:
        """Keep `sentences` (B',) of the B, or all; of each, the hypotheses `beams` (B', K')."""
        width = beams.shape[1]
        if sentences is None:
            everyone = torch.arange(len(self.lengths), device=beams.device)  # (B,)
            return replace(self, hidden=self._hidden_of(everyone, beams), beams=width)

        memory = None
        if self.memory is not None:
            memory = self.memory.select(sentences)
        extra = self.extra
        if extra is not None and len(extra) > 1:
            extra = extra.index_select(0, sentences)
        return RNNState(
            hidden=self._hidden_of(sentences, beams),
            memory=memory,
            lengths=self.lengths.index_select(0, sentences),
            extra=extra,
            beams=width,
        )

    def _hidden_of(self, sentences: Tensor, beams: Tensor) -> Hidden:
        """`hidden` of these sentences (B',) and hypotheses (B', K'): (layers, B' · K', width)."""
        rows = (sentences[:, None] * self.beams + beams).flatten()  # (B' · K',)
        return tuple(part.index_select(1, rows) for part in self.hidden)

    def join(self, other: RNNState) -> RNNState:
        """The sentences of both."""
        assert self.extra is None, "states with a custom mask cannot be joined"
        pairs = zip(self.hidden, other.hidden, strict=True)
        memory = None
        if self.memory is not None and other.memory is not None:
            memory = self.memory.join(other.memory)
        return RNNState(
            hidden=tuple(torch.cat(pair, 1) for pair in pairs),
            memory=memory,
            lengths=torch.cat((self.lengths, other.lengths)),
            extra=None,
            beams=self.beams,
        )


class RNNDecoder(Decoder):
    """Cells that write, with attention before them, after them, or none."""

    def __init__(
        self, config: RNNConfig, score: type[Score], embedding: Embedding, size: int
    ) -> None:
        super().__init__()
        self.embedding = embedding
        self.attention_at = config.attention
        self.dropout = config.dropout
        self.parts = 2 if config.cell == "lstm" else 1  # (h, c) or (h,)
        self.layers = config.decoder_layers

        # From the final state of the encoder's top layer to the first one of every layer.
        bridges = self.parts * self.layers if config.bridge == "top" else 0
        self.bridge = nn.ModuleList(nn.Linear(config.width, config.width) for _ in range(bridges))
        inputs = config.embedding
        if config.attention == "before":
            inputs += config.width
        self.cells = Recurrent(
            config.cell,
            inputs,
            config.width,
            layers=config.decoder_layers,
            dropout=config.dropout,
            fast=config.fast,
        )
        if config.attention != "none":
            self.attention = Attention(
                config.width,
                score=score,
                score_width=config.score_width or config.width,
                projections=False,
            )

        self.reads = config.readout
        if config.attention == "none":
            self.reads = "state"
        if self.reads == "tanh":
            self.readout = nn.Linear(2 * config.width, config.width)

        self.out = nn.Linear(config.width * (2 if self.reads == "context" else 1), size)
        if config.tie in ("target", "all"):
            self.out.weight = embedding.weight

    def start(self, memory: Memory) -> RNNState:
        """The state before the first token, made of the encoder's final state."""
        hidden = memory.final  # (layers, B, width) each
        if self.bridge:
            # The bridges lie layer by layer: h and c of the first layer, h and c of the second, …
            states = [
                torch.tanh(bridge(memory.final[i % self.parts][-1]))  # (B, width)
                for i, bridge in enumerate(self.bridge)
            ]
            hidden = tuple(torch.stack(states[part :: self.parts]) for part in range(self.parts))

        attended = None
        if self.attention_at != "none":
            attended = self.attention.project(memory.states)
        return RNNState(hidden, attended, memory.lengths, memory.extra, beams=1)

    def hidden(
        self,
        tokens: Tensor,
        state: RNNState,
        *,
        layout: Layout | None = None,
        positions: Tensor | None = None,
    ) -> tuple[Tensor, RNNState]:
        x = dropout(self.embedding(tokens), self.dropout, self.training)  # (B · K, T, embedding)
        if self.attention_at == "before":
            out, hidden = self._look_then_write(x, state)
        else:
            out, hidden = self.cells(x, hidden=state.hidden)  # (B · K, T, D)
            if self.attention_at == "after":
                out = self._read_out(out, self._look(out, state, self._mask(state)))

        out = dropout(out, self.dropout, self.training)
        if layout is not None:
            out = layout.pack(out)  # (N, D)
        return out, RNNState(hidden, state.memory, state.lengths, state.extra, state.beams)

    def _mask(self, state: RNNState) -> Mask:
        """The mask of the source."""
        # A source holds at least <eos>, so only the user's own mask can hide all of it.
        return Mask(key_lengths=state.lengths, extra=state.extra, filled=state.extra is None)

    def _look(self, query: Tensor, state: RNNState, mask: Mask) -> Tensor:
        """query (B · K, T, D) -> context of the same shape.

        The hypotheses of a sentence share its memory, so they ask as if they were one.
        """
        assert state.memory is not None
        together = query.reshape(len(state.lengths), -1, query.shape[-1])  # (B, K · T, D)
        return self.attention.attend_to(together, state.memory, mask).reshape(query.shape)

    def _read_out(self, states: Tensor, context: Tensor) -> Tensor:
        """What the output layer reads.

        tanh(W[context; state]) (Luong et al. 2015, eq. 5), [context; state] or the state.
        """
        if self.reads == "state":
            return states
        both = torch.cat((context, states), dim=-1)
        return both if self.reads == "context" else torch.tanh(self.readout(both))

    def _look_then_write(self, x: Tensor, state: RNNState) -> tuple[Tensor, Hidden]:
        """Attention before the cells (Bahdanau et al. 2015), one step at a time.

        The top layer's previous state is the query; its context is joined to the input.
        """
        mask = self._mask(state)
        hidden = state.hidden
        outputs = []
        for t in range(x.shape[1]):
            query = hidden[0][-1][:, None]  # (B · K, 1, D)
            context = self._look(query, state, mask)  # (B · K, 1, D)
            joined = torch.cat((x[:, t : t + 1], context), dim=-1)
            out, hidden = self.cells(joined, hidden=hidden)
            outputs.append(self._read_out(out, context))
        return torch.cat(outputs, dim=1), hidden
