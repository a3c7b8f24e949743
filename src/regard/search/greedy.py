"""Greedy search: the most likely token at every step."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from regard.search.beam import Beam
from regard.search.engine import Paths, Search, together
from regard.search.hypothesis import Hypothesis, Job, S, Step
from regard.search.normalizer import log_normalizer


@dataclass
class Greedy:
    """Greedy search: each hypothesis is extended by the token that `pick` chooses.

    `length_penalty` affects only the score, which is sum / length**penalty as in beam search.
    """

    copies = 1
    apart = True
    extra_length = 0
    plain = True
    length_penalty: float = field(default=1.0, kw_only=True)

    def pick(self, logits: Tensor, jobs: Sequence[Job]) -> Tensor:
        """Ids (R,) from logits (R, V): the likeliest, a tie to the lower id."""
        return logits.argmax(-1)

    def grow(self, live: Paths, logits: Tensor, jobs: Sequence[Job]) -> Paths:
        """Every hypothesis with the token that was picked for it, in its slot."""
        ids = self.pick(logits, jobs).unsqueeze(-1)  # (R, 1)
        total = log_normalizer(logits)  # (R, 1)

        # total - total is NaN where a logit is infinite: so is the logprob, which would be -inf.
        logprobs = logits.gather(-1, ids) - total + (total - total)  # (R, 1)
        logprobs = logprobs.masked_fill(total.isneginf(), -torch.inf)  # nothing is allowed
        logprobs = logprobs.view_as(live.scores)  # (B, K)
        return live.extend(ids.view_as(live.parents), logprobs, live.scores + logprobs)

    def enough(self, job: Job) -> bool:
        return False

    def unmet(self, text: str) -> list[str]:
        return []

    def retry(self) -> Search | None:
        return None

    def as_beam(self) -> Beam | None:
        return Beam(1, length_penalty=self.length_penalty)


def greedy(
    step: Step[S], state: S, *, length_penalty: float = 1.0, **rules: Any
) -> list[Hypothesis]:
    """Greedy search: one hypothesis per sentence, with the most likely token at every step.

    Of equally likely tokens, the one with the lower id is chosen. `rules` are the keywords of
    `together` and `Rules`: batch, limit, minimum, …
    """
    search = Greedy(length_penalty=length_penalty)
    return [only for [only] in together(step, state, search, **rules)]
