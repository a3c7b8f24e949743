"""Batches of ids for a model. Batch(step) is a pure function of seed and step: a resumed run restores nothing."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from regard.data.corpus import Corpus
from regard.text.vocabulary import PAD

Indices = npt.NDArray[np.integer[Any]]
_BOUNDS = np.unique(np.geomspace(4, 10**8, 220).astype(np.int32))  # the longest length of each bucket, 8 % apart


@dataclass(frozen=True, eq=False)
class Batch:
    """Padded sentences and their lengths; owns the shift between what the decoder reads and what it predicts."""

    source: Tensor  # (B, S), each row ends with <eos>
    source_lengths: Tensor  # (B,)
    target: Tensor  # (B, T + 1): <bos> … <eos>
    target_lengths: Tensor  # (B,), predicted tokens: without <bos>
    tokens: int  # predicted target tokens, known without asking the device
    source_tokens: int

    @property
    def target_in(self) -> Tensor:
        return self.target[:, :-1]

    @property
    def target_out(self) -> Tensor:
        return self.target[:, 1:]

    @property
    def size(self) -> int:
        return self.source.shape[0]

    def to(self, device: torch.device | str) -> "Batch":
        names = ("source", "source_lengths", "target", "target_lengths")
        return replace(self, **{name: getattr(self, name).to(device, non_blocking=True) for name in names})


def collate(rows: Sequence[tuple[Sequence[int] | Indices, Sequence[int] | Indices]]) -> Batch:
    """A batch of rows such as a Corpus holds: (tokens <eos>, <bos> tokens <eos>). Serves torch's DataLoader too."""
    source, source_lengths = _pad([row[0] for row in rows])
    target, target_lengths = _pad([row[1] for row in rows])
    target_lengths = target_lengths - 1
    tokens, source_tokens = int(target_lengths.sum()), int(source_lengths.sum())
    return Batch(source, source_lengths, target, target_lengths, tokens, source_tokens)


def _pad(rows: Sequence[Sequence[int] | Indices]) -> tuple[Tensor, Tensor]:
    lengths = np.fromiter(map(len, rows), np.int64, len(rows))
    padded = np.full((len(rows), lengths.max()), PAD, np.int64)
    for i, row in enumerate(rows):
        padded[i, : len(row)] = row
    return torch.from_numpy(padded), torch.from_numpy(lengths)


class Batches:
    """batch(step), the same for the same seed, step and lengths, whatever was asked before.

    `tokens` bounds batch size times longest sentence; `sentences` fixes the batch size. Every pair comes once an epoch.
    Pairs are kept in buckets of nearly equal length, longest first, and shuffled inside them: the cuts never move.
    """

    def __init__(self, corpus: Corpus, *, tokens: int | None = None, sentences: int | None = None, seed: int) -> None:
        if (tokens is None) == (sentences is None) or (tokens or sentences or 0) < 1:
            raise ValueError("give tokens or sentences, not both, and at least 1")
        self.corpus = corpus
        self.tokens, self.sentences, self.seed = tokens, sentences, seed
        buckets = np.searchsorted(_BOUNDS, self._lengths()).astype(np.uint8)
        self._order: Indices = np.argsort(buckets, kind="stable")[::-1].astype(np.int32)
        self._edges = np.cumsum(np.bincount(buckets, minlength=len(_BOUNDS))[::-1])[:-1]
        self._starts = self._cut(_BOUNDS[buckets[self._order]])
        self.per_epoch = len(self._starts) - 1
        self._plan: tuple[int, Indices, Indices] | None = None  # the current epoch: number, pairs, order of batches

    def __call__(self, step: int) -> Batch:
        return self._load(self.indices(step))

    def indices(self, step: int) -> Indices:
        """Which pairs form batch `step`, counted from 0 over all epochs."""
        epoch, place = divmod(step, self.per_epoch)
        if self._plan is None or self._plan[0] != epoch:
            rng = np.random.Generator(np.random.PCG64(np.random.SeedSequence([self.seed, epoch])))
            pairs = self._order.copy()
            for bucket in np.split(pairs, self._edges):
                rng.shuffle(bucket)
            self._plan = epoch, pairs, rng.permutation(self.per_epoch)
        _, pairs, order = self._plan
        batch = order[place]
        return pairs[self._starts[batch] : self._starts[batch + 1]]

    def ordered(self) -> Iterator[Indices]:
        """Every pair once, longest first: for evaluation, and to meet a lack of memory at once."""
        lengths = self._lengths()
        order = np.argsort(-lengths, kind="stable")
        yield from np.split(order, self._cut(lengths[order])[1:-1])

    def in_order(self) -> Iterator[Batch]:
        return map(self._load, self.ordered())

    def _load(self, indices: Indices) -> Batch:
        return collate([self.corpus[int(i)] for i in indices])

    def _lengths(self) -> Indices:
        return np.maximum(self.corpus.source_lengths, self.corpus.target_lengths)

    def _cut(self, lengths: Indices) -> list[int]:
        """Where batches start and the last one ends, for pairs of falling length."""
        starts = [0]
        while starts[-1] < len(lengths):
            size = self.sentences or max(1, (self.tokens or 0) // int(lengths[starts[-1]]))
            starts.append(min(starts[-1] + size, len(lengths)))
        return starts
