"""A model that is a table: the logits are a random function of the sentence and of the whole
prefix.
"""

from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor

CELLS = 97


@dataclass
class TableState:
    names: Tensor  # (B,) which sentence: stored once for all of its hypotheses
    prefix: Tensor  # (B, K) a hash of the tokens fed so far

    def select(self, sentences: Tensor | None, beams: Tensor) -> "TableState":
        sentences = torch.arange(len(self.names)) if sentences is None else sentences
        return TableState(self.names[sentences], self.prefix[sentences.unsqueeze(-1), beams])

    def join(self, other: "TableState") -> "TableState":
        return TableState(
            torch.cat((self.names, other.names)), torch.cat((self.prefix, other.prefix))
        )


@dataclass
class Table:
    """Logits (sentences, CELLS, V). A hypothesis that is given another's state gets another's
    logits.
    """

    logits: Tensor
    fed: list[list[int]] = field(default_factory=list)  # the sentence of every row of every step

    @classmethod
    def random(cls, seed: int, sentences: int = 4, vocabulary: int = 7, levels: int = 0) -> "Table":
        """With `levels` the logits take so few values that most are tied."""
        logits = torch.randn(
            sentences, CELLS, vocabulary, generator=torch.Generator().manual_seed(seed)
        )
        logits = 2 * logits.double()  # so that rounding makes no two hypotheses equal
        return cls((logits * levels / 4).round() if levels else logits)

    def step(self, tokens: Tensor, state: TableState) -> tuple[Tensor, TableState]:
        prefix = (state.prefix * 31 + tokens.view_as(state.prefix) + 1) % CELLS
        self.fed.append(state.names.repeat_interleave(prefix.shape[1]).tolist())
        return self.logits[state.names.unsqueeze(-1), prefix].flatten(0, 1), TableState(
            state.names, prefix
        )

    def logprobs(
        self, sentence: int, tokens: list[int], banned: tuple[int, ...] = (0, 1)
    ) -> list[float]:
        """The next log-probabilities (V,) after `tokens`, computed without any search."""
        prefix = 0
        for token in [1, *tokens]:
            prefix = (prefix * 31 + token + 1) % CELLS
        logits = self.logits[sentence, prefix].clone()
        logits[list(banned)] = -torch.inf
        return logits.log_softmax(-1).tolist()

    def run(self, search: Any, names: list[int] | None = None, **settings: Any) -> Any:
        """Search the sentences `names`, by default all of them."""
        names = list(range(len(self.logits))) if names is None else names
        return search(self.step, self.begin(names), batch=len(names), **settings)

    def begin(self, names: list[int]) -> TableState:
        return TableState(torch.tensor(names), torch.zeros(len(names), 1, dtype=torch.long))


@pytest.fixture(scope="session")
def table() -> type[Table]:
    return Table
