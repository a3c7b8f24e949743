"""Which kernel computes an attention: lists of small kernels, asked in order.

Every kernel gives the numbers of the readable formula. Where none applies, or where this folder was
taken out, that formula itself is computed.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from typing import Protocol, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

from regard.nn.fast.blocked import Blocks
from regard.nn.fast.cpu import pooled, pooled_own
from regard.nn.fast.lengths import by_length
from regard.nn.masks import Layout, Mask
from regard.nn.state import KeyValue

TRITON = find_spec("triton") is not None  # comes with torch where there may be a GPU

SHORT = {"cpu": 256, "cuda": 64}
"""Keys up to which training is faster with whole matrices of weights than with blocked kernels."""

HALF = (torch.bfloat16, torch.float16)
"""What kernels of variable length compute in. float32 is never rounded to fit them."""


def short(device: str) -> int:
    """`SHORT` of a type of device; one that was never measured is taken for a GPU."""
    return SHORT.get(device, SHORT["cuda"])


BLOCKS_PAY = 1.5
"""How many times more keys there must be than a block looks at, for blocks to be faster."""


# ---- long texts ----


def blocks_of(mask: Mask, query: Tensor, memory: KeyValue) -> Blocks | None:
    """The blocks by which a mask with a pattern is computed; None: as one whole matrix.

    That is so for short texts, for a step of decoding, and under a mask of the user's own.
    """
    if mask.pattern is None or torch.compiler.is_compiling():
        return None
    length = query.shape[2]
    by_text = mask.key_lengths is None or mask.key_lengths.dim() == 1
    is_whole = mask.offset == 0 and length == len(memory) and by_text and mask.extra is None
    if not is_whole:
        return None

    key = "blocks", length, query.device, torch.is_inference_mode_enabled()
    if key not in mask._made:
        mask._made[key] = _blocks_that_pay(mask, length, query.device)
    return mask._made[key]


def _blocks_that_pay(mask: Mask, length: int, device: torch.device) -> Blocks | None:
    """None where the keys of a block are about as many as the text has."""
    assert mask.pattern is not None
    one = torch.zeros(1, dtype=torch.long)
    named = mask.pattern.key_blocks(one, torch.tensor([length])).shape[-1]  # M
    keys = mask.pattern.global_tokens + named * mask.pattern.block
    if length < BLOCKS_PAY * keys:
        return None
    return Blocks.of(mask, length, device)


# ---- what decides ----


@dataclass(slots=True)
class KernelCase:
    """What every kernel must know of a call of an attention."""

    mask: Mask
    queries: int
    keys: int
    device: str
    """The type of the device, such as `cuda`."""
    heads: int
    width: int
    """Of one head."""
    scale: float | None
    """Of the product that gives the scores. None: no fused kernel can compute them."""
    plain: bool
    """No position acts inside, and keys need no preparing: rows go into the kernel as they are."""
    dropout: float
    """Of the weights, now."""
    gradients: bool
    compiling: bool
    watched: bool


@dataclass(slots=True)
class RowsCase(KernelCase):
    """Queries and keys are still rows of tokens (N, D), and nobody needs the keys afterwards."""

    query_layout: Layout
    key_layout: Layout
    dtype: torch.dtype
    """What the projections will make of these rows (autocast included)."""


@dataclass(slots=True)
class HeadsCase(KernelCase):
    """Queries, keys and values are made already."""

    query: Tensor
    """(B, H, T, D)"""
    key: Tensor
    """(B, H, S, D)"""
    value: Tensor
    """(B, H, S, D)"""
    term: Tensor | None
    """What the position adds to the scores: (B, H, T, S)."""


class OwnKernel(Protocol):
    """Tokens look at each other: the product `qkv` (N, 3 · inner) -> (N, inner)."""

    def applies(self, case: RowsCase) -> bool: ...

    def __call__(self, case: RowsCase, qkv: Tensor) -> Tensor: ...


class AcrossKernel(Protocol):
    """Rows look at other rows: q (N, inner), k and v (M, inner) -> (N, inner)."""

    def applies(self, case: RowsCase) -> bool: ...

    def __call__(self, case: RowsCase, q: Tensor, k: Tensor, v: Tensor) -> Tensor: ...


class HeadsKernel(Protocol):
    """Heads look at heads -> (B, H, T, D)."""

    def applies(self, case: HeadsCase) -> bool: ...

    def __call__(self, case: HeadsCase) -> Tensor: ...


# ---- rows of variable length: no padding at all ----


class AcrossByLength:
    """Flash attention of variable length, each sentence alone.

    It takes packed queries and packed keys, so it is decided for both together.
    """

    def applies(self, case: RowsCase) -> bool:
        if case.scale is None or not case.plain:
            return False

        query, key = case.query_layout, case.key_layout
        if query.offsets is None or key.offsets is None:
            return False

        mask = case.mask
        by_sentence = mask.key_lengths is None or mask.key_lengths.dim() == 1
        if mask.extra is not None or mask.pattern is not None or not by_sentence:
            return False
        if mask.causal and (mask.offset != 0 or query is not key):
            return False

        long = max(query.length, key.length) > short("cuda")
        fits = case.dtype in HALF and case.width % 8 == 0 and case.width <= 256
        if not (long and fits and has_flash(case.device)):
            return False
        return not case.dropout and not case.watched and mask.never_empty

    def __call__(self, case: RowsCase, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q = q.unflatten(-1, (case.heads, -1))  # (N, H, D)
        k = k.unflatten(-1, (case.heads, -1))  # (M, H, D)
        v = v.unflatten(-1, (case.heads, -1))  # (M, H, D)
        assert case.scale is not None
        context = by_length(
            q, k, v, case.query_layout, case.key_layout, case.scale, case.mask.causal
        )
        return context.flatten(1)  # (N, inner)


class OwnByLength(AcrossByLength):
    """The same, of rows that look at each other."""

    def __call__(self, case: RowsCase, qkv: Tensor) -> Tensor:  # type: ignore[override]
        q, k, v = qkv.chunk(3, -1)  # (N, inner) each
        return super().__call__(case, q, k, v)


# ---- whole matrices of weights, in training ----


class OwnPooled:
    """Straight from the product that makes queries, keys and values."""

    def applies(self, case: RowsCase) -> bool:
        if case.scale is None or not case.plain or case.mask.extra is not None:
            return False
        return case.keys <= short(case.device) and case.gradients and not case.compiling

    def __call__(self, case: RowsCase, qkv: Tensor) -> Tensor:
        layout = case.query_layout
        qkv = layout.spread(qkv)  # (B, T, 3 · inner)
        bias = None if case.mask.trivial else case.mask.bias(case.queries, case.keys, qkv)
        assert case.scale is not None
        context = pooled_own(qkv, case.heads, bias, case.scale, case.dropout)  # (B, T, inner)

        seeing = case.mask.seeing(case.queries, case.keys, qkv.device)
        if seeing is not None:
            context = context.masked_fill(~seeing.squeeze(1), 0.0)
        return layout.pack(context)  # (N, inner)


class Pooled:
    """Of heads."""

    def applies(self, case: HeadsCase) -> bool:
        return _trains_short(case) and not case.compiling

    def __call__(self, case: HeadsCase) -> Tensor:
        assert case.scale is not None
        context = pooled(case.query, case.key, case.value, _bias(case), case.scale, case.dropout)
        return _blind_rows_zero(context, case)


# ---- decoding, and everything else ----


class FewQueries:
    """Few queries over many keys, in decoding: a Triton kernel."""

    def applies(self, case: HeadsCase) -> bool:
        if case.device != "cuda" or not TRITON or case.gradients or case.compiling:
            return False

        mask = case.mask
        hides = not (mask.free(case.queries, case.keys) or mask.square(case.queries, case.keys))
        if not hides and case.term is None:
            return False

        from regard.nn.fast import gpu

        return gpu.can_look(case.query, case.key, case.value)

    def __call__(self, case: HeadsCase) -> Tensor:
        from regard.nn.fast import gpu

        bias = _bias(case)
        assert bias is not None
        assert case.scale is not None
        context = gpu.look(case.query, case.key, case.value, bias, case.scale)
        return _blind_rows_zero(context, case)


class Sdpa:
    """torch's scaled_dot_product_attention: applies to everything."""

    def applies(self, case: HeadsCase) -> bool:
        return True

    def __call__(self, case: HeadsCase) -> Tensor:
        causal = case.term is None and case.mask.square(case.queries, case.keys)
        context = F.scaled_dot_product_attention(
            case.query,
            case.key,
            case.value,
            attn_mask=None if causal else _bias(case),
            dropout_p=case.dropout,
            is_causal=causal,
            scale=case.scale,
        )
        return _blind_rows_zero(context, case)


