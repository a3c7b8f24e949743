"""Fast twins of three formulas: dropout, the core of attention, and the loss. Tests hold each equal
to its readable form.
"""

import math
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from regard.nn.masks import Layout


def dropout(x: Tensor, p: float, training: bool) -> Tensor:
    """F.dropout. On a CPU torch draws its numbers one by one, which costs more than all else around
    a small product.
    """
    if not training or p == 0:
        return x
    if x.device.type != "cpu":
        return F.dropout(x, p)
    return _Dropped.apply(x, kept(x.shape, p).to(x.dtype))  # type: ignore[no-untyped-call]


def add_dropped(x: Tensor, added: Tensor, p: float, training: bool) -> Tensor:
    """x + dropout(added), on a CPU in one pass."""
    if not training or p == 0:
        return x + added
    if x.device.type != "cpu" or x.dtype != added.dtype:
        return x + dropout(added, p, training)
    return _AddDropped.apply(x, added, kept(added.shape, p).to(x.dtype))  # type: ignore[no-untyped-call]


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


def autocast_type(device: str) -> torch.dtype | None:
    """What autocast makes of the factors of a product on this type of device, if it is on."""
    if not _knows_autocast(device) or not torch.is_autocast_enabled(device):
        return None
    return torch.get_autocast_dtype(device)


def as_given(device: str) -> AbstractContextManager[object]:
    """Inside, nothing changes the precision of what is computed."""
    return torch.autocast(device, enabled=False) if _knows_autocast(device) else nullcontext()


def _knows_autocast(device: str) -> bool:
    """Whether this type of device has autocast. A compiler cannot ask; it only ever sees those that
    have.
    """
    return device in ("cpu", "cuda") or torch.amp.is_autocast_available(device)


def at_least_single(kind: torch.dtype) -> torch.dtype:
    """What sums and logarithms of numbers of this kind are computed in: float32, or float64 if they
    are float64.
    """
    return torch.promote_types(kind, torch.float32)


def lowered(x: Tensor) -> Tensor:
    """Under autocast, what is carried from block to block is as coarse as what the blocks
    compute.
    """
    kind = autocast_type(x.device.type)
    return x if kind is None else x.to(kind)


def pooled(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, scale: float, p: float) -> Tensor:
    """dropout(softmax(scale · q kᵀ + bias)) v for (B, H, T, D), where every query may look at
    something, in few passes.
    """
    return _Pooled.apply(q, k.to(q.dtype), v.to(q.dtype), bias, scale, p)  # type: ignore[no-untyped-call]


def pooled_own(qkv: Tensor, heads: int, bias: Tensor | None, scale: float, p: float) -> Tensor:
    """The same for queries, keys and values side by side (B, T, 3 · H · D) -> (B, T, H · D)."""
    return _PooledOwn.apply(qkv, heads, bias, scale, p)  # type: ignore[no-untyped-call]


def by_length(
    q: Tensor, k: Tensor, v: Tensor, queries: Layout, keys: Layout, scale: float, causal: bool
) -> Tensor:
    """Attention of packed queries (N, H, D) over packed keys and values (M, H, D), each sentence
    alone: (N, H, D).

    No work is spent on padding. Flash attention of variable length: CUDA, half precision. causal:
    for equal lengths.
    """
    from torch.nn.attention.varlen import varlen_attn

    assert queries.offsets is not None
    assert keys.offsets is not None
    window = (-1, 0) if causal else (-1, -1)
    lengths = queries.length, keys.length
    context = varlen_attn(
        q, k, v, queries.offsets, keys.offsets, *lengths, scale=scale, window_size=window
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
        value = v[key_start:key_end].transpose(0, 1)

        scores = scale * query @ key.mT  # (H, T, S)
        if causal:
            past = torch.ones_like(scores, dtype=torch.bool).tril()
            scores = scores.masked_fill(~past, float("-inf"))
        contexts.append((scores.softmax(-1) @ value).transpose(0, 1))  # (T, H, D)

        query_start = query_end
        key_start = key_end
    return torch.cat(contexts)


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


def cross_entropy(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    smoothing: float,
    *,
    ignore: int,
    compiled: bool = False,
) -> tuple[Tensor, ...]:
    """(loss, nll, correct), summed over the rows of hidden (N, D) whose target (N,) is not
    `ignore`, padding; weight (V, D).

    The gradient is computed on the way, piece by piece: the logits (N, V) never exist as a whole,
    and never in fp32 on a GPU.
    """
    if torch.is_grad_enabled() and hidden.requires_grad:
        return _CrossEntropy.apply(hidden, weight, bias, targets, smoothing, ignore, compiled)  # type: ignore[no-untyped-call]
    return _sums(hidden, weight, bias, targets, smoothing, ignore, compiled, None)


class _CrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        smoothing: float,
        ignore: int,
        compiled: bool,
    ) -> Any:
        grads = [
            torch.empty_like(hidden),  # (N, D)
            torch.zeros_like(weight, dtype=at_least_single(weight.dtype)),  # (V, D)
        ]
        if bias is not None:
            grads.append(torch.zeros_like(bias, dtype=at_least_single(bias.dtype)))  # (V,)
        sums = _sums(hidden, weight, bias, targets, smoothing, ignore, compiled, grads)
        ctx.save_for_backward(*grads)
        ctx.mark_non_differentiable(*sums[1:])
        return sums

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        hidden, weight, *bias = (saved.mul_(grad.to(saved.dtype)) for saved in ctx.saved_tensors)
        return hidden, weight, bias[0] if bias else None, None, None, None, None


