"""How well a query fits a key. `prepare(key)` is done once per source, the call once per query."""

import math

import torch
from torch import Tensor, nn


class Score(nn.Module):
    """Base class of attention scores, which compare each query with each key.

    Queries (B, H, T, Dq) and prepared keys (B, H, S, ·) give scores (B, H, T, S). `scale` is a
    number if the score is `scale · query · prepared key`, which fused kernels can compute, and None
    otherwise. A subclass with a `forward` of its own is never fused, whatever it inherits.
    """

    scale: float | None = None

    def __init__(self, heads: int, query_width: int, key_width: int, width: int = 0) -> None:
        super().__init__()
        self.heads = heads
        self.query_width = query_width
        self.key_width = key_width
        self.width = width

    @property
    def fused_scale(self) -> float | None:
        """The `scale` with which a fused kernel gives what `forward` does; None: none does."""
        kind = type(self)
        is_product = kind.forward is Score.forward and kind.__call__ is nn.Module.__call__
        return self.scale if is_product else None

    def prepare(self, key: Tensor) -> Tensor:
        """Compute what depends on the key alone: (B, H, S, Dk) -> (B, H, S, ·)."""
        return key

    def forward(self, query: Tensor, prepared: Tensor) -> Tensor:
        """q·k times `scale`; a score that is not a dot product overrides this."""
        assert self.scale is not None
        return (query * self.scale) @ prepared.transpose(-2, -1)


class Dot(Score):
    """q·k (Luong et al. 2015, "dot")."""

    scale = 1.0


class ScaledDot(Score):
    """q·k / √d (Vaswani et al. 2017, eq. 1).

    Its variance is 1 whatever the width, so the softmax does not saturate.
    """

    def __init__(self, heads: int, query_width: int, key_width: int, width: int = 0) -> None:
        super().__init__(heads, query_width, key_width, width)
        self.scale = 1.0 / math.sqrt(query_width)


class Multiplicative(Score):
    """qᵀWk (Luong et al. 2015, "general"); the widths of query and key may differ.

    Wk is prepared, so that what remains is a product.
    """

    scale = 1.0

    def __init__(self, heads: int, query_width: int, key_width: int, width: int = 0) -> None:
        super().__init__(heads, query_width, key_width, width)
        self.weight = nn.Parameter(torch.empty(heads, query_width, key_width))
        nn.init.normal_(self.weight, std=1.0 / math.sqrt(query_width * key_width))

    def prepare(self, key: Tensor) -> Tensor:
        return key @ self.weight.transpose(-2, -1)


class Additive(Score):
    """vᵀtanh(W₁k + W₂q) (Bahdanau et al. 2015, A.1.2), with an inner width of its own."""

    def __init__(self, heads: int, query_width: int, key_width: int, width: int = 0) -> None:
        super().__init__(heads, query_width, key_width, width or query_width)
        self.w1 = nn.Parameter(torch.empty(heads, key_width, self.width))
        self.w2 = nn.Parameter(torch.empty(heads, query_width, self.width))
        self.v = nn.Parameter(torch.empty(heads, self.width, 1))
        for parameter in (self.w1, self.w2, self.v):
            nn.init.normal_(parameter, std=1.0 / math.sqrt(parameter.shape[1]))

    def prepare(self, key: Tensor) -> Tensor:
        return key @ self.w1

    def forward(self, query: Tensor, prepared: Tensor) -> Tensor:
        keys = prepared[:, :, None]  # (B, H, 1, S, width)
        queries = (query @ self.w2)[:, :, :, None]  # (B, H, T, 1, width)
        joined = torch.tanh(keys + queries)  # (B, H, T, S, width)
        return (joined @ self.v[:, None]).squeeze(-1)


SCORES: dict[str, type[Score]] = {
    "dot": Dot,
    "scaled_dot": ScaledDot,
    "multiplicative": Multiplicative,
    "additive": Additive,
}
