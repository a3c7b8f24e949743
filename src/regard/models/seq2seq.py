"""What every encoder-decoder is: an encoder that makes a Memory, a decoder that walks a State, and
a summed loss.
"""

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from regard.data.batches import Batch
from regard.models.learner import Learner, Sums
from regard.nn import Layout
from regard.nn.kernels import cross_entropy
from regard.nn.precision import at_least_single
from regard.text.vocabulary import PAD

TENSORS = ("source", "source_lengths", "target", "target_lengths")


@dataclass(frozen=True)
class Memory:
    """What the encoder leaves: states (B, S, D) with real lengths (B,), and for an RNN its final
    state.
    """

    states: Tensor
    lengths: Tensor
    final: tuple[Tensor, ...] = ()
    extra: Tensor | None = None
    """The user's own mask of the source, bool, broadcastable to (B, 1, T, S)."""
    layout: Layout | None = None
    """If given, the states are packed: (N, D)."""


class Encoder(nn.Module):
    """Source tokens (B, S) -> Memory."""

    causal = False
    """Whether a token sees only what came before it."""

    def forward(
        self,
        source: Tensor,
        lengths: Tensor,
        *,
        positions: Tensor | None = None,
        extra: Tensor | None = None,
        layout: Layout | None = None,
    ) -> Memory:
        raise NotImplementedError


class Decoder(nn.Module):
    """Target tokens -> logits, all at once, a few, or one by one: one path.

    A state is a value: reading returns a new one, and the old one stays good.
    `state.select(sentences (B',), beams (B', K'))` keeps these sentences (None: all), and of each
    these hypotheses: it expands, reorders and prunes. `state.join(other)`: both.
    """

    out: nn.Linear
    """Hidden state -> logits."""
    wait = 0
    """How much of the source the first target token sees, each further one seeing one more. 0: all.
    """

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
    ) -> tuple[Tensor, Any]:
        """Read tokens (R, T) on top of the state -> (R, T, D), or packed (N, D) with a layout; and
        the state after them.
        """
        raise NotImplementedError

    def output(self, hidden: Tensor) -> Tensor:
        """(…, D) -> logits (…, V)."""
        return self.out(hidden)

    def forward(self, tokens: Tensor, state: Any) -> tuple[Tensor, Any]:
        """hidden, then output."""
        hidden, state = self.hidden(tokens, state)
        return self.output(hidden), state


class Seq2Seq(Learner):
    """An encoder and a decoder."""

    def __init__(self, encoder: Encoder, decoder: Decoder) -> None:
        super().__init__()
        self.encoder = encoder
        self.decoder = decoder

    def forward(self, source: Tensor, lengths: Tensor, target: Tensor) -> Tensor:
        """Teacher forcing: logits (B, T, V) for target_in (B, T)."""
        logits, _ = self.decoder(target, self.decoder.start(self.encoder(source, lengths)))
        return logits

    def step(self, tokens: Tensor, state: Any) -> tuple[Tensor, Any]:
        """One token per row (R,) -> logits (R, V): what a search asks for."""
        logits, state = self.decoder(tokens[:, None], state)
        return logits[:, -1], state

    def hidden(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """The decoder's last layer at every real target token (N, D), and the tokens (N,) it should
        tell.
        """
        source, target = batch.layouts or find_layouts(batch)
        memory = self.encoder(batch.source, batch.source_lengths, layout=source)
        hidden, _ = self.decoder.hidden(batch.target_in, self.decoder.start(memory), layout=target)
        return hidden, target.pack(batch.target_out)

    def loss(self, batch: Batch, smoothing: float = 0.0) -> Sums:
        """Cross-entropy of the shifted target, summed over real tokens only."""
        hidden, targets = self.hidden(batch)
        loss, nll, correct = self._sums(hidden, targets, smoothing)
        return Sums(loss, nll, correct, batch.tokens)

    def _sums(self, hidden: Tensor, targets: Tensor, smoothing: float) -> tuple[Tensor, ...]:
        """Loss, negative log-likelihood and how many are right, of hidden (N, D) and targets
        (N,).
        """
        out = self.decoder.out
        compiled = self.compiled
        return cross_entropy(
            hidden, out.weight, out.bias, targets, smoothing, ignore=PAD, compiled=compiled
        )

    def rdrop(self, batch: Batch, smoothing: float, weight: float) -> Sums:
        """R-Drop (Liang et al. 2021): the mean loss of two looks with other dropout, and weight/2 ×
        the mean KL between them.
        """
        hidden, targets = self.hidden(_twice(batch))
        loss, nll, correct = self._sums(hidden, targets, smoothing)
        logits = self.decoder.output(hidden)  # (2N, V)
        p, q = logits.to(at_least_single(logits.dtype)).log_softmax(-1).chunk(2)
        apart = (((p.exp() - q.exp()) * (p - q)).sum(-1) * (targets[: len(p)] != PAD)).sum() / 2
        return Sums((loss + weight * apart) / 2, nll / 2, correct / 2, batch.tokens)


def _twice(batch: Batch) -> Batch:
    layouts = batch.layouts
    if layouts is not None:
        layouts = (layouts[0].twice(), layouts[1].twice())
    tensors: dict[str, Any] = {name: torch.cat([getattr(batch, name)] * 2) for name in TENSORS}
    return replace(batch, **tensors, layouts=layouts)


def find_layouts(batch: Batch, *, packed: bool = False) -> tuple[Layout, Layout]:
    """Where the real tokens of source and target are.

    packed: for kernels of variable length. Where less than a fifth is padding, it stays: to pack
    it away costs more than it saves.
    """
    source = Layout.of(batch.source_lengths, batch.source.shape[1], offsets=packed, worth=0.8)
    target = Layout.of(batch.target_lengths, batch.target_in.shape[1], offsets=packed, worth=0.8)
    return source, target


def summed_loss(logits: Tensor, targets: Tensor, smoothing: float = 0.0) -> Sums:
    """logits (N, V), targets (N,). Smoothing s: (1 − s) of the reference's loss + s of the mean
    over the vocabulary.

    This is the formula; `cross_entropy` is the same, faster.
    """
    logp = logits.to(at_least_single(logits.dtype)).log_softmax(-1)  # (N, V)
    nll = -logp.gather(-1, targets[:, None]).sum()
    loss = nll if smoothing == 0 else (1 - smoothing) * nll - smoothing * logp.mean(-1).sum()
    correct = (logits.detach().argmax(-1) == targets).sum()
    return Sums(loss, nll.detach(), correct, len(targets))
