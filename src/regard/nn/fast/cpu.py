"""Dropout and the core of attention in few passes over memory, for a CPU."""

import math
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from regard.nn.precision import as_given


def dropout(x: Tensor, p: float) -> Tensor:
    """F.dropout of x on a CPU.

    torch draws its numbers one by one, which takes longer than all else around a small product.
    """
    return _Dropped.apply(x, kept(x.shape, p).to(x.dtype))  # type: ignore[no-untyped-call]


def add_dropped(x: Tensor, added: Tensor, p: float) -> Tensor:
    """x + F.dropout(added) on a CPU, in one pass."""
    mask = kept(added.shape, p).to(x.dtype)
    return _AddDropped.apply(x, added, mask)  # type: ignore[no-untyped-call]


def kept(shape: torch.Size, p: float) -> Tensor:
    """A mask for dropout: 0 with probability p, else 1 / (1 - p), which keeps the mean.

    p is rounded to 1/65,536 if it is not small. The numbers follow torch.manual_seed.
    """
    count = math.prod(shape)
    mask = _kept_by_gaps(count, p) if p < 0.03 else _kept_by_draws(count, p)
    return mask.view(shape)


def _kept_by_gaps(count: int, p: float) -> Tensor:
    """`kept` where few are hidden: draw how far it is from each to the next."""
    expected = count * p
    enough = int(expected + 8 * math.sqrt(expected) + 16)  # eight sigma more than are needed
    gaps = torch.empty(enough, dtype=torch.int64).geometric_(p)
    hidden = gaps.cumsum_(0).sub_(1).clamp_(max=count)

    mask = torch.full((count + 1,), 1 / (1 - p))  # the last one takes all that lie beyond
    return mask.index_fill_(0, hidden, 0.0)[:count]


def _kept_by_draws(count: int, p: float) -> Tensor:
    """`kept` by 16 random bits for each: numpy draws 64 at a time, for four."""
    hidden = round(p * 65536)
    seed = int(torch.empty((), dtype=torch.int64).random_())
    generator = np.random.Generator(np.random.SFC64(seed))
    fours = generator.integers(0, 2**64 - 1, -(-count // 4), np.uint64, endpoint=True)
    draws = fours.view(np.uint16)[:count]
    scale = np.float32(65536 / (65536 - hidden))
    return torch.from_numpy(np.multiply(draws >= hidden, scale))


class _Dropped(torch.autograd.Function):
    """x · mask; only the mask is kept for the gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, mask: Tensor) -> Tensor:
        ctx.save_for_backward(mask)
        return x * mask

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (mask,) = ctx.saved_tensors
        return grad * mask, None


class _AddDropped(torch.autograd.Function):
    """x + added · mask in one pass; only the mask is kept for the gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, added: Tensor, mask: Tensor) -> Tensor:
        ctx.save_for_backward(mask)
        return torch.addcmul(x, added, mask)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        (mask,) = ctx.saved_tensors
        return grad, grad * mask, None


def pooled(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, scale: float, p: float) -> Tensor:
    """dropout(softmax(scale · q kᵀ + bias)) v, in few passes.

    q (B, H, T, D), k and v (B, H, S, D), bias broadcastable to (B, H, T, S) -> (B, H, T, D). Every
    query must be allowed to look at something.
    """
    k = k.to(q.dtype)
    v = v.to(q.dtype)
    return _Pooled.apply(q, k, v, bias, scale, p)  # type: ignore[no-untyped-call]


def pooled_own(qkv: Tensor, heads: int, bias: Tensor | None, scale: float, p: float) -> Tensor:
    """The same for queries, keys and values side by side (B, T, 3 · H · D) -> (B, T, H · D)."""
    return _PooledOwn.apply(qkv, heads, bias, scale, p)  # type: ignore[no-untyped-call]


class _Pooled(torch.autograd.Function):
    """`pooled`, with a gradient of its own."""

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, scale: float, p: float
    ) -> Tensor:
        heads = q.shape[1]
        context, saved = _pool(
            q.flatten(0, 1), k.flatten(0, 1), v.flatten(0, 1), bias, heads, scale, p
        )
        ctx.save_for_backward(*saved)
        ctx.scale = scale
        return context.unflatten(0, q.shape[:2])  # (B, H, T, D)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        grads = [torch.empty_like(x) for x in ctx.saved_tensors[:3]]
        _pool_backward(grad.flatten(0, 1), ctx.saved_tensors, ctx.scale, *grads)
        dq, dk, dv = (x.unflatten(0, grad.shape[:2]) for x in grads)
        return dq, dk, dv, None, None, None