OWN: tuple[OwnKernel, ...] = (OwnByLength(), OwnPooled())
ACROSS: tuple[AcrossKernel, ...] = (AcrossByLength(),)
HEADS: tuple[HeadsKernel, ...] = (Pooled(), FewQueries(), Sdpa())


def own_kernel(case: RowsCase) -> OwnKernel | None:
    """None: make heads of the rows, and ask for a kernel of heads."""
    return _first(OWN, case)


def across_kernel(case: RowsCase) -> AcrossKernel | None:
    """None: make heads of the rows, and ask for a kernel of heads."""
    return _first(ACROSS, case)


def heads_kernel(case: HeadsCase) -> HeadsKernel | None:
    """None: compute the readable formula.

    That is also what a compiler is given for short sentences: it makes a kernel of its own.
    """
    if case.scale is None or (case.compiling and _trains_short(case)):
        return None
    return _first(HEADS, case)


K = TypeVar("K", OwnKernel, AcrossKernel, HeadsKernel)


def _first(kernels: Sequence[K], case: RowsCase | HeadsCase) -> K | None:
    for kernel in kernels:
        if kernel.applies(case):  # type: ignore[arg-type]
            return kernel
    return None


def _trains_short(case: HeadsCase) -> bool:
    within = case.keys <= short(case.device)
    return case.gradients and within and case.mask.extra is None and case.term is None


def _bias(case: HeadsCase) -> Tensor | None:
    """What is added to the scores, -inf where a query may not look; None: nothing.

    (B, H, T, S), or smaller where rows are alike.
    """
    mask = case.mask
    if mask.free(case.queries, case.keys):
        return case.term
    if case.term is not None:
        opened = mask.opened(case.queries, case.keys, case.query.device)
        return case.term.masked_fill(~opened, float("-inf"))
    return mask.bias(case.queries, case.keys, case.query)


def _blind_rows_zero(context: Tensor, case: HeadsCase) -> Tensor:
    """Queries that may look at nothing get zeros."""
    seeing = case.mask.seeing(case.queries, case.keys, case.query.device)
    return context if seeing is None else context.masked_fill(~seeing, 0.0)


@cache
def has_flash(device: str) -> bool:
    """Whether a type of device runs torch's flash attention of variable length."""
    if device != "cuda" or find_spec("torch.nn.attention.varlen") is None:
        return False

    return torch.cuda.get_device_capability() >= (8, 0)
