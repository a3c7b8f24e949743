"""The recurrent encoder-decoder, without attention or with one of two kinds of it."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.config import RNNConfig
from regard.errors import UserError
from regard.models.seq2seq import WHOLE, Decoder, Encoder, Memory
from regard.nn import Attention, Embedding, KeyValue, Layout, Mask, Recurrent, Score
from regard.nn.kernels import dropout
from regard.nn.masks import OwnMask, Rule
from regard.nn.recurrent import Hidden


class RNNEncoder(Encoder):
    """Embedding, then layers of cells, in both directions if asked.

    The states are `width` wide in either case.
    """

    needs_end = (
        f"{WHOLE}train one with model.bidirectional=false (and model.wait=1): a bidirectional "
        f"encoder also reads the source from its end"
    )

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
        self.causal = not config.bidirectional
        self.wait = config.wait
        self.attended = config.attention != "none"

    def forward(
        self,
        source: Tensor,
        lengths: Tensor,
        *,
        positions: Tensor | None = None,
        mask: Tensor | None = None,
        layout: Layout | None = None,
    ) -> Memory:
        _refuse("encoder", positions, mask)
        x = dropout(self.embedding(source), self.dropout, self.training)  # (B, S, embedding)
        if self.wait and not self.attended:
            states, prefixes = self._token_by_token(x)
            return Memory(states, lengths, prefixes=prefixes)

        states, hidden = self.cells(x, lengths)  # (B, S, width)
        if self.wait:  # the decoder starts when so many tokens are read
            _, hidden = self.cells(x[:, : self.wait], lengths.clamp(max=self.wait))

        # Both directions side by side: (layers, B, width) for h, and for c of an LSTM.
        final = tuple(_side_by_side(part, self.directions) for part in hidden)
        states = dropout(states, self.dropout, self.training)
        return Memory(states, lengths, final)

    def _token_by_token(self, x: Tensor, hidden: Hidden | None = None) -> tuple[Tensor, Hidden]:
        """Inputs (B, S, embedding) -> states (B, S, D), and the cells' (layers, B, S, D) each."""
        states = []
        after_each = []
        for t in range(x.shape[1]):
            out, hidden = self.cells(x[:, t : t + 1], hidden=hidden)
            states.append(out)
            after_each.append(hidden)
        prefixes = tuple(torch.stack(parts, dim=2) for parts in zip(*after_each))
        return torch.cat(states, dim=1), prefixes

    def extend(self, source: Tensor, before: Hidden | None = None) -> tuple[Memory, Hidden]:
        """Read more source (B, S) after what was read before: the states of the cells."""
        x = self.embedding(source)
        states, prefixes = self._token_by_token(x, before)
        final = tuple(part[:, :, -1] for part in prefixes)
        lengths = torch.full_like(source[:, 0], source.shape[1])  # (B,)
        return Memory(states, lengths, final, () if self.attended else prefixes), final


def _refuse(side: str, positions: Tensor | None, mask: Tensor | None) -> None:
    """Refuse positions and masks that nothing in an RNN could use."""
    if positions is not None:
        name = "source" if side == "encoder" else "target"
        raise UserError(f"an RNN's {side} has no positions: leave out {name}_positions")
    if mask is not None:
        raise UserError(
            f"an RNN's {side} has no self-attention: leave out {side}_mask (there is cross_mask)"
        )


def _side_by_side(states: Tensor, directions: int) -> Tensor:
    """(layers × directions, B, D) -> (layers, B, directions × D)."""
    by_direction = [states[direction::directions] for direction in range(directions)]
    return torch.cat(by_direction, dim=-1)


