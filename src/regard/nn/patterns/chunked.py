"""Attention within chunks of the text, alone or with the chunks beside them."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from regard.nn.patterns.pattern import Pattern, at_least, nearby_blocks


@dataclass(frozen=True)
class Chunked(Pattern):
    """The text is cut into chunks of `width` tokens, and a token sees its own chunk.

    neighbors: how many chunks to each side it sees as well. With 0, nothing ever passes from one
    chunk to another.
    """

    sees_whole_blocks: ClassVar[bool] = True

    width: int
    neighbors: int = 0

    def __post_init__(self) -> None:
        at_least("width", self.width, 1)
        at_least("neighbors", self.neighbors, 0)

    @property
    def block(self) -> int:
        return self.width

    def allows(self, query: Tensor, key: Tensor, lengths: Tensor) -> Tensor:
        apart = query // self.width - key // self.width
        return apart.abs() <= self.neighbors

    def key_blocks(self, query_blocks: Tensor, lengths: Tensor) -> Tensor:
        return nearby_blocks(query_blocks, self.neighbors, self.neighbors)

    def is_forgotten(self, key: Tensor, place: Tensor) -> Tensor:
        return key // self.width < place // self.width - self.neighbors
