"""Which query may look at which key (Mask), which rows are real tokens (Layout), and a softmax.

In every mask, True = may look.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor

from regard.errors import UserError
from regard.nn.patterns.pattern import Pattern

Rule = Callable[[Tensor, Tensor], Tensor]
"""Which query may look at which key, by their positions: bool, True = may look.

rule(query (B, 1, T, 1), key (B, 1, 1, S)) -> (B, H, T, S), or smaller where all are alike.
"""


def ask_rule(rule: Rule, query: Tensor, key: Tensor, heads: int) -> Tensor:
    """What a rule of the user's own says of positions (B, T) and (B, S): (B, 1 or H, T, S)."""
    shape = (query.shape[0], heads, query.shape[1], key.shape[1])
    allowed = rule(query[:, None, :, None], key[:, None, None, :])
    name = getattr(rule, "__name__", type(rule).__name__)
    if not isinstance(allowed, Tensor) or allowed.dtype != torch.bool:
        kind = allowed.dtype if isinstance(allowed, Tensor) else type(allowed).__name__
        raise UserError(
            f"the mask {name} returns {kind}: it must be a bool tensor, True = may look"
        )

    size = (1,) * (4 - allowed.dim()) + tuple(allowed.shape)
    if len(size) > 4 or not all(ours in (1, full) for ours, full in zip(size, shape)):
        raise UserError(
            f"the mask {name} returns a tensor of {tuple(allowed.shape)}: it must have the shape "
            f"(B, H, T, S) = {shape}, or 1 in place of any of these"
        )
    return allowed.reshape(size).expand(shape[0], -1, shape[2], shape[3])


