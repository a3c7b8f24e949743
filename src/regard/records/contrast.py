"""Contrastive pairs: a right and a wrong target for one source, and which of them a model prefers.

Sennrich (2017), "How Grammatical is Character-level Neural Machine Translation?", measures so where
a translator fails: each wrong target differs from the right one in a single feature.
"""

from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

ROUNDING = 1e-5
"""Share of a log-probability that may be rounding.

Two targets of the same tokens, such as <unk>, differ by less where they are in different batches.
"""


class ContrastItem(NamedTuple):
    """A source with a right target and a wrong one; kind names the feature that is wrong."""

    source: str
    right: str
    wrong: str
    kind: str = ""


@dataclass(frozen=True)
class Contrast:
    """The log-probabilities that a model gives to a right and to a wrong target.

    They are those of whole targets, not means per token: the two targets should differ in one word.
    Where they differ in length, as where a negation is left out, the shorter one has an advantage.
    """

    source: str
    right: str
    wrong: str
    kind: str
    """The feature in which the wrong target is wrong. Empty: not told."""
    right_logprob: float
    wrong_logprob: float
    unknown: bool = False
    """Whether a target has words that are not in the vocabulary, which all count as <unk>."""

    @property
    def margin(self) -> float:
        """By how much the right target is the more likely one, as a natural logarithm."""
        return self.right_logprob - self.wrong_logprob

    @property
    def correct(self) -> bool:
        """Whether the right target is the more likely one, by more than rounding."""
        return self.margin > ROUNDING * abs(self.right_logprob)

    def difference(self) -> str:
        """The target with what differs in brackets: `je suis chez [moi | lui] .`"""
        right = self.right.split()
        wrong = self.wrong.split()
        before = _shared(right, wrong)
        after = _shared(right[before:][::-1], wrong[before:][::-1])
        differing = [
            " ".join(words[before : len(words) - after]) or "–" for words in (right, wrong)
        ]
        end = right[len(right) - after :]
        return " ".join([*right[:before], f"[{differing[0]} | {differing[1]}]", *end])

    def as_dict(self) -> dict[str, Any]:
        """The values as a dict that can be written as JSON."""
        return {**asdict(self), "margin": self.margin, "correct": self.correct}


def _shared(words: list[str], others: list[str]) -> int:
    """How many words are the same at the beginning of both."""
    count = 0
    for word, other in zip(words, others):
        if word != other:
            break
        count += 1
    return count