class _PooledOwn(torch.autograd.Function):
    """`pooled_own`, with a gradient of its own."""

    @staticmethod
    def forward(
        ctx: Any, qkv: Tensor, heads: int, bias: Tensor | None, scale: float, p: float
    ) -> Tensor:
        apart = qkv.unflatten(-1, (3, heads, -1)).permute(2, 0, 3, 1, 4)  # (3, B, H, T, D)
        q, k, v = apart.flatten(1, 2)  # one copy for all three: (B · H, T, D) each
        context, saved = _pool(q, k, v, bias, heads, scale, p)
        ctx.save_for_backward(*saved)
        ctx.scale = scale
        ctx.heads = heads
        return context.unflatten(0, (-1, heads)).transpose(1, 2).flatten(2)  # (B, T, H · D)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        of_heads = grad.unflatten(-1, (ctx.heads, -1)).transpose(1, 2).flatten(0, 1)
        grads = of_heads.new_empty(3, *of_heads.shape)  # (3, B · H, T, D)
        _pool_backward(of_heads, ctx.saved_tensors, ctx.scale, *grads)
        apart = grads.unflatten(1, (-1, ctx.heads))  # (3, B, H, T, D)
        qkv = apart.permute(1, 3, 0, 2, 4).flatten(2)  # (B, T, 3 · H · D)
        return qkv, None, None, None, None


def _pool(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, heads: int, scale: float, p: float
) -> tuple[Tensor, tuple[Tensor | None, ...]]:
    """(B · H, T, D) each -> (B · H, T, D), and what its gradient needs."""
    with as_given(q.device.type):
        nothing = q.new_empty(1, 1, 1)  # what is added to: with beta=0 it is not read
        scores = torch.baddbmm(nothing, q, k.transpose(1, 2), beta=0, alpha=scale)  # (B · H, T, S)
        weights = _softmax(scores.unflatten(0, (-1, heads)), bias).flatten(0, 1)  # (B · H, T, S)
        mask = _dropout_mask(weights, p) if p else None
        dropped = weights if mask is None else weights * mask
        return torch.bmm(dropped, v), (q, k, v, weights, mask)


def _dropout_mask(weights: Tensor, p: float) -> Tensor:
    """What weights are multiplied by in dropout, of their shape."""
    if weights.device.type == "cpu":
        return kept(weights.shape, p).to(weights.dtype)
    return F.dropout(torch.ones_like(weights), p)


def _pool_backward(
    grad: Tensor, saved: tuple[Tensor, ...], scale: float, dq: Tensor, dk: Tensor, dv: Tensor
) -> None:
    """The gradient of `_pool`, written into dq, dk and dv."""
    q, k, v, weights, mask = saved
    dropped = weights if mask is None else weights * mask

    # First of the weights, then of the scores, in place.
    inner = torch.bmm(grad, v.transpose(1, 2))  # (B · H, T, S)
    if mask is not None:
        inner *= mask
    inner *= weights
    inner -= weights * inner.sum(-1, keepdim=True)

    torch.baddbmm(dq, inner, k, beta=0, alpha=scale, out=dq)
    torch.baddbmm(dk, inner.transpose(1, 2), q, beta=0, alpha=scale, out=dk)
    torch.bmm(dropped.transpose(1, 2), grad, out=dv)


def _softmax(x: Tensor, bias: Tensor | None) -> Tensor:
    """Softmax of x + bias (B, H, T, S) over the last axis; x is overwritten.

    A short axis is done in place, step by step: torch's softmax takes six times as long there.
    """
    if x.device.type != "cpu" or x.shape[-1] > 64:
        return (x if bias is None else x.add_(bias)).softmax(-1)

    low, high = x.aminmax()
    if bias is not None:
        x.add_(bias)
    in_range = -60 < float(low) <= float(high) < 60  # then so are e^x and its sum
    if not in_range:
        x.sub_(x.amax(-1, keepdim=True))
    x.exp_()
    return x.div_(x.sum(-1, keepdim=True))
