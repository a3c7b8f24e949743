"""Arithmetic on lists of tensors, in their place, by a private function of torch if there is one.

Those take a whole list at once. `fast/fused.py` tries each before it is used.
"""

from collections.abc import Callable, Sequence
from typing import Any

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
    private = _find_private("_foreach_div_")
    if private is not None:
        private(list(tensors), divisor)
        return
    for tensor in tensors:
        tensor.div_(divisor)


@torch.no_grad()
def move_towards(tensors: Sequence[Tensor], ends: Sequence[Tensor], weight: float) -> None:
    """Move each tensor by the share `weight` of the way to its end."""
    private = _find_private("_foreach_lerp_")
    if private is not None:
        private(list(tensors), list(ends), weight)
        return
    for tensor, end in zip(tensors, ends, strict=True):
        tensor.lerp_(end, weight)


@torch.no_grad()
def copy(tensors: Sequence[Tensor], sources: Sequence[Tensor]) -> None:
    """Copy each source into its tensor."""
    private = _find_private("_foreach_copy_")
    if private is not None:
        private(list(tensors), list(sources))
        return
    for tensor, source in zip(tensors, sources, strict=True):
        tensor.copy_(source)


def _find_private(name: str) -> Callable[..., Any] | None:
    """torch's own function of this name; None: a loop does the same."""
    return None if fused is None else fused.find_private(name)
