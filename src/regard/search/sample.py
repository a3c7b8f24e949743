"""Sampling: tokens drawn from the model's distribution, reproducibly for each sentence."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from regard.bounds import Bounded, setting
from regard.bounds.fields import SEEDS
from regard.errors import UserError
from regard.search.engine import together
from regard.search.greedy import Greedy
from regard.search.hypothesis import Hypothesis, Job, S, Step


@dataclass(frozen=True)
class Sampling(Bounded):
    """Settings for sampling answers at random instead of searching for the most likely one."""

    temperature: float = setting(
        1.0,
        "Divides the logits: near 0 is greedy search, above 1 is more random.",
        least=1e-9,
        most=10**6,
    )
    top_k: int = setting(0, "Sample from the k most likely tokens. 0: all.", least=0, most=10**9)
    top_p: float = setting(
        1.0,
        "Sample from the most likely tokens with this total probability (nucleus).",
        least=1e-9,
        most=1,
    )
    seed: int = setting(
        0,
        "Random seed; none: draw one.",
        least=0,
        below=SEEDS,
        advice=", or none to draw one",
    )
    risk: int = setting(
        0,
        "Draw this many samples and keep the most central (minimum Bayes risk). 0: off.",
        least=0,
        most=1000,
    )


@dataclass
class Sample(Greedy):
    """Sampling: `copies` samples of each sentence, in the order drawn.

    They depend on the seed of the sentence, not on its batch.

    Logits are divided by `temperature`, then cut to the `top_k` most likely ids (0: all), then to
    the fewest ids that hold `top_p` of the rest. Log-probabilities and scores are the model's own,
    before these three, so that they compare with those of the other searches.
    """

    copies: int = 1
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    plain = False

    def __post_init__(self) -> None:
        Sampling(self.temperature, self.top_k, self.top_p)  # refuses what is out of bounds
        if self.copies < 1:
            raise UserError(f"sampling needs at least one sample; got n={self.copies}")

    def as_beam(self) -> None:
        return None

    def pick(self, logits: Tensor, jobs: Sequence[Job]) -> Tensor:
        """Ids (R,) drawn from logits (R, V)."""
        seeds = [job.seed for job in jobs]
        ages = [job.age for job in jobs]
        numbers = dice(seeds, ages, self.copies).flatten().to(logits.device)  # (R,)
        # In fp64, so that a low temperature merges no two logits, and a small top_p is not 0.
        wide = logits.double()  # (R, V)
        if self.temperature != 1:
            wide = wide / self.temperature
        narrowed = narrow(wide, self.top_k, self.top_p)  # (R, V)
        return draw(narrowed, numbers)


def sample(
    step: Step[S],
    state: S,
    *,
    n: int = 1,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    length_penalty: float = 1.0,
    **rules: Any,
) -> list[list[Hypothesis]]:
    """Draw `n` samples of each sentence; `rules` as in `greedy`, and `seeds`, one per sentence."""
    search = Sample(n, temperature, top_k, top_p, length_penalty=length_penalty)
    return together(step, state, search, **rules)


def dice(seeds: Sequence[int], ages: Sequence[int], copies: int) -> Tensor:
    """Numbers from 0 to 1 (B, K), which depend on seed, step and copy alone (SplitMix64).

    seeds, ages: of each sentence, its seed and the steps taken. NumPy computes them, since it has
    unsigned numbers of 64 bits, whose products wrap around.
    """
    copy = np.arange(copies, dtype=np.uint64)  # (K,)
    age = np.array(ages, np.int64).astype(np.uint64)[:, None]  # (B, 1)
    seed = np.array(seeds, np.int64).astype(np.uint64)[:, None]  # (B, 1)
    number = (copy << np.uint64(32)) + age + np.uint64(1)  # (B, K)

    x = seed + number * np.uint64(0x9E3779B97F4A7C15)  # (B, K)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    x = x ^ (x >> np.uint64(31))
    upper = x >> np.uint64(11)  # 53 bits, as many as fp64 holds
    return torch.from_numpy(upper.astype(np.float64) / 2**53)


def narrow(logits: Tensor, top_k: int, top_p: float) -> Tensor:
    """Logits (R, V) with -inf outside the `top_k` likeliest and the nucleus of `top_p`.

    Ties go to the lower id.
    """
    if not top_k and top_p == 1:
        return logits

    ordered, ids = logits.sort(stable=True, dim=-1, descending=True)  # (R, V), likeliest first
    if top_k:
        ordered[:, top_k:] = -torch.inf
    if top_p < 1:
        # A token stays while those before it hold less than top_p: the first one always does.
        shares = ordered.softmax(-1)  # (R, V)
        before = shares.cumsum(-1) - shares  # (R, V)
        ordered[before >= top_p] = -torch.inf

    return torch.empty_like(logits).scatter_(-1, ids, ordered)


def draw(logits: Tensor, dice: Tensor) -> Tensor:
    """The first id of each row (R, V) whose cumulative share exceeds `dice` (R,).

    This is the inverse CDF, in the order of ids. It is computed in fp64: thousands of small fp32
    addends would shift the shares, and an id of probability 0 could be hit.
    """
    cumulative = logits.double().softmax(-1).cumsum(-1)  # (R, V)
    thresholds = dice.unsqueeze(-1) * cumulative[:, -1:]  # (R, 1)
    ids = torch.searchsorted(cumulative, thresholds, right=True).squeeze(-1)  # (R,)

    # A row in which nothing is allowed is NaN and lands beyond the last id; the loop ends it.
    return ids.clamp(max=logits.shape[-1] - 1)
