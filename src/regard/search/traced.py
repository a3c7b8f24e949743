"""A search that notes what it tries."""

from collections.abc import Callable, Iterable, Sequence

from torch import Tensor

from regard.records.tree import Node
from regard.search.engine import Paths, Search
from regard.search.hypothesis import Hypothesis, Job
from regard.text.vocabulary import EOS


class Traced:
    """The same search of one sentence; `tried` keeps of every step its candidates, best first:
    tokens after <bos>, logprobs.
    """

    def __init__(self, search: Search) -> None:
        self.search, self.copies, self.apart, self.length_penalty = (
            search,
            search.copies,
            search.apart,
            search.length_penalty,
        )
        self.tried: list[list[tuple[tuple[int, ...], list[float]]]] = []

    def grow(self, live: Paths, logits: Tensor, jobs: Sequence[Job]) -> Paths:
        found = self.search.grow(live, logits, jobs)
        assert len(jobs) == 1
        real = ~found.scores[0].isneginf()
        rows = found.tokens[0][real], found.logprobs[0][real]
        self.tried.append(
            [
                (tuple(tokens[1:]), logprobs[1:])
                for tokens, logprobs in zip(*(row.tolist() for row in rows))
            ]
        )
        return found

    def enough(self, job: Job) -> bool:
        return self.search.enough(job)

    def nodes(
        self, found: Sequence[Hypothesis], names: Callable[[Iterable[int]], Sequence[str]]
    ) -> list[Node]:
        """Every candidate. found: the hypotheses that ended, the best first. names: of tokens."""
        whole = [(*one.tokens, *([EOS] if one.finished else [])) for one in found]
        parents = {tokens[:-1] for step in self.tried for tokens, _ in step}
        numbers: dict[tuple[int, ...], int] = {(): -1}
        made: list[Node] = []
        for step, candidates in enumerate(self.tried):
            for tokens, logprobs in candidates:
                fate = "kept" if tokens in parents else "ended" if tokens in whole else "dropped"
                fate = "chosen" if tokens == whole[0][: step + 1] else fate
                numbers[tokens] = len(made)
                made.append(
                    Node(
                        names(tokens[-1:])[0],
                        numbers[tokens[:-1]],
                        step,
                        logprobs[-1],
                        sum(logprobs),
                        fate,
                    )
                )
        return made
