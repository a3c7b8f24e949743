"""Neighbouring, global and random blocks (Zaheer et al. 2020, BigBird)."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from regard.nn.patterns.pattern import Pattern, at_least, nearby_blocks


@dataclass(frozen=True)
class BigBird(Pattern):
    """A token sees its own block, the two beside it, some random blocks, and the global tokens.

    width: tokens of a block. random_blocks: how many, drawn once and for all for each block, among
    all blocks of the text or, causal, among those before it. All layers and heads have the same.
    """

    sees_whole_blocks: ClassVar[bool] = True

    width: int
    random_blocks: int = 2
    global_tokens: int = 0
    causal: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        at_least("width", self.width, 1)
        at_least("random_blocks", self.random_blocks, 0)
        at_least("global_tokens", self.global_tokens, 0)

    @property
    def block(self) -> int:
        return self.width

    def allows(self, query: Tensor, key: Tensor, lengths: Tensor) -> Tensor:
        query_block = query // self.width
        key_block = key // self.width
        allowed = (query_block - key_block).abs() <= 1
        if self.global_tokens:
            allowed = allowed | (query < self.global_tokens) | (key < self.global_tokens)
        for number in range(self.random_blocks):
            allowed = allowed | (key_block == self._random_block(query_block, number, lengths))
        return allowed

    def key_blocks(self, query_blocks: Tensor, lengths: Tensor) -> Tensor:
        near = nearby_blocks(query_blocks, 1, 1)  # (1, N, 3)
        drawn = [
            self._random_block(query_blocks[None], number, lengths[:, None])  # (B or 1, N)
            for number in range(self.random_blocks)
        ]
        if not drawn:
            return near
        far = torch.stack(drawn, -1)  # (B or 1, N, random_blocks)
        return torch.cat((near.expand(len(far), -1, -1), far), -1)

    def _random_block(self, query_block: Tensor, number: int, lengths: Tensor) -> Tensor:
        """A block for each block of queries, the same in every batch and at every step.

        -1 where there is none to choose from.
        """
        choices = query_block if self.causal else (lengths + self.width - 1) // self.width
        mixed = _mixed(query_block * (self.random_blocks + 1) + number + 1_000_003 * self.seed)
        block = mixed % choices.clamp(min=1)
        return torch.where(choices > 0, block, -1)


def _mixed(number: Tensor) -> Tensor:
    """A whole number from 0 on that looks random, made of another one.

    Multiplications that stay below 2**62, so that every device gives the same.
    """
    mixed = (number + 0x9E3779B9) % 2**31
    for factor in (0x45D9F3B, 0x119DE1F3):
        mixed = ((mixed ^ (mixed >> 15)) * factor) % 2**31
    return mixed ^ (mixed >> 15)
