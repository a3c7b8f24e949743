"""An answer, with what there is to know about it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any, Protocol, Self

import numpy as np
import numpy.typing as npt

from regard.display import html
from regard.errors import UserError, counted
from regard.records.attention import AttentionRecord, Span
from regard.records.page import Page, page_path

HARDLY = 0.2
"""A source word that got less attention than this, over all target tokens, was overlooked."""


class Inspector(Protocol):
    """Whoever can read an answer once more with the model that wrote it: a `regard.Translator`."""

    def look(self, text: str, target: Sequence[int]) -> AttentionRecord: ...

    def page(self, result: Result, *, evidence: bool) -> str: ...


@dataclass(frozen=True)
class Alternative:
    """Another hypothesis of the search, with the same fields as `Result`."""

    text: str
    score: float
    agreement: float | None = None
    coverage_penalty: float | None = None


@dataclass(frozen=True)
class Option:
    """A token that could come at a position of the answer."""

    token: str
    probability: float
    """Probability of the token at this position."""
    text: str
    """The answer that the token leads to."""


@dataclass(frozen=True)
class Result:
    """The translation of a text, with its score, alternatives, warnings and attention."""

    source: str
    text: str
    tokens: list[str]
    score: float
    """Log-probability of the answer, divided by length^search.length_penalty."""
    logprobs: list[float]
    alternatives: list[Alternative] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    ids: list[int] = field(default_factory=list, repr=False)
    translator: Inspector | None = field(default=None, repr=False, compare=False)
    """The translator, which computes attention on request.

    None after pickle or JSON, which keep the values only.
    """
    parts: list[Result] = field(default_factory=list, repr=False)
    """The results of the parts, if the text was split."""
    no_repeat: int = field(default=0, repr=False)
    """The no_repeat setting with which a looping answer was decoded again; 0: it was not."""
    agreement: float | None = None
    """Mean chrF with all samples, 0 to 100; None unless `Sampling.risk` ranked the answers by it.
    """
    coverage_penalty: float | None = None
    """Added to the score to rank the answers, 0 or less; None without search.coverage."""

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        shown = [f"{self.source!r} → {self.text!r}", f"score={self.score:.3f}"]
        if self.alternatives:
            shown.append(counted(len(self.alternatives), "alternative"))
        if self.warnings:
            shown.append(counted(len(self.warnings), "warning"))
        return f"Result({', '.join(shown)})"

    def _repr_html_(self) -> str:
        """For a notebook: the answer, what to know about it, and its attention; no script."""
        answer = f"<bdi>{html(self.source)}</bdi> → <b><bdi>{html(self.text)}</bdi></b>"
        lines = [f"<p>{answer} <small>score {self.score:.3f}</small></p>"]
        lines += [f"<p>warning: {html(warning)}</p>" for warning in self.warnings]
        if self.ids and not self.parts and self.translator is not None:
            try:
                lines.append(self.attention._repr_html_())
            except UserError as error:  # several models have no attention in common
                lines.append(f"<p>{html(str(error))}</p>")
        return "".join(lines)

    def __getstate__(self) -> dict[str, Any]:
        """The values without the model, so that a result is small wherever it is sent.

        What was looked at already stays.
        """
        return {**self.__dict__, "translator": None}

    def as_dict(self) -> dict[str, Any]:
        """The values as a dict that can be written as JSON."""
        values = asdict(replace(self, translator=None, parts=[]))
        del values["translator"]
        return {**values, "parts": [part.as_dict() for part in self.parts]}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Restore a result from the values of `as_dict`.

        It has no model, so it cannot compute attention.
        """
        alternatives = [Alternative(**fields) for fields in values["alternatives"]]
        parts = [cls.from_dict(part) for part in values["parts"]]
        return cls(**{**values, "alternatives": alternatives, "parts": parts})

    def _inspector(self) -> Inspector:
        """The translator that gave this answer."""
        if self.translator is None:
            raise UserError(
                "this result was saved without its model, so it has no attention: translate its "
                "source again"
            )
        return self.translator

    @cached_property
    def attention(self) -> AttentionRecord:
        """The attention weights of every layer and head for this answer.

        Computed on first access, with one more forward pass over source and answer.
        """
        if self.parts:
            raise UserError(
                f"the text was split into {len(self.parts)} parts: each has its own attention, "
                f"such as result.parts[0].attention"
            )
        return self._inspector().look(self.source, self.ids)

    @cached_property
    def looked_at(self) -> npt.NDArray[np.float32]:
        """(S - 1,): total attention on each source token, without <eos>.

        Taken from the last layer, averaged over its heads. Empty without attention.
        """
        if self.parts:
            return np.concatenate([part.looked_at for part in self.parts])
        cross = self.attention.blocks.get("cross")  # (L, H, T, S)
        if cross is None:
            return np.zeros(0, np.float32)
        return np.asarray(cross[-1].mean(0).sum(0)[:-1])

    @property
    def coverage(self) -> float | None:
        """Share of the source that got attention, 0 to 1; None without attention.

        The mean of `looked_at`, in which each token counts at most 1.
        """
        if not len(self.looked_at):
            return None
        return float(self.looked_at.clip(max=1).mean())

    @property
    def overlooked(self) -> list[str]:
        """Source words that got almost no attention."""
        if self.parts:
            return list(chain.from_iterable(part.overlooked for part in self.parts))
        if not len(self.looked_at):
            return []
        record = self.attention
        return overlooked(record.text_in, record.source_spans[:-1], self.looked_at)

    def page(self, *, evidence: bool = True) -> Page:
        """An HTML page with the attention, the beam search tree and alternatives.

        In a notebook it opens below the cell. evidence: add occlusion and gradients, for texts of
        up to 128 tokens. This takes one forward pass per source token and one backward pass per
        target token. If the text was split, the page shows the first part.
        """
        if self.parts:
            first = next((part for part in self.parts if part.ids), self.parts[0])
            return first.page(evidence=evidence)
        return Page(self._inspector().page(self, evidence=evidence))

    def write_page(self, path: str | Path, *, evidence: bool = True) -> Path:
        """Write `page()` as one HTML file, and say where it is."""
        place = page_path(path)  # a wrong name is told before the page is made
        return self.page(evidence=evidence).write(place)


