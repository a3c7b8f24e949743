"""The position-wise parts of a Transformer block: embedding, feed-forward, norm, residual. All take (…, D)."""

import math
import time
from collections.abc import Callable
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.nn.kernels import add_dropped, dropout


class Embedding(nn.Module):
    """Vectors of tokens, times √d. They start at variance 1/d: scaled N(0, 1) vectors would drown the sinusoids."""

    def __init__(self, size: int, width: int, *, scaled: bool = True) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(size, width) / math.sqrt(width))
        self.scale = math.sqrt(width) if scaled else 1.0

    def forward(self, tokens: Tensor) -> Tensor:
        return F.embedding(tokens, self.weight) * self.scale


class RMSNorm(nn.Module):
    """x / rms(x) · g (Zhang and Sennrich 2019)."""

    def __init__(self, width: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, (x.shape[-1],), self.weight, self.eps)


def make_norm(name: str, width: int) -> nn.Module:
    """`layer`, `rms` or `none`."""
    kinds: dict[str, Callable[[int], nn.Module]] = {"layer": nn.LayerNorm, "rms": RMSNorm, "none": nn.Identity}
    return kinds[name](width)


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"relu": F.relu, "gelu": F.gelu, "geglu": F.gelu, "swiglu": F.silu}


class FeedForward(nn.Module):
    """W₂ f(W₁x), or gated: W₂ (f(W₁x) ⊙ W₃x) (Shazeer 2020)."""

    def __init__(self, width: int, inner: int, *, activation: str = "relu", dropout: float = 0.0) -> None:
        super().__init__()
        self.gated = activation.endswith("glu")
        self.inner = nn.Linear(width, inner * (2 if self.gated else 1))
        self.outer = nn.Linear(inner, width)
        self.activation = ACTIVATIONS[activation]
        self.dropout = dropout
        for layer in (self.inner, self.outer):
            nn.init.xavier_uniform_(layer.weight)
            nn.init.zeros_(layer.bias)

    def forward(self, x: Tensor) -> Tensor:
        if (
            x.is_cuda and x.dim() == 2 and self.activation is F.relu and not (self.training or torch.is_grad_enabled())
        ):  # one kernel, not two
            return self.outer(torch._addmm_activation(self.inner.bias, x, self.inner.weight.t()))
        x = self.inner(x)
        if self.gated:
            x, gate = x.chunk(2, dim=-1)
            x = self.activation(x) * gate
        else:
            x = self.activation(x)
        return self.outer(dropout(x, self.dropout, self.training))


class Residual(nn.Module):
    """Wrap a part: x + dropout(part(norm(x))) (pre) or norm(x + dropout(part(x))) (post). Each piece can be switched off."""

    def __init__(self, width: int, *, norm: str, placement: str, dropout: float, residual: bool = True) -> None:
        super().__init__()
        self.norm = make_norm(norm, width)
        self.pre = placement == "pre"
        self.dropout, self.residual = dropout, residual

    def forward(self, x: Tensor, part: Callable[[Tensor], Tensor]) -> Tensor:
        added = part(self.norm(x) if self.pre else x)
        p, training = self.dropout, self.training
        x = add_dropped(x, added, p, training) if self.residual else dropout(added, p, training)
        return x if self.pre else self.norm(x)


FEW = 8
"""Rows up to which a product is limited by reading the matrix, so that weights of half the size always pay."""


class ReadOnly(nn.Module):
    """A Linear that no longer learns, on a CPU, its matrix laid out for products with few rows: up to twice as fast there.

    kind: of its weights, and in a product with few rows of what goes in and comes out. Where this CPU multiplies bfloat16 slower
    than float32, products with more rows take the rounded weights as float32; so in bfloat16 a number may depend on its company.
    """

    def __init__(self, layer: nn.Linear, kind: torch.dtype = torch.float32) -> None:
        super().__init__()
        weight, bias = layer.weight.detach().to(kind), None if layer.bias is None else layer.bias.detach().to(kind)
        tall = weight.shape[0] >= weight.shape[1]  # then a product with one row is faster column by column
        self.weight = nn.Parameter(weight.t().contiguous().t() if tall else weight.contiguous(), requires_grad=False)
        self.bias = None if bias is None else nn.Parameter(bias, requires_grad=False)
        self.packed: Tensor | None = None
        self.wide = None if kind == torch.float32 or bf16_pays() else ReadOnly(_rounded(layer, kind))

    def forward(self, x: Tensor) -> Tensor:
        rows = x.numel() // x.shape[-1]
        if self.wide is not None and rows > FEW:
            return self.wide(x)
        given = x.to(self.weight.dtype)
        plain = rows > 64 or (rows == 1 and given.dtype == torch.float32) or not packs(given.dtype)
        if plain or torch.is_grad_enabled():
            return F.linear(given, self.weight, self.bias).to(x.dtype)
        if self.packed is None:
            self.packed = torch.ops.mkldnn._reorder_linear_weight(self.weight.contiguous(), rows)
        return torch.ops.mkldnn._linear_pointwise(given, self.packed, self.bias, "none", [], "").to(x.dtype)


def _rounded(layer: nn.Linear, kind: torch.dtype) -> nn.Linear:
    """The same layer in float32, its numbers those that `kind` can hold."""
    made = nn.Linear(layer.in_features, layer.out_features, bias=layer.bias is not None)
    made.load_state_dict({name: value.detach().to(kind).float() for name, value in layer.state_dict().items()})
    return made


@cache
def packs(kind: torch.dtype) -> bool:
    """Whether oneDNN lays out matrices of this kind on this CPU: without AVX-512 it refuses bfloat16, which torch multiplies."""
    if not torch.backends.mkldnn.is_available():
        return False
    square = torch.ones(16, 16, dtype=kind)
    try:
        packed = torch.ops.mkldnn._reorder_linear_weight(square, 2)
        torch.ops.mkldnn._linear_pointwise(square[:2], packed, None, "none", [], "")
    except RuntimeError:
        return False
    return True


@cache
def bf16_pays() -> bool:
    """Whether this CPU multiplies 256 rows faster in bfloat16 than in float32: the best of five each, in turn."""
    sides = [torch.ones(256, 1024, dtype=kind) for kind in (torch.bfloat16, torch.float32)]
    squares, times = [torch.ones(1024, 1024, dtype=x.dtype) for x in sides], [[math.inf], [math.inf]]
    for turn in range(6):
        for x, square, taken in zip(sides, squares, times):
            began = time.perf_counter()
            F.linear(x, square)
            taken += [time.perf_counter() - began] if turn else []
    return min(times[0]) < min(times[1])


def read_only(model: nn.Module, kind: torch.dtype = torch.float32) -> None:
    """Make every Linear of a model on a CPU a ReadOnly. What was tied is no longer."""
    for name, layer in list(model.named_children()):
        if type(layer) is nn.Linear and layer.weight.device.type == "cpu":
            setattr(model, name, ReadOnly(layer, kind))
        else:
            read_only(layer, kind)
