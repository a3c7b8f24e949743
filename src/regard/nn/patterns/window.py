"""A sliding window, with global tokens (Beltagy et al. 2020, Longformer)."""

from dataclasses import dataclass

from torch import Tensor

from regard.nn.patterns.pattern import LEAST_BLOCK, Pattern, at_least, nearby_blocks


@dataclass(frozen=True)
class Window(Pattern):
    """A token sees the `width` tokens on each side of it, and the global ones.

    The first `global_tokens` tokens see everything, and everything sees them.
    """

    width: int
    global_tokens: int = 0

    def __post_init__(self) -> None:
        at_least("width", self.width, 0)
        at_least("global_tokens", self.global_tokens, 0)

    @property
    def block(self) -> int:
        return max(self.width, LEAST_BLOCK)

    def allows(self, query: Tensor, key: Tensor, lengths: Tensor) -> Tensor:
        is_near = (query - key).abs() <= self.width
        if not self.global_tokens:
            return is_near
        return is_near | (query < self.global_tokens) | (key < self.global_tokens)

    def key_blocks(self, query_blocks: Tensor, lengths: Tensor) -> Tensor:
        return nearby_blocks(query_blocks, 1, 1)

    def is_forgotten(self, key: Tensor, place: Tensor) -> Tensor:
        return (key < place - self.width) & (key >= self.global_tokens)
