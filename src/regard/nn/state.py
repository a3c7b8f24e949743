"""Keys and values as a value: appending never changes what somebody else holds."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Self

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass
class _Storage:
    """Reserved room that several KeyValues may share; `fill` says how far it was written."""

    key: Tensor
    value: Tensor
    positions: Tensor
    fill: int


@dataclass(frozen=True)
class KeyValue:
    """What a query looks at: prepared keys (B, H, S, Dk), values (B, H, S, Dv) and their positions
    (B, S).
    """

    key: Tensor
    value: Tensor
    positions: Tensor
    storage: _Storage | None = field(default=None, repr=False)

    def __len__(self) -> int:
        return self.key.shape[2]

    def append(self, new: Self) -> KeyValue:
        """self then new. Writes behind the scenes into reserved room if nobody has written there,
        else copies first.
        """
        if torch.is_grad_enabled() and any(
            x.requires_grad for x in (self.key, self.value, new.key, new.value)
        ):
            return KeyValue(
                torch.cat((self.key, new.key), 2),
                torch.cat((self.value, new.value), 2),
                torch.cat((self.positions, new.positions), 1),
            )
        start, end = len(self), len(self) + len(new)
        room = self.storage
        if room is None or room.fill != start or room.key.shape[2] < end:
            room = self._reserve(end + max(32, end // 2))
        room.key[:, :, start:end] = new.key
        room.value[:, :, start:end] = new.value
        room.positions[:, start:end] = new.positions
        room.fill = end
        return KeyValue(room.key[:, :, :end], room.value[:, :, :end], room.positions[:, :end], room)

    def _reserve(self, capacity: int) -> _Storage:
        length = len(self)

        def larger(x: Tensor, axis: int) -> Tensor:
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
        length, old = len(self), self.storage
        key, value, positions = (
            x.new_empty(len(rows), *x.shape[1:]) for x in (old.key, old.value, old.positions)
        )
        key[:, :, :length] = self.key.index_select(0, rows)
        value[:, :, :length] = self.value.index_select(0, rows)
        positions[:, :length] = self.positions.index_select(0, rows)
        room = _Storage(key, value, positions, length)
        return KeyValue(key[:, :, :length], value[:, :, :length], positions[:, :length], room)

    def gather(self, slots: Tensor) -> KeyValue:
        """Of each row its slots (B, S'), in this order."""
        where = slots[:, None, :, None]
        key, value = (
            x.gather(2, where.expand(-1, x.shape[1], -1, x.shape[3]))
            for x in (self.key, self.value)
        )
        return KeyValue(key, value, self.positions.gather(1, slots))

    def join(self, other: Self) -> KeyValue:
        """The rows of both, the shorter ones filled up with slots that nobody should look at."""
        length = max(len(self), len(other))

        def both(one: Tensor, two: Tensor, axis: int) -> Tensor:
            fill = (0, 0) if axis == 2 else ()
            return torch.cat([F.pad(x, (*fill, 0, length - x.shape[axis])) for x in (one, two)])

        return KeyValue(
            both(self.key, other.key, 2),
            both(self.value, other.value, 2),
            both(self.positions, other.positions, 1),
        )
