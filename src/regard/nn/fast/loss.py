"""Cross-entropy of the output layer, piece by piece: the logits never exist as a whole."""

from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from regard.nn.precision import at_least_single


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