@dataclass(frozen=True)
class Restarts:
    """For a decoder without attention while its source grows.

    The source comes in by the decoder's first state alone. So for every target token it starts
    again, from the newest state of the encoder, and reads once more what it has written.
    """

    starts: Hidden
    """The first state after each token of the source: (layers, B, S, width) each."""
    written: Tensor
    """The embeddings of the target read so far, (B · K, T, embedding); rows may end with padding.
    """

    def select(self, sentences: Tensor, rows: Tensor) -> Restarts:
        """The starts of these sentences (B',), and the target of these rows (B' · K',)."""
        starts = tuple(part.index_select(1, sentences) for part in self.starts)
        return Restarts(starts, self.written.index_select(0, rows))

    def join(self, other: Restarts) -> Restarts:
        """Those of both, filled up."""
        pairs = zip(self.starts, other.starts, strict=True)
        starts = tuple(torch.cat(_filled(mine, theirs, 2), 1) for mine, theirs in pairs)
        return Restarts(starts, torch.cat(_filled(self.written, other.written, 1)))


def _filled(one: Tensor, other: Tensor, axis: int) -> tuple[Tensor, Tensor]:
    """Both, with zeros at the end of the shorter one."""
    length = max(one.shape[axis], other.shape[axis])
    before = (0, 0) * (one.dim() - 1 - axis)
    pads = [(*before, 0, length - x.shape[axis]) for x in (one, other)]
    return F.pad(one, pads[0]), F.pad(other, pads[1])


@dataclass(frozen=True)
class RNNState:
    """How far a decoder has come with B sentences, K hypotheses each."""

    hidden: Hidden
    """Of the cells: (layers, B · K, width) each."""
    memory: KeyValue | None
    """What is attended to in the source, of B rows. None: there is no attention."""
    lengths: Tensor
    """(B,): of the sources."""
    at: Tensor
    """(B,): target tokens read so far."""
    beams: int
    """K."""
    wait: int = 0
    """Wait-k: target token t sees wait + t tokens of the source. 0: all."""
    restarts: Restarts | None = None
    """Without attention, and with wait: in place of `hidden`."""

    def reach(self, places: Tensor) -> Tensor:
        """How much of the source may be seen from target places (B, …)."""
        ends = self.lengths.view(-1, *(1,) * (places.dim() - 1))
        if not self.wait:
            return ends.expand_as(places)
        return torch.minimum(ends, places + self.wait)

    def select(self, sentences: Tensor | None, beams: Tensor) -> RNNState:
        """Keep `sentences` (B',) of the B, or all; of each, the hypotheses `beams` (B', K')."""
        kept = sentences
        if kept is None:
            kept = torch.arange(len(self.lengths), device=beams.device)  # (B,)
        rows = (kept[:, None] * self.beams + beams).flatten()  # (B' · K',)
        changed = replace(
            self,
            hidden=tuple(part.index_select(1, rows) for part in self.hidden),
            restarts=None if self.restarts is None else self.restarts.select(kept, rows),
            beams=beams.shape[1],
        )
        if sentences is None:
            return changed

        return replace(
            changed,
            memory=None if self.memory is None else self.memory.select(sentences),
            lengths=self.lengths.index_select(0, sentences),
            at=self.at.index_select(0, sentences),
        )

    def join(self, other: RNNState) -> RNNState:
        """The sentences of both."""
        pairs = zip(self.hidden, other.hidden, strict=True)
        memory = None
        if self.memory is not None and other.memory is not None:
            longest = int(torch.cat((self.lengths, other.lengths)).max())
            memory = self.memory.first(longest).join(other.memory)
        restarts = None
        if self.restarts is not None and other.restarts is not None:
            restarts = self.restarts.join(other.restarts)
        return replace(
            self,
            hidden=tuple(torch.cat(pair, 1) for pair in pairs),
            memory=memory,
            lengths=torch.cat((self.lengths, other.lengths)),
            at=torch.cat((self.at, other.at)),
            restarts=restarts,
        )


