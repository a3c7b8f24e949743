"""What a search takes and what it gives: the state, the step, the job and the hypothesis.

Shapes: B sentences, K hypotheses of each, R = B*K rows (sentence-major), V vocabulary, t tokens so
far.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol, Self, TypeVar

from torch import Tensor

from regard.errors import UserError
from regard.text.vocabulary import BOS, EOS


class Selectable(Protocol):
    """The decoder's state, of which a search only asks that it follows the hypotheses."""

    def select(self, sentences: Tensor | None, beams: Tensor) -> Self:
        """Keep the `sentences` (B',), or all, and of each its hypotheses `beams` (B', K')."""
        ...

    def join(self, other: Self) -> Self:
        """The sentences of both; both have K hypotheses of each."""
        ...


S = TypeVar("S", bound=Selectable)
Step = Callable[[Tensor, S], tuple[Tensor, S]]
"""(last token of each row (R,), state) -> (logits of the next (R, V), new state)."""


@dataclass(frozen=True)
class Hypothesis:
    """One output of a search.

    A hypothesis that is not finished was stopped by its limit, or because the constraints allow
    nothing to follow it.
    """

    tokens: list[int]
    """Without <bos> and <eos>."""
    score: float
    """Always the sum of `logprobs` / length**penalty, whatever else ranks the hypotheses."""
    logprobs: list[float]
    """Of each token, and of <eos> if the hypothesis is finished."""
    finished: bool
    """Whether it ended with <eos>."""
    agreement: float | None = None
    """Mean chrF with all samples, 0 to 100, where they are ranked by it (minimum Bayes risk)."""
    coverage_penalty: float | None = None
    """At most 0; where there is one, hypotheses are ranked by score + coverage_penalty."""

    @classmethod
    def build(cls, produced: list[int], logprobs: list[float], length_penalty: float = 1.0) -> Self:
        """A hypothesis from the tokens that followed <bos>.

        The score is sum / length**penalty. The length counts <eos>, as in CTranslate2.
        """
        finished = produced[-1:] == [EOS]
        total = math.fsum(logprobs)
        # Every search takes NaN for the best there is, so it always arrives here.
        if not math.isfinite(total):
            raise UserError(
                "the model's logits are NaN or infinite: the weights are damaged, or "
                "fp16 overflowed"
            )
        score = total / max(len(produced), 1) ** length_penalty
        tokens = produced[:-1] if finished else produced
        return cls(tokens, score, logprobs, finished)


@dataclass(eq=False)
class Job:
    """A sentence to be searched, how far it is, and what was found."""

    source: Sequence[int] = ()
    limit: int = 1  # the most steps, <eos> counted
    prefix: Sequence[int] = ()  # the tokens the output begins with
    seed: int = 0
    number: int = 0  # the caller's
    positions: Sequence[int] = ()  # of the source's tokens; empty: one after the other
    first: int = BOS  # the token that the first step reads
    age: int = 0  # steps taken
    led: bool = False  # its best candidate has ended, at some step
    ended: list[tuple[int, Hypothesis]] = field(default_factory=list)  # with their slots
    found: list[Hypothesis] = field(default_factory=list)
    """When it is done: best first, or in the order drawn."""

    def restart(self) -> None:
        """Forget how far it is and what was found."""
        self.age = 0
        self.led = False
        self.ended = []
        self.found = []
