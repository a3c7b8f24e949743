"""What the trainer asks of a batch. What the batch holds is between the data and the model."""

from collections.abc import Callable
from typing import Protocol, Self

import torch
from torch import Tensor


class TrainingBatch(Protocol):
    """A part of a training step: pairs of texts, documents, or what else a model learns from."""

    @property
    def tokens(self) -> int:
        """Tokens that are predicted; the loss of a step is divided by their sum.

        Where several processes share a batch, this is the number of the whole batch.
        """
        ...

    @property
    def device(self) -> torch.device: ...

    @property
    def size(self) -> int:
        """Rows."""
        ...

    @property
    def tokens_read(self) -> int:
        """Tokens that the model reads, for figures of speed: for pairs, those of both sides."""
        ...

    @property
    def padded_tokens(self) -> int:
        """Tokens with all padding: what memory is needed for."""
        ...

    def count_examples(self) -> Tensor:
        """Examples, counted on the device; rows that only fill up a shape are none."""
        ...

    def to(self, device: torch.device | str) -> Self: ...

    def split(self) -> list[Self]:
        """Two halves, or itself if there is one row only. The batch is on the CPU."""
        ...


Feed = Callable[[int], TrainingBatch]
"""batch(step)"""


class Supply(Protocol):
    """All batches of an epoch: what a forecast asks before training begins."""

    @property
    def per_epoch(self) -> int:
        """Batches."""
        ...

    def count_tokens(self) -> int:
        """Tokens that the model reads in an epoch."""
        ...

    def longest(self, step: int) -> TrainingBatch:
        """A batch of the longest examples, as they are at this step."""
        ...
