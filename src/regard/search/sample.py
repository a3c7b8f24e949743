"""Sampling: tokens drawn from the model's distribution, reproducibly for each sentence."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from regard.errors import UserError
from regard.search.engine import together
from regard.search.greedy import Greedy
from regard.search.hypothesis import Hypothesis, Job, S, Step


@dataclass
class Sample(Greedy):
    """`copies` samples of each sentence, in the order drawn.

    A sentence's seed decides them, whatever its batch.

    The distribution is divided by `temperature`, cut to its `top_k` likeliest ids (0: all), then to
    the fewest that hold `top_p` of what is left. Log-probabilities and scores are the model's own,
    before these three, so that they compare with those of the other searches.
    """

    copies: int = 1
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    plain = False

    def __post_init__(self) -> None:
        if self.temperature <= 0 or self.top_k < 0 or not 0 < self.top_p <= 1 or self.copies < 1:
            wish = "temperature > 0, top_k >= 0, 0 < top_p <= 1 and n >= 1"
            got = (
                f"temperature={self.temperature}, top_k={self.top_k}, top_p={self.top_p}, "
                f"n={self.copies}"
            )
            raise UserError(f"sampling needs {wish}; got {got}")

    def as_beam(self) -> None:
        return None

    def pick(self, logits: Tensor, jobs: Sequence[Job]) -> Tensor:
        seeds, ages = (
            torch.tensor(values, device=logits.device)
            for values in zip(*((job.seed, job.age) for job in jobs))
        )
        return draw(
            narrow(logits / self.temperature, self.top_k, self.top_p),
            dice(seeds, ages, self.copies).flatten(),
        )


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
    """`n` samples of each sentence; `rules` as in `greedy`, and `seeds`."""
    search = Sample(n, temperature, top_k, top_p, length_penalty=length_penalty)
    return together(step, state, search, **rules)


def dice(seeds: Tensor, ages: Tensor, copies: int) -> Tensor:
    """Numbers from 0 to 1 (B, K), a function of seed, step and copy alone (SplitMix64)."""
    number = (torch.arange(copies, device=ages.device) << 32) + ages[:, None] + 1
    x = seeds[:, None] + number * (0x9E3779B97F4A7C15 - 2**64)
    for shift, factor in (
        (30, 0xBF58476D1CE4E5B9 - 2**64),
        (27, 0x94D049BB133111EB - 2**64),
        (31, 1),
    ):
        x = (x ^ ((x >> shift) & ((1 << (64 - shift)) - 1))) * factor
    return ((x >> 11) & ((1 << 53) - 1)).double() / 2**53


def narrow(logits: Tensor, top_k: int, top_p: float) -> Tensor:
    """Logits (R, V) with -inf outside the `top_k` likeliest and the nucleus of `top_p`.

    Ties go to the lower id.
    """
    if not top_k and top_p == 1:
        return logits
    ordered, ids = logits.sort(stable=True, dim=-1, descending=True)
    if top_k:
        ordered[:, top_k:] = -torch.inf
    if top_p < 1:
        shares = ordered.softmax(-1)
        # a token stays while those before it hold less than top_p: the first one always does
        ordered[shares.cumsum(-1) - shares >= top_p] = -torch.inf
    return torch.empty_like(logits).scatter_(-1, ids, ordered)


def draw(logits: Tensor, dice: Tensor) -> Tensor:
    """The first id of each row (R, V) whose cumulative share exceeds `dice` (R,).

    This is the inverse CDF, in the order of ids.

    In fp64: thousands of small fp32 addends would shift the shares, and an id of probability 0
    could be hit.
    """
    heap = logits.double().softmax(-1).cumsum(-1)
    ids = torch.searchsorted(heap, dice.unsqueeze(-1) * heap[:, -1:], right=True).squeeze(-1)
    # a row without any choice is NaN and lands beyond the last id; the loop ends it
    return ids.clamp(max=logits.shape[-1] - 1)
