"""Performer: the softmax kernel by random features, in time and memory linear in the length."""

import math
from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor

from regard.nn.masks import Mask, masked_softmax
from regard.nn.patterns.approximation import Approximation, has_row_lengths, within_lengths
from regard.nn.patterns.pattern import at_least
from regard.nn.precision import as_given, at_least_single


class Performer(Approximation):
    """Positive orthogonal random features, FAVOR+ (Choromanski et al. 2021, lemma 1 and 2.4).

    exp(q·k) is the expectation of φ(q)·φ(k), φ(x)ᵢ = exp(wᵢ·x − |x|²/2) / √m, over normal w. With m
    features drawn once, attention is φ(q)·Σφ(k)v / φ(q)·Σφ(k), whose sums are shared by all
    queries.

    Features are kept as logarithms until something is known to subtract from them. A factor of a
    query is in the numerator and in the denominator, so its |q|²/2 and 1/√m are left out.
    """

    causal = True
    chunk = 64
    """Tokens whose past is summed up at a time, where the future is hidden."""
    piece = 2048
    """The same where it is not."""

    def __init__(self, heads: int, width: int, *, features: int = 256, seed: int = 0) -> None:
        """width: that of a head. The same settings draw the same features."""
        super().__init__(heads, width)
        at_least("features", features, 1)
        generator = torch.Generator().manual_seed(seed)
        drawn = [orthogonal_features(features, width, generator) for _ in range(heads)]
        self.directions: Tensor  # (H, D, m)
        self.register_buffer("directions", torch.stack(drawn).mT.contiguous(), persistent=False)

    def applies(self, mask: Mask, queries: int, keys: int) -> bool:
        if mask.pattern is not None or mask.extra is not None or not has_row_lengths(mask):
            return False
        return not mask.causal or (mask.offset == 0 and queries == keys)

    def weights(self, query: Tensor, key: Tensor, mask: Mask, scale: float) -> Tensor:
        """softmax(log φ(q)·φ(k)): (B, H, T, S)."""
        with as_given(query.device.type):
            q = self._query_features(query, scale)  # (B, H, T, m)
            k = self._key_features(key, scale)  # (B, H, S, m)
            return masked_softmax(log_product(q, k), mask).to(query.dtype)

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Mask, scale: float
    ) -> Tensor:
        real = within_lengths(mask, key)  # (B, H, S)
        with as_given(query.device.type):
            q = self._query_features(query, scale)  # (B, H, T, m)
            k = self._key_features(key, scale)  # (B, H, S, m)
            pool = self._pool_past if mask.causal else self._pool_all
            return pool(q, k, value.to(q.dtype), real).to(value.dtype)  # (B, H, T, D)

    @property
    def bytes_of_key(self) -> int:
        return 3 * 4 * self.heads * self.directions.shape[-1]  # features, and two steps to them

    # ---- logarithms of features ----

    def _query_features(self, query: Tensor, scale: float) -> Tensor:
        """wᵢ·x: (B, H, T, D) -> (B, H, T, m)."""
        x = query.to(at_least_single(query.dtype)) * math.sqrt(scale)
        return x @ self.directions.to(x.dtype)

    def _key_features(self, key: Tensor, scale: float) -> Tensor:
        """wᵢ·x − |x|²/2: (B, H, S, D) -> (B, H, S, m)."""
        x = key.to(at_least_single(key.dtype)) * math.sqrt(scale)
        return x @ self.directions.to(x.dtype) - x.square().sum(-1, keepdim=True) / 2

    # ---- sums of features ----

    def _pool_all(self, q: Tensor, k: Tensor, value: Tensor, real: Tensor) -> Tensor:
        """Every query looks at every real key; real: (B, H, S).

        Some thousand tokens at a time: a CPU is slow with tensors that its caches do not hold.
        """
        sums = FeatureSums.empty(k, value)
        for keys in zip(*(x.split(self.piece, 2) for x in (k, value, real)), strict=True):
            sums = sums.plus(*keys)

        contexts = []
        for queries in q.split(self.piece, 2):
            numerator, denominator, _ = sums.read(queries)
            contexts.append(_divide(numerator, denominator))
        return torch.cat(contexts, dim=2)  # (B, H, T, D)

    def _pool_past(self, q: Tensor, k: Tensor, value: Tensor, real: Tensor) -> Tensor:
        """Query t looks at the real keys up to t: its own chunk in pairs, earlier ones as sums."""
        past = FeatureSums.empty(k, value)
        contexts = []
        for start in range(0, q.shape[2], self.chunk):
            place = slice(start, start + self.chunk)
            keys = (k[:, :, place], value[:, :, place], real[:, :, place])
            contexts.append(_pool_chunk(q[:, :, place], *keys, past))
            past = past.plus(*keys)
        return torch.cat(contexts, dim=2)  # (B, H, T, D)


