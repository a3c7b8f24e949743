"""A model that predicts tokens from hidden states: the losses that all of them share."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from regard.data.batches import Batch
from regard.models.learner import Learner, Sums
from regard.nn.kernels import cross_entropy
from regard.nn.precision import at_least_single
from regard.text.vocabulary import PAD


class Predictor(Learner):
    """Base class of models with an output layer: hidden states -> logits of the vocabulary."""

    @property
    def out(self) -> nn.Linear:
        """Hidden state -> logits."""
        raise NotImplementedError

    def output(self, hidden: Tensor) -> Tensor:
        """Hidden (…, D) -> logits (…, V)."""
        return self.out(hidden)

    def predict(self, batch: Batch) -> Tensor:
        """Logits (B, T, V) for the `target_out` of a batch."""
        raise NotImplementedError

    def hidden(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """The last hidden states (N, D) from which tokens are predicted, and these tokens (N,).

        A token <pad> is none: it counts for nothing.
        """
        raise NotImplementedError

    def loss(self, batch: Batch, smoothing: float = 0.0) -> Sums:
        """Cross-entropy, summed over the predicted tokens only."""
        hidden, targets = self.hidden(batch)
        loss, nll, correct = self._sums(hidden, targets, smoothing)
        return Sums(loss, nll, correct, batch.tokens)

    def _sums(self, hidden: Tensor, targets: Tensor, smoothing: float) -> tuple[Tensor, ...]:
        """(loss, nll, correct) of hidden (N, D) and targets (N,), as in `Sums`."""
        return cross_entropy(
            hidden,
            self.out.weight,
            self.out.bias,
            targets,
            smoothing,
            ignore=PAD,
            compiled=self.compiled,
        )

    def rdrop(self, batch: Batch, smoothing: float, weight: float) -> Sums:
        """R-Drop (Liang et al. 2021): two passes over the batch, with different dropout.

        The loss is the mean of the two, plus weight/2 times the mean of the two KL divergences
        between what they predict.
        """
        hidden, targets = self.hidden(_twice(batch))  # (2N, D), (2N,)
        loss, nll, correct = self._sums(hidden, targets, smoothing)
        logits = self.output(hidden)  # (2N, V)
        logprobs = logits.to(at_least_single(logits.dtype)).log_softmax(-1)  # (2N, V)
        first, second = logprobs.chunk(2)  # (N, V) each

        # KL(p, q) + KL(q, p) = Σ (p - q) (log p - log q)
        both_ways = ((first.exp() - second.exp()) * (first - second)).sum(-1)  # (N,)
        real = targets[: len(first)] != PAD  # (N,)
        divergence = (both_ways * real).sum() / 2
        return Sums((loss + weight * divergence) / 2, nll / 2, correct / 2, batch.tokens)


def _twice(batch: Batch) -> Batch:
    """The sentences of a batch twice, one copy after the other."""
    layouts = batch.layouts
    if layouts is not None:
        layouts = (layouts[0].twice(), layouts[1].twice())
    tensors: dict[str, Any] = {name: torch.cat([x, x]) for name, x in batch.by_sentence().items()}
    return replace(batch, **tensors, layouts=layouts)


def summed_loss(logits: Tensor, targets: Tensor, smoothing: float = 0.0) -> Sums:
    """The loss of logits (N, V) for targets (N,), summed.

    Label smoothing s: (1 − s) times the loss of the reference, plus s times the mean loss over the
    vocabulary. This is the formula; `cross_entropy` computes the same, faster.
    """
    logprobs = logits.to(at_least_single(logits.dtype)).log_softmax(-1)  # (N, V)
    nll = -logprobs.gather(-1, targets[:, None]).sum()
    loss = nll
    if smoothing != 0:
        loss = (1 - smoothing) * nll - smoothing * logprobs.mean(-1).sum()
    correct = (logits.detach().argmax(-1) == targets).sum()
    return Sums(loss, nll.detach(), correct, len(targets))
