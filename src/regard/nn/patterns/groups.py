"""Queries that look at the same keys, side by side in blocks of one size."""

from dataclasses import dataclass
from typing import Self

import torch
import torch.nn.functional as F
from torch import Tensor

MOST_SCORES = 2**22
"""Scores that are computed at a time."""


@dataclass(frozen=True)
class Groups:
    """P blocks of W slots, each for queries of one group.

    A group fills as many blocks as it needs, and leaves the rest of its last one empty. So T
    queries of G groups fit into P = T/W + G blocks, however they are distributed.
    """

    slot: Tensor
    """(N, T): the slot of each query among the P · W."""
    query: Tensor
    """(N, P · W): the query in each slot; that of an empty slot is query 0, and nobody reads it."""
    group: Tensor
    """(N, P): the group of each block; that of an empty block is group 0."""

    @classmethod
    def of(cls, group: Tensor, groups: int, width: int) -> Self:
        """The blocks for queries of these groups (N, T), each in 0 … groups − 1."""
        rows, queries = group.shape
        members = group.new_zeros(rows, groups).scatter_add(1, group, torch.ones_like(group))
        needed = (members + width - 1) // width  # (N, G): blocks of each group
        first_member = members.cumsum(1) - members  # (N, G): the first of a group, in order
        first_block = needed.cumsum(1) - needed  # (N, G)

        order = group.argsort(dim=1, stable=True)  # (N, T)
        ordered = group.gather(1, order)  # (N, T)
        place = torch.arange(queries, device=group.device) - first_member.gather(1, ordered)
        slot = first_block.gather(1, ordered) * width + place  # (N, T), of queries in order

        blocks = queries // width + groups
        return cls(
            slot=torch.zeros_like(slot).scatter(1, order, slot),
            query=slot.new_zeros(rows, blocks * width).scatter(1, slot, order),
            group=slot.new_zeros(rows, blocks).scatter(1, slot // width, ordered),
        )

    @property
    def width(self) -> int:
        """W, the slots of a block."""
        return self.query.shape[1] // self.group.shape[1]

    def split(self, x: Tensor) -> Tensor:
        """What belongs to queries, (N, T, …) -> (N, P, W, …)."""
        return rows_of(x, self.query).unflatten(1, (-1, self.width))

    def join(self, x: Tensor) -> Tensor:
        """(N, P, W, …) -> (N, T, …)."""
        return rows_of(x.flatten(1, 2), self.slot)


def rows_of(x: Tensor, index: Tensor) -> Tensor:
    """Rows of x (N, S) or (N, S, D) by an index (N, …): (N, …), or (N, …, D)."""
    if x.dim() == 2:
        return x.gather(1, index.flatten(1)).view(index.shape)
    rows, length, width = x.shape
    first = torch.arange(rows, device=x.device) * length
    first = first.reshape(-1, *(1,) * (index.dim() - 1))
    # As an embedding: the gradient of x[row, index] differs between runs on two threads.
    return F.embedding(index + first, x.reshape(rows * length, width))


def some_rows(rows: int, scores: int) -> list[slice]:
    """All rows, some at a time; one has so many scores.

    A CPU is slow with tensors so large that it must ask for their memory each time.
    """
    at_once = max(1, MOST_SCORES // max(1, scores))
    return [slice(start, start + at_once) for start in range(0, max(1, rows), at_once)]