@dataclass(frozen=True, eq=False)
class Mask:
    """Which keys each query may attend to (True: allowed, unlike in nn.MultiheadAttention).

    It is a rule rather than a tensor: readable code uses `dense()`, fast kernels use the fields.
    """

    key_lengths: Tensor | None = None
    """Number of visible keys: (B,), or (B, T) for each query. Later keys are padding."""
    causal: bool = False
    """Query t attends only to keys up to `offset + t`."""
    offset: int = 0
    """Number of keys before that of the first query, such as cached ones."""
    pattern: Pattern | None = None
    """Sparse attention: a query attends only to keys that the pattern allows, such as Window(8)."""
    extra: Tensor | None = None
    """A custom mask, applied as well: bool, broadcastable to (B, H, T, S)."""
    filled: bool = False
    """Whether every query is guaranteed to have a key to attend to.

    Lengths on a CPU are checked anyway.
    """
    _made: dict[Any, Any] = field(default_factory=dict, repr=False)
    """Tensors built from this rule, shared by all layers."""

    @classmethod
    def known(cls, allowed: Tensor, bias: Tensor) -> Self:
        """A mask whose tensors (B, 1, T, S) exist already, as bool and as what is added to scores.

        Every query may look at something.
        """
        shape = (allowed.shape[-2], allowed.shape[-1])
        return cls(extra=allowed, filled=True, _made={shape: allowed, (*shape, bias.dtype): bias})

    @classmethod
    def of(
        cls, mask: Tensor | Self | None, shape: tuple[int, int, int, int], name: str = ""
    ) -> Self:
        """Any mask that a caller may write, for scores of this shape (B, H, T, S).

        None: every query may look at every key. A bool tensor (T, S), (B, T, S) or (B, H, T, S),
        True = may look, where a 1 stands for any size. Whole numbers: lengths of the keys, (B,) or
        (B, T). name: what errors call it.
        """
        if mask is None:
            return cls()
        if isinstance(mask, cls):
            return mask
        assert isinstance(mask, Tensor)
        batch, _, queries, keys = shape
        size = tuple(mask.shape)
        told = f"{name}: " if name else ""
        if mask.dtype == torch.bool:
            rule = mask[:, None] if mask.dim() == 3 else mask
            full = {2: (queries, keys), 3: (batch, queries, keys), 4: shape}.get(mask.dim(), ())
            if full and all(ours in (1, theirs) for ours, theirs in zip(size, full)):
                return cls(extra=rule)
            advice = "; a mask of the keys is mask[:, None, :]" if size == (batch, keys) else ""
            raise UserError(
                f"{told}a bool mask of {size}: it must be (T, S) = {(queries, keys)}, (B, T, S) = "
                f"{(batch, queries, keys)} or (B, H, T, S) = {shape}{advice}"
            )

        if mask.is_floating_point() or size not in ((batch,), (batch, queries)):
            raise UserError(
                f"{told}a mask of {mask.dtype} and {size}: write a bool mask, True = may look, or "
                f"the lengths of the keys as whole numbers, {(batch,)} or {(batch, queries)}"
            )
        return cls(key_lengths=mask)

    def dense(self, queries: int, keys: int, device: torch.device | None = None) -> Tensor:
        """The mask as a tensor (B or 1, 1 or H, T, S). Made once for all layers that ask."""
        if torch.compiler.is_compiling():  # there it is part of the kernel that needs it
            return self._dense(queries, keys, device)
        if (queries, keys) not in self._made:
            self._made[queries, keys] = self._dense(queries, keys, device)
        return self._made[queries, keys]

    def bias(self, queries: int, keys: int, like: Tensor) -> Tensor:
        """The same to be added to scores: 0 = may look, −∞ = may not.

        A query that may look at nothing sees everything: see `opened`.
        """
        key = queries, keys, like.dtype
        if key not in self._made:
            allowed = self.opened(queries, keys, like.device)
            self._made[key] = like.new_zeros(allowed.shape).masked_fill_(~allowed, float("-inf"))
        return self._made[key]

    def opened(self, queries: int, keys: int, device: torch.device | None = None) -> Tensor:
        """`dense()`, but a query that may look at nothing sees everything.

        A row of −∞ is NaN in a softmax, or in its gradient. So kernels compute such a row as if all
        were allowed, and whoever calls them sets it to zero by `seeing`: then neither its output
        nor its gradient is anything but zero.
        """
        allowed = self.dense(queries, keys, device)
        seeing = self.seeing(queries, keys, device)
        return allowed if seeing is None else allowed | ~seeing

    def seeing(self, queries: int, keys: int, device: torch.device | None = None) -> Tensor | None:
        """(B or 1, 1 or H, T, 1): whether a query may look at anything. None if all may."""
        if self.never_empty:
            return None
        if torch.compiler.is_compiling():
            return self._dense(queries, keys, device).any(-1, keepdim=True)

        key = "seeing", queries, keys
        if key not in self._made:
            self._made[key] = self.dense(queries, keys, device).any(-1, keepdim=True)
        return self._made[key]

    @property
    def never_empty(self) -> bool:
        """Whether every query is known to see something, without waiting for a GPU."""
        if self.extra is not None or self.pattern is not None:
            return self.filled
        lengths = self.key_lengths
        if lengths is None:
            return True  # the past begins with the first key
        if torch.compiler.is_compiling():
            return self.filled

        known: bool | None = self._made.get("never_empty")
        if known is None:
            known = self.filled
            if lengths.device.type == "cpu":
                known = lengths.numel() == 0 or int(lengths.min()) > 0
            self._made["never_empty"] = known
        return known

    def _dense(self, queries: int, keys: int, device: torch.device | None) -> Tensor:
        """`dense()`, made anew."""
        key = torch.arange(keys, device=device)  # (S,)
        query = torch.arange(queries, device=device)[:, None] + self.offset  # (T, 1)
        allowed = torch.ones(1, 1, queries, keys, dtype=torch.bool, device=device)
        if self.causal:
            allowed = allowed & (key <= query)
        if self.pattern is not None:
            lengths = self.text_lengths(keys, key.device)  # (B or 1,)
            allowed = allowed & self.pattern.allows(query, key, lengths[:, None, None, None])
        if self.key_lengths is not None:
            lengths = self.key_lengths.to(key.device)
            if lengths.dim() == 1:
                lengths = lengths[:, None]
            allowed = allowed & (key < lengths[:, None, :, None])  # (B, 1, T or 1, S)
        if self.extra is not None:
            allowed = allowed & self.extra
        return allowed

    def text_lengths(self, keys: int, device: torch.device | None = None) -> Tensor:
        """How many of so many keys are real, for a pattern: (B,), or (1,) where all texts are as
        long.
        """
        lengths = self.key_lengths
        if lengths is None:
            return torch.full((1,), keys, device=device)
        if lengths.dim() == 2:  # of each query: the text is as long as what the last one sees
            lengths = lengths.amax(1)
        return lengths.to(device)

    def restricted(self, allowed: Tensor) -> Self:
        """This mask and another one, (B or 1, H or 1, T, S): a query must be allowed by both."""
        extra = allowed if self.extra is None else self.extra & allowed
        return replace(self, extra=extra, filled=False, _made={})

    @property
    def trivial(self) -> bool:
        """Whether every query may look at every key."""
        return not self.causal and self._unrestricted

    @property
    def only_causal(self) -> bool:
        """Whether nothing is hidden but the future."""
        return self.causal and self._unrestricted

    def free(self, queries: int, keys: int) -> bool:
        """Whether so many queries may look at all of so many keys."""
        # The newest query has nothing in its future.
        newest = self.only_causal and self.offset == keys - 1 and queries == 1
        return newest or self.trivial

    def square(self, queries: int, keys: int) -> bool:
        """Whether this is the causal mask of fused kernels: query t sees keys up to t, no more."""
        return self.only_causal and self.offset == 0 and queries == keys

    @property
    def _unrestricted(self) -> bool:
        """Whether only `causal` can hide anything."""
        return self.key_lengths is None and self.pattern is None and self.extra is None


