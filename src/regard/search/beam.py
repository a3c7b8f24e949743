"""Beam search, equal to CTranslate2's: the same candidates, the same stopping, the same scores."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from regard.errors import UserError
from regard.search.engine import Paths, Search, together
from regard.search.hypothesis import Hypothesis, Job, S, Step


@dataclass
class Beam:
    """The `width` best hypotheses go on.

    A sentence stops when round(width * patience) have finished; with no length penalty, as soon as
    n_best have and one was the best candidate of its step, for longer can then only be worse than
    that.
    """

    width: int
    n_best: int = 1
    length_penalty: float = 1.0
    patience: float = 1.0
    diversity: float = 0.0
    """How much worse the n-th best continuation of a hypothesis is ranked: n times this.

    Li and Jurafsky 2016.
    """
    apart = False
    extra_length = 0
    plain = True

    def __post_init__(self) -> None:
        self.copies, self.most = (
            self.width,
            int(self.width * self.patience + 0.5),
        )  # half goes up, as in C++
        if self.width < 1 or not 1 <= self.n_best <= self.most:
            got = f"n_best={self.n_best}, width={self.width}, patience={self.patience}"
            raise UserError(f"1 <= n_best <= width * patience, please; got {got}")

    def enough(self, job: Job) -> bool:
        return (
            len(job.ended) >= self.most
            if self.length_penalty
            else job.led and len(job.ended) >= self.n_best
        )

    def unmet(self, text: str) -> list[str]:
        return []

    def retry(self) -> Search | None:
        return None

    def as_beam(self) -> "Beam | None":
        """Itself. A subclass that grows in another way has to return None."""
        return None if self.diversity else self

    def grow(self, live: Paths, logits: Tensor, jobs: Sequence[Job]) -> Paths:
        """The best 2 * width continuations of each sentence: enough to go on if half of them end.

        Equal sums go to the better parent, then to the likelier token, then to the lower id.
        """
        logprobs, ids = (
            table.view(*live.scores.shape, -1) for table in ranked(logits, 2 * self.width)
        )
        sums = live.scores.unsqueeze(-1) + logprobs
        ranks = (sums - self.diversity * torch.arange(sums.shape[-1], device=sums.device)).flatten(
            1
        )
        order = ranks.argsort(stable=True, dim=-1, descending=True)[:, : 2 * self.width]
        scores, parents = sums.flatten(1).gather(1, order), order // ids.shape[-1]
        old = live.take(torch.arange(len(order), device=order.device), parents)._replace(
            parents=parents
        )
        return old.extend(
            ids.flatten(1).gather(1, order), logprobs.flatten(1).gather(1, order), scores
        )


def beam(
    step: Step[S],
    state: S,
    *,
    width: int,
    n_best: int = 1,
    length_penalty: float = 1.0,
    patience: float = 1.0,
    **rules: Any,
) -> list[list[Hypothesis]]:
    """The best `n_best` hypotheses of each sentence, best first.

    There are fewer where fewer exist, but never none. `rules` as in `greedy`, to which
    width 1 is equal.
    """
    return [
        found[:n_best]
        for found in together(step, state, Beam(width, n_best, length_penalty, patience), **rules)
    ]


def ranked(logits: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Log-probabilities and ids (R, C) of the `count` best of each row (R, V), best first.

    A tie goes to the lower id. Ranking logits, not sums of log-probabilities, keeps apart what
    rounding would make equal: so beam 1 is greedy.
    """
    values, ids = logits.topk(min(count + 1, logits.shape[-1]))
    # topk chooses as it likes among equals: where the last one in may equal the first one out, all
    # are sorted
    tied = (values[:, -2] == values[:, -1]) & (values[:, -1] > -torch.inf)
    if tied.any():
        ids[tied] = logits[tied].argsort(stable=True, dim=-1, descending=True)[:, : ids.shape[-1]]
    ids = ids[:, :count].sort(-1).values
    values, order = logits.gather(-1, ids).sort(stable=True, dim=-1, descending=True)
    total = logits.logsumexp(-1, keepdim=True)
    return (values - total).where(total != -torch.inf, -torch.inf), ids.gather(-1, order)
