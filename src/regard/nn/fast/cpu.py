"""Dropout and the core of attention in few passes, for a CPU."""

import math
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from regard.nn.precision import as_given


def dropout(x: Tensor, p: float) -> Tensor:
    """F.dropout of x on a CPU, where torch draws its numbers one by one.

    That would cost more than all else around a small product.
    """
    return _Dropped.apply(x, kept(x.shape, p).to(x.dtype))  # type: ignore[no-untyped-call]


def add_dropped(x: Tensor, added: Tensor, p: float) -> Tensor:
    """x + F.dropout(added) on a CPU, in one pass."""
    mask = kept(added.shape, p).to(x.dtype)
    return _AddDropped.apply(x, added, mask)  # type: ignore[no-untyped-call]


def kept(shape: torch.Size, p: float) -> Tensor:
    """0 with probability p (to 1/65,536 if it is not small), else what keeps the mean. Follows
    torch.manual_seed.
    """
    count = math.prod(shape)
    if (
        p < 0.03
        # few are hidden: draw how far it is from each to the next (eight sigma more than are
        # needed)
    ):
        gaps = torch.empty(
            int(count * p + 8 * math.sqrt(count * p) + 16), dtype=torch.int64
        ).geometric_(p)
        keep = torch.full((count + 1,), 1 / (1 - p))
        return keep.index_fill_(0, gaps.cumsum_(0).sub_(1).clamp_(max=count), 0.0)[:count].view(
            shape
        )
    hidden, seed = round(p * 65536), int(torch.empty((), dtype=torch.int64).random_())
    draw = np.random.Generator(np.random.SFC64(seed)).integers(
        0, 2**64 - 1, -(-count // 4), np.uint64, endpoint=True
    )
    drawn = np.multiply(
        draw.view(np.uint16)[:count] >= hidden, np.float32(65536 / (65536 - hidden))
    )
    return torch.from_numpy(drawn).view(shape)


class _Dropped(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, mask: Tensor) -> Tensor:
        ctx.save_for_backward(mask)
        return x * mask

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad * ctx.saved_tensors[0], None


class _AddDropped(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, added: Tensor, mask: Tensor) -> Tensor:
        ctx.save_for_backward(mask)
        return torch.addcmul(x, added, mask)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        return grad, grad * ctx.saved_tensors[0], None


def pooled(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, scale: float, p: float) -> Tensor:
    """dropout(softmax(scale · q kᵀ + bias)) v for (B, H, T, D), where every query may look at
    something, in few passes.
    """
    return _Pooled.apply(q, k.to(q.dtype), v.to(q.dtype), bias, scale, p)  # type: ignore[no-untyped-call]


def pooled_own(qkv: Tensor, heads: int, bias: Tensor | None, scale: float, p: float) -> Tensor:
    """The same for queries, keys and values side by side (B, T, 3 · H · D) -> (B, T, H · D)."""
    return _PooledOwn.apply(qkv, heads, bias, scale, p)  # type: ignore[no-untyped-call]


class _Pooled(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, scale: float, p: float
    ) -> Tensor:
        found, saved = _pool(
            q.flatten(0, 1), k.flatten(0, 1), v.flatten(0, 1), bias, q.shape[1], scale, p
        )
        ctx.save_for_backward(*saved)
        ctx.scale = scale
        return found.unflatten(0, q.shape[:2])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        grads = [torch.empty_like(x) for x in ctx.saved_tensors[:3]]
        _pool_backward(grad.flatten(0, 1), ctx.saved_tensors, ctx.scale, *grads)
        return *(x.unflatten(0, grad.shape[:2]) for x in grads), None, None, None


class _PooledOwn(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, qkv: Tensor, heads: int, bias: Tensor | None, scale: float, p: float
    ) -> Tensor:
        q, k, v = (
            qkv.unflatten(-1, (3, heads, -1)).permute(2, 0, 3, 1, 4).flatten(1, 2)
        )  # one copy for all
        found, saved = _pool(q, k, v, bias, heads, scale, p)
        ctx.save_for_backward(*saved)
        ctx.scale, ctx.heads = scale, heads
        return found.unflatten(0, (-1, heads)).transpose(1, 2).flatten(2)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        inner = grad.unflatten(-1, (ctx.heads, -1)).transpose(1, 2).flatten(0, 1)
        grads = inner.new_empty(3, *inner.shape)
        _pool_backward(inner, ctx.saved_tensors, ctx.scale, *grads)
        whole = grads.unflatten(1, (-1, ctx.heads)).permute(1, 3, 0, 2, 4).flatten(2)
        return whole, None, None, None, None


def _pool(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, heads: int, scale: float, p: float
) -> tuple[Tensor, tuple[Tensor | None, ...]]:
    """(B · H, T, D) each -> (B · H, T, D), and what its gradient needs."""
    with as_given(q.device.type):
        weights = torch.baddbmm(q.new_empty(1, 1, 1), q, k.transpose(1, 2), beta=0, alpha=scale)
        weights = _softmax(weights.unflatten(0, (-1, heads)), bias).flatten(0, 1)
        mask = None
        if p:
            on_cpu = q.device.type == "cpu"
            mask = (
                kept(weights.shape, p).to(weights.dtype)
                if on_cpu
                else F.dropout(torch.ones_like(weights), p)
            )
        return torch.bmm(weights if mask is None else weights * mask, v), (q, k, v, weights, mask)


def _pool_backward(
    grad: Tensor, saved: tuple[Tensor, ...], scale: float, dq: Tensor, dk: Tensor, dv: Tensor
) -> None:
    """Into dq, dk and dv."""
    q, k, v, weights, mask = saved
    used = weights if mask is None else weights * mask
    inner = torch.bmm(grad, v.transpose(1, 2))
    if mask is not None:
        inner *= mask
    inner *= weights
    inner -= weights * inner.sum(-1, keepdim=True)
    torch.baddbmm(dq, inner, k, beta=0, alpha=scale, out=dq)
    torch.baddbmm(dk, inner.transpose(1, 2), q, beta=0, alpha=scale, out=dk)
    torch.bmm(used.transpose(1, 2), grad, out=dv)


def _softmax(x: Tensor, bias: Tensor | None) -> Tensor:
    """Of x + bias (B, H, T, S) over the last axis. In place if that is short: there torch's own
    takes six times as long.
    """
    if x.device.type != "cpu" or x.shape[-1] > 64:
        return (x if bias is None else x.add_(bias)).softmax(-1)
    low, high = x.aminmax()
    if bias is not None:
        x.add_(bias)
    if not -60 < float(low) <= float(high) < 60:  # else e^x and its sum are in range as they are
        x.sub_(x.amax(-1, keepdim=True))
    x.exp_()
    return x.div_(x.sum(-1, keepdim=True))
