"""Linformer: a few learned mixtures of the keys stand for all of them."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.errors import UserError
from regard.nn.masks import Mask
from regard.nn.patterns.approximation import Approximation, within_lengths
from regard.nn.patterns.pattern import at_least
from regard.nn.precision import at_least_single


class Linformer(Approximation):
    """softmax(q (E k)ᵀ) E v, with a learned E of K × max_positions (Wang et al. 2020, eq. 7).

    One matrix for keys and values and for all heads (their "key-value sharing"). A row of length L
    uses its first L columns, times √(max_positions / L): E is drawn with variance 1 /
    max_positions, so that a mixture of independent keys has the variance of one key, whatever the
    length. At full length this is the paper's formula.

    The weights are over the K mixtures. A mixture holds only keys that its query may look at, so
    that the readable formula is right for every mask; padding is nothing in it.
    """

    weighs_tokens = False
    piece = 2048
    """Queries that are computed at a time."""

    def __init__(self, heads: int, width: int, *, max_positions: int, mixtures: int = 128) -> None:
        """heads, width: as for the other approximations; E depends on neither."""
        super().__init__(heads, width)
        at_least("max_positions", max_positions, 1)
        at_least("mixtures", mixtures, 1)
        self.max_positions = max_positions
        self.projection = nn.Parameter(torch.empty(mixtures, max_positions))  # E: (K, max)
        nn.init.normal_(self.projection, std=1.0 / math.sqrt(max_positions))

    def weights(self, query: Tensor, key: Tensor, mask: Mask, scale: float) -> Tensor:
        """Softmax over the mixtures: (B, H, T, K)."""
        # q·(E k) = E (q·k): the scores of keys are mixed, so that each query may have its own.
        projection = self._columns(key, mask)  # (K, S)
        allowed = mask.dense(query.shape[2], key.shape[2], key.device)  # (B or 1, 1 or H, T, S)
        scores = ((query * scale) @ key.mT).masked_fill(~allowed, 0.0)  # (B, H, T, S)
        mixed = self._factor(allowed, key) * scores @ projection.T  # (B, H, T, K)
        return mixed.softmax(-1).masked_fill(~allowed.any(-1, keepdim=True), 0.0)

    def pool(self, weights: Tensor, value: Tensor, mask: Mask) -> Tensor:
        """Weights of mixtures (B, H, T, K) and values (B, H, S, D) -> (B, H, T, D)."""
        projection = self._columns(value, mask)  # (K, S)
        allowed = mask.dense(weights.shape[2], value.shape[2], value.device)
        unmixed = (weights @ projection).masked_fill(~allowed, 0.0)  # (B, H, T, S)
        return self._factor(allowed, value) * unmixed @ value

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Mask, scale: float
    ) -> Tensor:
        projection = self._columns(key, mask)  # (K, S)
        real = within_lengths(mask, key)[..., None]  # (B, H, S, 1)
        factor = self._factor(real.mT, key)  # (B, H, 1, 1)
        keys = factor * (projection @ key.masked_fill(~real, 0.0))  # (B, H, K, D)
        values = factor * (projection @ value.masked_fill(~real, 0.0))  # (B, H, K, D)

        # Some thousand queries at a time: a CPU is slow with tensors that its caches do not hold.
        contexts = [
            (some @ keys.mT).softmax(-1) @ values  # zeros, if no key is real
            for some in (query * scale).split(self.piece, 2)
        ]
        return torch.cat(contexts, 2)  # (B, H, T, D)

    def _columns(self, key: Tensor, mask: Mask) -> Tensor:
        """E for keys or values (B, H, S, D): (K, S). Padding may go beyond the last column."""
        keys = key.shape[2]
        if keys > self.max_positions:
            lengths = mask.key_lengths
            longest = keys if lengths is None else int(lengths.max())
            if longest > self.max_positions:
                raise UserError(
                    f"a text of {longest} tokens is longer than the projection of Linformer: "
                    f"raise model.max_positions (now {self.max_positions})"
                )
        return F.pad(self.projection, (0, keys - self.max_positions)).to(key.dtype)

    def _factor(self, allowed: Tensor, like: Tensor) -> Tensor:
        """√(max_positions / L), where L keys are allowed: (…, S) -> (…, 1)."""
        length = allowed.sum(-1, keepdim=True).clamp(min=1).to(at_least_single(like.dtype))
        return (self.max_positions / length).sqrt().to(like.dtype)
