"""What every pattern of sparse attention has in common."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from regard.errors import UserError

LEAST_BLOCK = 16
"""The fewest tokens that are worth a block of their own."""


@dataclass(frozen=True)
class Pattern:
    """Which keys a query may look at, by where the two stand in their text.

    It comes on top of what a `Mask` hides anyway: padding and, in a decoder, the future. A query
    may always look at itself. `allows` is the definition. `key_blocks` says the same of whole
    blocks of tokens, so that attention can be computed without a matrix of all queries and keys.
    """

    sees_whole_blocks: ClassVar[bool] = False
    """Whether a token sees every token of the blocks that `key_blocks` names for its own."""

    @property
    def block(self) -> int:
        """How many tokens a block has."""
        raise NotImplementedError

    @property
    def global_tokens(self) -> int:
        """How many tokens, from the first on, every token sees, and see every token."""
        return 0

    def allows(self, query: Tensor, key: Tensor, lengths: Tensor) -> Tensor:
        """Whether a query may look at a key: bool, of the shape that the three broadcast to.

        query, key: places in the text, counted from 0. lengths: tokens of the text.
        """
        raise NotImplementedError

    def key_blocks(self, query_blocks: Tensor, lengths: Tensor) -> Tensor:
        """The blocks of keys that some token of a block of queries may look at.

        query_blocks (N,), lengths (B,) or (1,) -> (B or 1, N, M). A number that is no block, such
        as -1, stands for none. Blocks of global tokens need not be named.
        """
        raise NotImplementedError

    def is_forgotten(self, key: Tensor, place: Tensor) -> Tensor:
        """Whether no token from this place on may look at a key, if all look back only.

        key, place: places that broadcast to one shape.
        """
        return torch.zeros_like(key < place)


def at_least(name: str, value: int, least: int) -> None:
    """Refuse a number that makes no pattern."""
    if value < least:
        raise UserError(f"{name}={value}: must be at least {least}")


def nearby_blocks(query_blocks: Tensor, before: int, after: int) -> Tensor:
    """The blocks around each of (N,), itself included: (1, N, before + 1 + after)."""
    steps = torch.arange(-before, after + 1, device=query_blocks.device)
    return (query_blocks[:, None] + steps)[None]