class RNNDecoder(Decoder):
    """Cells that write, with attention before them, after them, or none.

    crossing: whether there is a source; a language model has none, and starts from zeros.
    """

    def __init__(
        self,
        config: RNNConfig,
        score: type[Score],
        embedding: Embedding,
        size: int,
        cross_mask: Rule | None = None,
        *,
        crossing: bool = True,
    ) -> None:
        super().__init__()
        self.crossing = crossing
        if not crossing:
            config = replace(config, attention="none", readout="state", bridge="top")
        self.embedding = embedding
        self.width = config.width
        self.attention_at = config.attention
        self.dropout = config.dropout
        self.parts = 2 if config.cell == "lstm" else 1  # (h, c) or (h,)
        self.layers = config.decoder_layers
        self.wait = config.wait
        self.cross_rule = cross_mask

        # From the final state of the encoder's top layer to the first one of every layer.
        has_bridges = crossing and config.bridge == "top"
        bridges = self.parts * self.layers if has_bridges else 0
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
        attended = None
        if self.attention_at != "none":
            attended = self.attention.project(memory.states)
        before_first = torch.zeros_like(memory.lengths)  # (B,)
        common = RNNState((), attended, memory.lengths, before_first, beams=1, wait=self.wait)
        if not self.crossing:
            weight = self.embedding.weight
            zeros = weight.new_zeros(self.layers, len(memory.lengths), self.width)
            return replace(common, hidden=(zeros,) * self.parts)
        if not memory.prefixes:
            return replace(common, hidden=self._first_states(memory.final))

        nothing = memory.states.new_zeros(len(memory.lengths), 0, self.embedding.weight.shape[1])
        return replace(common, restarts=Restarts(self._first_states(memory.prefixes), nothing))

    def _first_states(self, final: Hidden) -> Hidden:
        """The encoder's states (layers, …, width) -> those that the decoder starts with."""
        if not self.bridge:
            return final
        # The bridges lie layer by layer: h and c of the first layer, h and c of the second, …
        states = [
            torch.tanh(bridge(final[i % self.parts][-1]))  # (…, width)
            for i, bridge in enumerate(self.bridge)
        ]
        return tuple(torch.stack(states[part :: self.parts]) for part in range(self.parts))

    def extend(self, state: RNNState, memory: Memory) -> RNNState:
        """Until something is written, the newest state of the encoder is the one to start from."""
        lengths = state.lengths + memory.lengths
        if state.restarts is not None:
            new = self._first_states(memory.prefixes)
            pairs = zip(state.restarts.starts, new, strict=True)
            starts = tuple(torch.cat(pair, dim=2) for pair in pairs)
            return replace(state, lengths=lengths, restarts=replace(state.restarts, starts=starts))

        assert state.memory is not None
        start = len(state.memory)
        count = torch.arange(start, start + memory.states.shape[1], device=lengths.device)  # (S,)
        positions = count.expand(len(lengths), -1)  # (B, S)
        attended = state.memory.append(self.attention.project(memory.states, positions=positions))
        hidden = state.hidden if int(state.at.max()) else self._first_states(memory.final)
        return replace(state, lengths=lengths, memory=attended, hidden=hidden)

    def hidden(
        self,
        tokens: Tensor,
        state: RNNState,
        *,
        layout: Layout | None = None,
        positions: Tensor | None = None,
        mask: Tensor | None = None,
        cross_mask: Tensor | None = None,
    ) -> tuple[Tensor, RNNState]:
        _refuse("decoder", positions, mask)
        if cross_mask is not None and state.memory is None:
            raise UserError("this RNN has no attention: leave out cross_mask")

        steps = tokens.shape[1]
        x = dropout(self.embedding(tokens), self.dropout, self.training)  # (B · K, T, embedding)
        if state.restarts is not None:
            out, state = self._restart(x, state, state.restarts)
        else:
            sight = self._sight(state, steps, cross_mask)
            if self.attention_at == "before":
                out, hidden = self._look_then_write(x, state, sight)
            else:
                out, hidden = self.cells(x, hidden=state.hidden)  # (B · K, T, D)
                if self.attention_at == "after":
                    out = self._read_out(out, self._look(out, state, sight))
            state = replace(state, hidden=hidden)

        out = dropout(out, self.dropout, self.training)
        if layout is not None:
            out = layout.pack(out)  # (N, D)
        return out, replace(state, at=state.at + steps)

    def _sight(self, state: RNNState, steps: int, cross_mask: Tensor | None) -> Mask:
        """Which of K · T queries may look at which token of the source."""
        # A source holds at least <eos>, so only the user's own mask can hide all of it.
        own = OwnMask("cross_mask", self.cross_rule, cross_mask, heads=1)
        if not state.wait and not own.forbids:
            return Mask(key_lengths=state.lengths, filled=True)

        order = torch.arange(steps, device=state.at.device)  # (T,)
        places = (state.at[:, None] + order).repeat(1, state.beams)  # (B, K · T)
        sight = Mask(key_lengths=state.reach(places), filled=True)
        if not own.forbids:
            return sight
        assert state.memory is not None
        return own.on_top_of(sight, places, state.memory.positions)

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

    def _look_then_write(self, x: Tensor, state: RNNState, sight: Mask) -> tuple[Tensor, Hidden]:
        """Attention before the cells (Bahdanau et al. 2015), one step at a time.

        The top layer's previous state is the query; its context is joined to the input.
        """
        hidden = state.hidden
        steps = x.shape[1]
        outputs = []
        for t in range(steps):
            query = hidden[0][-1][:, None]  # (B · K, 1, D)
            context = self._look(query, state, _of_step(sight, t, steps))  # (B · K, 1, D)
            joined = torch.cat((x[:, t : t + 1], context), dim=-1)
            out, hidden = self.cells(joined, hidden=hidden)
            outputs.append(self._read_out(out, context))
        return torch.cat(outputs, dim=1), hidden

    def _restart(self, x: Tensor, state: RNNState, restarts: Restarts) -> tuple[Tensor, RNNState]:
        """Inputs (B · K, T, embedding) -> outputs (B · K, T, D), and the state after them.

        For each token the cells begin again, with the source that may be seen from there.
        """
        beams = state.beams
        outputs = []
        for t in range(x.shape[1]):
            place = state.at + t  # (B,)
            restarts = replace(restarts, written=_put(restarts.written, x[:, t], place, beams))
            seen = state.reach(place) - 1  # (B,)
            hidden = tuple(_at_times(part, seen, beams) for part in restarts.starts)
            lengths = (place + 1).repeat_interleave(beams)  # (B · K,)
            _, after = self.cells(restarts.written, lengths, hidden)
            outputs.append(after[0][-1])  # h of the top layer: (B · K, D)
        return torch.stack(outputs, dim=1), replace(state, restarts=restarts)


