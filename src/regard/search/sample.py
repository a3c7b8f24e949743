"""Sampling: tokens drawn from the model's distribution, reproducibly for each sentence."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from regard.errors import UserError
from regard.search.constraints import Rules
from regard.search.greedy import follow
from regard.search.hypothesis import Hypothesis, S, Step


@torch.no_grad()
def sample(
    step: Step[S],
    state: S,
    *,
    seeds: Sequence[int],
    n: int = 1,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    **rules: Any,
) -> list[list[Hypothesis]]:
    """`n` samples of each sentence, in the order drawn. A sentence's seed decides them, whatever its batch.

    The distribution is divided by `temperature`, cut to its `top_k` likeliest ids (0: all), then to the fewest that
    hold `top_p` of what is left. Log-probabilities and scores are the model's own, before these three, so that they
    compare with those of the other searches. `rules` as in `greedy`.
    """
    if temperature <= 0 or top_k < 0 or not 0 < top_p <= 1 or n < 1:
        wish = "temperature > 0, top_k >= 0, 0 < top_p <= 1 and n >= 1"
        raise UserError(f"sampling needs {wish}; got {temperature=}, {top_k=}, {top_p=}, {n=}")
    made = Rules(**rules)
    dice = torch.empty(made.batch, made.longest, n, dtype=torch.float64)
    for row, seed in zip(dice, seeds, strict=True):
        row.uniform_(generator=torch.Generator().manual_seed(seed))
    dice = dice.to(made.device)

    def pick(logits: Tensor, sentences: Tensor, t: int) -> Tensor:
        return draw(narrow(logits / temperature, top_k, top_p), dice[sentences, t].flatten())

    first = torch.zeros(made.batch, n, dtype=torch.long, device=made.device)
    state = state.select(torch.arange(made.batch, device=made.device), first)
    return follow(step, state, pick, made, copies=n)


def narrow(logits: Tensor, top_k: int, top_p: float) -> Tensor:
    """Logits (R, V) with -inf outside the `top_k` likeliest and the nucleus of `top_p`; ties go to the lower id."""
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
    """Inverse CDF in the order of ids: the first id of each row (R, V) whose cumulative share exceeds `dice` (R,).

    In fp64: thousands of small fp32 addends would shift the shares, and an id of probability 0 could be hit.
    """
    heap = logits.double().softmax(-1).cumsum(-1)
    ids = torch.searchsorted(heap, dice.unsqueeze(-1) * heap[:, -1:], right=True).squeeze(-1)
    # a row without any choice is NaN and lands beyond the last id; the loop ends it
    return ids.clamp(max=logits.shape[-1] - 1)
