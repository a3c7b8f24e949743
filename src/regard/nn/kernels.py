"""Formulas that have a fast twin: dropout, a residual sum, cross-entropy, read-only weights.

Each is written here so that it can be read. Where the folder `fast/` is there, its twin computes
the same; a test holds the two equal.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.errors import only_fast_is_missing
from regard.nn.precision import at_least_single

try:
    from regard.nn.fast import cpu, loss, readonly
except ModuleNotFoundError as error:
    only_fast_is_missing(error)
    cpu = loss = readonly = None  # type: ignore[assignment]


def dropout(x: Tensor, p: float, training: bool) -> Tensor:
    """F.dropout, in training only."""
    if not training or p == 0:
        return x
    if cpu is not None and x.device.type == "cpu":
        return cpu.dropout(x, p)
    return F.dropout(x, p)


def add_dropped(x: Tensor, added: Tensor, p: float, training: bool) -> Tensor:
    """x + dropout(added), for tensors of one shape."""
    if not training or p == 0:
        return x + added
    if cpu is not None and x.device.type == "cpu" and x.dtype == added.dtype:
        return cpu.add_dropped(x, added, p)
    return x + dropout(added, p, training)


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

    hidden (N, D), weight (V, D), bias (V,), targets (N,). smoothing: the share of the probability
    that label smoothing spreads over the vocabulary. compiled: whether the fast twin is compiled.
    """
    if loss is None:
        return cross_entropy_readable(hidden, weight, bias, targets, smoothing, ignore=ignore)
    return loss.cross_entropy(
        hidden, weight, bias, targets, smoothing, ignore=ignore, compiled=compiled
    )


def cross_entropy_readable(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    smoothing: float,
    *,
    ignore: int,
) -> tuple[Tensor, ...]:
    """What `cross_entropy` computes, from all logits at once."""
    logits = F.linear(hidden, weight, bias)  # (N, V)
    logprobs = logits.to(at_least_single(logits.dtype)).log_softmax(-1)  # (N, V)
    real = targets != ignore  # (N,)

    of_targets = logprobs.gather(-1, targets[:, None]).squeeze(1)  # (N,)
    nll = -(of_targets * real).sum()
    uniform = -(logprobs.mean(-1) * real).sum()
    smoothed = (1 - smoothing) * nll + smoothing * uniform
    correct = ((logits.argmax(-1) == targets) & real).sum()
    return smoothed, nll.detach(), correct.to(nll.dtype)


def read_only(
    model: nn.Module, kind: torch.dtype = torch.float32, *, wide: torch.dtype | None = None
) -> None:
    """Make a model on a CPU ready to decode: its weights become of this kind and learn no more.

    wide: the type in which many rows at once are multiplied (default: what is fast here).
    """
    if readonly is None:
        model.to(kind).requires_grad_(False)
    else:
        readonly.read_only(model, kind, wide=wide)


def writable(model: nn.Module) -> None:
    """Undo `read_only`, so that a model can be moved to another device."""
    if readonly is not None:
        readonly.writable(model)