def _put(written: Tensor, x: Tensor, place: Tensor, beams: int) -> Tensor:
    """Inputs (B · K, T, D) with one more of each, (B · K, D), at the places (B,)."""
    missing = int(place.max()) + 1 - written.shape[1]
    where = place.repeat_interleave(beams)[:, None, None].expand(-1, 1, x.shape[1])
    return F.pad(written, (0, 0, 0, max(0, missing))).scatter(1, where, x[:, None])


def _at_times(states: Tensor, times: Tensor, beams: int) -> Tensor:
    """Of states (layers, B, S, D) those at times (B,), for each of K: (layers, B · K, D)."""
    index = times[None, :, None, None].expand(len(states), -1, 1, states.shape[3])
    return states.gather(2, index).squeeze(2).repeat_interleave(beams, 1)


def _of_step(sight: Mask, t: int, steps: int) -> Mask:
    """Of a mask for K · T queries, that of the K queries at step t."""
    lengths = sight.key_lengths
    extra = sight.extra
    if extra is None and (lengths is None or lengths.dim() == 1):
        return sight
    if lengths is not None and lengths.dim() == 2:
        lengths = lengths[:, t::steps]  # (B, K)
    if extra is not None:
        extra = extra[:, :, t::steps]  # (B, H, K, S)
    return Mask(key_lengths=lengths, extra=extra, filled=sight.filled)
