"""In which precision numbers are computed."""

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor


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
