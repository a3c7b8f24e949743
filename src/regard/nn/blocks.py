"""A Transformer's block: self-attention, attention to a source, feed-forward (Vaswani et al. 2017).

`EncoderBlock` and `DecoderBlock` are blocks for a model of one's own: (B, T, D) in and out. `Block`
computes the same on packed rows, with keys and values that were kept: our models are made of it.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from regard.errors import UserError, only_fast_is_missing
from regard.nn.attention import Attention, SelfAttention
from regard.nn.layers import FeedForward, Residual
from regard.nn.masks import Layout, Mask
from regard.nn.patterns.approximation import Approximation
from regard.nn.positions import Position
from regard.nn.scores import Score
from regard.nn.state import KeyValue

try:
    from regard.nn.fast import decoding
except ModuleNotFoundError as error:
    only_fast_is_missing(error)
    decoding = None  # type: ignore[assignment]

Attend = Callable[[Tensor], Tensor]
"""Attention with its mask, positions and memory already in place: x -> the same shape."""

Source = tuple[KeyValue | Tensor, Mask, Layout, Layout | None]
"""What a decoder's block attends to in the source, the mask for it, and the layout of its queries.

In training the source is not projected yet: it is packed rows (M, D), and their layout stands last.
"""


class _Sublayers(nn.Module):
    """The parts of a block, and how packed rows go through them."""

    def __init__(
        self,
        width: int,
        *,
        heads: int = 1,
        inner: int | None = None,
        crossing: bool = False,
        score: str | type[Score] = "scaled_dot",
        position: str | Position | None = None,
        norm: str = "layer",
        placement: str = "pre",
        activation: str = "relu",
        residual: bool = True,
        feedforward: bool = True,
        bias: bool = True,
        dropout: float = 0.0,
        attention_dropout: float = 0.0,
        activation_dropout: float = 0.0,
        approximation: Approximation | None = None,
    ) -> None:
        super().__init__()
        common: dict[str, Any] = {
            "heads": heads,
            "score": score,
            "bias": bias,
            "dropout": attention_dropout,
        }

        def wrapped() -> Residual:
            return Residual(
                width, norm=norm, placement=placement, dropout=dropout, residual=residual
            )

        self.attention: Attention = SelfAttention(
            width, position=position, approximation=approximation, **common
        )
        self.attention_residual = wrapped()
        if crossing:
            # Without positions: those of the source cannot be compared with those of the target.
            self.cross = Attention(width, **common)
            self.cross_residual = wrapped()

        self.feedforward = feedforward
        if feedforward:
            self.feed = FeedForward(width, inner, activation=activation, dropout=activation_dropout)
            self.feed_residual = wrapped()

    def combine(self, x: Tensor, attend: Attend, attend_source: Attend | None = None) -> Tensor:
        """The formula of the block: rows (N, D) -> the same shape. Override it for a block of
        your own.

        attend: the block's self-attention. attend_source: its attention to the source, in a
        decoder. Masks, positions and the cache for decoding are already in place in both.
        """
        x = self.attention_residual(x, attend)
        if attend_source is not None:
            x = self.cross_residual(x, attend_source)
        if self.feedforward:
            x = self.feed_residual(x, self.feed)
        return x

    def _takes_quick_steps(self, x: Tensor) -> bool:
        """Whether there is a fast twin for x (N, D), and `combine` has not been overridden."""
        usual = getattr(self.combine, "__func__", None) is _Sublayers.combine
        return decoding is not None and usual and x.device.type == "cpu"

    def rows(
        self,
        x: Tensor,
        mask: Mask,
        positions: Tensor,
        layout: Layout,
        before: KeyValue | None = None,
        source: Source | None = None,
        *,
        keep: bool = False,
    ) -> tuple[Tensor, KeyValue | None]:
        """Packed rows (N, D), on top of what was read before -> the same shape.

        keep: also return the keys and values of all that has been read by now, for the next call.
        """
        if keep and self._takes_quick_steps(x) and decoding.suits(self, layout, mask, source):
            return decoding.step(self, x, mask, positions, layout, before, source)

        kept: list[KeyValue] = []

        def attend(x: Tensor) -> Tensor:
            if not keep:
                return self.attention.itself(x, mask, positions, layout)
            queries, new = self.attention.read(x, positions, layout)
            kept.append(new if before is None else before.append(new))
            return self.attention.look(queries, kept[0], mask, positions, layout)

        if source is None:
            x = self.combine(x, attend)
            return x, kept[0] if keep else None

        memory, source_mask, query_layout, key_layout = source

        def attend_source(x: Tensor) -> Tensor:
            if isinstance(memory, KeyValue):
                return self.cross.attend_to(x, memory, source_mask, positions, query_layout)
            assert key_layout is not None
            return self.cross.across(x, memory, source_mask, positions, query_layout, key_layout)

        x = self.combine(x, attend, attend_source)
        return x, kept[0] if keep else None


class Block(_Sublayers):
    """A block on packed rows (N, D): what `regard.models` is made of, and `parts` may replace.

    A block of your own is a subclass with another `combine`:

    >>> class Parallel(Block):
    ...     def combine(self, x, attend, attend_source=None):
    ...         if attend_source is not None:
    ...             x = self.cross_residual(x, attend_source)
    ...         return x + attend(x) + self.feed(x)
    """

    forward = _Sublayers.rows


class EncoderBlock(_Sublayers):
    """Self-attention and feed-forward, each with its norm and residual connection.

    As `torch.nn.TransformerEncoderLayer(…, batch_first=True)`; here the norm stands before each
    part unless placement="post", so that a stack of blocks needs one more norm at its end.

    width: of the tokens. heads: of the attention. inner: of the feed-forward layer (default: four
    times width). score, position, approximation: as in `Attention`, of the self-attention. norm:
    `layer`, `rms` or `none`. activation: as in `FeedForward`.

    >>> block = EncoderBlock(64, heads=4)
    >>> x = torch.randn(2, 7, 64)  # (B, T, D)
    >>> block(x, mask=torch.tensor([7, 3])).shape  # of 7 and of 3 tokens
    torch.Size([2, 7, 64])
    """

    def forward(self, x: Tensor, mask: Tensor | Mask | None = None) -> Tensor:
        """x (B, T, D) -> the same shape. mask: as in `Attention`; True = may look."""
        layout, positions = _as_rows("x", x)
        batch, length, _ = x.shape
        rule = Mask.of(mask, (batch, self.attention.heads, length, length))
        rows, _ = self.rows(layout.pack(x), rule, positions, layout)  # (B · T, D)
        return layout.pad(rows)


class DecoderBlock(_Sublayers):
    """Causal self-attention, attention to a source, feed-forward.

    As `torch.nn.TransformerDecoderLayer(…, batch_first=True)`, but causal by itself. The arguments
    are those of `EncoderBlock`.

    >>> block = DecoderBlock(64, heads=4)
    >>> x = torch.randn(2, 5, 64)  # (B, T, D)
    >>> source = torch.randn(2, 7, 64)  # (B, S, D)
    >>> block(x, source, source_mask=torch.tensor([7, 3])).shape
    torch.Size([2, 5, 64])
    """

    def __init__(
        self,
        width: int,
        *,
        heads: int = 1,
        inner: int | None = None,
        score: str | type[Score] = "scaled_dot",
        position: str | Position | None = None,
        norm: str = "layer",
        placement: str = "pre",
        activation: str = "relu",
        bias: bool = True,
        dropout: float = 0.0,
        attention_dropout: float = 0.0,
        activation_dropout: float = 0.0,
        approximation: Approximation | None = None,
    ) -> None:
        super().__init__(
            width,
            heads=heads,
            inner=inner,
            crossing=True,
            score=score,
            position=position,
            norm=norm,
            placement=placement,
            activation=activation,
            bias=bias,
            dropout=dropout,
            attention_dropout=attention_dropout,
            activation_dropout=activation_dropout,
            approximation=approximation,
        )

    def forward(
        self,
        x: Tensor,
        source: Tensor,
        mask: Tensor | Mask | None = None,
        source_mask: Tensor | Mask | None = None,
    ) -> Tensor:
        """x (B, T, D), source (B, S, D) -> (B, T, D).

        Both masks as in `Attention`; True = may look. A tensor `mask` comes on top of the causal
        one; a `Mask` is taken as it is.
        """
        layout, positions = _as_rows("x", x)
        key_layout, _ = _as_rows("source", source)
        batch, length, _ = x.shape
        heads = self.attention.heads
        rule = Mask.of(mask, (batch, heads, length, length))
        if not isinstance(mask, Mask):
            rule = replace(rule, causal=True)
        source_rule = Mask.of(source_mask, (batch, heads, length, source.shape[1]))

        memory = (key_layout.pack(source), source_rule, layout, key_layout)
        rows, _ = self.rows(layout.pack(x), rule, positions, layout, source=memory)  # (B · T, D)
        return layout.pad(rows)


def _as_rows(name: str, x: Tensor) -> tuple[Layout, Tensor]:
    """The layout of x (B, T, D), all of whose places are worked on, and its positions (B, T)."""
    if x.dim() != 3:
        raise UserError(f"{name} has the shape {tuple(x.shape)}: it must be (batch, length, width)")
    batch, length, _ = x.shape
    positions = torch.arange(length, device=x.device).expand(batch, -1)
    return Layout(batch, length, None), positions
