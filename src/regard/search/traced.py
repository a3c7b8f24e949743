"""A search that notes what it tries."""

from collections.abc import Callable, Iterable, Sequence

from torch import Tensor

from regard.records.tree import Node
from regard.search.engine import Paths, Search
from regard.search.hypothesis import Hypothesis, Job
from regard.text.vocabulary import EOS

TokenIds = tuple[int, ...]


class Traced:
    """The same search, of one sentence, which keeps the candidates of every step in `tried`."""

    def __init__(self, search: Search) -> None:
        self.search = search
        self.copies = search.copies
        self.apart = search.apart
        self.length_penalty = search.length_penalty
        self.extra_length = search.extra_length
        self.plain = False  # decoded again, it would note both searches as one
        self.tried: list[list[tuple[TokenIds, list[float]]]] = []
        """For every step its candidates, best first: the tokens after <bos>, and their logprobs."""

    def grow(self, live: Paths, logits: Tensor, jobs: Sequence[Job]) -> Paths:
        """The candidates of the search, which are noted."""
        candidates = self.search.grow(live, logits, jobs)  # (1, C)
        assert len(jobs) == 1

        real = ~candidates.scores[0].isneginf()  # (C,)
        tokens = candidates.tokens[0][real]  # (C', t)
        logprobs = candidates.logprobs[0][real]  # (C', t)
        self.tried.append(
            [
                (tuple(row_tokens[1:]), row_logprobs[1:])
                for row_tokens, row_logprobs in zip(tokens.tolist(), logprobs.tolist())
            ]
        )
        return candidates

    def enough(self, job: Job) -> bool:
        return self.search.enough(job)

    def unmet(self, text: str) -> list[str]:
        return self.search.unmet(text)

    def retry(self) -> None:
        return None

    def as_beam(self) -> None:
        return None  # a captured graph notes nothing

    def nodes(
        self, hypotheses: Sequence[Hypothesis], names: Callable[[Iterable[int]], Sequence[str]]
    ) -> list[Node]:
        """Every candidate, as a node of the tree of what was tried.

        hypotheses: those that ended, the best first. names: the texts of tokens.
        """
        endings = [_produced(hypothesis) for hypothesis in hypotheses]
        answer = endings[0] if endings else ()
        parents = {tokens[:-1] for candidates in self.tried for tokens, _ in candidates}

        def fate(tokens: TokenIds) -> str:
            if tokens == answer[: len(tokens)]:
                return "chosen"
            if tokens in parents:
                return "kept"
            if tokens in endings:
                return "ended"
            return "dropped"

        nodes: list[Node] = []
        numbers: dict[TokenIds, int] = {(): -1}  # of the node at which these tokens end
        for step, candidates in enumerate(self.tried):
            for tokens, logprobs in candidates:
                numbers[tokens] = len(nodes)
                nodes.append(
                    Node(
                        token=names(tokens[-1:])[0],
                        parent=numbers[tokens[:-1]],
                        step=step,
                        logprob=logprobs[-1],
                        total=sum(logprobs),
                        fate=fate(tokens),
                    )
                )

        return nodes


def _produced(hypothesis: Hypothesis) -> TokenIds:
    """Its tokens, with the <eos> that finished it."""
    if hypothesis.finished:
        return (*hypothesis.tokens, EOS)
    return tuple(hypothesis.tokens)
