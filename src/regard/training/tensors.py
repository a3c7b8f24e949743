"""Arithmetic on lists of tensors, in their place. `fast/` has twins that take a list at once."""

from collections.abc import Sequence

import torch
from torch import Tensor

from regard.errors import only_fast_is_missing

try:
    from regard.training.fast import fused
except ModuleNotFoundError as error:
    only_fast_is_missing(error)
    fused = None  # type: ignore[assignment]


@torch.no_grad()
def divide(tensors: Sequence[Tensor], divisor: float) -> None:
    """Divide each tensor."""
    if fused is not None:
        fused.divide(tensors, divisor)
        return
    for tensor in tensors:
        tensor.div_(divisor)


@torch.no_grad()
def move_towards(tensors: Sequence[Tensor], ends: Sequence[Tensor], weight: float) -> None:
    """Move each tensor by the share `weight` of the way to its end."""
    if fused is not None:
        fused.move_towards(tensors, ends, weight)
        return
    for tensor, end in zip(tensors, ends, strict=True):
        tensor.lerp_(end, weight)


@torch.no_grad()
def copy(tensors: Sequence[Tensor], sources: Sequence[Tensor]) -> None:
    """Copy each source into its tensor."""
    if fused is not None:
        fused.copy(tensors, sources)
        return
    for tensor, source in zip(tensors, sources, strict=True):
        tensor.copy_(source)
