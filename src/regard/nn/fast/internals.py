"""Private functions of torch, each beside a public form that serves where it is missing."""

import os
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor

REFUSALS = (AttributeError, NotImplementedError, RuntimeError, TypeError)
"""What a function raises that is gone, has other arguments now, or does not run on this machine."""


# ---- relu(x Wᵀ + b) in one kernel ----


def linear_relu(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """relu(x Wᵀ + b) for rows x (N, D) and weight (F, D): (N, F)."""
    if bias is None or x.dim() != 2 or not _fuses_relu(x.device.type):
        return linear_relu_public(x, weight, bias)

    return torch._addmm_activation(bias, x, weight.t())


def linear_relu_public(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """What `linear_relu` computes, in two kernels."""
    return F.relu(F.linear(x, weight, bias))


@cache
def _fuses_relu(device: str) -> bool:
    """Whether this kind of device has the fused kernel: it is tried once."""
    one = torch.ones(1, 1, device=device)
    try:
        torch._addmm_activation(one[0], one, one)
    except REFUSALS:
        return False
    return True


# ---- a matrix laid out for products with few rows, on a CPU ----


def pack_weight(weight: Tensor, rows: int) -> Tensor:
    """weight (F, D) laid out as oneDNN wants it for products with about so many rows.

    Only where `can_pack`.
    """
    return torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), rows)


def packed_linear(x: Tensor, packed: Tensor, bias: Tensor | None) -> Tensor:
    """`F.linear(x, weight, bias)` for a weight that `pack_weight` made."""
    return torch.ops.mkldnn._linear_pointwise(x, packed, bias, "none", [], "")


@cache
def can_pack(kind: torch.dtype) -> bool:
    """Whether this machine packs matrices of this type.

    Where not, `F.linear` with the plain matrix computes the same.
    """
    if not torch.backends.mkldnn.is_available():
        return False

    one = torch.ones(2, 2, dtype=kind)
    try:
        packed = torch.ops.mkldnn._reorder_linear_weight(one, 2)
        torch.ops.mkldnn._linear_pointwise(one, packed, None, "none", [], "")
    except REFUSALS:
        return False
    return True


# ---- what the processor can do ----


@cache
def has_amx() -> bool:
    """Whether oneDNN may use the matrix units (AMX) of this CPU.

    They must be there, granted by the system, and not forbidden by ONEDNN_MAX_CPU_ISA. No public
    function tells; without the private ones the answer is no, which costs only speed.
    """
    allowed = os.environ.get("ONEDNN_MAX_CPU_ISA", "ALL").upper()
    if allowed not in ("ALL", "DEFAULT") and "AMX" not in allowed:
        return False

    try:
        return bool(torch.cpu._is_amx_tile_supported() and torch.cpu._init_amx())
    except REFUSALS:
        return False
