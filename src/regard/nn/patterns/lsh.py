"""Attention among neighbours by locality-sensitive hashing, as in the Reformer."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor

from regard.nn.masks import Mask, masked_softmax
from regard.nn.patterns.approximation import Approximation, sorted_together
from regard.nn.patterns.groups import Groups, rows_of, some_rows
from regard.nn.patterns.pattern import at_least
from regard.nn.precision import as_given, at_least_single


class LSH(Approximation):
    """A query looks only at keys that random rotations send the same way (Kitaev et al. 2020, 2).

    In each round, the bucket of x is the largest of [xR; −xR], whatever the length of x. The real
    keys of a row are ordered by bucket, and in a bucket by place, and cut into chunks. A query
    looks at the chunk in which its own bucket and place belong, and at the two beside it; the
    softmax is over all keys that it sees in any round.

    Unlike in the Reformer, queries and keys are not the same, so queries are looked up in the order
    of the keys, rather than ordered themselves. So a query depends on no other query, each one sees
    a key, and there may be more or fewer queries than keys. The number of buckets comes from the
    number of real keys, about a chunk in each: neither the batch nor padding changes a row.
    """

    most_rotations = 64
    """With more keys than 64² chunks hold, buckets grow instead of becoming more."""

    def __init__(
        self, heads: int, width: int, *, chunk: int = 64, rounds: int = 2, seed: int = 0
    ) -> None:
        """width: that of a head. The same settings draw the same rotations."""
        super().__init__(heads, width)
        at_least("chunk", chunk, 1)
        at_least("rounds", rounds, 1)
        self.chunk = chunk
        self.rounds = rounds
        generator = torch.Generator().manual_seed(seed)
        size = (rounds, heads, width, self.most_rotations)
        self.rotations: Tensor  # (rounds, H, D, R)
        self.register_buffer("rotations", torch.randn(size, generator=generator), persistent=False)

    def applies(self, mask: Mask, queries: int, keys: int) -> bool:
        """Not for short texts, whose queries see nearly all keys."""
        return super().applies(mask, queries, keys) and keys > 3 * self.chunk

    def weights(self, query: Tensor, key: Tensor, mask: Mask, scale: float) -> Tensor:
        real = sorted_together("LSH", mask, key)  # (B, H, S)
        seen = torch.zeros_like(real)[:, :, None]  # (B, H, 1, S)
        for chunks in self._rounds(query, key, real):
            near_by = near(chunks.of_query[..., None], chunks.of_key[:, :, None])  # (B, H, T, S)
            seen = seen | near_by

        return masked_softmax((query * scale) @ key.mT, seen & real[:, :, None])

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Mask, scale: float
    ) -> Tensor:
        real = sorted_together("LSH", mask, key)  # (B, H, S)
        rounds = [chunks.flatten() for chunks in self._rounds(query, key, real)]
        q = query.flatten(0, 1) * scale  # (N, T, D), N = B · H
        k = key.flatten(0, 1)  # (N, S, D)
        v = value.flatten(0, 1)  # (N, S, D)

        contexts = []
        for rows in some_rows(len(q), scores=3 * self.chunk * q.shape[1]):
            chosen = [chunks.of_rows(rows) for chunks in rounds]
            contexts.append(self._pool_rounds(q[rows], k[rows], v[rows], chosen))
        return torch.cat(contexts).unflatten(0, query.shape[:2])

    def _pool_rounds(self, q: Tensor, k: Tensor, v: Tensor, rounds: "list[Chunks]") -> Tensor:
        """What queries (N, T, D) pool of the keys that they see in any round: (N, T, D)."""
        numerators = []
        denominators = []
        largest = []
        for chunks in rounds:
            numerator, denominator, top = self._sum_round(q, k, v, chunks, rounds)
            numerators.append(numerator)  # (N, T, D)
            denominators.append(denominator)  # (N, T, 1)
            largest.append(top)  # (N, T, 1)

        tops = torch.stack(largest)  # (rounds, N, T, 1)
        factor = (tops - tops.amax(0)).exp()
        numerator = (factor * torch.stack(numerators)).sum(0)  # (N, T, D)
        denominator = (factor * torch.stack(denominators)).sum(0)  # (N, T, 1)
        context = numerator / denominator.masked_fill(denominator == 0, 1.0)  # 0 without keys
        return context.to(v.dtype)

    def _sum_round(
        self, q: Tensor, k: Tensor, v: Tensor, chunks: "Chunks", rounds: "list[Chunks]"
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Σ exp(score) v (N, T, D) and Σ exp(score) (N, T, 1) over what queries see in one round.

        Both are divided by the exp of the third. A key that a query sees in n rounds counts as 1/n
        of a key in each.
        """
        groups = Groups.of(chunks.of_query.long(), -(-k.shape[1] // self.chunk), self.chunk)
        three = torch.arange(-self.chunk, 2 * self.chunk, device=k.device)  # (3W,)
        rank = groups.group[..., None] * self.chunk + three  # (N, P, 3W)
        hidden = (rank < 0) | (rank >= chunks.length[:, None, None])  # (N, P, 3W)
        index = rows_of(chunks.order, rank.clamp(0, k.shape[1] - 1))  # (N, P, 3W)

        times = torch.ones(1, dtype=torch.uint8, device=k.device)  # this round itself
        for other in rounds:
            if other is not chunks:
                of_query = groups.split(other.of_query)[..., None]  # (N, P, W, 1)
                of_key = rows_of(other.of_key, index)[:, :, None]  # (N, P, 1, 3W)
                times = times + near(of_query, of_key)  # (N, P, W, 3W)

        scores = groups.split(q) @ rows_of(k, index).mT  # (N, P, W, 3W)
        scores = scores.to(at_least_single(scores.dtype))
        scores = scores.masked_fill(hidden[:, :, None], torch.finfo(scores.dtype).min)
        top = scores.detach().amax(-1, keepdim=True)  # (N, P, W, 1)
        parts = (scores - top).exp().masked_fill(hidden[:, :, None], 0.0) / times
        numerator = parts.to(v.dtype) @ rows_of(v, index)  # (N, P, W, D)
        denominator = parts.sum(-1, keepdim=True)  # (N, P, W, 1)
        return groups.join(numerator), groups.join(denominator), groups.join(top)

    # ---- who sees whom ----

    def _rounds(self, query: Tensor, key: Tensor, real: Tensor) -> "list[Chunks]":
        """The chunks of queries (B, H, T, D) and keys (B, H, S, D) in each round."""
        length = real.sum(-1)  # (B, H)
        places = max(query.shape[2], key.shape[2])
        rounds = []
        for rotations in self.rotations:
            query_code = self._bucket(query, rotations, length, key.shape[2]) * places
            query_code = query_code + torch.arange(query.shape[2], device=key.device)  # (B, H, T)
            key_code = self._bucket(key, rotations, length, key.shape[2]) * places
            key_code = key_code + torch.arange(key.shape[2], device=key.device)  # (B, H, S)
            rounds.append(Chunks.of(query_code, key_code, real, self.chunk))
        return rounds

    def _bucket(self, x: Tensor, rotations: Tensor, length: Tensor, keys: int) -> Tensor:
        """The bucket of each x (B, H, T, D) in rows of so many real keys (B, H): (B, H, T).

        Two hashes of 2 · n values each make 4 · n² buckets, by 2 · n rotations (as in the paper's
        code, for many buckets).
        """
        count = self._count_rotations(length)[..., None, None]  # (B, H, 1, 1)
        most = int(self._count_rotations(torch.tensor(keys)))
        first, second = rotations.chunk(2, dim=-1)  # (H, D, R) each
        high = _largest_direction(x, first[..., :most], count)  # (B, H, T)
        low = _largest_direction(x, second[..., :most], count)  # (B, H, T)
        return high * (2 * most) + low

    def _count_rotations(self, length: Tensor) -> Tensor:
        """n, so that 4 · n² buckets are about as many as chunks."""
        chunks = (length + self.chunk - 1) // self.chunk
        count = (chunks / 4).sqrt().ceil().long()
        return count.clamp(1, self.most_rotations // 2)


def _largest_direction(x: Tensor, rotations: Tensor, count: Tensor) -> Tensor:
    """The largest of [xR; −xR] by its number: x (B, H, T, D) -> (B, H, T).

    rotations (H, D, R), of which each row uses the first (B, H, 1, 1).
    """
    rotations = rotations.to(at_least_single(x.dtype))
    with as_given(x.device.type):
        turned = x.detach().to(rotations.dtype) @ rotations  # (B, H, T, R)
    unused = torch.arange(rotations.shape[-1], device=x.device) >= count  # (B, H, 1, R)
    both = [side.masked_fill(unused, -math.inf) for side in (turned, -turned)]
    return torch.cat(both, dim=-1).argmax(-1)


@dataclass(frozen=True)
class Chunks:
    """In which chunk the keys of a row are in one round, and its queries would be."""

    order: Tensor
    """(B, H, S): the keys in the order of their codes, padding last."""
    length: Tensor
    """(B, H): how many of them are real."""
    of_key: Tensor
    """(B, H, S)"""
    of_query: Tensor
    """(B, H, T)"""

    @classmethod
    def of(cls, query_code: Tensor, key_code: Tensor, real: Tensor, chunk: int) -> Self:
        """Chunks by codes of queries (B, H, T) and keys (B, H, S), all different among the keys."""
        key_code = key_code.masked_fill(~real, torch.iinfo(key_code.dtype).max)
        codes, order = key_code.sort(-1)
        places = torch.arange(order.shape[-1], device=order.device).expand_as(order)
        rank = torch.zeros_like(order).scatter(-1, order, places)  # (B, H, S)

        length = real.sum(-1)  # (B, H)
        last = (length - 1).clamp(min=0)[..., None]  # (B, H, 1)
        query_rank = torch.searchsorted(codes, query_code).minimum(last)  # (B, H, T)
        return cls(order, length, (rank // chunk).int(), (query_rank // chunk).int())

    def flatten(self) -> Self:
        """(N, …) in place of (B, H, …)."""
        return self._changed(lambda x: x.flatten(0, 1))

    def of_rows(self, rows: slice) -> Self:
        """Those of some rows, of flattened ones."""
        return self._changed(lambda x: x[rows])

    def _changed(self, change: Callable[[Tensor], Tensor]) -> Self:
        tensors = (self.order, self.length, self.of_key, self.of_query)
        order, length, of_key, of_query = map(change, tensors)
        return replace(self, order=order, length=length, of_key=of_key, of_query=of_query)


def near(one: Tensor, other: Tensor) -> Tensor:
    """Whether two chunks are the same or side by side."""
    return (one - other).abs() <= 1
