"""The learning rate as a pure function of the step."""

import math
from collections.abc import Callable

from regard.config import TrainConfig


def make_rate(c: TrainConfig, steps: int) -> Callable[[int], float]:
    """rate(step), step counted from 0; `steps` is the length of training."""

    def rate(step: int) -> float:
        if step < c.warmup:
            return c.rate * (step + 1) / c.warmup
        done = min(1.0, (step - c.warmup) / max(1, steps - c.warmup))
        match c.schedule:
            case "inverse_sqrt":
                return c.rate * math.sqrt(max(1, c.warmup) / (step + 1))
            case "cosine":
                return c.rate * (1 + math.cos(math.pi * done)) / 2
            case "linear":
                return c.rate * (1 - done)
            case "constant":
                return c.rate

    return rate
