"""Weights that no longer learn, on a CPU: laid out for products with few rows."""

from threading import Lock
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.nn.fast.internals import can_pack, has_amx, pack_weight, packed_linear

FEW = 8
"""Rows up to which a product is limited by reading the matrix, so that weights of half the size
always pay.
"""

_packing = Lock()  # one for all: a lock of its own could not be copied with its module


def wide_type(kind: torch.dtype) -> torch.dtype:
    """In which type a CPU multiplies more than `FEW` rows by weights of this type.

    A rule, not a measurement, so that every load of a run on a machine computes the same: bfloat16
    pays where matrix units (AMX) multiply it; elsewhere the rounded weights are used as float32.
    """
    return kind if kind == torch.float32 or has_amx() else torch.float32


class ReadOnly(nn.Module):
    """A Linear that no longer learns, on a CPU, its matrix laid out for products with few rows: up
    to twice as fast there.

    kind: of its weights, and in a product with few rows of what goes in and comes out. wide: the
    type in which more rows are multiplied (default: `wide_type`). Where the two differ, a number
    may depend on its company.
    """

    def __init__(
        self,
        layer: nn.Linear,
        kind: torch.dtype = torch.float32,
        *,
        wide: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        weight = layer.weight.detach().to(kind)
        bias = None if layer.bias is None else layer.bias.detach().to(kind)
        tall = (
            weight.shape[0] >= weight.shape[1]
        )  # then a product with one row is faster column by column
        weight = weight.t().contiguous().t() if tall else weight.contiguous()
        self.weight = nn.Parameter(weight, requires_grad=False)
        self.bias = None if bias is None else nn.Parameter(bias, requires_grad=False)
        self.packed: Tensor | None = None

        wide = wide_type(kind) if wide is None else wide
        self.wide = None if wide == kind else ReadOnly(_rounded(layer, kind), wide, wide=wide)

    def forward(self, x: Tensor) -> Tensor:
        rows = x.numel() // x.shape[-1]
        if self.wide is not None and rows > FEW:
            return self.wide(x)

        given = x.to(self.weight.dtype)
        plain = rows > 64 or (rows == 1 and given.dtype == torch.float32) or torch.is_grad_enabled()
        if plain or not can_pack(given.dtype):
            return F.linear(given, self.weight, self.bias).to(x.dtype)
        return packed_linear(given, self._packed(), self.bias).to(x.dtype)

    def _packed(self) -> Tensor:
        """The matrix laid out for `FEW` rows: made by whoever needs it first, for all threads."""
        packed = self.packed
        if packed is None:
            with _packing:
                if self.packed is None:
                    self.packed = pack_weight(self.weight, FEW)
                packed = self.packed
        return packed

    def __getstate__(self) -> dict[str, Any]:
        """For copies and pickles: the packed matrix can be in neither, and is made again."""
        return self.__dict__ | {"packed": None}

    def linear(self) -> nn.Linear:
        """An ordinary Linear with these weights."""
        outputs, inputs = self.weight.shape
        layer = nn.Linear(inputs, outputs, bias=self.bias is not None, device="meta")
        layer.weight = nn.Parameter(self.weight.detach().contiguous(), requires_grad=False)
        layer.bias = self.bias
        return layer


def _rounded(layer: nn.Linear, kind: torch.dtype) -> nn.Linear:
    """The same layer in float32, its numbers those that `kind` can hold."""
    rounded = nn.Linear(layer.in_features, layer.out_features, bias=layer.bias is not None)
    rounded.load_state_dict(
        {name: value.detach().to(kind).float() for name, value in layer.state_dict().items()}
    )
    return rounded


def read_only(
    model: nn.Module, kind: torch.dtype = torch.float32, *, wide: torch.dtype | None = None
) -> None:
    """Make every Linear of a model on a CPU a ReadOnly, which says what kind and wide mean. What
    was tied is no longer.
    """
    for name, layer in list(model.named_children()):
        if type(layer) is nn.Linear and layer.weight.device.type == "cpu":
            setattr(model, name, ReadOnly(layer, kind, wide=wide))
        else:
            read_only(layer, kind, wide=wide)


def writable(model: nn.Module) -> None:
    """Make every ReadOnly of a model an ordinary Linear again, so that it can be moved to another
    device.
    """
    for name, layer in list(model.named_children()):
        if isinstance(layer, ReadOnly):
            setattr(model, name, layer.linear())
        else:
            writable(layer)
