"""The learning rate as a pure function of the step."""

import math
from collections.abc import Callable

from regard.config import TrainConfig


def make_rate(config: TrainConfig, steps: int) -> Callable[[int], float]:
    """rate(step), step counted from 0; `steps` is the length of training."""

    def rate(step: int) -> float:
        if step < config.warmup:
            rising = (step + 1) / config.warmup
            return config.rate * rising * _left_of_decay(config, step)
        done = min(1.0, (step - config.warmup) / max(1, steps - config.warmup))
        shares = {
            "inverse_sqrt": math.sqrt(max(1, config.warmup) / (step + 1)),
            "cosine": (1 + math.cos(math.pi * done)) / 2,
            "linear": 1 - done,
            "constant": 1.0,
            "wsd": _left_of_decay(config, step),
        }
        return config.rate * shares[config.schedule]

    return rate


def _left_of_decay(config: TrainConfig, step: int) -> float:
    """What schedule=wsd leaves of the rate: all until the decay begins, nothing at its end.

    Warmup, stable, decay (Hu et al. 2024). Where the decay is not decided yet, and for the other
    schedules, it leaves all.
    """
    if not config.decay_end or step < config.decay_start:
        return 1.0
    length = config.decay_end - config.decay_start
    return max(0.0, (config.decay_end - step) / length)
