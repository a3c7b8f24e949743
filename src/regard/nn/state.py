"""Keys and values that never change: to append gives new ones, and the old ones stay good."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Self

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass
class _Storage:
    """Reserved room that several KeyValues may share."""

    key: Tensor
    value: Tensor
    positions: Tensor
    fill: int
    """How far it was written."""


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
        if room is None or room.fill != start or room.key.shape[2] < end:
            room = self._reserve(end + max(32, end // 2))
        room.key[:, :, start:end] = new.key
        room.value[:, :, start:end] = new.value
        room.positions[:, start:end] = new.positions
        room.fill = end
        return KeyValue(room.key[:, :, :end], room.value[:, :, :end], room.positions[:, :end], room)

    def _reserve(self, capacity: int) -> _Storage:
        """Room for so many keys, with a copy of these at its beginning."""
        length = len(self)

        def larger(x: Tensor, axis: int) -> Tensor:
            """A copy of x, with room along the axis."""
            shape = list(x.shape)
            shape[axis] = capacity
            room = x.new_empty(shape)
            room.narrow(axis, 0, length).copy_(x)
            return room

        return _Storage(
            larger(self.key, 2), larger(self.value, 2), larger(self.positions, 1), length
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
        room = _Storage(key, value, positions, length)
        return KeyValue(key[:, :, :length], value[:, :, :length], positions[:, :length], room)

    def gather(self, slots: Tensor) -> KeyValue:
        """Of each row these slots (B, S'), in this order."""
        where = slots[:, None, :, None]  # (B, 1, S', 1)

        def gathered(x: Tensor) -> Tensor:
            """(B, H, S, D) -> (B, H, S', D)."""
            return x.gather(2, where.expand(-1, x.shape[1], -1, x.shape[3]))

        return KeyValue(gathered(self.key), gathered(self.value), self.positions.gather(1, slots))

    def join(self, other: Self) -> KeyValue:
        """The rows of both, the shorter ones filled up with slots that nobody should look at."""
        length = max(len(self), len(other))

        def both(mine: Tensor, theirs: Tensor, axis: int) -> Tensor:
            """The rows of both, filled up along the axis: 2 of keys and values, 1 of positions."""
            features = (0, 0) if axis == 2 else ()  # these are not filled up
            filled = [F.pad(x, (*features, 0, length - x.shape[axis])) for x in (mine, theirs)]
            return torch.cat(filled)

        return KeyValue(
            both(self.key, other.key, 2),
            both(self.value, other.value, 2),
            both(self.positions, other.positions, 1),
        )
