"""Which of two targets a model prefers, for many contrastive pairs."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator

from regard.errors import UserError
from regard.records.contrast import Contrast, ContrastItem
from regard.records.likelihood import Likelihood
from regard.text.vocabulary import SPECIALS, UNK

UNKNOWN = SPECIALS[UNK]

Scores = Callable[[Iterable[tuple[str, str]]], Iterator[Likelihood]]
"""The likelihood of the target of each (source, target), in order."""


def judge_contrasts(
    scores: Scores, items: Iterable[ContrastItem | tuple[str, ...]]
) -> Iterator[Contrast]:
    """Both log-probabilities of each item, in order and in constant memory."""
    waiting: deque[ContrastItem] = deque()  # read already, for batches, but not judged yet

    def both_pairs() -> Iterator[tuple[str, str]]:
        for values in items:
            item = _item(values)
            waiting.append(item)
            yield item.source, item.right
            yield item.source, item.wrong

    likelihoods = scores(both_pairs())
    for right in likelihoods:
        wrong = next(likelihoods)
        yield Contrast(
            *waiting.popleft(),
            right_logprob=right.total,
            wrong_logprob=wrong.total,
            unknown=UNKNOWN in right.tokens or UNKNOWN in wrong.tokens,
        )


def _item(values: ContrastItem | tuple[str, ...]) -> ContrastItem:
    """An item as people write it: with a kind, or without."""
    if isinstance(values, str) or not 3 <= len(values) <= 4:
        raise UserError(f"{values!r}: a contrast is (source, right, wrong) or with a kind after it")
    return ContrastItem(*values)