@dataclass(frozen=True)
class OwnMask:
    """What the user forbids in one kind of attention: a rule, a mask for this call, or both."""

    name: str
    """What errors call the mask."""
    rule: Rule | None
    mask: Tensor | None
    """Anything that `Mask.of` takes."""
    heads: int

    @property
    def forbids(self) -> bool:
        """Whether there is anything to forbid."""
        return self.rule is not None or self.mask is not None

    def on_top_of(self, sight: Mask, query: Tensor, key: Tensor) -> Mask:
        """`sight` without what is forbidden, for queries and keys at these positions.

        query (B, T), key (B, S).
        """
        if self.rule is not None:
            sight = sight.restricted(ask_rule(self.rule, query, key, self.heads))
        if self.mask is not None:
            shape = (query.shape[0], self.heads, query.shape[1], key.shape[1])
            own = Mask.of(self.mask, shape, self.name)
            sight = sight.restricted(own.dense(shape[2], shape[3], query.device))
        return sight


def masked_softmax(scores: Tensor, mask: Tensor | Mask | None = None) -> Tensor:
    """Softmax over the last axis of scores (B, …, T, S), with exact zeros where masked.

    mask: a bool tensor that broadcasts to the scores (True: allowed), a Mask, or key lengths, (B,)
    or (B, T) for each query. A row in which everything is masked gives zeros.
    """
    if mask is None:
        return scores.softmax(-1)
    allowed = _as_bool(mask, scores)
    # The lowest finite number, not -inf: a row of -inf would give NaN gradients even where its
    # output is set to zero.
    low = torch.finfo(scores.dtype).min
    return scores.masked_fill(~allowed, low).softmax(-1).masked_fill(~allowed, 0.0)


def _as_bool(mask: Tensor | Mask, scores: Tensor) -> Tensor:
    """Any mask that `masked_softmax` takes, as a bool tensor that broadcasts to the scores."""
    if isinstance(mask, Mask):
        dense = mask.dense(scores.shape[-2], scores.shape[-1], scores.device)
        return dense if scores.dim() == 4 else dense.squeeze(1)
    if mask.dtype == torch.bool:
        return mask

    key = torch.arange(scores.shape[-1], device=scores.device)  # (S,)
    per_query = mask if mask.dim() == 2 else mask[:, None]  # (B, T) or (B, 1)
    between = (1,) * (scores.dim() - 3)  # the axes between batch and query, such as heads
    return key < per_query.reshape(per_query.shape[0], *between, per_query.shape[1], 1)


