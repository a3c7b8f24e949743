"""Attention inside clusters, as in the Routing Transformer."""

import math
from typing import TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

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

    w = 2 · ⌈L / C⌉ for the L real keys of a row, so neither the batch nor padding changes it. The
    work is T · w: with a fixed C it still grows with T · S, divided by C / 2.

    Centroids are parameters, not running averages. Which keys they take has no derivative, so the
    output leaves them as they were drawn; what moves them is `distance`, added to the loss.
    """

    overlap = 2
    """How many clusters take a key, on average."""

    def __init__(self, heads: int, width: int, *, clusters: int = 32) -> None:
        """width: that of a head."""
        super().__init__(heads, width)
        at_least("clusters", clusters, 1)
        self.centroids = nn.Parameter(torch.randn(heads, clusters, width))  # (H, C, D)

    def weights(self, query: Tensor, key: Tensor, mask: Mask, scale: float) -> Tensor:
        taken, hidden = self._take(key, sorted_together("Routing", mask, key))  # (B, H, C, W)
        shape = (*taken.shape[:3], key.shape[2])  # (B, H, C, S)
        takes = torch.zeros(shape, dtype=torch.bool, device=key.device).scatter(-1, taken, ~hidden)

        cluster = self._cosines(query).argmax(-1)  # (B, H, T)
        seen = takes.gather(2, cluster[..., None].expand(-1, -1, -1, key.shape[2]))  # (B, H, T, S)
        return masked_softmax((query * scale) @ key.mT, seen)

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Mask, scale: float
    ) -> Tensor:
        taken, hidden = self._take(key, sorted_together("Routing", mask, key))  # (B, H, C, W)
        taken = taken.flatten(0, 1)  # (N, C, W), N = B · H
        hidden = hidden.flatten(0, 1)  # (N, C, W)
        cluster = self._cosines(query).argmax(-1).flatten(0, 1)  # (N, T)
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

    def distance(self, x: Tensor) -> Tensor:
        """1 − the cosine of each query or key (B, H, T, D) and its centroid: (B, H, T).

        Its mean over real tokens is the loss of k-means on the sphere, whose descent stands for the
        paper's running averages (4.1). Only the centroids get a gradient.
        """
        return 1 - self._cosines(x).amax(-1)

    # ---- who sees whom ----

    def _cosines(self, x: Tensor) -> Tensor:
        """The cosine of each query or key (B, H, T, D) and each centroid: (B, H, T, C)."""
        with as_given(x.device.type):
            x = F.normalize(x.detach().to(at_least_single(x.dtype)), dim=-1)
            return x @ F.normalize(self.centroids.to(x.dtype), dim=-1).mT

    def _take(self, key: Tensor, real: Tensor) -> tuple[Tensor, Tensor]:
        """The keys that each centroid takes, and which of them are hidden: (B, H, C, W) each.

        key (B, H, S, D), real (B, H, S). A shorter row hides the last of its W.
        """
        keys = key.shape[2]
        width = min(keys, self._keys_taken(keys))
        cosines = self._cosines(key).detach().masked_fill(~real[..., None], -math.inf)
        taken = cosines.mT.topk(width, dim=-1).indices  # (B, H, C, W)

        length = real.sum(-1)  # (B, H)
        visible = torch.minimum(length, self._keys_taken(length))[..., None, None]  # (B, H, 1, 1)
        hidden = torch.arange(width, device=real.device) >= visible  # (B, H, 1, W)
        return taken, hidden.expand_as(taken)

    def _keys_taken(self, length: Count) -> Count:
        """2 · ⌈length / C⌉."""
        clusters = self.centroids.shape[1]
        return self.overlap * ((length + clusters - 1) // clusters)
