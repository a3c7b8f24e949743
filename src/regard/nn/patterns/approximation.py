"""The common door of attentions that do not compare every query with every key."""

import torch
from torch import Tensor, nn

from regard.errors import UserError
from regard.nn.masks import Mask


class Approximation(nn.Module):
    """Base class of approximations of softmax(scale · q·k) v.

    Each is written twice. `weights` and `pool` are the readable formula, which may take memory for
    T × S. `forward` is its fast twin: the same numbers without T × S, for the masks that `applies`
    accepts.
    """

    causal = False
    """Whether the fast twin can hide the future, as a decoder needs it."""
    weighs_tokens = True
    """Whether the weights are those of keys, one for each."""

    def __init__(self, heads: int, width: int) -> None:
        """width: that of a head."""
        super().__init__()
        self.heads = heads
        self.width = width

    def applies(self, mask: Mask, queries: int, keys: int) -> bool:
        """Whether `forward` knows this mask; if not, `pool(weights(…), …)` does."""
        return only_padding(mask)

    def weights(self, query: Tensor, key: Tensor, mask: Mask, scale: float) -> Tensor:
        """The weights with which queries (B, H, T, D) pool the values of keys (B, H, S, D).

        (B, H, T, S), exactly 0 where masked; a query that may look at nothing gets zeros.
        """
        raise NotImplementedError

    def pool(self, weights: Tensor, value: Tensor, mask: Mask) -> Tensor:
        """Weights (B, H, T, S) and values (B, H, S, D) -> (B, H, T, D)."""
        return weights @ value

    @property
    def bytes_of_key(self) -> int:
        """Bytes for each cached key, beside its weights, while a new token is decoded."""
        return 0

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Mask, scale: float
    ) -> Tensor:
        """`pool(weights(query, key, mask, scale), value, mask)`, without T × S: (B, H, T, D)."""
        raise NotImplementedError


def only_padding(mask: Mask) -> bool:
    """Whether the mask hides nothing but keys beyond the length of their row."""
    restricted = mask.causal or mask.pattern is not None or mask.extra is not None
    return not restricted and has_row_lengths(mask)


def has_row_lengths(mask: Mask) -> bool:
    """Whether the lengths in this mask, if any, are those of whole rows, (B,)."""
    return mask.key_lengths is None or mask.key_lengths.dim() == 1


def within_lengths(mask: Mask, key: Tensor) -> Tensor:
    """Which keys (B, H, S, D) are not padding, by the lengths of their rows: (B, H, S)."""
    place = torch.arange(key.shape[2], device=key.device)  # (S,)
    if mask.key_lengths is None:
        real = torch.ones_like(place, dtype=torch.bool)
    else:
        real = place < mask.key_lengths.to(key.device)[:, None, None]  # (B, 1, S)
    return real.expand(key.shape[:3])


def sorted_together(name: str, mask: Mask, key: Tensor) -> Tensor:
    """The keys (B, H, S, D) that a method may sort: (B, H, S), False for padding.

    Which keys a query then sees depends on all of them. So keys that are hidden from some queries
    only, such as those of the future, are refused.
    """
    if not only_padding(mask):
        raise UserError(
            f"{name} sorts all tokens of a text together, so only padding can be hidden, not some "
            f"tokens from some others: leave out the mask, or use Performer or a pattern"
        )
    return within_lengths(mask, key)
