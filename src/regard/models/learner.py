"""What can be trained: a module that tells the summed loss of a batch of its own kind."""

from typing import Any, NamedTuple

from torch import Tensor, nn


class Sums(NamedTuple):
    """Sums over the predicted tokens of a batch, to be divided once for the whole step."""

    loss: Tensor
    """What is minimised (with label smoothing)."""
    nll: Tensor
    """Negative log-likelihood of the references."""
    correct: Tensor
    """How many tokens are predicted right."""
    tokens: int
    """`batch.tokens`."""


class Learner(nn.Module):
    """Base class of models that the trainer can train: they compute a loss from a batch.

    The trainer uses only what `regard.training.batch.TrainingBatch` declares of a batch.
    """

    compiled = False
    """Whether the blocks and the loss are compiled."""

    def loss(self, batch: Any, smoothing: float = 0.0) -> Sums:
        """The loss of a batch, summed over the tokens that it predicts."""
        raise NotImplementedError

    def rdrop(self, batch: Any, smoothing: float, weight: float) -> Sums:
        """The loss of a batch with R-Drop (`train.rdrop`)."""
        raise NotImplementedError
