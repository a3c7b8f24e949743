"""Batches of ids for a model.

Batch(step) is a pure function of seed and step: a resumed run restores nothing.
"""

from array import array
from bisect import bisect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from regard.data.corpus import Corpus
from regard.data.objectives import TRANSLATE, Objective
from regard.text.vocabulary import BOS, EOS, PAD

Indices = npt.NDArray[np.integer[Any]]
Vary = Callable[[Indices, Indices, int], tuple[Indices, Indices]]
# The longest length of each bucket, from long to short, 8 % apart.
_BOUNDS = np.unique(np.geomspace(4, 10**8, 220).astype(np.int32))[::-1]
_CHUNK = 1 << 16  # pairs sorted at a time


@dataclass(frozen=True, eq=False)
class Batch:
    """Padded pairs of texts and their lengths.

    It owns the shift between what the decoder reads and what it predicts.
    """

    source: Tensor  # (B, S), each row ends with <eos>
    source_lengths: Tensor  # (B,)
    target: Tensor  # (B, T + 1): <bos> … <eos>
    target_lengths: Tensor  # (B,), predicted tokens: without <bos>
    tokens: int  # predicted target tokens (those that are not <pad>), without asking the device
    source_tokens: int
    layouts: tuple[Any, Any] | None = None
    """Where the real tokens of source and target are, if that was worked out for the model."""
    source_positions: Tensor | None = None
    """Where the source tokens stand, (B, S). None: one after the other."""
    target_positions: Tensor | None = None
    """The same of `target_in`, (B, T)."""
    encoder_mask: Tensor | None = None
    """The user's own masks, as `Seq2Seq.forward` takes them: (S, S), (B, S, S) or (B, H, S, S)."""
    decoder_mask: Tensor | None = None
    """(T, T), (B, T, T) or (B, H, T, T)."""
    cross_mask: Tensor | None = None
    """(T, S), (B, T, S) or (B, H, T, S)."""

    @property
    def target_in(self) -> Tensor:
        return self.target[:, :-1]

    @property
    def target_out(self) -> Tensor:
        return self.target[:, 1:]

    @property
    def size(self) -> int:
        return self.source.shape[0]

    @property
    def device(self) -> torch.device:
        return self.source.device

    @property
    def tokens_read(self) -> int:
        """Tokens of both sides."""
        return self.source_tokens + self.tokens

    @property
    def padded_tokens(self) -> int:
        """Tokens of both sides, with their padding."""
        return self.source.numel() + self.target.numel()

    def count_examples(self) -> Tensor:
        """How many rows are pairs. Others only fill up a shape, and predict nothing."""
        return (self.target_out != PAD).any(1).sum()

    @property
    def has_own(self) -> bool:
        """Whether there are masks or positions of the user's own, which few fast paths know."""
        return any(getattr(self, name) is not None for name in OWN)

    def tensors(self) -> dict[str, Tensor]:
        """All tensors that there are, by name."""
        named = {name: getattr(self, name) for name in (*TENSORS, *OWN)}
        return {name: x for name, x in named.items() if x is not None}

    def by_sentence(self) -> dict[str, Tensor]:
        """Those that have a row for each sentence, which a mask need not."""
        shared = {name for name, x in self.tensors().items() if name in MASKS and _one_for_all(x)}
        return {name: x for name, x in self.tensors().items() if name not in shared}

    def to(self, device: torch.device | str) -> "Batch":
        # Only to a GPU: a copy to the CPU that is not waited for could be read too early.
        is_async = torch.device(device).type == "cuda"
        moved: dict[str, Any] = {
            name: x.to(device, non_blocking=is_async) for name, x in self.tensors().items()
        }
        layouts = self.layouts
        if layouts is not None:
            layouts = (layouts[0].to(device), layouts[1].to(device))
        return replace(self, **moved, layouts=layouts)

    def rows(self) -> list[tuple[Indices, ...]]:
        """The pairs again, as collate takes them."""
        sources = self.source.numpy()
        targets = self.target.numpy()
        source_lengths = self.source_lengths.tolist()
        target_lengths = (self.target_lengths + 1).tolist()
        rows: list[tuple[Indices, ...]] = [
            (sources[i, : source_lengths[i]], targets[i, : target_lengths[i]])
            for i in range(self.size)
        ]
        if self.source_positions is None:
            return rows
        positions = self.source_positions.numpy()
        return [(*row, positions[i, : source_lengths[i]]) for i, row in enumerate(rows)]

    def split(self) -> list["Batch"]:
        """Two halves, or itself if it is one pair."""
        half = self.size // 2
        if half == 0:
            return [self]
        return [self._part(slice(0, half)), self._part(slice(half, None))]

    def _part(self, rows: slice) -> "Batch":
        """These sentences, without the padding that they do not need."""
        own = {name: x[rows] for name, x in self.by_sentence().items()}
        parts: dict[str, Any] = self.tensors() | own
        source = int(parts["source_lengths"].max())  # S
        target = int(parts["target_lengths"].max())  # T
        lengths = {
            "source": (source,),
            "target": (target + 1,),
            "source_positions": (source,),
            "target_positions": (target,),
            "encoder_mask": (source, source),
            "decoder_mask": (target, target),
            "cross_mask": (target, source),
        }
        for name in lengths.keys() & parts.keys():
            parts[name] = _shortened(parts[name], lengths[name])

        return replace(
            self,
            **parts,
            tokens=_count_tokens(parts["target"]),
            source_tokens=int(parts["source_lengths"].sum()),
            layouts=None,
        )


