"""Beam search, equal to CTranslate2's: the same candidates, the same stopping, the same scores."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from regard.errors import UserError
from regard.search.engine import Paths, Search, together
from regard.search.hypothesis import Hypothesis, Job, S, Step
from regard.search.normalizer import log_normalizer


@dataclass
class Beam:
    """Beam search: keeps the `width` best hypotheses at each step.

    A sentence stops when round(width * patience) hypotheses have finished. With no length penalty
    it stops as soon as n_best have, if one of them was the best candidate of its step: those that
    are longer can then only be worse.
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
        self.copies = self.width
        self.most = int(self.width * self.patience + 0.5)  # half goes up, as in C++
        if self.width < 1 or not 1 <= self.n_best <= self.most:
            got = f"n_best={self.n_best}, width={self.width}, patience={self.patience}"
            raise UserError(f"n_best must be between 1 and width * patience; got {got}")

    def enough(self, job: Job) -> bool:
        if self.length_penalty:
            return len(job.ended) >= self.most
        return job.led and len(job.ended) >= self.n_best

    def unmet(self, text: str) -> list[str]:
        return []

    def retry(self) -> Search | None:
        return None

    def as_beam(self) -> "Beam | None":
        """This beam, which a captured graph can follow unless it is diverse.

        A subclass that grows in another way has to return None.
        """
        return None if self.diversity else self

    def grow(self, live: Paths, logits: Tensor, jobs: Sequence[Job]) -> Paths:
        """The best 2 * width continuations of each sentence: enough to go on if half of them end.

        Equal sums go to the better parent, then to the likelier token, then to the lower id.
        """
        sentences, width = live.scores.shape
        device = logits.device
        logprobs, ids = ranked(logits, 2 * self.width)  # (R, C)
        continuations = ids.shape[-1]  # C: 2K, or all of a small vocabulary
        logprobs = logprobs.view(sentences, width, -1)  # (B, K, C)
        ids = ids.view(sentences, width, -1)  # (B, K, C)

        sums = live.scores.unsqueeze(-1) + logprobs  # (B, K, C)
        places = torch.arange(continuations, device=device)  # (C,) among those of one hypothesis
        ranks = (sums - self.diversity * places).flatten(1)  # (B, K·C)
        order = ranks.argsort(stable=True, dim=-1, descending=True)[:, : 2 * self.width]  # (B, 2K)

        parents = order // continuations  # (B, 2K)
        rows = torch.arange(sentences, device=device)  # (B,)
        grown = live.take(rows, parents)._replace(parents=parents)  # (B, 2K)
        return grown.extend(
            ids=ids.flatten(1).gather(1, order),  # (B, 2K)
            logprobs=logprobs.flatten(1).gather(1, order),  # (B, 2K)
            scores=sums.flatten(1).gather(1, order),  # (B, 2K)
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
    """Beam search: the `n_best` best hypotheses of each sentence, best first.

    If fewer exist, fewer are returned, but at least one. Width 1 is the same as `greedy`, which
    also explains `rules`.
    """
    search = Beam(width, n_best, length_penalty, patience)
    hypotheses = together(step, state, search, **rules)
    return [best_first[:n_best] for best_first in hypotheses]


def ranked(logits: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Log-probabilities and ids (R, C) of the `count` best of each row (R, V), best first.

    A tie goes to the lower id. Ranking logits, not sums of log-probabilities, keeps apart what
    rounding would make equal: so beam 1 is greedy.
    """
    values, ids = logits.topk(min(count + 1, logits.shape[-1]))  # (R, C + 1)

    # topk chooses as it likes among equals: where the last one in may equal the first one out, the
    # whole row is sorted.
    tied = (values[:, -2] == values[:, -1]) & (values[:, -1] > -torch.inf)  # (R,)
    if tied.any():
        ids[tied] = logits[tied].argsort(stable=True, dim=-1, descending=True)[:, : ids.shape[-1]]

    # A stable sort of ascending ids puts the lower one first among equals.
    ids = ids[:, :count].sort(-1).values  # (R, C)
    values, order = logits.gather(-1, ids).sort(stable=True, dim=-1, descending=True)  # (R, C)

    total = log_normalizer(logits)  # (R, 1), -inf where nothing is allowed
    logprobs = (values - total).where(total != -torch.inf, -torch.inf)  # (R, C)
    return logprobs, ids.gather(-1, order)
