"""A decoding step of a block on a CPU: what `Block.rows` computes, in fewer Python calls.

In a small model, the products of a step take less time than the calls between them: layouts that
pack nothing, dropout that drops nothing, a kernel that is chosen anew for each layer. Here each
sublayer is a few lines of torch. Norms, projections and the feed-forward layer are still called as
modules.
"""

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.nn.attention import Attention, SelfAttention, is_watched
from regard.nn.layers import Residual
from regard.nn.masks import Layout, Mask
from regard.nn.positions import Position
from regard.nn.state import KeyValue

if TYPE_CHECKING:
    from regard.nn.blocks import Source, _Sublayers

FEW_TOKENS = 64
"""New tokens of a sentence up to which the calls between products matter."""
METHODS = frozenset(("read", "look", "itself", "ask", "attend_to"))
"""Of an attention; somebody may have put others in their place in one object."""


def suits(block: "_Sublayers", layout: Layout, mask: Mask, source: "Source | None") -> bool:
    """Whether `step` computes what the readable form of this block does with these arguments.

    The caller has made sure that the block combines its sublayers in the usual way.
    """
    if torch.is_grad_enabled() or torch.compiler.is_compiling() or is_watched():
        return False
    if layout.rows is not None or layout.length > FEW_TOKENS or not mask.never_empty:
        return False
    attention = block.attention
    if not _is_usual(attention, SelfAttention, block.attention_residual):
        return False
    if not attention.only_rotates:
        return False
    if block.feedforward and not _is_plain(block.feed_residual, Residual):
        return False
    if source is None:
        return True

    memory, source_mask, _, _ = source
    if not isinstance(memory, KeyValue) or not source_mask.never_empty:
        return False
    if not _is_usual(block.cross, Attention, block.cross_residual):
        return False
    return type(block.cross.position) is Position


def _is_usual(attention: Attention, kind: type[Attention], residual: nn.Module) -> bool:
    """Whether this is softmax(scale · q·k) v of projected rows, in our own residual connection."""
    if type(attention) is not kind or attention.training or not attention.fused:
        return False
    if attention.approximation is not None or not attention.projections:
        return False
    return METHODS.isdisjoint(attention.__dict__) and _is_plain(residual, Residual)


def _is_plain(part: nn.Module, kind: type[nn.Module]) -> bool:
    """Whether a module is of this very class, does not train, and nobody has put hooks on it."""
    is_hooked = part._forward_hooks or part._forward_pre_hooks
    return type(part) is kind and not part.training and not is_hooked


def step(
    block: "_Sublayers",
    x: Tensor,
    mask: Mask,
    positions: Tensor,
    layout: Layout,
    before: KeyValue | None,
    source: "Source | None",
) -> tuple[Tensor, KeyValue]:
    """Rows (B · T, D) -> the same shape, and the keys and values of all that has been read."""
    shape = (layout.batch, layout.length)

    attention = block.attention
    assert isinstance(attention, SelfAttention)
    residual = block.attention_residual
    queries, new = _project(attention, _before(residual, x), positions, shape)
    kept = new if before is None else before.append(new)
    x = _after(residual, x, _attend(attention, queries, kept, mask))

    if source is not None:
        memory, source_mask, _, _ = source
        assert isinstance(memory, KeyValue)
        residual = block.cross_residual
        queries = _heads(block.cross.query(_before(residual, x)), shape, block.cross.heads)
        x = _after(residual, x, _attend(block.cross, queries, memory, source_mask))

    if block.feedforward:
        residual = block.feed_residual
        x = _after(residual, x, block.feed(_before(residual, x)))
    return x, kept


def _before(residual: Residual, x: Tensor) -> Tensor:
    """What goes into a sublayer."""
    return residual.norm(x) if residual.pre else x


def _after(residual: Residual, x: Tensor, added: Tensor) -> Tensor:
    """What comes out of its residual connection."""
    x = x + added if residual.residual else added
    return x if residual.pre else residual.norm(x)


def _project(
    attention: SelfAttention, x: Tensor, positions: Tensor, shape: tuple[int, int]
) -> tuple[Tensor, KeyValue]:
    """Rows (B · T, D) -> queries (B, H, T, D), and keys and values of these tokens."""
    qkv = attention.qkv(x)  # (B · T, 3 · inner)
    width = qkv.shape[-1] // (3 * attention.heads)
    by_head = qkv.view(*shape, 3, attention.heads, width)  # (B, T, 3, H, D)
    q, k, v = by_head.permute(2, 0, 3, 1, 4)  # (B, H, T, D) each
    q = attention.position.rotate(q, positions)
    k = attention.position.rotate(k, positions)
    return q, KeyValue(k, v, positions)


def _heads(x: Tensor, shape: tuple[int, int], heads: int) -> Tensor:
    """(B · T, inner) -> (B, H, T, D)."""
    return x.view(*shape, heads, x.shape[-1] // heads).transpose(1, 2)


def _attend(attention: Attention, q: Tensor, memory: KeyValue, mask: Mask) -> Tensor:
    """Queries (B, H, T, D) look at the memory -> what the attention puts out: (B · T, D)."""
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
        scale=attention.fused_scale,
    )  # (B, H, T, D)
    return attention.output(context.transpose(1, 2).flatten(2).flatten(0, 1))