TENSORS = ("source", "source_lengths", "target", "target_lengths")
"""The tensors that every Batch has."""
MASKS = ("encoder_mask", "decoder_mask", "cross_mask")
OWN = ("source_positions", "target_positions", *MASKS)
"""What a Batch may have of the user's own."""


def _one_for_all(mask: Tensor) -> bool:
    """Whether a mask, (T, S), (B, T, S) or (B, H, T, S), is the same for all sentences."""
    return mask.dim() == 2 or mask.shape[0] == 1


def _shortened(x: Tensor, lengths: tuple[int, ...]) -> Tensor:
    """The beginning of the last axes; an axis of 1 stands for any length."""
    first = x.dim() - len(lengths)
    for axis, length in enumerate(lengths, first):
        if x.shape[axis] > 1:
            x = x.narrow(axis, 0, length)
    return x


Row = tuple[Sequence[int] | Indices, ...]
"""(tokens <eos>, <bos> tokens <eos>), and where each source token stands, if that is not its place.
"""


def collate(rows: Sequence[Row]) -> Batch:
    """Rows such as a Corpus holds, (tokens <eos>, <bos> tokens <eos>), as a batch.

    A row may have the positions of its source tokens as a third value; beside such a row, others
    count theirs. Can be given to torch's DataLoader as its `collate_fn`.
    """
    source, source_lengths = _pad([row[0] for row in rows])
    target, target_lengths = _pad([row[1] for row in rows])
    positions = None
    if any(len(row) > 2 for row in rows):
        positions, _ = _pad([row[2] if len(row) > 2 else range(len(row[0])) for row in rows])
    return Batch(
        source,
        source_lengths,
        target,
        target_lengths - 1,
        tokens=_count_tokens(target),
        source_tokens=int(source_lengths.sum()),
        source_positions=positions,
    )


def _count_tokens(target: Tensor) -> int:
    """How many tokens are predicted by targets (B, T + 1) on the CPU."""
    return int(torch.count_nonzero(target[:, 1:] != PAD))


def _pad(rows: Sequence[Sequence[int] | Indices]) -> tuple[Tensor, Tensor]:
    """Rows of ids -> one tensor (B, longest) with padding, and their lengths (B,)."""
    lengths = np.fromiter(map(len, rows), np.int64, len(rows))
    padded = np.full((len(rows), lengths.max()), PAD, np.int64)
    for i, row in enumerate(rows):
        padded[i, : len(row)] = row
    return torch.from_numpy(padded), torch.from_numpy(lengths)


Feed = Callable[[int], Batch]
"""batch(step)"""


