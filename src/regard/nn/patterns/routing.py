"""Attention inside clusters, as in the Routing Transformer."""

import math
from typing import TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

from regard.nn.masks import Mask, masked_softmax
from regard.nn.patterns.approximation import Approximation, sorted_together
from regard.nn.patterns.groups import Groups, rows_of, some_rows
from regard.nn.patterns.pattern import at_least
from regard.nn.precision import as_given, at_least_single

Count = TypeVar("Count", int, Tensor)


class Routing(Approximation):
    """A query looks only at the keys nearest to its cluster's centroid (Roy et al. 2021, 4.1).

    Each of C centroids takes the w keys of the row that are most like it (by the cosine). A query
    goes to the one centroid most like itself and looks at what that took: so it depends on no other
    query, sees a key wherever there is one, and counts none twice. In the paper a centroid takes w
    queries too, and one that nobody takes sees nothing.

    w = 2 · ⌈L / C⌉ for the L real keys of a row, and at least 16. The work is T · w: with a fixed C
    it still grows with T · S, divided by C / 2.

    Centroids come from the keys of the row itself, by two rounds of k-means on the sphere that
    start with C keys at equal distances. The paper has running averages over training instead,
    which are a state beside the weights; these depend on neither the batch nor padding.
    """

    overlap = 2
    """How many clusters take a key, on average."""
    least = 16
    """The fewest keys that a centroid takes, if there are as many: few clusters suit short rows."""
    steps = 2
    """Rounds of k-means: in docs/log.md, 2026-11-18, more of them found nothing more."""

    def __init__(self, heads: int, width: int, *, clusters: int = 32) -> None:
        """width: that of a head."""
        super().__init__(heads, width)
        at_least("clusters", clusters, 1)
        self.clusters = clusters

    def weights(self, query: Tensor, key: Tensor, mask: Mask, scale: float) -> Tensor:
        real = sorted_together("Routing", mask, key)  # (B, H, S)
        centroids = self.centroids(key, real)  # (B, H, C, D)
        taken, hidden = self._take(key, real, centroids)  # (B, H, C, W)
        shape = (*taken.shape[:3], key.shape[2])  # (B, H, C, S)
        takes = torch.zeros(shape, dtype=torch.bool, device=key.device).scatter(-1, taken, ~hidden)

        cluster = cosines(query, centroids).argmax(-1)  # (B, H, T)
        seen = takes.gather(2, cluster[..., None].expand(-1, -1, -1, key.shape[2]))  # (B, H, T, S)
        return masked_softmax((query * scale) @ key.mT, seen)

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Mask, scale: float
    ) -> Tensor:
        real = sorted_together("Routing", mask, key)  # (B, H, S)
        centroids = self.centroids(key, real)  # (B, H, C, D)
        taken, hidden = self._take(key, real, centroids)  # (B, H, C, W)
        taken = taken.flatten(0, 1)  # (N, C, W), N = B · H
        hidden = hidden.flatten(0, 1)  # (N, C, W)
        cluster = cosines(query, centroids).argmax(-1).flatten(0, 1)  # (N, T)
        q = query.flatten(0, 1) * scale  # (N, T, D)
        k = key.flatten(0, 1)  # (N, S, D)
        v = value.flatten(0, 1)  # (N, S, D)
        contexts = [
            self._pool_clusters(q[rows], k[rows], v[rows], cluster[rows], taken[rows], hidden[rows])
            for rows in some_rows(len(q), scores=2 * q.shape[1] * taken.shape[2])
        ]
        return torch.cat(contexts).unflatten(0, query.shape[:2])

    def _pool_clusters(
        self, q: Tensor, k: Tensor, v: Tensor, cluster: Tensor, taken: Tensor, hidden: Tensor
    ) -> Tensor:
        """What queries (N, T, D) of clusters (N, T) pool of the keys that these took: (N, T, D)."""
        clusters = taken.shape[1]
        block = -(-q.shape[1] // clusters)  # then there are at most 2 · C blocks
        groups = Groups.of(cluster, clusters, block)
        index = rows_of(taken, groups.group)  # (N, P, W)
        visible = ~rows_of(hidden, groups.group)[:, :, None]  # (N, P, 1, W)
        keys = rows_of(k, index)  # (N, P, W, D)
        values = rows_of(v, index)  # (N, P, W, D)

        scores = groups.split(q) @ keys.mT  # (N, P, block, W)
        context = masked_softmax(scores, visible) @ values  # (N, P, block, D)
        return groups.join(context)

    # ---- who sees whom ----

    @torch.no_grad()
    def centroids(self, key: Tensor, real: Tensor) -> Tensor:
        """The directions in which the real keys of each row lie: (B, H, C, D), of length 1.

        key (B, H, S, D), real (B, H, S). No gradient: which keys are seen has none.
        """
        with as_given(key.device.type):
            x = _directions(key).masked_fill(~real[..., None], 0.0)  # (B, H, S, D)
            length = real.sum(-1, keepdim=True)  # (B, H, 1)
            places = torch.arange(self.clusters, device=key.device) * length // self.clusters
            centroids = x.gather(2, places[..., None].expand(-1, -1, -1, key.shape[3]))
            for _ in range(self.steps):
                nearest = (x @ centroids.mT).argmax(-1)  # (B, H, S)
                members = F.one_hot(nearest, self.clusters).to(x.dtype).mT  # (B, H, C, S)
                sums = members @ x  # (B, H, C, D): padding adds nothing
                is_empty = sums.norm(dim=-1, keepdim=True) == 0
                centroids = torch.where(is_empty, centroids, F.normalize(sums, dim=-1))
            return centroids

    def _take(self, key: Tensor, real: Tensor, centroids: Tensor) -> tuple[Tensor, Tensor]:
        """The keys that each centroid takes, and which of them are hidden: (B, H, C, W) each.

        key (B, H, S, D), real (B, H, S). A shorter row hides the last of its W.
        """
        keys = key.shape[2]
        width = min(keys, max(self.least, self._keys_taken(keys)))
        near = cosines(key, centroids).masked_fill(~real[..., None], -math.inf)  # (B, H, S, C)
        taken = near.mT.topk(width, dim=-1).indices  # (B, H, C, W)

        length = real.sum(-1)  # (B, H)
        most = self._keys_taken(length).clamp(min=self.least)  # (B, H)
        visible = torch.minimum(length, most)[..., None, None]  # (B, H, 1, 1)
        hidden = torch.arange(width, device=real.device) >= visible  # (B, H, 1, W)
        return taken, hidden.expand_as(taken)

    def _keys_taken(self, length: Count) -> Count:
        """2 · ⌈length / C⌉."""
        return self.overlap * ((length + self.clusters - 1) // self.clusters)


def cosines(x: Tensor, centroids: Tensor) -> Tensor:
    """The cosine of each query or key (B, H, T, D) and each centroid (B, H, C, D): (B, H, T, C)."""
    with as_given(x.device.type):
        return _directions(x) @ centroids.mT


def _directions(x: Tensor) -> Tensor:
    """Vectors of length 1, without a gradient."""
    return F.normalize(x.detach().to(at_least_single(x.dtype)), dim=-1)
