"""Two kernels for decoding on a GPU, in Triton, which torch does not have.

`look` is attention of few queries over many keys. `scan` reads the logits once, for their largest
and for the sum of their exponentials.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

ROWS = 16
"""Rows of the smallest product that a matrix unit computes."""


@triton.jit  # type: ignore[untyped-decorator]
def _look(  # type: ignore[no-untyped-def]
    Q,  # (B, H, T, D)
    K,  # (B, H, S, D)
    V,  # (B, H, S, D)
    B,  # the bias: (B, H, T, S)
    OUT,  # (B, T, H, D)
    scale,
    keys,  # S
    heads,  # H
    # Strides of Q along batch, heads and queries; the last axis is dense.
    qb,
    qh,
    qt,
    # Strides of K along batch, heads and keys.
    kb,
    kh,
    ks,
    # Strides of V along batch, heads and keys.
    vb,
    vh,
    vs,
    # Strides of B along batch, heads, queries and keys.
    bb,
    bh,
    bt,
    bs,
    T: tl.constexpr,
    D: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Of one sentence and head: softmax(scale · q kᵀ + bias) v.

    It takes a block of keys at a time, and scales what it has whenever a higher score comes (Dao et
    al. 2022). The T queries are filled up to ROWS.
    """
    b, h = tl.program_id(0) // heads, tl.program_id(0) % heads
    t, d = tl.arange(0, ROWS), tl.arange(0, D)
    real = t[:, None] < T  # (ROWS, 1)
    q = tl.load(Q + b * qb + h * qh + t[:, None] * qt + d[None, :], mask=real, other=0.0)

    # Of each query: its highest score so far, and sums of e^(score - highest) and of that times v.
    high = tl.full((ROWS,), -float("inf"), tl.float32)
    total = tl.zeros((ROWS,), tl.float32)
    found = tl.zeros((ROWS, D), tl.float32)
    for start in range(0, keys, BLOCK):
        s = start + tl.arange(0, BLOCK)
        k = tl.load(
            K + b * kb + h * kh + s[None, :] * ks + d[:, None], mask=s[None, :] < keys, other=0.0
        )
        places = real & (s[None, :] < keys)
        bias = tl.load(
            B + b * bb + h * bh + t[:, None] * bt + s[None, :] * bs,
            mask=places,
            other=-float("inf"),
        )
        scores = tl.dot(q, k, input_precision="ieee") * scale + bias.to(tl.float32)  # (ROWS, BLOCK)

        # A query that has seen nothing yet has no highest score: -inf - -inf would be NaN.
        higher = tl.maximum(high, tl.max(scores, 1))
        base = tl.where(higher == -float("inf"), 0.0, higher)
        weights, fade = tl.exp(scores - base[:, None]), tl.exp(high - base)

        v = tl.load(
            V + b * vb + h * vh + s[:, None] * vs + d[None, :], mask=s[:, None] < keys, other=0.0
        )
        found = found * fade[:, None] + tl.dot(weights.to(v.dtype), v, input_precision="ieee")
        total = total * fade + tl.sum(weights, 1)
        high = higher

    found = found / tl.where(total == 0.0, 1.0, total)[:, None]
    out = OUT + ((b * T + t[:, None]) * heads + h) * D + d[None, :]
    tl.store(out, found.to(OUT.dtype.element_ty), mask=real)


def can_look(q: Tensor, key: Tensor, value: Tensor) -> bool:
    """Whether `look` can compute these: few queries, a width it knows, one type, dense rows."""
    width = q.shape[-1]
    small = q.shape[2] <= ROWS and width in (16, 32, 64, 128) and value.shape[-1] == width
    return (
        small
        and q.dtype == key.dtype == value.dtype
        and all(x.stride(-1) == 1 for x in (q, key, value))
    )


def look(q: Tensor, key: Tensor, value: Tensor, bias: Tensor, scale: float) -> Tensor:
    """softmax(scale · q keyᵀ + bias) value, for up to 16 queries: (B, H, T, D).

    q (B, H, T, D), key and value (B, H, S, D), bias broadcastable to (B, H, T, S).
    """
    batch, heads, queries, width = q.shape
    keys = key.shape[2]
    bias = bias.expand(batch, heads, queries, keys)
    out = q.new_empty(batch, queries, heads, width)
    block = 32 if keys <= 32 else 64
    _look[batch * heads,](
        q,
        key,
        value,
        bias,
        out,
        scale,
        keys,
        heads,
        *q.stride()[:3],
        *key.stride()[:3],
        *value.stride()[:3],
        *bias.stride(),
        T=queries,
        D=width,
        ROWS=ROWS,
        BLOCK=block,
        num_warps=2,
    )
    return out.transpose(1, 2)


@triton.jit  # type: ignore[untyped-decorator]
def _scan(  # type: ignore[no-untyped-def]
    X, HIGH, WHERE, TOTAL, size, parts, PARTS: tl.constexpr, PART: tl.constexpr
):
    """Of one row: the maximum of each part and its place, and log Σ exp of all.

    The sum is scaled whenever a higher logit comes, so that no exponential overflows.
    """
    row = tl.program_id(0).to(tl.int64)  # rows times size may be too large for 32 bits
    part, inside = tl.arange(0, PARTS), tl.arange(0, PART)
    high, total = -float("inf"), 0.0  # the highest so far, and the sum of e^(x - highest)
    for start in range(0, parts, PARTS):
        where = (start + part[:, None]) * PART + inside[None, :]  # (PARTS, PART)
        x = tl.load(X + row * size + where, mask=where < size, other=-float("inf")).to(tl.float32)
        best, place = tl.max(x, 1), tl.argmax(x, 1)
        tl.store(HIGH + row * parts + start + part, best, mask=start + part < parts)
        tl.store(
            WHERE + row * parts + start + part,
            (start + part) * PART + place,
            mask=start + part < parts,
        )

        # While all are -inf there is no highest: -inf - -inf would be NaN.
        higher = tl.maximum(high, tl.max(best, 0))
        base = tl.where(higher == -float("inf"), 0.0, higher)
        total = total * tl.exp(high - base) + tl.sum(tl.sum(tl.exp(x - base), 1), 0)
        high = higher

    tl.store(TOTAL + row, high + tl.log(total))


def scan(logits: Tensor, part: int) -> tuple[Tensor, Tensor, Tensor]:
    """Logits (R, V), in one pass -> the largest of every `part` logits, their ids, and log Σ exp.

    The first two are (R, V / part), rounded up; the last is (R, 1).
    """
    logits = logits.contiguous()  # the kernel walks along rows; those of a model lie so already
    rows, size = logits.shape
    parts = -(-size // part)  # rounded up
    device = logits.device
    high = torch.empty(rows, parts, device=device)
    total = torch.empty(rows, 1, device=device)
    where = torch.empty(rows, parts, dtype=torch.long, device=device)
    _scan[rows,](logits, high, where, total, size, parts, PARTS=32, PART=part, num_warps=8)
    return high, where, total
