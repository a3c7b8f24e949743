"""Cross-entropy of the output layer, piece by piece: the logits are never all there at once."""

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
    """(loss, nll, correct) of an output layer, summed over the rows whose target is not `ignore`.

    hidden (N, D), weight (V, D), bias (V,), targets (N,). The gradient is computed on the way,
    piece by piece: the logits (N, V) are never all there at once, and never in fp32 on a GPU.
    """
    if torch.is_grad_enabled() and hidden.requires_grad:
        return _CrossEntropy.apply(  # type: ignore[no-untyped-call]
            hidden, weight, bias, targets, smoothing, ignore, compiled
        )
    return _sums(hidden, weight, bias, targets, smoothing, ignore, compiled, None)


class _CrossEntropy(torch.autograd.Function):
    """The sums, whose gradient is computed together with them, as if that of the loss were 1."""

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
        hidden, weight, *biases = (saved.mul_(grad.to(saved.dtype)) for saved in ctx.saved_tensors)
        bias = biases[0] if biases else None
        return hidden, weight, bias, None, None, None, None


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
    """(loss, nll, correct). grads: of hidden, weight and bias if there is one, to be added to."""
    device = hidden.device.type
    kind = hidden.dtype
    if torch.is_autocast_enabled(device):
        kind = torch.get_autocast_dtype(device)
    w = weight.to(kind)  # (V, D)
    b = None if bias is None else bias.to(kind)  # (V,)

    size = _rows_at_a_time(len(weight), on_gpu=hidden.is_cuda, compiled=compiled)
    piece = _compiled() if compiled else _piece
    totals = hidden.new_zeros(3, dtype=at_least_single(kind))
    with torch.autocast(device, enabled=False):
        for start in range(0, len(hidden), size):
            rows = hidden[start : start + size].to(kind)  # (n, D)
            goal = targets[start : start + size]  # (n,)
            logits = F.linear(rows, w, b)  # (n, V)
            sums, slope = piece(logits, goal, smoothing, ignore, grads is not None)
            totals += sums
            if grads is not None:
                grads[0][start : start + size] = slope @ w
                _add_to_weight(grads[1], slope, rows)
                if bias is not None:
                    grads[2] += slope.sum(0, dtype=grads[2].dtype)
    return tuple(totals)


def _rows_at_a_time(vocabulary: int, *, on_gpu: bool, compiled: bool) -> int:
    """Rows of a piece: enough for a fast product, few enough that its logits stay in the cache."""
    logits = 1 << 21
    if on_gpu:
        logits = 1 << 27
    if compiled:
        logits = 1 << 29
    return max(256, logits // vocabulary)


def _add_to_weight(grad: Tensor, slope: Tensor, rows: Tensor) -> None:
    """Add slopeᵀ rows to the gradient of the weight (V, D); slope (n, V), rows (n, D)."""
    if rows.dtype == grad.dtype:
        grad.addmm_(slope.T, rows)
    elif rows.is_cuda:
        grad += torch.mm(slope.T, rows, out_dtype=torch.float32)
    else:
        grad += slope.T @ rows


@cache
def _compiled() -> Any:
    """`_piece`, compiled."""
    return torch.compile(_piece, dynamic=True)


def _piece(
    logits: Tensor, targets: Tensor, smoothing: float, ignore: int, slope: bool
) -> tuple[Tensor, Tensor]:
    """The sums over some rows (n, V), and if `slope` the gradient of the loss by the logits."""
    real = targets != ignore  # (n,)
    logprobs = logits.to(at_least_single(logits.dtype)).log_softmax(-1)  # (n, V)
    at = targets[:, None]  # (n, 1)
    nll = -(logprobs.gather(-1, at).squeeze(1) * real).sum()
    loss = nll
    if smoothing != 0:
        loss = (1 - smoothing) * nll - smoothing * (logprobs.mean(-1) * real).sum()
    correct = ((logits.argmax(-1) == targets) & real).sum()
    sums = torch.stack((loss, nll, correct.to(nll.dtype)))
    if not slope:
        return sums, logprobs

    # softmax - (1 - s) at the target - s / V everywhere
    grad = logprobs.exp()
    if torch.compiler.is_compiling():  # in one pass
        hit = torch.arange(logits.shape[-1], device=logits.device) == at  # (n, V)
        grad = torch.where(hit, grad - (1 - smoothing), grad) - smoothing / logits.shape[-1]
        return sums, (grad * real[:, None]).to(logits.dtype)

    if smoothing:
        grad -= smoothing / logits.shape[-1]
    grad.scatter_add_(-1, at, torch.full_like(at, smoothing - 1, dtype=grad.dtype))
    return sums, grad.mul_(real[:, None]).to(logits.dtype)
