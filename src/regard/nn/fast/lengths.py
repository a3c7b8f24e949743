"""Attention of packed rows: each sentence alone, so that no work is spent on padding."""

import torch
from torch import Tensor

from regard.nn.masks import Layout


def by_length(
    q: Tensor, k: Tensor, v: Tensor, queries: Layout, keys: Layout, scale: float, causal: bool
) -> Tensor:
    """Attention of packed queries (N, H, D) over packed keys and values (M, H, D) -> (N, H, D).

    Flash attention of variable length: each sentence alone, on CUDA, in half precision. causal:
    only where queries and keys have equal lengths.
    """
    from torch.nn.attention.varlen import varlen_attn

    assert queries.offsets is not None
    assert keys.offsets is not None
    window = (-1, 0) if causal else (-1, -1)
    context = varlen_attn(
        q,
        k,
        v,
        queries.offsets,
        keys.offsets,
        queries.length,
        keys.length,
        scale=scale,
        window_size=window,
    )
    assert isinstance(context, Tensor)
    return context


def by_length_readable(
    q: Tensor, k: Tensor, v: Tensor, queries: Layout, keys: Layout, scale: float, causal: bool
) -> Tensor:
    """What `by_length` computes, sentence by sentence, on any device and in any precision."""
    assert queries.offsets is not None
    assert keys.offsets is not None
    query_ends = queries.offsets[1:].tolist()
    key_ends = keys.offsets[1:].tolist()

    contexts = []
    query_start = key_start = 0
    for query_end, key_end in zip(query_ends, key_ends, strict=True):
        query = q[query_start:query_end].transpose(0, 1)  # (H, T, D)
        key = k[key_start:key_end].transpose(0, 1)  # (H, S, D)
        value = v[key_start:key_end].transpose(0, 1)  # (H, S, D)

        scores = scale * query @ key.mT  # (H, T, S)
        if causal:
            past = torch.ones_like(scores, dtype=torch.bool).tril()
            scores = scores.masked_fill(~past, float("-inf"))
        contexts.append((scores.softmax(-1) @ value).transpose(0, 1))  # (T, H, D)

        query_start = query_end
        key_start = key_end
    return torch.cat(contexts)
