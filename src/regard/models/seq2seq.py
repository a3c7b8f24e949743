"""What every encoder-decoder has in common.

An encoder makes a Memory of the source, a decoder goes from state to state over the target, and the
loss is a sum over target tokens.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from regard.data.batches import OWN, Batch
from regard.models.predictor import Predictor
from regard.nn import Layout, Pattern
from regard.nn.masks import Rule

WHOLE = (
    "this model needs the whole source before it can start; to translate while the source is being "
    "written, "
)


@dataclass(frozen=True)
class Memory:
    """What the encoder makes of a source, and the decoder attends to."""

    states: Tensor
    """(B, S, D)."""
    lengths: Tensor
    """(B,): how many of the states are of real tokens."""
    final: tuple[Tensor, ...] = ()
    """Of an RNN, the states of its layers after the last token: (layers, B, D) each."""
    prefixes: tuple[Tensor, ...] = ()
    """The same after every token, where a decoder without attention needs them: (layers, B, S, D).
    """
    positions: Tensor | None = None
    """(B, S): where the tokens stand. None: one after the other."""
    layout: Layout | None = None
    """If given, the states are packed: (N, D)."""


class Encoder(nn.Module):
    """Reads the source: tokens (B, S) -> Memory."""

    causal = False
    """Whether a token sees only what came before it."""
    wait = 0
    """As that of the decoder."""
    needs_end = f"{WHOLE}train one with model.causal=true (and model.wait=3)"
    """Why an encoder that is not causal cannot read a growing source, and what to do."""
    mask_rule: Rule | None = None
    """The user's own mask of self-attention."""
    pattern: Pattern | None = None
    """Which tokens see which, for long texts. None: all."""

    def forward(
        self,
        source: Tensor,
        lengths: Tensor,
        *,
        positions: Tensor | None = None,
        mask: Tensor | None = None,
        layout: Layout | None = None,
    ) -> Memory:
        """Tokens (B, S) of these lengths (B,) -> what the decoder attends to.

        positions (B, S): where the tokens stand (default: one after the other). mask: which of them
        may look at which, bool, (S, S), (B, S, S) or (B, H, S, S). layout: of packed states.
        """
        raise NotImplementedError

    def extend(self, source: Tensor, before: Any = None) -> tuple[Memory, Any]:
        """Read more source (B, S) after what was read before. For a causal encoder only.

        Gives the memory of the new part, and all that has been read.
        """
        raise NotImplementedError


class Decoder(nn.Module):
    """Base class of decoders: target tokens -> logits, all at once, a few, or one by one.

    A state is a value: reading tokens returns a new one, and the old one stays valid.
    `state.select(sentences (B',), beams (B', K'))` keeps these sentences (None: all), and of each
    these hypotheses: it expands, reorders and prunes. `state.join(other)` has the sentences of
    both.
    """

    out: nn.Linear
    """Hidden state -> logits."""
    wait = 0
    """Source tokens that the first target token sees; each further one sees one more. 0: all."""
    mask_rule: Rule | None = None
    """The user's own mask of self-attention."""
    pattern: Pattern | None = None
    """Which tokens see which, for long texts. None: all."""
    cross_rule: Rule | None = None
    """The user's own mask of attention to the source."""

    def decoding_bytes(self, beams: int, tokens: int) -> int:
        """About how much memory a sentence takes: its state, and a step of all its hypotheses.

        tokens: of the target.
        """
        return 0

    def start(self, memory: Memory) -> Any:
        """The state before the first token."""
        raise NotImplementedError

    def hidden(
        self,
        tokens: Tensor,
        state: Any,
        *,
        layout: Layout | None = None,
        positions: Tensor | None = None,
        mask: Tensor | None = None,
        cross_mask: Tensor | None = None,
    ) -> tuple[Tensor, Any]:
        """Tokens (R, T) after a state -> hidden (R, T, D) and the state after them.

        With a layout, the hidden states are packed: (N, D). positions (R, T): where the tokens
        stand (default: one after the other). mask: which of them may look at which token of the
        target, those read before included, on top of the causal mask. cross_mask: which may look at
        which token of the source. Both are bool, (T, S), (B, T, S) or (B, H, T, S).
        """
        raise NotImplementedError

    def read(self, tokens: Tensor, lengths: Tensor, memory: Memory) -> Any:
        """The state after prompts, in a language model: tokens (B, S) of these lengths (B,).

        Where a length is 0, the state is that before the first token. memory: of no source. Prompts
        of one length are read together, all tokens at once.
        """
        groups: list[Tensor] = []
        state: Any = None
        for length in lengths.unique().tolist():
            rows = (lengths == length).nonzero().squeeze(1)  # (B',)
            new = self.start(Memory(memory.states[rows], memory.lengths[rows]))
            if length:
                _, new = self.hidden(tokens[rows, :length], new)
            state = new if state is None else state.join(new)
            groups.append(rows)

        if len(groups) == 1:
            return state
        back = torch.cat(groups).argsort()  # (B,)
        return state.select(back, torch.zeros_like(back)[:, None])

    def extend(self, state: Any, memory: Memory) -> Any:
        """The state after more of the source has arrived: the memory of the new part."""
        raise NotImplementedError

    def output(self, hidden: Tensor) -> Tensor:
        """Hidden (…, D) -> logits (…, V)."""
        return self.out(hidden)

    def forward(self, tokens: Tensor, state: Any, **looking: Any) -> tuple[Tensor, Any]:
        """Tokens (R, T) after a state -> logits (R, T, V) and the state after them.

        looking: positions, mask and cross_mask, as in `hidden`.
        """
        hidden, state = self.hidden(tokens, state, **looking)
        return self.output(hidden), state


