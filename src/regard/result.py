"""An answer, with what there is to know about it."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from regard import evidence
from regard.errors import UserError
from regard.pictures.page import write_page
from regard.record import AttentionRecord
from regard.text.vocabulary import normalise
from regard.trust import overlooked

EXPLAINED = 128
"""Tokens of either side, up to which a page holds evidence: it takes a reading of the text for each."""


@dataclass(frozen=True)
class Alternative:
    """Another hypothesis of the search."""

    text: str
    score: float


@dataclass(frozen=True)
class Option:
    """A token that could stand at a position, how likely it is there, and the answer it leads to."""

    token: str
    probability: float
    text: str


@dataclass(frozen=True)
class Result:
    """An answer, with what there is to know about it."""

    source: str
    text: str
    tokens: list[str]
    score: float
    logprobs: list[float]
    alternatives: list[Alternative] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    ids: list[int] = field(default_factory=list, repr=False)
    translator: Any = field(default=None, repr=False, compare=False)
    parts: list[Result] = field(default_factory=list, repr=False)
    """Of a text that was split."""
    no_repeat: int = field(default=0, repr=False)
    """With which it was decoded again, to break a loop."""

    def __str__(self) -> str:
        return self.text

    def _repr_html_(self) -> str:
        """For a notebook: the answer, what to know about it, and its attention; no script."""
        lines = [f"<p>{escape(self.source)} → <b>{escape(self.text)}</b> <small>score {self.score:.3f}</small></p>"]
        lines += [f"<p>warning: {escape(warning)}</p>" for warning in self.warnings]
        if self.parts or not self.ids or self.translator is None:
            return "".join(lines)
        try:
            return "".join(lines) + self.attention._repr_html_()
        except UserError as several:  # models
            return "".join(lines) + f"<p>{escape(str(several))}</p>"

    def __getstate__(self) -> dict[str, Any]:
        """The values, without the model: a result is small, wherever it is sent. What was looked at already stays."""
        return {**self.__dict__, "translator": None}

    def _looker(self) -> Any:
        """The translator that gave this answer."""
        if self.translator is None:
            raise UserError("this result has come without its model, so it cannot look inside: translate its source again")
        return self.translator

    @cached_property
    def attention(self) -> AttentionRecord:
        """Computed when first asked for, by reading the answer once more and recording the weights."""
        if self.parts:
            raise UserError(f"split into {len(self.parts)} parts: each has its own attention, such as result.parts[0].attention")
        return self._looker().look(self.source, self.ids)

    @cached_property
    def looked_at(self) -> npt.NDArray[np.float32]:
        """Attention that each source token but <eos> got over all steps: last layer, mean of heads. Empty without attention."""
        if self.parts:
            return np.concatenate([part.looked_at for part in self.parts])
        cross = self.attention.blocks.get("cross", np.zeros((1, 1, 1, 1), np.float32))
        return np.asarray(cross[-1].mean(0).sum(0)[:-1])

    @property
    def coverage(self) -> float | None:
        """The share of the source that was looked at, 0 to 1: the mean over its tokens, each at most 1."""
        return float(self.looked_at.clip(max=1).mean()) if len(self.looked_at) else None

    @property
    def overlooked(self) -> list[str]:
        """Source words that got hardly any attention."""
        if self.parts or not len(self.looked_at) or self.translator is None:
            return [word for part in self.parts for word in part.overlooked]
        spans = [(piece.start, piece.end) for piece in self.translator.source.pieces(self.source)]
        return overlooked(normalise(self.source), spans, self.looked_at)

    def write_page(self, path: Path) -> Path:
        """One HTML file that shows attention, what the search tried, and up to `EXPLAINED` tokens what the answer hangs on.

        Of a split text, that of its first part.
        """
        if self.parts:
            return next((part for part in self.parts if part.ids), self.parts[0]).write_page(path)
        translator = self._looker()
        seen, notes, found = self.attention, [f"warning: {warning}" for warning in self.warnings], dict[str, Any]()
        if "cross" in seen.blocks and max(len(seen.source), len(seen.target)) <= EXPLAINED:
            found["occlusion"] = evidence.occlusion(translator, self)
            found["gradient"] = evidence.gradient_times_input(translator, self)
            notes += evidence.correlation(seen, found["occlusion"]).splitlines()
        others = [(other.text, other.score) for other in self.alternatives]
        tree = translator.tree(self.source, no_repeat=self.no_repeat)
        if [node.token for node in tree if node.fate == "chosen"][: len(self.tokens)] != self.tokens:
            tree = []
            notes.append("A beam alone finds another answer than this one, so its tree is not shown.")
        return write_page(path, seen, tree=tree, alternatives=others, evidence=found, notes=notes)


def joined(text: str, parts: list[Result], gaps: list[str]) -> Result:
    """The answer of a split text. A score is the mean of the parts' scores, weighted by the lengths of their answers."""
    lengths, most = [len(part.logprobs) for part in parts], max(1 + len(part.alternatives) for part in parts)
    ranked = [[Alternative(p.text, p.score), *p.alternatives] if p.logprobs else [Alternative("", 0.0)] * most for p in parts]
    ranks = list(zip(*ranked))  # as many as of the part with the fewest
    texts = ["".join(one.text + gap for one, gap in zip(rank, gaps)) for rank in ranks]
    scores = [sum(one.score * n for one, n in zip(rank, lengths)) / max(1, sum(lengths)) for rank in ranks]
    best, *others = map(Alternative, texts, scores)
    notes = [f"part {i}: {warning}" for i, part in enumerate(parts, 1) for warning in part.warnings]
    notes[5:] = [f"{len(notes) - 5:,} more about its parts"] if len(notes) > 5 else []
    warnings = [f"longer than anything in training: split into {len(parts)} parts (an attention page shows the first)", *notes]
    tokens, logprobs, ids = ([x for part in parts for x in getattr(part, name)] for name in ("tokens", "logprobs", "ids"))
    return Result(text, best.text, tokens, best.score, logprobs, others, warnings, ids, parts[0].translator, parts)
