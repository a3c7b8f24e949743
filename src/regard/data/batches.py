"""Batches of ids for a model. Batch(step) is a pure function of seed and step: a resumed run restores nothing."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ..text import PAD
from .corpus import Corpus

_POOL = 50  # batches of sentences sorted by length together: little padding, still well mixed

Indices = npt.NDArray[np.integer[Any]]


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
        return self._each(lambda tensor: tensor.to(device, non_blocking=True))

    def pin_memory(self) -> "Batch":
        return self._each(Tensor.pin_memory)

    def _each(self, change: Any) -> "Batch":
        names = ("source", "source_lengths", "target", "target_lengths")
        return replace(self, **{name: change(getattr(self, name)) for name in names})


def collate(rows: Sequence[tuple[Sequence[int] | Indices, Sequence[int] | Indices]]) -> Batch:
    """A batch of rows such as a Corpus holds: (tokens <eos>, <bos> tokens <eos>). Serves torch's DataLoader too."""
    source, source_lengths = _pad([row[0] for row in rows])
    target, target_lengths = _pad([row[1] for row in rows])
    target_lengths = target_lengths - 1
    return Batch(
        source,
        source_lengths,
        target,
        target_lengths,
        tokens=int(target_lengths.sum()),
        source_tokens=int(source_lengths.sum()),
    )


def _pad(rows: Sequence[Sequence[int] | Indices]) -> tuple[Tensor, Tensor]:
    lengths = np.fromiter(map(len, rows), np.int64, len(rows))
    padded = np.full((len(rows), lengths.max()), PAD, np.int64)
    for i, row in enumerate(rows):
        padded[i, : len(row)] = row
    return torch.from_numpy(padded), torch.from_numpy(lengths)


class Batches:
    """batch(step), the same for the same seed, step and lengths, whatever was asked before.

    `tokens` bounds batch size times longest sentence; `sentences` fixes the batch size. Every pair comes once an epoch.
    """

    def __init__(
        self,
        corpus: Corpus,
        *,
        tokens: int | None = None,
        sentences: int | None = None,
        seed: int,
        shuffle: bool = True,
    ) -> None:
        if (tokens is None) == (sentences is None):
            raise ValueError("give tokens or sentences, and not both")
        if (budget := tokens or sentences or 0) < 1:
            raise ValueError(f"a batch of {budget} holds nothing")
        self.corpus = corpus
        self.tokens, self.sentences, self.seed, self.shuffle = tokens, sentences, seed, shuffle
        if tokens is not None:
            self._order, self._groups = self._buckets()
            self._starts = self._cut(tokens)
        else:
            self._order = np.arange(len(corpus), dtype=np.int32)
            self._starts = np.append(np.arange(0, len(corpus), budget), len(corpus))
        self.per_epoch = len(self._starts) - 1
        self._plan: tuple[int, Indices, Indices] | None = None  # the current epoch: number, pairs, order of batches

    def __len__(self) -> int:
        return self.per_epoch

    def __call__(self, step: int) -> Batch:
        return self.load(self.indices(step))

    def load(self, indices: Indices) -> Batch:
        return collate([self.corpus[int(i)] for i in indices])

    def epoch(self, step: int) -> int:
        return step // self.per_epoch

    def indices(self, step: int) -> Indices:
        """Which pairs form batch `step`, counted from 0 over all epochs."""
        epoch, place = divmod(step, self.per_epoch)
        if self._plan is None or self._plan[0] != epoch:
            self._plan = epoch, *self._planned(epoch)
        _, pairs, order = self._plan
        batch = order[place]
        return pairs[self._starts[batch] : self._starts[batch + 1]]

    def ordered(self) -> Iterator[Indices]:
        """Every pair once, longest first: for evaluation, and to meet a lack of memory at once."""
        lengths = self._lengths(slice(None))
        order = np.argsort(-lengths, kind="stable").astype(np.int32)
        start = 0
        while start < len(order):
            size = self.sentences or max(1, (self.tokens or 0) // int(lengths[order[start]]))
            yield order[start : start + size]
            start += size

    def in_order(self) -> Iterator[Batch]:
        return map(self.load, self.ordered())

    def _lengths(self, pairs: Indices | slice) -> Indices:
        return np.maximum(self.corpus.source_lengths[pairs], self.corpus.target_lengths[pairs])

    def _buckets(self) -> tuple[Indices, list[tuple[int, int, int]]]:
        """Pairs sorted by bucket of length, and (start, end, longest) of each bucket that is not empty."""
        bounds = [4]
        while bounds[-1] < 10**8:
            bounds.append(max(bounds[-1] + 1, int(bounds[-1] * 1.08)))
        n, step = len(self.corpus), 1 << 20
        numbers = np.empty(n, np.uint8)  # a byte a pair and chunks: ten million pairs should not be felt
        for start in range(0, n, step):
            numbers[start : start + step] = np.searchsorted(bounds, self._lengths(slice(start, start + step)))
        order = np.empty(n, np.int32)
        groups, start = [], 0
        for number, bound in enumerate(bounds):
            members = np.flatnonzero(numbers == number)
            if len(members):
                order[start : start + len(members)] = members
                groups.append((start, start + len(members), bound))
                start += len(members)
        return order, groups

    def _cut(self, tokens: int) -> Indices:
        """Where batches start in the order by buckets. A bucket that fills no batch joins the next longer one."""
        starts, groups, begin = [np.zeros(1, np.int64)], [], 0
        for _, end, longest in self._groups:
            size = max(1, tokens // longest)
            if end - begin < size and end < len(self._order):
                continue
            parts = -(-(end - begin) // size)
            starts.append(begin + np.arange(1, parts + 1) * (end - begin) // parts)
            groups.append((begin, end, longest))
            begin = end
        self._groups = groups
        return np.concatenate(starts)

    def _planned(self, epoch: int) -> tuple[Indices, Indices]:
        """The pairs in the order of this epoch, and the order of its batches."""
        if not self.shuffle:
            return self._order, np.arange(self.per_epoch)
        rng = np.random.Generator(np.random.PCG64(np.random.SeedSequence([self.seed, epoch])))
        pairs = self._order.copy()
        if self.sentences is None:
            for start, end, _ in self._groups:
                rng.shuffle(pairs[start:end])
        else:
            rng.shuffle(pairs)
            for start in range(0, len(pairs), _POOL * self.sentences):
                pool = pairs[start : start + _POOL * self.sentences]
                pool[:] = pool[np.argsort(self._lengths(pool), kind="stable")]
        return pairs, rng.permutation(self.per_epoch)
