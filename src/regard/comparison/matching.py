"""Widths with which every model has as many parameters."""

import math
from dataclasses import dataclass, replace
from typing import Any

from regard.config import CustomConfig, ModelConfig, Objective, RNNConfig, TransformerConfig
from regard.errors import UserError
from regard.models.size import count_parameters, has_own_parts

CLOSE = 0.02
"""How far from the wanted number of parameters a model may be, as a share of it."""
EXACT = 0.002
"""How near is near enough, so that the shape of the model need not change for more."""


@dataclass(frozen=True)
class Sizes:
    """What decides how many parameters a model has, besides its settings."""

    source: int
    """Tokens of the source vocabulary."""
    target: int
    objective: Objective

    def parameters(self, model: ModelConfig) -> int:
        return count_parameters(model, self.source, self.target, self.objective)


def matched(model: ModelConfig, wanted: float, sizes: Sizes) -> dict[str, Any]:
    """Settings of the model with which it has about as many parameters as wanted.

    All widths grow or shrink together. Then the one that changes least (the feed-forward width of a
    Transformer, the embedding of an RNN) makes up for what is missing. Depths and heads stay.
    """
    if has_own_parts(model) or isinstance(model, CustomConfig):
        raise UserError(
            "[budget]: parameters cannot be matched for custom parts, since nobody knows how many "
            "parameters these have"
        )
    narrow, wide = _neighbors(model, wanted, sizes)
    shapes = [shape for near in (narrow, wide) for shape in (near, _refined(near, wanted, sizes))]
    best = min(shapes, key=lambda shape: _cost(shape, model, wanted, sizes))
    count = sizes.parameters(best)
    if abs(count - wanted) > CLOSE * wanted:
        raise UserError(
            f"no width gives this model {wanted:,.0f} parameters: the nearest has {count:,}; "
            f"choose another number, or another number of layers or heads"
        )
    names = ("width", "ffn", "embedding")
    return {name: getattr(best, name) for name in names if hasattr(best, name)}


def _neighbors(
    model: TransformerConfig | RNNConfig, wanted: float, sizes: Sizes
) -> tuple[TransformerConfig | RNNConfig, TransformerConfig | RNNConfig]:
    """The widest model with fewer parameters than wanted, and the next wider one."""
    low = 1
    high = 2
    while sizes.parameters(_scaled(model, high)) < wanted:
        high *= 2
    while high - low > 1:
        middle = (low + high) // 2
        if sizes.parameters(_scaled(model, middle)) < wanted:
            low = middle
        else:
            high = middle
    return _scaled(model, low), _scaled(model, high)


def _step(model: TransformerConfig | RNNConfig) -> int:
    """What the width must be a multiple of."""
    if isinstance(model, RNNConfig):
        return 2 if model.bidirectional else 1
    return model.heads * (2 if model.position == "rotary" else 1)


def _scaled(model: TransformerConfig | RNNConfig, steps: int) -> TransformerConfig | RNNConfig:
    """The model with a width of so many steps, and its other width in proportion."""
    width = steps * _step(model)
    share = width / model.width
    if isinstance(model, RNNConfig):
        embedding = max(1, round(model.embedding * share))
        return replace(model, width=width, embedding=embedding)
    return replace(model, width=width, ffn=max(1, round(model.ffn * share)))


def _refined(
    model: TransformerConfig | RNNConfig, wanted: float, sizes: Sizes
) -> TransformerConfig | RNNConfig:
    """The model with its other width changed, by which the parameters grow linearly."""
    name = "embedding" if isinstance(model, RNNConfig) else "ffn"
    if isinstance(model, RNNConfig) and model.tie in ("target", "all"):
        return model  # its embedding is as wide as its states
    if isinstance(model, TransformerConfig) and not model.feedforward:
        return model
    now = getattr(model, name)
    here = sizes.parameters(model)
    slope = sizes.parameters(replace(model, **{name: now + 1})) - here
    return replace(model, **{name: max(1, now + round((wanted - here) / slope))})


def _cost(
    shape: TransformerConfig | RNNConfig,
    model: TransformerConfig | RNNConfig,
    wanted: float,
    sizes: Sizes,
) -> tuple[float, float]:
    """What is better is smaller: the parameters first, then how much the proportions change."""
    off = abs(sizes.parameters(shape) - wanted) / wanted
    name = "embedding" if isinstance(model, RNNConfig) else "ffn"
    before = getattr(model, name) / model.width
    after = getattr(shape, name) / shape.width
    return max(off, EXACT), abs(math.log(after / before))
