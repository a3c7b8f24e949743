"""The position-wise parts of a Transformer: embedding, feed-forward, norm, residual.

All but the embedding take (…, D), and return the same shape unless told otherwise.
"""

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.errors import only_fast_is_missing
from regard.nn.kernels import add_dropped, dropout
from regard.nn.names import look_up

try:
    from regard.nn.fast.internals import linear_relu
except ModuleNotFoundError as error:
    only_fast_is_missing(error)
    linear_relu = None  # type: ignore[assignment]


class Embedding(nn.Module):
    """Token embeddings, multiplied by √d: tokens (…) -> (…, D).

    They are initialized with variance 1/d. With N(0, 1), multiplied by √d, they would be much
    larger than the sinusoidal position encodings. std: another standard deviation to start with.
    """

    def __init__(
        self, size: int, width: int, *, scaled: bool = True, std: float | None = None
    ) -> None:
        super().__init__()
        divisor = math.sqrt(width) if std is None else 1 / std
        self.weight = nn.Parameter(torch.randn(size, width) / divisor)
        self.scale = math.sqrt(width) if scaled else 1.0

    def forward(self, tokens: Tensor) -> Tensor:
        return F.embedding(tokens, self.weight) * self.scale


class RMSNorm(nn.Module):
    """Root mean square normalization: x / rms(x) · g (Zhang and Sennrich 2019)."""

    def __init__(self, width: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, (x.shape[-1],), self.weight, self.eps)


def make_norm(name: str, width: int) -> nn.Module:
    """The norm of this name: `layer`, `rms` or `none`."""
    kinds: dict[str, Callable[[int], nn.Module]] = {
        "layer": nn.LayerNorm,
        "rms": RMSNorm,
        "none": nn.Identity,
    }
    return look_up("norm", name, kinds)(width)


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "gelu": F.gelu,
    "geglu": F.gelu,
    "swiglu": F.silu,
}


class FeedForward(nn.Module):
    """W₂ f(W₁x), or gated: W₂ (f(W₁x) ⊙ W₃x) (Shazeer 2020); W₁ and W₃ lie in one layer.

    (…, width) -> (…, outputs). inner: width between the two (default: four times width). outputs:
    width of the result (default: width). activation: `relu`, `gelu`, or gated: `geglu`, `swiglu`.

    >>> feed = FeedForward(64, 256, outputs=10)
    >>> feed(torch.randn(2, 5, 64)).shape
    torch.Size([2, 5, 10])
    """

    def __init__(
        self,
        width: int,
        inner: int | None = None,
        *,
        outputs: int | None = None,
        activation: str = "relu",
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.activation = look_up("activation", activation, ACTIVATIONS)
        self.gated = activation.endswith("glu")
        inner = inner or 4 * width
        self.inner = nn.Linear(width, inner * (2 if self.gated else 1))
        self.outer = nn.Linear(inner, outputs or width)
        self.dropout = dropout
        for layer in (self.inner, self.outer):
            nn.init.xavier_uniform_(layer.weight)
            nn.init.zeros_(layer.bias)

    def forward(self, x: Tensor) -> Tensor:
        if self._fuses_relu(x):
            return self.outer(linear_relu(x, self.inner.weight, self.inner.bias))

        x = self.inner(x)
        if self.gated:
            x, gate = x.chunk(2, dim=-1)
            x = self.activation(x) * gate
        else:
            x = self.activation(x)
        return self.outer(dropout(x, self.dropout, self.training))

    def _fuses_relu(self, x: Tensor) -> bool:
        """Whether one kernel computes product and activation: for rows, decoding on a GPU."""
        learning = self.training or torch.is_grad_enabled()
        rows = x.is_cuda and x.dim() == 2
        return linear_relu is not None and rows and self.activation is F.relu and not learning


PLACEMENTS = {"pre": True, "post": False}
"""Whether a norm stands before the part it belongs to, by the name of its placement."""


class Residual(nn.Module):
    """Residual connection with normalization and dropout around a sublayer.

    x + dropout(part(norm(x))) (pre-norm) or norm(x + dropout(part(x))) (post-norm). Normalization,
    dropout and the residual connection can each be switched off.
    """

    def __init__(
        self, width: int, *, norm: str, placement: str, dropout: float, residual: bool = True
    ) -> None:
        super().__init__()
        self.norm = make_norm(norm, width)
        self.pre = look_up("placement", placement, PLACEMENTS)
        self.dropout = dropout
        self.residual = residual

    def forward(self, x: Tensor, part: Callable[[Tensor], Tensor]) -> Tensor:
        added = part(self.norm(x) if self.pre else x)
        if self.residual:
            x = add_dropped(x, added, self.dropout, self.training)
        else:
            x = dropout(added, self.dropout, self.training)
        return x if self.pre else self.norm(x)