class Batches:
    """Every pair once an epoch, in batches of nearly equal length, or at random.

    batch(step) is the same for the same seed, step and lengths, whatever was asked before.
    `tokens` bounds batch size times longest sentence; `sentences` fixes the batch size. Pairs are
    kept in buckets of nearly equal length, longest first, and shuffled inside them: the cuts never
    move. `vary` may write the rows of a pair anew; the seed it is given differs by pair and epoch.
    So does that of the `objective`, which makes the rows of a language model; outside of training
    it depends on the pair alone. Memory: 4 bytes a pair.

    With at_random=True and `sentences` there is one bucket, so an epoch is a plain shuffle. With
    `tokens` the lengths are shuffled once, for all epochs, so that the cuts can stay: each epoch
    puts other pairs of these lengths into their places. Memory: 9 bytes a pair at the beginning of
    an epoch, then 4.
    """

    def __init__(
        self,
        corpus: Corpus,
        *,
        tokens: int | None = None,
        sentences: int | None = None,
        seed: int,
        at_random: bool = False,
        vary: Vary | None = None,
        objective: Objective = TRANSLATE,
    ) -> None:
        if (tokens is None) == (sentences is None) or (tokens or sentences or 0) < 1:
            raise ValueError("pass either tokens or sentences, at least 1")
        self.corpus = corpus
        self.tokens = tokens
        self.sentences = sentences
        self.seed = seed
        self.vary = vary
        self.objective = objective
        self._mixes_lengths = at_random and tokens is not None
        self._bounds = _BOUNDS[:1] if at_random and tokens is None else _BOUNDS

        count = len(self._bounds)
        counts = sum(np.bincount(buckets, minlength=count) for _, buckets in self._buckets())
        self._ends: list[int] = np.cumsum(counts).tolist()  # of each bucket
        if self._mixes_lengths:
            self._starts = self._cut_mixed(self._mixed_buckets())
        else:
            self._starts = self._cut(lambda place: int(self._bounds[bisect(self._ends, place)]))
        self.per_epoch = len(self._starts) - 1
        # The current epoch: its number, the pairs, the order of the batches.
        self._plan: tuple[int, Indices, Indices] | None = None

    def __call__(self, step: int) -> Batch:
        return self.load(self.indices(step), step)

    def shard(self, rank: int, size: int) -> Feed:
        """batch(step), of which the process `rank` of `size` takes every size-th pair.

        The number of tokens is that of the whole batch.
        """
        if size == 1:
            return self

        def load_share(step: int) -> Batch:
            indices = self.indices(step)
            share = indices[rank::size]
            # Fewer pairs than processes: this one reads a token that counts for nothing, and takes
            # part in the sum of the gradients.
            nothing = collate([([EOS], [BOS, PAD])])
            batch = self.load(share, step) if len(share) else nothing
            source_tokens, tokens = self._count(indices)
            return replace(batch, tokens=tokens, source_tokens=source_tokens)

        return load_share

    def load(self, indices: Indices, step: int | None = None) -> Batch:
        """These pairs as a batch; with a step, as in its epoch."""
        if step is None:
            return collate([self.objective.row(self.corpus.row(i), i) for i in indices.tolist()])
        seed = self._epoch_seed(step // self.per_epoch)
        return collate([self._row(i, seed + i) for i in indices.tolist()])

    def _row(self, i: int, seed: int) -> tuple[Indices, ...]:
        """A pair as it is in one epoch."""
        row = self.corpus.row(i) if self.vary is None else self.vary(*self.corpus[i], seed)
        return self.objective.row(row, seed)

    def _count(self, pairs: Indices | slice) -> tuple[int, int]:
        """The tokens of these pairs that are read in the source, and that are predicted."""
        source_lengths = self.corpus.source_lengths[pairs]
        target_lengths = self.corpus.target_lengths[pairs]
        source_tokens = self.objective.count_read(source_lengths, target_lengths)
        tokens = self.objective.count_predicted(target_lengths)
        return int(source_tokens.sum(dtype=np.int64)), int(tokens.sum(dtype=np.int64))

    def _epoch_seed(self, epoch: int) -> int:
        sequence = np.random.SeedSequence([self.seed, epoch])
        return int(sequence.generate_state(1, np.uint64)[0])

    def indices(self, step: int) -> Indices:
        """Which pairs form batch `step`, counted from 0 over all epochs."""
        epoch, place = divmod(step, self.per_epoch)
        if self._plan is None or self._plan[0] != epoch:
            self._plan = None  # one at a time in memory
            self._plan = self._shuffled(epoch)
        _, pairs, order = self._plan
        batch = order[place]
        return pairs[self._starts[batch] : self._starts[batch + 1]]

    def longest(self, step: int) -> Batch:
        """The longest pairs as one batch, varied as in the epoch of this step."""
        lengths = np.maximum(self.corpus.source_lengths, self.corpus.target_lengths)
        size = self.sentences or max(1, (self.tokens or 0) // int(lengths.max()))
        size = min(size, len(lengths))
        return self.load(np.argpartition(lengths, -size)[-size:], step)

    def count_tokens(self) -> int:
        """Tokens of an epoch, of both sides."""
        return sum(self._count(slice(None)))

    def ordered(self) -> Iterator[Indices]:
        """Every pair once, longest first: for evaluation, and to meet a lack of memory at once."""
        lengths = np.maximum(self.corpus.source_lengths, self.corpus.target_lengths)
        order = np.argsort(-lengths, kind="stable")
        starts = self._cut(lambda place: int(lengths[order[place]]))
        yield from np.split(order, starts[1:-1])

    def in_order(self) -> Iterator[Batch]:
        """The batches of `ordered`."""
        return map(self.load, self.ordered())

    def _buckets(self) -> Iterator[tuple[int, Indices]]:
        """The bucket of each pair, chunk by chunk with the number of its first."""
        for first in range(0, len(self.corpus), _CHUNK):
            here = slice(first, first + _CHUNK)
            lengths = np.maximum(self.corpus.source_lengths[here], self.corpus.target_lengths[here])
            yield first, np.searchsorted(-self._bounds, -lengths, "right") - 1

    def _shuffled(self, epoch: int) -> tuple[int, Indices, Indices]:
        """The plan of an epoch: its number, all pairs by bucket, the order of the batches."""
        rng = np.random.Generator(np.random.PCG64(np.random.SeedSequence([self.seed, epoch])))
        pairs: Indices = np.empty(len(self.corpus), np.int32)

        # A counting sort, which needs no second array: every bucket is filled from its end.
        free_ends = [*self._ends]
        for first, buckets in self._buckets():
            for bucket in np.unique(buckets):
                members = np.flatnonzero(buckets == bucket)[::-1] + first
                end = free_ends[bucket]
                pairs[end - len(members) : end] = members
                free_ends[bucket] -= len(members)

        for pairs_of_bucket in np.split(pairs, self._ends[:-1]):
            rng.shuffle(pairs_of_bucket)
        if self._mixes_lengths:
            pairs = self._mixed(pairs)
        order = np.arange(self.per_epoch, dtype=np.int32)
        rng.shuffle(order)
        return epoch, pairs, order

    def _cut(self, longest: Callable[[int], int]) -> "array[int]":
        """Where each batch starts and the last one ends, for pairs of falling length.

        longest(i) is the length of the i-th pair.
        """
        starts = array("i", [0])
        while starts[-1] < len(self.corpus):
            size = self.sentences or max(1, (self.tokens or 0) // longest(starts[-1]))
            starts.append(min(starts[-1] + size, len(self.corpus)))
        return starts

    # lengths at random

    def _mixed_buckets(self) -> npt.NDArray[np.uint8]:
        """The bucket of the pair at each place, in an order that is the same in all epochs."""
        counts = np.diff(self._ends, prepend=0)
        buckets = np.repeat(np.arange(len(counts), dtype=np.uint8), counts)
        rng = np.random.Generator(np.random.PCG64(np.random.SeedSequence([self.seed])))
        rng.shuffle(buckets)
        return buckets

    def _mixed(self, pairs: Indices) -> Indices:
        """The pairs of each bucket, one after the other, at the places of their bucket."""
        mixed = np.empty_like(pairs)
        buckets = self._mixed_buckets()
        taken = [0, *self._ends[:-1]]
        for first in range(0, len(buckets), _CHUNK):
            here = buckets[first : first + _CHUNK]
            for bucket in np.unique(here):
                places = np.flatnonzero(here == bucket) + first
                begin = taken[bucket]
                taken[bucket] += len(places)
                mixed[places] = pairs[begin : taken[bucket]]
        return mixed

    def _cut_mixed(self, buckets: npt.NDArray[np.uint8]) -> "array[int]":
        """Where each batch starts and the last one ends, for pairs of any lengths."""
        tokens = self.tokens or 0
        most = max(1, tokens // int(self._bounds[buckets.max()]))  # pairs, if all were short
        sizes = np.arange(1, most + 1)
        starts = array("i", [0])
        while starts[-1] < len(buckets):
            here = buckets[starts[-1] : starts[-1] + most]
            longest = self._bounds[np.minimum.accumulate(here)]  # of the first 1, 2, … pairs
            size = int(np.count_nonzero(longest * sizes[: len(here)] <= tokens))
            starts.append(starts[-1] + max(1, size))
        return starts
