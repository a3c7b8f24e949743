"""Sparse attention by blocks: no matrix of all queries and all keys is ever made.

The text is cut into blocks of tokens. Each block of queries becomes a short text of its own, and
its keys are the few blocks that its pattern names, one after the other. With a window, N = 4 blocks
of C tokens, and - for a block that is not there:

    queries     keys
    block 0     - 0 1
    block 1     0 1 2
    block 2     1 2 3
    block 3     2 3 -

So a batch of B texts becomes one of B · N short texts, of C queries and M · C keys each, and any
attention can be computed on it: with any score, position and dropout, by any kernel. The mask of
these short texts says which of the tokens are really seen; it is made once for all layers.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from regard.nn.masks import Mask
from regard.nn.patterns.pattern import Pattern
from regard.nn.state import KeyValue

KEY_BYTES = 2**23
"""Bytes of the keys that a CPU computes with at a time: with their values and scores, what its
caches hold.
"""


@dataclass(frozen=True, eq=False)
class Blocks:
    """Which blocks look at which, for texts of one padded length."""

    pattern: Pattern
    length: int
    """Tokens of a text, padding included."""
    table: Tensor
    """(B or 1, N, M): for each block of queries, its blocks of keys; of which some are hidden."""
    mask: Mask
    """Of the short texts: (B · N or N, 1, C, G + M · C), for G global keys and then the blocks."""

    @classmethod
    def of(cls, mask: Mask, length: int, device: torch.device) -> "Blocks":
        """The blocks of a mask that has a pattern, for texts of this padded length."""
        pattern = mask.pattern
        assert pattern is not None
        size = pattern.block
        count = -(-length // size)  # N
        lengths = mask.text_lengths(length, device)  # (B or 1,)
        numbers = torch.arange(count, device=device)  # (N,)
        table = _unique(pattern.key_blocks(numbers, lengths), count)  # (B or 1, N, M)

        query = (numbers[:, None] * size + torch.arange(size, device=device))[None]  # (1, N, C)
        key = _places(table, size)  # (B or 1, N, M · C)
        global_tokens = min(pattern.global_tokens, length)
        key = key.masked_fill(
            (key >= 0) & (key < global_tokens), -1
        )  # they have columns of their own
        global_keys = torch.arange(global_tokens, device=device)  # (G,)
        key = torch.cat((global_keys.expand(*key.shape[:2], -1), key), -1)  # (B or 1, N, G + M · C)

        allowed = _allowed(mask, pattern, query, key, lengths, length)  # (B or 1, N, C, G + M · C)
        return cls(pattern, length, table, Mask(extra=allowed.flatten(0, 1)[:, None]))

    @property
    def size(self) -> int:
        """C: tokens of a block."""
        return self.pattern.block

    @property
    def count(self) -> int:
        """N: blocks of a text."""
        return self.table.shape[1]

    @property
    def global_tokens(self) -> int:
        """G: keys that all blocks see."""
        return min(self.pattern.global_tokens, self.length)

    def parts(self, key: Tensor) -> list["ShortTexts"]:
        """The short texts of all texts, some at a time.

        On a CPU without gradients they are as many as fit into its caches, and memory is used again
        and again. A gradient would have to be added up over all parts, and keeps everything anyway.
        key: (B, H, S, D).
        """
        batch, heads, _, width = key.shape
        at_once = batch * self.count
        if key.device.type == "cpu" and not torch.is_grad_enabled():
            keys = self.global_tokens + self.table.shape[2] * self.size
            bytes_of_row = heads * keys * width * key.element_size()
            at_once = max(1, min(at_once, KEY_BYTES // bytes_of_row))
        name = "parts", batch, at_once
        if name not in self.mask._made:
            self.mask._made[name] = self._make_parts(batch, at_once)
        return self.mask._made[name]

    def _make_parts(self, batch: int, at_once: int) -> list["ShortTexts"]:
        extra = self.mask.extra  # (B · N or N, 1, C, G + M · C)
        assert extra is not None
        rows = batch * self.count
        if extra.shape[0] != rows:
            extra = extra.repeat(batch, 1, 1, 1)
        index = self._rows(batch)  # (B · N, M)
        starts = range(0, max(1, rows), max(1, at_once))
        places = [slice(start, min(start + at_once, rows)) for start in starts]
        return [ShortTexts(place, index[place], Mask(extra=extra[place])) for place in places]

    # ---- from texts to short texts, and back ----

    def queries(self, query: Tensor) -> Tensor:
        """(B, H, T, D) -> (B · N, H, C, D)."""
        rows = self._by_block(query)  # (B · N, C · H · D)
        return rows.view(len(rows), self.size, query.shape[1], query.shape[3]).transpose(1, 2)

    def positions(self, positions: Tensor) -> Tensor:
        """Of the queries: (B, T) -> (B · N, C)."""
        missing = self.count * self.size - self.length
        return F.pad(positions, (0, missing)).reshape(-1, self.size)

    def memory(self, memory: KeyValue) -> "Gathering":
        """Keys and values (B, H, S, D), to be gathered for short texts."""
        return Gathering(self, memory)

    def back(self, context: Tensor) -> Tensor:
        """(B · N, H, C, D) -> (B, H, T, D)."""
        heads = context.shape[1]
        by_text = context.transpose(1, 2).reshape(
            -1, self.count * self.size, heads, context.shape[3]
        )
        return by_text[:, : self.length].transpose(1, 2)

    def _by_block(self, x: Tensor) -> Tensor:
        """(B, H, T, D) -> (B · N, C · H · D): a row a block."""
        rows = x.transpose(1, 2).flatten(2)  # (B, T, H · D)
        missing = self.count * self.size - self.length
        if missing:
            rows = F.pad(rows, (0, 0, 0, missing))  # (B, N · C, H · D)
        return rows.reshape(len(x) * self.count, self.size * rows.shape[2])

    def _rows(self, batch: int) -> Tensor:
        """The row of `_by_block` of each block of keys: (B · N, M). Block 0 stands for none."""
        first = torch.arange(batch, device=self.table.device)[:, None, None] * self.count
        return (self.table.clamp(min=0) + first).flatten(0, 1)


@dataclass(frozen=True, eq=False)
class ShortTexts:
    """Some of the short texts."""

    rows: slice
    """Which of the B · N: R of them."""
    index: Tensor
    """(R, M): the rows of `Blocks._by_block` that hold their keys."""
    mask: Mask
    """(R, 1, C, G + M · C)"""


class Gathering:
    """Keys and values by blocks, from which those of short texts are gathered."""

    def __init__(self, blocks: Blocks, memory: KeyValue) -> None:
        self._blocks = blocks
        self._memory = memory
        self._key = blocks._by_block(memory.key)  # (B · N, C · H · D)
        self._value = blocks._by_block(memory.value)  # (B · N, C · H · D)
        missing = blocks.count * blocks.size - blocks.length
        self._positions = F.pad(memory.positions, (0, missing)).reshape(-1, blocks.size)

    def of(self, part: ShortTexts) -> KeyValue:
        """Those of some short texts: (R, H, G + M · C, D)."""
        return KeyValue(
            self._gathered(self._key, self._memory.key, part),
            self._gathered(self._value, self._memory.value, part),
            self._gathered_positions(part),
        )

    def _gathered(self, by_block: Tensor, x: Tensor, part: ShortTexts) -> Tensor:
        """Of keys or values x (B, H, S, D): (R, H, G + M · C, D)."""
        _, heads, _, width = x.shape
        rows = F.embedding(part.index, by_block)  # (R, M, C · H · D)
        keys = part.index.shape[1] * self._blocks.size  # M · C
        gathered = rows.view(len(rows), keys, heads, width).transpose(1, 2)  # (R, H, M · C, D)
        global_tokens = self._blocks.global_tokens
        if not global_tokens:
            return gathered
        first = x[:, :, :global_tokens].flatten(1)  # (B, H · G · D)
        first = F.embedding(self._texts(part), first)  # (R, H · G · D): the same gradient each time
        first = first.view(-1, heads, global_tokens, width)  # (R, H, G, D)
        return torch.cat((first, gathered), 2)

    def _gathered_positions(self, part: ShortTexts) -> Tensor:
        """(R, G + M · C)."""
        gathered = self._positions[part.index].flatten(1)  # (R, M · C)
        first = self._memory.positions[:, : self._blocks.global_tokens]  # (B, G)
        return torch.cat((first[self._texts(part)], gathered), 1)

    def _texts(self, part: ShortTexts) -> Tensor:
        """(R,): the text of each short text."""
        rows = torch.arange(part.rows.start, part.rows.stop, device=part.index.device)
        return rows // self._blocks.count


def _unique(table: Tensor, count: int) -> Tensor:
    """The blocks (B or 1, N, M), with -1 for each that is not there, or was named before."""
    table = table.where((table >= 0) & (table < count), -1)
    same = table[..., :, None] == table[..., None, :]  # (B or 1, N, M, M)
    was_named = same.tril(-1).any(-1)  # (B or 1, N, M)
    return table.masked_fill(was_named, -1)


def _places(table: Tensor, size: int) -> Tensor:
    """The places of the tokens of blocks (…, M): (…, M · C), -1 where there is no block."""
    within = torch.arange(size, device=table.device)
    places = table[..., None] * size + within  # (…, M, C)
    return places.masked_fill(table[..., None] < 0, -1).flatten(-2)


def _allowed(
    mask: Mask, pattern: Pattern, query: Tensor, key: Tensor, lengths: Tensor, length: int
) -> Tensor:
    """Which of the gathered keys a query may look at: (B or 1, N, C, G + M · C).

    query (1, N, C) and key (B or 1, N, G + M · C): places, -1 for none.
    """
    query = query[..., None]  # (1, N, C, 1)
    key = key[:, :, None]  # (B or 1, N, 1, G + M · C)
    lengths = lengths[:, None, None, None]  # (B or 1, 1, 1, 1)
    allowed = (key >= 0) & (key < lengths) & (query < length)
    if not pattern.sees_whole_blocks:
        allowed = allowed & pattern.allows(query, key, lengths)
    if mask.causal:
        allowed = allowed & (key <= query)
    return allowed
