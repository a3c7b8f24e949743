"""Linear layers that no longer learn, on a CPU: laid out for products with few rows."""

from threading import Lock
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.nn.fast.internals import can_pack, has_amx, pack_weight, packed_linear

FEW = 8
"""Rows up to which reading the matrix is what takes time, so that smaller weights always pay."""

# One lock for all layers: a module that had its own could not be copied.
_packing = Lock()


def wide_type(kind: torch.dtype) -> torch.dtype:
    """The type in which a CPU multiplies more than `FEW` rows by weights of this type.

    A rule, not a measurement, so that every load of a run on a machine computes the same: bfloat16
    pays where matrix units (AMX) multiply it; elsewhere the rounded weights are used as float32.
    """
    return kind if kind == torch.float32 or has_amx() else torch.float32


class ReadOnly(nn.Module):
    """A Linear that no longer learns, on a CPU: up to twice as fast for few rows.

    kind: the type of its weights, and of the numbers in a product with few rows. wide: the type in
    which more rows are multiplied (default: `wide_type`). Where the two differ, what a row gives
    may depend on how many others there are.
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
        if weight.shape[0] >= weight.shape[1]:
            weight = weight.t().contiguous().t()  # a product with one row is faster by columns
        else:
            weight = weight.contiguous()
        self.weight = nn.Parameter(weight, requires_grad=False)
        self.bias = None if bias is None else nn.Parameter(bias, requires_grad=False)
        self.packed: Tensor | None = None

        wide = wide_type(kind) if wide is None else wide
        self.wide = None if wide == kind else ReadOnly(_rounded(layer, kind), wide, wide=wide)

    def forward(self, x: Tensor) -> Tensor:
        rows = x.numel() // x.shape[-1]
        if self.wide is not None and rows > FEW:
            return self.wide(x)

        weight = self._parameters.get("weight")  # a module is slow to ask for its attributes
        if weight is None:  # somebody has put something else in its place
            weight = self.weight
        bias = self._parameters.get("bias")
        if x.dtype != weight.dtype:
            return self._product(x.to(weight.dtype), weight, bias, rows).to(x.dtype)
        return self._product(x, weight, bias, rows)

    def _product(self, x: Tensor, weight: Tensor, bias: Tensor | None, rows: int) -> Tensor:
        plain_is_faster = rows > 64 or (rows == 1 and x.dtype == torch.float32)
        if plain_is_faster or torch.is_grad_enabled() or not can_pack(x.dtype):
            return F.linear(x, weight, bias)
        return packed_linear(x, self._packed(), bias)

    def _packed(self) -> Tensor:
        """The matrix laid out for `FEW` rows; the first thread that needs it makes it for all."""
        packed = self.packed
        if packed is None:
            with _packing:
                if self.packed is None:
                    self.packed = pack_weight(self.weight, FEW)
                packed = self.packed
        return packed

    def __getstate__(self) -> dict[str, Any]:
        """What is copied and pickled: not the packed matrix, which is made again when needed."""
        return self.__dict__ | {"packed": None}

    def linear(self) -> nn.Linear:
        """An ordinary Linear with these weights."""
        outputs, inputs = self.weight.shape
        layer = nn.Linear(inputs, outputs, bias=self.bias is not None, device="meta")
        layer.weight = nn.Parameter(self.weight.detach().contiguous(), requires_grad=False)
        layer.bias = self.bias
        return layer


def _rounded(layer: nn.Linear, kind: torch.dtype) -> nn.Linear:
    """The same layer in float32, with its numbers rounded to what `kind` can hold."""
    weights = {name: value.detach().to(kind).float() for name, value in layer.state_dict().items()}
    rounded = nn.Linear(layer.in_features, layer.out_features, bias=layer.bias is not None)
    rounded.load_state_dict(weights)
    return rounded


def read_only(
    model: nn.Module, kind: torch.dtype = torch.float32, *, wide: torch.dtype | None = None
) -> None:
    """Make every Linear of a model on a CPU a ReadOnly; see there for kind and wide.

    Weights that were tied are no longer.
    """
    for name, layer in list(model.named_children()):
        if type(layer) is nn.Linear and layer.weight.device.type == "cpu":
            setattr(model, name, ReadOnly(layer, kind, wide=wide))
        else:
            read_only(layer, kind, wide=wide)


def writable(model: nn.Module) -> None:
    """Make every ReadOnly of a model an ordinary Linear, which can be moved to another device."""
    for name, layer in list(model.named_children()):
        if isinstance(layer, ReadOnly):
            setattr(model, name, layer.linear())
        else:
            writable(layer)
