"""Who may look at whom (Mask), which rows are real tokens (Layout), and a softmax that respects both. True = may look."""

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Mask:
    """A rule, not a tensor: the reference reads `dense()`, a fast path reads the fields.

    key_lengths (B,): keys from here on are padding. causal: query t sees keys up to `offset + t`. window: and none further
    back than this. extra, bool, broadcastable to (B, H, T, S): the user's own rule, on top of the others.
    """

    key_lengths: Tensor | None = None
    causal: bool = False
    offset: int = 0
    window: int | None = None
    extra: Tensor | None = None

    def dense(self, queries: int, keys: int, device: torch.device | None = None) -> Tensor:
        """(B or 1, 1 or H, T, S), True = may look."""
        key = torch.arange(keys, device=device)
        query = torch.arange(queries, device=device)[:, None] + self.offset
        allowed = torch.ones(1, 1, queries, keys, dtype=torch.bool, device=device)
        if self.causal:
            allowed = allowed & (key <= query)
        if self.window is not None:
            allowed = allowed & ((query - key).abs() < self.window)
        if self.key_lengths is not None:
            allowed = allowed & (key < self.key_lengths.to(key.device)[:, None, None, None])
        if self.extra is not None:
            allowed = allowed & self.extra
        return allowed

    @property
    def trivial(self) -> bool:
        """Every query may look at every key."""
        return not self.causal and self._unrestricted

    @property
    def only_causal(self) -> bool:
        """Nothing is hidden but the future."""
        return self.causal and self._unrestricted

    @property
    def _unrestricted(self) -> bool:
        return self.key_lengths is None and self.window is None and self.extra is None


def masked_softmax(scores: Tensor, mask: Tensor | Mask | None = None) -> Tensor:
    """Softmax over the last axis of scores (B, …, T, S), with weight exactly 0 where nobody may look.

    mask: a bool tensor that broadcasts to the scores, a Mask, or lengths: (B,) for all queries, (B, T) for each.
    A row with nothing to look at gives zeros.
    """
    if mask is None:
        return scores.softmax(-1)
    allowed = _as_bool(mask, scores)
    # The lowest finite number, not -inf: a row of -inf would give NaN gradients even where its output is set to zero.
    low = torch.finfo(scores.dtype).min
    return scores.masked_fill(~allowed, low).softmax(-1).masked_fill(~allowed, 0.0)


def _as_bool(mask: Tensor | Mask, scores: Tensor) -> Tensor:
    if isinstance(mask, Mask):
        dense = mask.dense(scores.shape[-2], scores.shape[-1], scores.device)
        return dense if scores.dim() == 4 else dense.squeeze(1)
    if mask.dtype == torch.bool:
        return mask
    key = torch.arange(scores.shape[-1], device=scores.device)
    per_query = mask if mask.dim() == 2 else mask[:, None]  # (B, T) or (B, 1)
    between = (1,) * (scores.dim() - 3)  # the axes between batch and query, such as heads
    return key < per_query.reshape(per_query.shape[0], *between, per_query.shape[1], 1)


@dataclass(frozen=True)
class Layout:
    """Which of B × T places hold real tokens. Position-wise work runs on packed rows (N, D): none is spent on padding."""

    batch: int
    length: int
    rows: Tensor | None
    """(N,) indices into B × T; None when every place is real."""

    @classmethod
    def of(cls, lengths: Tensor, length: int) -> Self:
        """The layout of a padded batch (B, length) with these real lengths (B,)."""
        real = torch.arange(length, device=lengths.device) < lengths[:, None]
        rows = real.flatten().nonzero().squeeze(1)
        return cls(len(lengths), length, None if len(rows) == real.numel() else rows)

    def pack(self, x: Tensor) -> Tensor:
        """(B, T, …) -> (N, …)."""
        flat = x.flatten(0, 1)
        return flat if self.rows is None else flat.index_select(0, self.rows)

    def pad(self, x: Tensor) -> Tensor:
        """(N, …) -> (B, T, …), zeros in the padding."""
        if self.rows is not None:
            empty = x.new_zeros(self.batch * self.length, *x.shape[1:])
            x = empty.index_copy(0, self.rows, x)
        return x.unflatten(0, (self.batch, self.length))