class Seq2Seq(Predictor):
    """Encoder-decoder model: source tokens and target tokens -> logits."""

    def __init__(self, encoder: Encoder, decoder: Decoder) -> None:
        super().__init__()
        self.encoder = encoder
        self.decoder = decoder

    def forward(
        self,
        source: Tensor,
        lengths: Tensor,
        target: Tensor,
        *,
        encoder_mask: Tensor | None = None,
        decoder_mask: Tensor | None = None,
        cross_mask: Tensor | None = None,
        source_positions: Tensor | None = None,
        target_positions: Tensor | None = None,
    ) -> Tensor:
        """Teacher forcing: logits (B, T, V) for target_in (B, T).

        Masks of your own come on top of those for padding and the future. They are bool, True = may
        look: encoder_mask (S, S), decoder_mask (T, T), cross_mask (T, S), or with a batch or batch
        and heads before that. Positions of your own: (B, S) and (B, T), in place of 0, 1, 2, …
        """
        reading = _given(positions=source_positions, mask=encoder_mask)
        writing = _given(positions=target_positions, mask=decoder_mask, cross_mask=cross_mask)
        memory = self.encoder(source, lengths, **reading)
        logits, _ = self.decoder(target, self.decoder.start(memory), **writing)
        return logits

    @property
    def out(self) -> nn.Linear:
        return self.decoder.out

    def output(self, hidden: Tensor) -> Tensor:
        return self.decoder.output(hidden)

    def predict(self, batch: Batch) -> Tensor:
        """`forward` of a batch, with its own masks and positions: logits (B, T, V)."""
        own = {name: x for name, x in batch.tensors().items() if name in OWN}
        return self(batch.source, batch.source_lengths, batch.target_in, **own)

    def start(self, source: Tensor, lengths: Tensor, **reading: Tensor) -> Any:
        """The decoder's state before the first token, for sources (B, S) of these lengths (B,).

        reading: positions (B, S), where the tokens do not stand one after the other.
        """
        return self.decoder.start(self.encoder(source, lengths, **reading))

    def wait_for(self, tokens: int) -> None:
        """Write target token t once tokens + t source tokens are read (wait-k); 0: all of them."""
        self.encoder.wait = tokens
        self.decoder.wait = tokens

    def step(self, tokens: Tensor, state: Any) -> tuple[Tensor, Any]:
        """One token per row (R,) -> logits (R, V) and the next state: what a search asks for."""
        logits, state = self.decoder(tokens[:, None], state)
        return logits[:, -1], state

    def hidden(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """The decoder's last layer (N, D) before every real target token, and these tokens (N,)."""
        source, target = batch.layouts or find_layouts(batch)
        reading = _given(positions=batch.source_positions, mask=batch.encoder_mask)
        writing = _given(
            positions=batch.target_positions,
            mask=batch.decoder_mask,
            cross_mask=batch.cross_mask,
        )
        memory = self.encoder(batch.source, batch.source_lengths, layout=source, **reading)
        state = self.decoder.start(memory)
        hidden, _ = self.decoder.hidden(batch.target_in, state, layout=target, **writing)
        return hidden, target.pack(batch.target_out)


def _given(**options: Tensor | None) -> dict[str, Tensor]:
    """Those that are given: a model of the user's own need not know the others."""
    return {name: value for name, value in options.items() if value is not None}


def find_layouts(batch: Batch, *, packed: bool = False) -> tuple[Layout, Layout]:
    """Where the real tokens of source and target are.

    packed: for kernels of variable length. Where less than a fifth is padding, it stays: to pack
    it away costs more than it saves.
    """
    source = Layout.of(batch.source_lengths, batch.source.shape[1], offsets=packed, worth=0.8)
    target = Layout.of(batch.target_lengths, batch.target_in.shape[1], offsets=packed, worth=0.8)
    return source, target