def _sums(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    smoothing: float,
    ignore: int,
    compiled: bool,
    grads: list[Tensor] | None,
) -> tuple[Tensor, ...]:
    low = torch.is_autocast_enabled(hidden.device.type)
    kind = torch.get_autocast_dtype(hidden.device.type) if low else hidden.dtype
    w, b = weight.to(kind), None if bias is None else bias.to(kind)
    # Rows at a time: enough for a good product, few enough that what is made of them stays near.
    size = max(
        256, (1 << 29 if compiled else 1 << 27 if hidden.is_cuda else 1 << 21) // len(weight)
    )
    totals = hidden.new_zeros(3, dtype=at_least_single(kind))
    piece = _compiled() if compiled else _piece
    with torch.autocast(hidden.device.type, enabled=False):
        for start in range(0, len(hidden), size):
            rows, goal = hidden[start : start + size].to(kind), targets[start : start + size]
            found, slope = piece(F.linear(rows, w, b), goal, smoothing, ignore, grads is not None)
            totals += found
            if grads is None:
                continue
            grads[0][start : start + size] = slope @ w
            if kind == grads[1].dtype:
                grads[1].addmm_(slope.T, rows)
            else:
                grads[1] += (
                    torch.mm(slope.T, rows, out_dtype=torch.float32)
                    if rows.is_cuda
                    else slope.T @ rows
                )
            if bias is not None:
                grads[2] += slope.sum(0, dtype=grads[2].dtype)
    return tuple(totals)


@cache
def _compiled() -> Any:
    return torch.compile(_piece, dynamic=True)


def _piece(
    logits: Tensor, targets: Tensor, smoothing: float, ignore: int, slope: bool
) -> tuple[Tensor, Tensor]:
    """Sums over some rows, and the gradient of the first of them with respect to the logits."""
    real = targets != ignore
    logp = logits.to(at_least_single(logits.dtype)).log_softmax(-1)  # (N, V)
    at = targets[:, None]
    nll = -(logp.gather(-1, at).squeeze(1) * real).sum()
    loss = (
        nll if smoothing == 0 else (1 - smoothing) * nll - smoothing * (logp.mean(-1) * real).sum()
    )
    correct = ((logits.argmax(-1) == targets) & real).sum()
    sums = torch.stack((loss, nll, correct.to(nll.dtype)))
    if not slope:
        return sums, logp
    grad = logp.exp()
    if torch.compiler.is_compiling():  # one pass
        hit = torch.arange(logits.shape[-1], device=logits.device) == at
        grad = torch.where(hit, grad - (1 - smoothing), grad) - smoothing / logits.shape[-1]
        return sums, (grad * real[:, None]).to(logits.dtype)
    if smoothing:
        grad -= smoothing / logits.shape[-1]
    grad.scatter_add_(-1, at, torch.full_like(at, smoothing - 1, dtype=grad.dtype))
    return sums, grad.mul_(real[:, None]).to(logits.dtype)
