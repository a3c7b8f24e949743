"""How likely a given target is, token by token."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Self


@dataclass(frozen=True)
class Likelihood:
    """The log-probability of a given target, and what the model would have written instead.

    Each token is predicted from the source and the target tokens before it (teacher forcing). All
    lists end with `<eos>`, except those of a masked language model; a token that is not in the
    vocabulary counts as `<unk>`. Where there are no tokens, the means are NaN.
    """

    source: str
    target: str
    tokens: list[str]
    """The tokens of the target."""
    logprobs: list[float]
    """Their log-probabilities, by natural logarithm."""
    predicted: list[str]
    """The most likely token at each place."""
    predicted_logprobs: list[float]
    """The log-probabilities of those."""
    correct: list[bool]
    """Whether the token is the most likely one."""

    @property
    def total(self) -> float:
        """Log-probability of the whole target."""
        return sum(self.logprobs)

    @property
    def per_token(self) -> float:
        """Mean log-probability of a token."""
        return self.total / len(self.logprobs) if self.logprobs else math.nan

    @property
    def perplexity(self) -> float:
        """Between how many equally likely tokens the model hesitates, on average."""
        return math.exp(min(-self.per_token, 700.0))  # exp(710) is too large for a float

    @property
    def accuracy(self) -> float:
        """Share of the tokens that are also the most likely ones."""
        return sum(self.correct) / len(self.correct) if self.correct else math.nan

    def as_dict(self) -> dict[str, Any]:
        """The values as a dict that can be written as JSON."""
        per_token = self.per_token if self.logprobs else None  # JSON has no NaN
        return {**asdict(self), "total": self.total, "per_token": per_token}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Restore it from the values of `as_dict`."""
        computed = {"total", "per_token"}
        return cls(**{name: value for name, value in values.items() if name not in computed})
