"""What a search takes and what it gives: the state, the step and the hypothesis.

Shapes: B sentences, K hypotheses of each, R = B*K rows (sentence-major), V vocabulary, t tokens so far.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, Self, TypeVar

from torch import Tensor

from regard.errors import UserError
from regard.text.vocabulary import EOS


class Selectable(Protocol):
    """The decoder's state, of which a search only asks that it follows the hypotheses."""

    def select(self, sentences: Tensor, beams: Tensor) -> Self:
        """Keep `sentences` (B',) of the B; of each, its hypotheses `beams` (B', K') become the new K'."""
        ...


S = TypeVar("S", bound=Selectable)

Step = Callable[[Tensor, S], tuple[Tensor, S]]
"""(the last token of each row (R,), state) -> (logits of the next (R, V), the state after it)."""


@dataclass(frozen=True)
class Hypothesis:
    """One output: `tokens` without <bos> and <eos>; `logprobs` of each token, and of <eos> when `finished`.

    An unfinished hypothesis was stopped by its limit, or because the constraints left it nowhere to go.
    """

    tokens: list[int]
    score: float
    logprobs: list[float]
    finished: bool

    @classmethod
    def build(cls, produced: list[int], logprobs: list[float], length_penalty: float = 1.0) -> Self:
        """From what followed <bos>. The score is sum / length**penalty; the length counts <eos>, as CTranslate2's."""
        finished, total = produced[-1:] == [EOS], math.fsum(logprobs)
        if math.isnan(total):
            raise not_numbers()
        score = total / max(len(produced), 1) ** length_penalty
        return cls(produced[:-1] if finished else produced, score, logprobs, finished)


def not_numbers() -> UserError:
    """The error for logits from which nothing can be chosen."""
    return UserError("the model's logits are NaN or infinite: its weights are broken, or fp16 overflowed")


def limits(limit: Tensor | Sequence[int], batch: int) -> list[int]:
    """The most steps each sentence may take, <eos> counted, checked: B integers of at least 1."""
    steps: list[int] = limit.tolist() if isinstance(limit, Tensor) else list(limit)
    if len(steps) != batch:
        raise UserError(f"limit has {len(steps)} entries for a batch of {batch} sentences")
    if any(steps_of_one < 1 for steps_of_one in steps):
        raise UserError(f"limit must be at least 1 for every sentence, and one is {min(steps)}")
    return steps