@dataclass(frozen=True, eq=False)
class Layout:
    """Which of the B × T positions of a padded batch hold real tokens.

    Position-wise layers run on packed rows (N, D), so they spend no time on padding.
    """

    batch: int
    length: int
    rows: Tensor | None
    """(N,) indices into B × T; None if all positions are computed."""
    back: Tensor | None = None
    """(B × T,): the packed row of each position; padding has that of a real neighbor."""
    full: bool = True
    """Whether there is no padding."""
    offsets: Tensor | None = None
    """(B + 1,), int32: where each sentence starts in the packed rows.

    For variable-length kernels (CUDA only).
    """

    @classmethod
    def of(cls, lengths: Tensor, length: int, *, offsets: bool = False, worth: float = 1.0) -> Self:
        """The layout of a padded batch (B, length) with these real lengths (B,).

        It leaves the padding in if at least `worth` of the places are real. offsets: also work out
        where sentences begin; then only a batch without padding is left as it is.
        """
        real = (
            torch.arange(length, device=lengths.device) < lengths[:, None]
        ).flatten()  # (B · T,)
        rows = real.nonzero().squeeze(1)  # (N,)
        full = len(rows) == len(real)
        starts = F.pad(lengths.cumsum(0), (1, 0)).int() if offsets else None  # (B + 1,)

        unpacked = len(rows) >= worth * len(real) and (starts is None or full)
        if unpacked:
            return cls(len(lengths), length, None, full=full, offsets=starts)

        back = (real.cumsum(0) - 1).clamp(min=0)  # (B · T,)
        return cls(len(lengths), length, rows, back, full=False, offsets=starts)

    def to(self, device: torch.device | str) -> Self:
        """This layout with its tensors on another device."""
        return self._changed(lambda x: x.to(device, non_blocking=True))

    def clone(self) -> Self:
        """This layout with copies of its tensors."""
        return self._changed(Tensor.clone)

    def _changed(self, change: Callable[[Tensor], Tensor]) -> Self:
        """This layout after a change of each of its tensors."""
        tensors = (self.rows, self.back, self.offsets)
        rows, back, offsets = (None if x is None else change(x) for x in tensors)
        return replace(self, rows=rows, back=back, offsets=offsets)

    def twice(self) -> Self:
        """The layout of the same batch twice, one after the other."""
        rows = back = offsets = None
        if self.rows is not None:
            rows = torch.cat((self.rows, self.rows + self.batch * self.length))
        if self.rows is not None and self.back is not None:
            back = torch.cat((self.back, self.back + len(self.rows)))
        if self.offsets is not None:
            offsets = torch.cat((self.offsets[:-1], self.offsets + self.offsets[-1]))
        return replace(self, batch=2 * self.batch, rows=rows, back=back, offsets=offsets)

    def pack(self, x: Tensor) -> Tensor:
        """(B, T, …) -> (N, …)."""
        flat = x.flatten(0, 1)  # (B · T, …)
        if self.rows is None:
            return flat
        return _Packed.apply(flat, self.rows, len(flat))  # type: ignore[no-untyped-call]

    def spread(self, x: Tensor) -> Tensor:
        """(N, …) -> (B, T, …); padding repeats a real neighbour, so nobody may look at it."""
        if self.rows is not None:
            x = _Spread.apply(x, self.rows, self.back)  # type: ignore[no-untyped-call]
        return x.unflatten(0, (self.batch, self.length))

    def pad(self, x: Tensor) -> Tensor:
        """(N, …) -> (B, T, …), zeros in the padding."""
        if self.rows is not None:
            x = x.new_zeros(self.batch * self.length, *x.shape[1:]).index_copy(0, self.rows, x)
        return x.unflatten(0, (self.batch, self.length))


class _Packed(torch.autograd.Function):
    """x[rows]; the gradient of padding is zero."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, rows: Tensor, places: int) -> Tensor:
        ctx.save_for_backward(rows)
        ctx.places = places
        return x.index_select(0, rows)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        (rows,) = ctx.saved_tensors
        zeros = grad.new_zeros(ctx.places, *grad.shape[1:])
        return zeros.index_copy(0, rows, grad), None, None


class _Spread(torch.autograd.Function):
    """x[back]; the gradient is that of the real places.

    Nobody looks at padding, so its gradient is zero: it is enough to pick rows, where torch would
    add them up.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, rows: Tensor, back: Tensor) -> Tensor:
        ctx.save_for_backward(rows)
        return x.index_select(0, back)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        (rows,) = ctx.saved_tensors
        return grad.index_select(0, rows), None, None
