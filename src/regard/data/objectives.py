"""What is asked of a text: to be translated, written, filled in where masked, or denoised.

An objective turns the rows of a corpus into the rows of a batch, the same ones for the same seed.
How many tokens it asks for follows from the length alone.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from regard.config import TrainConfig
from regard.errors import UserError
from regard.text.tokenizer import Tokenizer
from regard.text.vocabulary import BOS, EOS, MASK, PAD

Indices = npt.NDArray[np.integer[Any]]
Row = tuple[Indices, ...]
"""Source and target ids, and perhaps the positions of the source: as `collate` takes them."""

MASKED_SHARE = 0.8
"""Of the tokens that are asked for, those that <mask> replaces (Devlin et al. 2019) …"""
RANDOM_SHARE = 0.1
"""… and those that a random token replaces. The others stay as they are."""


@dataclass(frozen=True)
class Objective:
    """Rows as the corpus has them: a target for a source, or a text for nothing."""

    def row(self, row: Row, seed: int) -> Row:
        """The row of a batch for a row of the corpus."""
        return row

    def count_predicted(self, lengths: Indices) -> Indices:
        """How many tokens are predicted for targets of these lengths, <eos> included."""
        return lengths

    def count_read(self, source_lengths: Indices, target_lengths: Indices) -> Indices:
        """How many source tokens the model reads."""
        return source_lengths


TRANSLATE = Objective()


@dataclass(frozen=True)
class Denoise(Objective):
    """A text with spans replaced by <mask> each -> the whole text (text infilling, Lewis et al.
    2020). At a rate of 0 it is plain reconstruction.
    """

    rate: float
    """Share of the tokens that are replaced."""
    span: float
    """Mean number of tokens of a span."""

    def row(self, row: Row, seed: int) -> Row:
        target = row[1]
        noisy = self.corrupt(target[1:-1], np.random.default_rng(seed))
        return np.append(noisy, EOS), target

    def corrupt(self, ids: Indices, rng: np.random.Generator) -> Indices:
        """The ids (n,) of a text, with a <mask> in the place of each span."""
        masked, spans = (int(count) for count in self._counts(len(ids)))
        if not spans:
            return ids
        kept = len(ids) - masked
        lengths = _parts(masked, spans, rng, least=1)  # (spans,)
        # Between two spans stands at least one token; before the first and after the last, any.
        gaps = _parts(kept + 2, spans + 1, rng, least=1)  # (spans + 1,)
        gaps[0] -= 1
        gaps[-1] -= 1

        pieces: list[Indices] = []
        place = 0
        for gap, length in zip(gaps, lengths):
            pieces += [ids[place : place + gap], np.array([MASK], ids.dtype)]
            place += gap + length
        pieces.append(ids[place:])
        return np.concatenate(pieces)

    def count_read(self, source_lengths: Indices, target_lengths: Indices) -> Indices:
        masked, spans = self._counts(target_lengths - 1)
        return target_lengths - masked + spans

    def _counts(self, tokens: Any) -> tuple[Any, Any]:
        """How many of so many tokens are replaced, and in how many spans."""
        tokens = np.asarray(tokens)
        masked = np.rint(self.rate * tokens).astype(np.int64)
        spans = np.rint(masked / self.span).astype(np.int64)
        spans = np.minimum(np.maximum(spans, masked > 0), tokens - masked + 1)
        return masked, spans


@dataclass(frozen=True)
class Masked(Objective):
    """Some tokens of a text are to be told from the others (Devlin et al. 2019).

    The target of a batch is as long as its source: the token that was there, or <pad> where nothing
    is asked.
    """

    rate: float
    """Share of the tokens that are asked for; at least one."""
    first: int
    """The first id that is no special, and so may replace a token …"""
    size: int
    """… and the first after the last."""

    def row(self, row: Row, seed: int) -> Row:
        ids = row[1][1:-1]
        rng = np.random.default_rng(seed)
        asked = int(self._count_asked(len(ids)))
        places = rng.permutation(len(ids))[:asked]  # (asked,)

        lots = rng.random(asked)
        random_ids = rng.integers(self.first, self.size, asked)
        instead = np.where(lots < MASKED_SHARE + RANDOM_SHARE, random_ids, ids[places])
        instead = np.where(lots < MASKED_SHARE, MASK, instead)

        source = np.append(ids, EOS).astype(np.int64)
        source[places] = instead
        target = np.full(len(ids) + 2, PAD, np.int64)
        target[0] = BOS
        target[1 + places] = ids[places]
        return source, target

    def count_predicted(self, lengths: Indices) -> Indices:
        return self._count_asked(lengths - 1)

    def count_read(self, source_lengths: Indices, target_lengths: Indices) -> Indices:
        return target_lengths

    def _count_asked(self, tokens: Any) -> Any:
        return np.maximum(1, np.rint(self.rate * np.asarray(tokens)).astype(np.int64))


def _parts(total: int, count: int, rng: np.random.Generator, *, least: int) -> Indices:
    """So many random lengths, each at least `least`, that add up to a total."""
    free = total - count * least
    cuts = np.sort(rng.integers(0, free + 1, count - 1))  # (count - 1,)
    return np.diff(np.concatenate(([0], cuts, [free]))) + least


def objective_of(train: TrainConfig, tokenizer: Tokenizer) -> Objective:
    """The objective of these settings, for texts of this tokenizer."""
    if train.objective in ("translate", "causal"):
        return TRANSLATE
    if tokenizer.first <= MASK:
        raise UserError(
            f"train.objective={train.objective} needs an id for <mask>, which this vocabulary does "
            f"not have: train with text.reserved=1 or more"
        )
    if train.objective == "denoise":
        return Denoise(train.mask_rate, train.mask_span)
    return Masked(train.mask_rate, tokenizer.first, tokenizer.text_size)
