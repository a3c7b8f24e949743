"""Which precision numbers are computed in."""

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor


def autocast_type(device: str) -> torch.dtype | None:
    """The type autocast gives the factors of a product on this kind of device. None: it is off."""
    if not _knows_autocast(device) or not torch.is_autocast_enabled(device):
        return None
    return torch.get_autocast_dtype(device)


def as_given(device: str) -> AbstractContextManager[object]:
    """A context in which autocast is off: numbers are computed in the types they have."""
    return torch.autocast(device, enabled=False) if _knows_autocast(device) else nullcontext()


def _knows_autocast(device: str) -> bool:
    """Whether this kind of device has autocast."""
    # torch.compile cannot trace the question, but it only sees devices named here.
    return device in ("cpu", "cuda") or torch.amp.is_autocast_available(device)


def at_least_single(kind: torch.dtype) -> torch.dtype:
    """The type in which sums and logarithms of such numbers are computed: float32, or float64."""
    return torch.promote_types(kind, torch.float32)


def lowered(x: Tensor) -> Tensor:
    """x in the type of autocast, if that is on.

    So what is carried from block to block is no finer than what the blocks compute.
    """
    kind = autocast_type(x.device.type)
    return x if kind is None else x.to(kind)
