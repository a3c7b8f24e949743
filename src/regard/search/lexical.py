"""Words that an answer must hold and words that it must not, judged on its text: a beam that makes
room for them.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain, islice, zip_longest
from typing import NamedTuple

import torch
from torch import Tensor

from regard.search.beam import Beam
from regard.search.engine import Paths
from regard.search.hypothesis import Job
from regard.text.vocabulary import EOS

LETTER = r"[^\W\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff]"
"""Of a script that puts spaces between words, unlike Thai, Lao, Burmese, Khmer, Japanese and
Chinese.
"""


class Phrase(NamedTuple):
    """A word or several, and the tokens that write it: at the beginning of an answer, and later."""

    text: str
    first: Sequence[int] = ()
    later: Sequence[int] = ()


@dataclass(frozen=True)
class Words:
    """What is demanded. A phrase stands in a text if it does so between the bounds of words: `cat`
    is not in `category`.
    """

    must: Sequence[Phrase]
    forbid: Sequence[str]
    read: Callable[[Sequence[int]], str]
    bounded: bool = True
    """Off: for texts without spaces a phrase may stand anywhere."""
    whole: bool = False
    """Every token is a whole word, which the next one cannot go on with."""

    @cached_property
    def _shapes(self) -> dict[str, re.Pattern[str]]:
        return {
            text: self._shape(text)
            for text in (*(phrase.text for phrase in self.must), *self.forbid)
        }

    def _shape(self, text: str) -> re.Pattern[str]:
        before = rf"(?<!{LETTER})" if self.bounded and re.match(LETTER, text) else ""
        after = rf"(?!{LETTER})" if self.bounded and re.search(rf"{LETTER}\Z", text) else ""
        return re.compile(before + re.escape(text) + after)

    def missing(self, text: str) -> list[Phrase]:
        return [phrase for phrase in self.must if not self._shapes[phrase.text].search(text)]

    def broken(self, text: str, *, ended: bool = True) -> list[str]:
        """The forbidden phrases that stand in the text. While it goes on, what stands at its end
        may still grow into another.
        """
        grows = self.bounded and not self.whole and not ended and re.match(LETTER, text[-1:])
        places = (
            (phrase, found.end())
            for phrase in self.forbid
            for found in self._shapes[phrase].finditer(text)
        )
        return [phrase for phrase, end in places if not (grows and end == len(text))]


class _Candidate(NamedTuple):
    met: int  # tokens of what must come that are there
    score: float
    slot: int
    id: int
    logprob: float


@dataclass
class Lexical(Beam):
    """Hypotheses that hold more of what must come do not compete with those that hold less (Post
    and Vilar 2018, in short): the slots are given in turn to the best of each number of tokens met.
    No step is taken after which the rest cannot fit.
    """

    words: Words = field(default_factory=lambda: Words((), (), lambda ids: ""))
    early: bool = False
    """What must come comes first."""

    def enough(self, job: Job) -> bool:
        return len(job.ended) >= self.most  # the first candidate is not always the best

    def grow(self, live: Paths, logits: Tensor, jobs: Sequence[Job]) -> Paths:
        logprobs = logits.log_softmax(-1).view(*live.scores.shape, -1)
        chosen = [
            self._best(job, *(part[row] for part in (live.tokens, live.scores, logprobs)))
            for row, job in enumerate(jobs)
        ]
        slots, ids, likely, scores = (
            torch.tensor(
                [[getattr(one, name) for one in row] for row in chosen], device=logits.device
            )
            for name in ("slot", "id", "logprob", "score")
        )
        old = live.take(torch.arange(len(jobs), device=logits.device), slots)._replace(
            parents=slots
        )
        return old.extend(ids, likely, scores)

    def _best(self, job: Job, tokens: Tensor, scores: Tensor, logprobs: Tensor) -> list[_Candidate]:
        """2 · K candidates of a sentence, the best of each number of tokens met in turn, the most
        met first.
        """
        groups: dict[int, list[_Candidate]] = {}
        for slot, score in enumerate(scores.tolist()):
            if score > -torch.inf:
                past = tokens[slot, tokens.shape[1] - job.age :].tolist() if job.age else []
                for one in self._follow(job, past, slot, score, logprobs[slot]):
                    groups.setdefault(one.met, []).append(one)
        ranked = [
            sorted(groups[met], key=lambda one: (-one.score, one.slot, one.id))
            for met in sorted(groups, reverse=True)
        ]
        found = [one for one in chain.from_iterable(zip_longest(*ranked)) if one is not None][
            : 2 * self.width
        ]
        return found + [_Candidate(0, -torch.inf, 0, 0, -torch.inf)] * (2 * self.width - len(found))

    def _follow(
        self, job: Job, past: list[int], slot: int, score: float, logprobs: Tensor
    ) -> Iterator[_Candidate]:
        """What may come after `past`: the likeliest, and what goes on with something that must
        come.
        """
        words, left = self.words, job.limit - job.age - 1
        missing = words.missing(words.read(past))
        starts = {ids[met] for phrase in missing for ids, met in [_progress(phrase, past)]}
        first = self.early and missing and job.age >= len(job.prefix)
        wanted = (
            [] if first else logprobs.topk(min(32 * self.width, len(logprobs))).indices.tolist()
        )
        fits = (
            one
            for id in wanted
            if id not in starts
            if (one := self._fit(past, slot, id, score, logprobs, left))
        )
        yield from islice(fits, 2 * self.width)
        for id in sorted(starts):
            if one := self._fit(past, slot, id, score, logprobs, left):
                yield one

    def _fit(
        self, past: list[int], slot: int, id: int, score: float, logprobs: Tensor, left: int
    ) -> _Candidate | None:
        """The candidate, if nothing forbidden stands in it and what is missing fits into the steps
        that are left.
        """
        words, likely, now = self.words, float(logprobs[id]), [*past, id]
        ended = id == EOS or not left
        text = words.read(past if id == EOS else now)
        text = (
            text if ended else text.rstrip("\ufffd")
        )  # a character of which only some bytes are there
        missing = words.missing(text)
        progress = [_progress(phrase, now) for phrase in missing]
        need, begun = (
            sum(len(ids) for ids, _ in progress),
            max((met for _, met in progress), default=0),
        )
        if (
            likely == -torch.inf
            or words.broken(text, ended=ended)
            or (missing if ended else need - begun > left)
        ):
            return None
        met = sum(len(phrase.later) for phrase in words.must) - need + begun
        return _Candidate(met, score + likely, slot, id, likely)


def _progress(phrase: Phrase, past: Sequence[int]) -> tuple[Sequence[int], int]:
    """The tokens that write a phrase here, and how many of them `past` ends with; one less than
    all, since it is missing.
    """
    if not past or (
        list(past) == list(phrase.first[: len(past)]) and len(past) < len(phrase.first)
    ):
        return phrase.first, len(past)
    ids = phrase.later
    return ids, next(
        (n for n in range(min(len(ids) - 1, len(past)), 0, -1) if list(past[-n:]) == list(ids[:n])),
        0,
    )