@dataclass(frozen=True)
class FeatureSums:
    """Σφ(k) and Σφ(k)v over the keys so far.

    Each feature is divided by the largest that any of these keys has, and whoever reads gives it
    back to the query: a log-sum-exp for each feature. So nothing overflows, no sum over real keys
    is below 1, and a later key changes nothing.
    """

    largest: Tensor
    """(B, H, 1, m), as a logarithm."""
    keys: Tensor
    """(B, H, m, 1)"""
    values: Tensor
    """(B, H, m, D)"""

    @classmethod
    def empty(cls, k: Tensor, value: Tensor) -> Self:
        """The sums of no keys."""
        low = torch.finfo(k.dtype).min / 4  # not −∞, for −∞ − (−∞) is NaN
        size = (*k.shape[:2], k.shape[-1])  # (B, H, m)
        largest = k.new_full(size, low)[:, :, None]
        return cls(largest, k.new_zeros(*size, 1), k.new_zeros(*size, value.shape[-1]))

    def plus(self, k: Tensor, value: Tensor, real: Tensor) -> Self:
        """With more keys. k (B, H, S, m): logarithms; value (B, H, S, D); real (B, H, S)."""
        k = k.masked_fill(~real[..., None], -math.inf)
        largest = torch.maximum(self.largest, k.detach().amax(-2, keepdim=True))  # (B, H, 1, m)
        features = (k - largest).exp()  # (B, H, S, m)
        kept = (self.largest - largest).exp().mT  # (B, H, m, 1)

        keys = kept * self.keys + features.sum(-2)[..., None]
        values = kept * self.values + features.mT @ value
        return replace(self, largest=largest, keys=keys, values=values)

    def read(self, q: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Numerator (B, H, T, D), denominator (B, H, T, 1), and a logarithm both lack (B, H, T, 1).

        q (B, H, T, m): logarithms of features.
        """
        q = q + self.largest
        lacking = q.detach().amax(-1, keepdim=True)
        features = (q - lacking).exp()  # (B, H, T, m)
        return features @ self.values, features @ self.keys, lacking


def _pool_chunk(q: Tensor, k: Tensor, value: Tensor, real: Tensor, past: FeatureSums) -> Tensor:
    """A chunk of queries looks at the keys of that chunk up to its own, and at the past."""
    size = q.shape[2]
    order = torch.ones(size, size, dtype=torch.bool, device=q.device).tril()
    allowed = order & real[:, :, None, :]  # (B, H, T, T)

    numerator, denominator, lacking = past.read(q)
    logits = log_product(q, k).masked_fill(~allowed, -math.inf)  # (B, H, T, T)
    largest = torch.maximum(lacking, logits.detach().amax(-1, keepdim=True))  # (B, H, T, 1)
    weights = (logits - largest).exp()
    kept = (lacking - largest).exp()

    numerator = kept * numerator + weights @ value
    denominator = kept * denominator + weights.sum(-1, keepdim=True)
    return _divide(numerator, denominator)


def _divide(numerator: Tensor, denominator: Tensor) -> Tensor:
    """A denominator is at least 1, except that a query without keys has 0 / 0: zeros."""
    return numerator / denominator.masked_fill(denominator == 0, 1.0)


def log_product(q: Tensor, k: Tensor) -> Tensor:
    """log Σᵢ exp(qᵢ + kᵢ) of logarithms q (…, T, m) and k (…, S, m): (…, T, S).

    The largest feature of each query and of each key is set aside, and added at the end.
    """
    q_top = q.detach().amax(-1, keepdim=True)  # (…, T, 1)
    k_top = k.detach().amax(-1, keepdim=True)  # (…, S, 1)
    product = (q - q_top).exp() @ (k - k_top).exp().mT  # (…, T, S)
    tiny = torch.finfo(q.dtype).tiny  # a product that underflows
    return product.clamp(min=tiny).log() + q_top + k_top.mT


def orthogonal_features(features: int, width: int, generator: torch.Generator) -> Tensor:
    """Rows that are orthogonal in each block of `width`, long as normal vectors are: (m, D).

    Each row alone is normally distributed, so that the estimate has no bias, but rows of a block do
    not repeat each other (Choromanski et al. 2021, 2.4).
    """
    blocks = []
    for _ in range(0, features, width):
        normal = torch.randn(width, width, generator=generator, dtype=torch.float64)
        basis, upper = torch.linalg.qr(normal)
        blocks.append((basis * upper.diagonal().sign()).T)  # the signs make it unique

    lengths = torch.randn(features, width, generator=generator, dtype=torch.float64).norm(dim=-1)
    rows = torch.cat(blocks)[:features] * lengths[:, None]  # (m, D)
    return rows.to(torch.get_default_dtype())
