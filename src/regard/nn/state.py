"""Keys and values that never change: to append gives new ones, and the old ones stay good."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Self

import torch
from torch import Tensor


@dataclass
class _Storage:
    """Reserved room that several KeyValues may share."""

    key: Tensor
    value: Tensor
    positions: Tensor
    fill: int
    """How far it was written."""

    def filled(self) -> KeyValue:
        """What was written."""
        return KeyValue(
            self.key[:, :, : self.fill],
            self.value[:, :, : self.fill],
            self.positions[:, : self.fill],
            self,
        )


@dataclass(frozen=True)
class KeyValue:
    """Keys and values for attention, such as a cache of earlier tokens. They never change."""

    key: Tensor
    """Keys, prepared by the score: (B, H, S, Dk)."""
    value: Tensor
    """Values: (B, H, S, Dv)."""
    positions: Tensor
    """Position of each key: (B, S)."""
    storage: _Storage | None = field(default=None, repr=False)

    def __len__(self) -> int:
        return self.key.shape[2]

    def append(self, new: Self) -> KeyValue:
        """These, then the new ones.

        Behind the scenes the new ones are written into reserved room. If there is none, or somebody
        has written there, these are copied to a larger room first.
        """
        tensors = (self.key, self.value, new.key, new.value)
        if torch.is_grad_enabled() and any(x.requires_grad for x in tensors):
            return KeyValue(
                torch.cat((self.key, new.key), 2),
                torch.cat((self.value, new.value), 2),
                torch.cat((self.positions, new.positions), 1),
            )

        start = len(self)
        end = start + len(new)
        room = self.storage
        if room is None or room.fill != start or self.is_full(len(new)):
            room = self._reserve(end + spare_slots(end))
        room.key[:, :, start:end] = new.key
        room.value[:, :, start:end] = new.value
        room.positions[:, start:end] = new.positions
        room.fill = end
        return room.filled()

    def is_full(self, count: int) -> bool:
        """Whether so many more would not fit into the room that is reserved, if any is."""
        return self.storage is not None and len(self) + count > self.storage.key.shape[2]

    def _reserve(self, capacity: int) -> _Storage:
        """Room for so many keys, with a copy of these at its beginning."""
        return _Storage(
            _widened(self.key, 2, capacity),
            _widened(self.value, 2, capacity),
            _widened(self.positions, 1, capacity),
            len(self),
        )

    def select(self, rows: Tensor) -> KeyValue:
        """The rows (R,) of the batch axis, in this order; with room to grow if this had it."""
        if self.storage is None:
            return KeyValue(
                self.key.index_select(0, rows),
                self.value.index_select(0, rows),
                self.positions.index_select(0, rows),
            )

        def room_like(x: Tensor) -> Tensor:
            return x.new_empty(len(rows), *x.shape[1:])

        length = len(self)
        key = room_like(self.storage.key)
        value = room_like(self.storage.value)
        positions = room_like(self.storage.positions)
        key[:, :, :length] = self.key.index_select(0, rows)
        value[:, :, :length] = self.value.index_select(0, rows)
        positions[:, :length] = self.positions.index_select(0, rows)
        return _Storage(key, value, positions, length).filled()

    def empty(self, rows: int) -> KeyValue:
        """So many rows without a key, of the same heads and widths."""
        key = self.key.new_zeros(rows, self.key.shape[1], 0, self.key.shape[3])
        value = self.value.new_zeros(rows, self.value.shape[1], 0, self.value.shape[3])
        return KeyValue(key, value, self.positions.new_zeros(rows, 0))

    def first(self, count: int) -> KeyValue:
        """The first `count` keys and values, or all where there are fewer."""
        return KeyValue(self.key[:, :, :count], self.value[:, :, :count], self.positions[:, :count])

    def gather(self, slots: Tensor, *, spare: int = 0) -> KeyValue:
        """Of each row these slots (B, S'), in this order. spare: reserve room for so many more."""
        where = slots[:, None, :, None]  # (B, 1, S', 1)

        def gathered(x: Tensor) -> Tensor:
            """(B, H, S, D) -> (B, H, S', D)."""
            return x.gather(2, where.expand(-1, x.shape[1], -1, x.shape[3]))

        count = slots.shape[1]
        positions = self.positions.gather(1, slots)
        if not spare:
            return KeyValue(gathered(self.key), gathered(self.value), positions)
        return _Storage(
            _widened(gathered(self.key), 2, count + spare),
            _widened(gathered(self.value), 2, count + spare),
            _widened(positions, 1, count + spare),
            count,
        ).filled()

    def join(self, other: Self, *, spare: int = 0) -> KeyValue:
        """The rows of both, the shorter ones filled up with slots that nobody should look at.

        spare: reserve room for so many more.
        """
        length = max(len(self), len(other))

        def both(mine: Tensor, theirs: Tensor, axis: int) -> Tensor:
            """The rows of both, with room along the axis: 2 of keys and values, 1 of positions."""
            shape = list(mine.shape)
            shape[0] += len(theirs)
            shape[axis] = length + spare
            rows = mine.new_zeros(shape)
            rows[: len(mine)].narrow(axis, 0, mine.shape[axis]).copy_(mine)
            rows[len(mine) :].narrow(axis, 0, theirs.shape[axis]).copy_(theirs)
            return rows

        joined = (
            both(self.key, other.key, 2),
            both(self.value, other.value, 2),
            both(self.positions, other.positions, 1),
        )
        return _Storage(*joined, length).filled() if spare else KeyValue(*joined)


def spare_slots(slots: int) -> int:
    """How many slots are reserved beside so many, for what will be appended."""
    return max(32, slots // 2)


def _widened(x: Tensor, axis: int, capacity: int) -> Tensor:
    """A copy of x, with room along the axis."""
    shape = list(x.shape)
    shape[axis] = capacity
    room = x.new_empty(shape)
    room.narrow(axis, 0, x.shape[axis]).copy_(x)
    return room
