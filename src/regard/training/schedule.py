"""The learning rate as a pure function of the step."""

import math
from collections.abc import Callable

from regard.config import TrainConfig


def make_rate(config: TrainConfig, steps: int) -> Callable[[int], float]:
    """rate(step), step counted from 0; `steps` is the length of training."""

    def rate(step: int) -> float:
        if step < config.warmup:
            return config.rate * (step + 1) / config.warmup
        done = min(1.0, (step - config.warmup) / max(1, steps - config.warmup))
        shares = {
            "inverse_sqrt": math.sqrt(max(1, config.warmup) / (step + 1)),
            "cosine": (1 + math.cos(math.pi * done)) / 2,
            "linear": 1 - done,
            "constant": 1.0,
        }
        return config.rate * shares[config.schedule]

    return rate