def ranking(answer: Result | Alternative) -> float:
    """The number by which a search ranks its answers, highest first.

    It is the agreement where samples were compared, else the score with its coverage penalty.
    """
    if answer.agreement is not None:
        return answer.agreement
    return answer.score + (answer.coverage_penalty or 0.0)


def joined(text: str, parts: list[Result], gaps: list[str]) -> Result:
    """The answer of a text that was split: the parts' best answers, then their second best, …

    gaps: the white space behind each part.

    Scores are means of the parts' scores, weighted by the lengths of the parts' best answers.
    """
    lengths = [len(part.logprobs) for part in parts]
    ranks = zip(*_answers_of_parts(parts))  # as many as of the part with the fewest
    best, *others = [_joined_answer(rank, lengths, gaps) for rank in ranks]
    split = f"split into {len(parts)} parts (an attention page shows only the first)"

    return Result(
        source=text,
        text=best.text,
        tokens=list(chain.from_iterable(part.tokens for part in parts)),
        score=best.score,
        logprobs=list(chain.from_iterable(part.logprobs for part in parts)),
        alternatives=others,
        warnings=[f"longer than any source in training: {split}", *_warnings_of_parts(parts)],
        ids=list(chain.from_iterable(part.ids for part in parts)),
        translator=parts[0].translator,
        parts=parts,
        agreement=best.agreement,
        coverage_penalty=best.coverage_penalty,
    )


def _answers_of_parts(parts: Sequence[Result]) -> list[list[Alternative]]:
    """The answers of each part, best first.

    A part without a token, such as white space, has the same empty answer for every rank, so that
    it does not limit how many answers the other parts have together.
    """
    ranks = max(1 + len(part.alternatives) for part in parts)
    answers = []
    for part in parts:
        if part.logprobs:
            best = Alternative(part.text, part.score, part.agreement, part.coverage_penalty)
            answers.append([best, *part.alternatives])
        else:
            empty = Alternative("", 0.0)
            answers.append([empty] * ranks)
    return answers


def _warnings_of_parts(parts: Sequence[Result]) -> list[str]:
    """The first five warnings about parts, and how many more there are."""
    warnings = []
    for number, part in enumerate(parts, 1):
        warnings += [f"part {number}: {warning}" for warning in part.warnings]
    if len(warnings) > 5:
        warnings[5:] = [f"{counted(len(warnings) - 5, 'more warning')} about its parts"]
    return warnings


def _joined_answer(
    answers: Sequence[Alternative], lengths: Sequence[int], gaps: Sequence[str]
) -> Alternative:
    """The answers of all parts as one."""

    def mean(values: Sequence[float | None]) -> float | None:
        if all(value is None for value in values):
            return None
        total = sum((value or 0.0) * length for value, length in zip(values, lengths))
        return total / max(1, sum(lengths))

    return Alternative(
        text="".join(answer.text + gap for answer, gap in zip(answers, gaps)),
        score=mean([answer.score for answer in answers]) or 0.0,
        agreement=mean([answer.agreement for answer in answers]),
        coverage_penalty=mean([answer.coverage_penalty for answer in answers]),
    )


def overlooked(text: str, spans: Sequence[Span], attention: npt.NDArray[Any]) -> list[str]:
    """Words whose tokens together got less attention than HARDLY.

    spans: where each source token lies in the text; attention: what each of them got.
    """
    words = []
    for word in re.finditer(r"\S+", text):
        start, end = word.span()
        shares = [
            share for (first, last), share in zip(spans, attention) if first < end and last > start
        ]
        if sum(shares) < HARDLY:
            words.append(word[0])
    return words
