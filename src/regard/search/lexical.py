"""Words that an answer must hold and words that it must not, judged on its text.

The search is a beam that makes room for them.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain, zip_longest
from typing import NamedTuple

import torch
from torch import Tensor

from regard.search.beam import Beam
from regard.search.engine import Paths
from regard.search.hypothesis import Job
from regard.text.vocabulary import EOS

LETTER = r"[^\W\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff]"
"""A letter of a script that puts spaces between words.

Thai, Lao, Burmese, Khmer, Japanese and Chinese do not.
"""
LIKELIEST = 32
"""Times the width: how many of the likeliest tokens are tried, until enough of them fit."""
INCOMPLETE = "\ufffd"
"""Stands at the end of a text where only some bytes of a character have been written."""


class Phrase(NamedTuple):
    """A word or several, and the tokens that write it: at the beginning of an answer, and later."""

    text: str
    first: Sequence[int] = ()
    later: Sequence[int] = ()


@dataclass(frozen=True)
class Words:
    """Phrases that an answer must contain, and phrases that it must not contain.

    Phrases are matched at word boundaries: `cat` is not in `category`.
    """

    must: Sequence[Phrase]
    forbid: Sequence[str]
    read: Callable[[Sequence[int]], str]
    """The text that tokens write."""
    bounded: bool = True
    """Off: for texts without spaces a phrase may stand anywhere."""
    tokens_are_words: bool = False
    """Every token is a word, which the next token cannot continue."""

    @cached_property
    def _patterns(self) -> dict[str, re.Pattern[str]]:
        """The pattern of every phrase, by its text."""
        texts = [*(phrase.text for phrase in self.must), *self.forbid]
        return {text: self._pattern(text) for text in texts}

    def _pattern(self, text: str) -> re.Pattern[str]:
        """Where the text stands as words of its own, not inside longer ones."""
        before = ""
        after = ""
        if self.bounded and re.match(LETTER, text):
            before = rf"(?<!{LETTER})"
        if self.bounded and re.search(rf"{LETTER}\Z", text):
            after = rf"(?!{LETTER})"
        return re.compile(before + re.escape(text) + after)

    def missing(self, text: str) -> list[Phrase]:
        """The demanded phrases that the text does not hold."""
        return [phrase for phrase in self.must if not self._patterns[phrase.text].search(text)]

    def broken(self, text: str, *, ended: bool = True) -> list[str]:
        """The forbidden phrases that the text holds, as often as it holds them.

        While a text is not ended, its last word may still grow into another one: a phrase at the
        very end does not count yet.
        """
        words_grow = self.bounded and not self.tokens_are_words
        may_grow = words_grow and not ended and re.match(LETTER, text[-1:])

        phrases: list[str] = []
        for phrase in self.forbid:
            for match in self._patterns[phrase].finditer(text):
                at_end = match.end() == len(text)
                if not (may_grow and at_end):
                    phrases.append(phrase)

        return phrases

    def unmet(self, text: str) -> list[str]:
        """What an answer does not keep, in words."""
        missing = [
            f"could not include {phrase.text!r} within the length limit"
            for phrase in self.missing(text)
        ]
        broken = [f"could not avoid {phrase!r}" for phrase in dict.fromkeys(self.broken(text))]
        return missing + broken


class _Prefix(NamedTuple):
    """A hypothesis that is to grow by one token."""

    tokens: list[int]  # without <bos>
    slot: int
    score: float
    logprobs: Tensor  # (V,) of the next token
    steps_left: int  # after the next token


class _Candidate(NamedTuple):
    """A hypothesis and the token that would follow it."""

    met: int  # how many tokens of the demanded phrases it holds
    score: float
    slot: int
    id: int
    logprob: float


_EMPTY = _Candidate(met=0, score=-torch.inf, slot=0, id=0, logprob=-torch.inf)


@dataclass
class Lexical(Beam):
    """Beam search with required and forbidden phrases.

    Hypotheses that contain more of the required phrases do not compete with those that contain less
    (simplified from Post and Vilar 2018): the slots are given in turn to the best of each number of
    tokens met. No step is taken after which the rest cannot fit.
    """

    words: Words = field(default_factory=lambda: Words((), (), lambda ids: ""))
    early: bool = False
    """What must come comes first."""
    plain = False

    def __post_init__(self) -> None:
        super().__post_init__()
        self.extra_length = sum(len(phrase.later) for phrase in self.words.must)

    def enough(self, job: Job) -> bool:
        return len(job.ended) >= self.most  # the first candidate is not always the best

    def unmet(self, text: str) -> list[str]:
        return self.words.unmet(text)

    def retry(self) -> "Lexical | None":
        """The same search, but what must come comes first."""
        if self.early or not self.words.must:
            return None
        return replace(self, early=True)

    def as_beam(self) -> None:
        return None  # a captured graph knows no words

    def grow(self, live: Paths, logits: Tensor, jobs: Sequence[Job]) -> Paths:
        """The best 2 * width continuations of each sentence, as `_best` shares out the slots."""
        logprobs = logits.log_softmax(-1).view(*live.scores.shape, -1)  # (B, K, V)
        candidates = [
            self._best(job, live.tokens[row], live.scores[row], logprobs[row])
            for row, job in enumerate(jobs)
        ]

        slots = [[candidate.slot for candidate in row] for row in candidates]
        tokens = [[candidate.id for candidate in row] for row in candidates]
        token_logprobs = [[candidate.logprob for candidate in row] for row in candidates]
        sums = [[candidate.score for candidate in row] for row in candidates]

        device = logits.device
        parents = torch.tensor(slots, device=device)  # (B, 2K)
        rows = torch.arange(len(jobs), device=device)  # (B,)
        grown = live.take(rows, parents)._replace(parents=parents)  # (B, 2K)
        return grown.extend(
            ids=torch.tensor(tokens, device=device),  # (B, 2K)
            logprobs=torch.tensor(token_logprobs, device=device),  # (B, 2K)
            scores=torch.tensor(sums, device=device),  # (B, 2K)
        )

    def _best(self, job: Job, tokens: Tensor, scores: Tensor, logprobs: Tensor) -> list[_Candidate]:
        """2K candidates of a sentence: the best of each number of tokens met in turn.

        Those that have met most come first. tokens: (K, t), scores: (K,), logprobs: (K, V).
        """
        groups: dict[int, list[_Candidate]] = {}  # by number of tokens met
        steps_left = job.limit - job.age - 1
        for slot, score in enumerate(scores.tolist()):
            if not score > -torch.inf:  # an empty slot, or NaN
                continue
            written = tokens[slot, tokens.shape[1] - job.age :].tolist()
            prefix = _Prefix(written, slot, score, logprobs[slot], steps_left)
            for candidate in self._follow(job, prefix):
                groups.setdefault(candidate.met, []).append(candidate)

        def rank(candidate: _Candidate) -> tuple[float, int, int]:
            return -candidate.score, candidate.slot, candidate.id

        ranked = [sorted(groups[met], key=rank) for met in sorted(groups, reverse=True)]
        in_turn = chain.from_iterable(zip_longest(*ranked))
        best = [candidate for candidate in in_turn if candidate is not None][: 2 * self.width]
        return best + [_EMPTY] * (2 * self.width - len(best))

    def _follow(self, job: Job, prefix: _Prefix) -> Iterator[_Candidate]:
        """What may follow: the likeliest tokens, and those that go on with a demanded phrase."""
        missing = self.words.missing(self.words.read(prefix.tokens))
        wanted: set[int] = set()  # the next tokens of the phrases that are missing
        for phrase in missing:
            ids, written = _progress(phrase, prefix.tokens)
            wanted.add(ids[written])

        only_wanted = self.early and missing and job.age >= len(job.prefix)
        if not only_wanted:
            yield from self._likeliest(prefix, wanted)

        for id in sorted(wanted):
            candidate = self._fit(prefix, id)
            if candidate is not None:
                yield candidate

    def _likeliest(self, prefix: _Prefix, without: set[int]) -> Iterator[_Candidate]:
        """The 2K likeliest tokens that fit, but for those in `without`."""
        count = 0
        tried = min(LIKELIEST * self.width, len(prefix.logprobs))
        for id in prefix.logprobs.topk(tried).indices.tolist():
            if id in without:
                continue
            candidate = self._fit(prefix, id)
            if candidate is None:
                continue

            yield candidate
            count += 1
            if count == 2 * self.width:
                return

    def _fit(self, prefix: _Prefix, id: int) -> _Candidate | None:
        """The candidate with this token, or None if it cannot become a good answer.

        It must hold nothing forbidden, and what is missing must fit into the steps that are left.
        """
        words = self.words
        logprob = float(prefix.logprobs[id])
        if logprob == -torch.inf:
            return None

        tokens = [*prefix.tokens, id]
        ended = id == EOS or not prefix.steps_left
        text = words.read(prefix.tokens if id == EOS else tokens)
        if not ended:
            text = text.rstrip(INCOMPLETE)
        if words.broken(text, ended=ended):
            return None

        missing = words.missing(text)
        progress = [_progress(phrase, tokens) for phrase in missing]
        needed = sum(len(ids) for ids, _ in progress)
        begun = max((written for _, written in progress), default=0)
        if ended and missing:
            return None
        if not ended and needed - begun > prefix.steps_left:
            return None

        met = self.extra_length - needed + begun
        return _Candidate(met, prefix.score + logprob, prefix.slot, id, logprob)


def _progress(phrase: Phrase, tokens: Sequence[int]) -> tuple[Sequence[int], int]:
    """The tokens that write a missing phrase here, and how many of them stand at the end already.

    At most all but one: otherwise the phrase would not be missing.
    """
    begins_answer = len(tokens) < len(phrase.first) and _begins(phrase.first, tokens)
    if not tokens or begins_answer:
        return phrase.first, len(tokens)

    longest = min(len(phrase.later) - 1, len(tokens))
    for count in range(longest, 0, -1):
        if _begins(phrase.later, tokens[-count:]):
            return phrase.later, count

    return phrase.later, 0


def _begins(ids: Sequence[int], tokens: Sequence[int]) -> bool:
    """Whether `ids` begins with `tokens`."""
    return list(ids[: len(tokens)]) == list(tokens)
