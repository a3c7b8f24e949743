"""A block while it decodes on a CPU: `Block.rows` in fewer Python calls, for a few new tokens.

A step of a small model takes less time in its products than in the calls between them: layouts that
pack nothing, dropout that drops nothing, kernels that are chosen anew. Here each sublayer is one
line of torch. Norms, projections and feed-forward layers are still called as modules.
"""

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.nn.attention import Attention, SelfAttention, is_watched
from regard.nn.layers import FeedForward, Residual
from regard.nn.masks import Layout, Mask
from regard.nn.state import KeyValue

if TYPE_CHECKING:
    from regard.nn.blocks import Source, _Sublayers

FEW = 64
"""Tokens of one sentence up to which the calls between products matter."""


def suits(block: "_Sublayers", layout: Layout, mask: Mask, source: "Source | None") -> bool:
    """Whether `rows` computes what the readable form of this block does with these arguments.

    The caller has made sure that the block combines its sublayers in the usual way.
    """
    if torch.is_grad_enabled() or torch.compiler.is_compiling() or block.training or is_watched():
        return False
    if layout.rows is not None or layout.length > FEW or not mask.never_empty:
        return False
    if not _is_usual(block.attention, SelfAttention) or _has_hooks(block.attention_residual):
        return False
    if block.feedforward and not _is_usual_feed(block):
        return False
    if source is None:
        return True
    memory, source_mask, _, _ = source
    if not isinstance(memory, KeyValue) or not source_mask.never_empty:
        return False
    return _is_usual(block.cross, Attention) and not _has_hooks(block.cross_residual)


def _is_usual(attention: Attention, kind: type[Attention]) -> bool:
    """Whether this is softmax(scale · q·k) v of projected rows."""
    if type(attention) is not kind or _has_hooks(attention):
        return False
    return attention.fused and attention.only_rotates and attention.approximation is None


def _is_usual_feed(block: "_Sublayers") -> bool:
    return type(block.feed) is FeedForward and not _has_hooks(block.feed_residual)


def _has_hooks(part: nn.Module) -> bool:
    return bool(part._forward_hooks or part._forward_pre_hooks)


def rows(
    block: "_Sublayers",
    x: Tensor,
    mask: Mask,
    positions: Tensor,
    layout: Layout,
    before: KeyValue | None,
    source: "Source | None",
) -> tuple[Tensor, KeyValue]:
    """All rows (B · T, D) -> the same shape, and the keys and values of what has been read."""
    shape = (layout.batch, layout.length)

    around = block.attention_residual
    queries, new = _read(block.attention, _entering(around, x), positions, shape)
    kept = new if before is None else before.append(new)
    x = _leaving(around, x, _pooled(block.attention, queries, kept, mask))

    if source is not None:
        memory, source_mask, _, _ = source
        assert isinstance(memory, KeyValue)
        around = block.cross_residual
        queries = _heads(block.cross.query(_entering(around, x)), shape, block.cross.heads)
        x = _leaving(around, x, _pooled(block.cross, queries, memory, source_mask))

    if block.feedforward:
        around = block.feed_residual
        x = _leaving(around, x, block.feed(_entering(around, x)))
    return x, kept


def _entering(around: Residual, x: Tensor) -> Tensor:
    return around.norm(x) if around.pre else x


def _leaving(around: Residual, x: Tensor, added: Tensor) -> Tensor:
    x = x + added if around.residual else added
    return x if around.pre else around.norm(x)


def _read(
    attention: Attention, x: Tensor, positions: Tensor, shape: tuple[int, int]
) -> tuple[Tensor, KeyValue]:
    """Rows (B · T, D) -> queries (B, H, T, D), and keys and values of these tokens."""
    qkv = attention.qkv(x).view(*shape, 3, attention.heads, -1)  # (B, T, 3, H, D)
    q, k, v = qkv.permute(2, 0, 3, 1, 4)  # (B, H, T, D) each
    if attention.position.in_attention:
        q = attention.position.rotate(q, positions)
        k = attention.position.rotate(k, positions)
    return q, KeyValue(k, v, positions)


def _heads(x: Tensor, shape: tuple[int, int], heads: int) -> Tensor:
    """(B · T, inner) -> (B, H, T, D)."""
    return x.view(*shape, heads, -1).transpose(1, 2)


def _pooled(attention: Attention, q: Tensor, memory: KeyValue, mask: Mask) -> Tensor:
    """What the heads pool for queries (B, H, T, D), through the output layer: (B · T, D)."""
    queries = q.shape[2]
    keys = len(memory)
    causal = mask.square(queries, keys)
    free = causal or mask.free(queries, keys)
    context = F.scaled_dot_product_attention(
        q,
        memory.key,
        memory.value,
        attn_mask=None if free else mask.bias(queries, keys, q),
        is_causal=causal,
        scale=attention.score.fused_scale,
    )  # (B, H, T, D)
    return attention.output(context.transpose(1, 2).flatten(2).flatten(0, 1))
