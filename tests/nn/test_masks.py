"""Masks as rules and as tensors; packed rows and back."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from regard.nn import Attention, Layout, Mask, Window

laws = settings(max_examples=40, deadline=None, derandomize=True)


@laws
@given(
    st.integers(1, 5),
    st.integers(1, 6),
    st.lists(st.integers(0, 6), min_size=1, max_size=3) | st.none(),
    st.booleans(),
    st.integers(0, 4),
    st.integers(0, 3) | st.none(),
    st.integers(0, 1000) | st.none(),
)
def test_dense_is_the_rule(queries, keys, lengths, causal, offset, window, seed):
    batch = len(lengths) if lengths else 1
    extra = None
    if seed is not None:
        extra = (
            torch.rand(batch, 1, queries, keys, generator=torch.Generator().manual_seed(seed)) < 0.5
        )
    key_lengths = torch.tensor(lengths) if lengths is not None else None
    pattern = None if window is None else Window(window)
    mask = Mask(key_lengths=key_lengths, causal=causal, offset=offset, pattern=pattern, extra=extra)
    dense = mask.dense(queries, keys)
    assert dense.dtype == torch.bool
    dense = dense.expand(batch, 1, queries, keys)
    for b in range(batch):
        for t in range(queries):
            for s in range(keys):
                place = offset + t
                may = (lengths is None or s < lengths[b]) and (not causal or s <= place)
                may = (
                    may
                    and (window is None or abs(place - s) <= window)
                    and (extra is None or bool(extra[b, 0, t, s]))
                )
                assert bool(dense[b, 0, t, s]) == may
    rules = lengths is None and window is None and extra is None
    assert mask.trivial == (rules and not causal)
    assert mask.only_causal == (rules and causal)


def test_lengths_of_each_query():
    dense = Mask(key_lengths=torch.tensor([[1, 2, 3], [2, 2, 2]])).dense(3, 4)
    assert dense[:, 0].sum(-1).tolist() == [[1, 2, 3], [2, 2, 2]]
    assert dense[0, 0, 1].tolist() == [True, True, False, False]


@pytest.mark.parametrize("fused", [True, False], ids=["fused", "readable"])
@pytest.mark.parametrize(
    "mask",
    [
        Mask(causal=True, offset=3),
        Mask(causal=True, offset=1),
        Mask(causal=True, pattern=Window(1), offset=3),
        Mask(pattern=Window(1)),
        Mask(key_lengths=torch.tensor([2, 6])),
        Mask(extra=torch.rand(2, 2, 3, 6, generator=torch.Generator().manual_seed(1)) < 0.6),
        Mask(
            extra=torch.rand(1, 1, 1, 6, generator=torch.Generator().manual_seed(2)) < 0.6,
            causal=True,
            offset=2,
        ),
    ],
    ids=["newest", "middle", "window-causal", "window", "lengths", "per-head", "extra-causal"],
)
@torch.no_grad()
def test_attention_obeys_every_rule(mask, fused):
    """What may not be seen can be replaced by anything."""
    torch.manual_seed(0)
    attention = Attention(8, heads=2).eval().double()
    attention.fused = fused
    query, keys = (torch.randn(2, length, 8, dtype=torch.float64) for length in (3, 6))
    memory = attention.project(keys)
    found = attention.attend_to(query, memory, mask)
    reference = Attention(8, heads=2).eval().double()
    reference.load_state_dict(attention.state_dict())
    reference.fused = False
    torch.testing.assert_close(found, reference.attend_to(query, memory, mask), atol=1e-9, rtol=0)
    allowed = mask.dense(3, 6).expand(2, 2, 3, 6)
    for s in range(6):
        if not allowed[..., s].any():
            keys[:, s] = 1e3
    torch.testing.assert_close(
        attention.attend_to(query, attention.project(keys), mask), found, atol=1e-9, rtol=0
    )


# ---- layout ----


@laws
@given(st.lists(st.integers(0, 6), min_size=1, max_size=5), st.integers(0, 3), st.integers(1, 3))
def test_pack_and_pad(lengths, more, width):
    longest = max(lengths) + more
    if longest == 0:
        return
    layout = Layout.of(torch.tensor(lengths), longest)
    x = torch.randn(len(lengths), longest, width)
    packed = layout.pack(x)
    assert packed.shape == (sum(lengths), width)
    assert torch.equal(packed, torch.cat([x[i, :n] for i, n in enumerate(lengths)]))
    padded = layout.pad(packed)
    inside = (torch.arange(longest) < torch.tensor(lengths)[:, None])[..., None]
    assert torch.equal(padded, torch.where(inside, x, 0.0))
    assert torch.equal(layout.pack(padded), packed)
    tokens = torch.randint(9, (len(lengths), longest))
    assert layout.pack(tokens).tolist() == [
        token for row, n in zip(tokens.tolist(), lengths, strict=True) for token in row[:n]
    ]


def test_gradient_through_packing():
    layout = Layout.of(torch.tensor([1, 3]), 4)
    x = torch.randn(2, 4, 2, requires_grad=True)
    layout.pad(layout.pack(x) * 2).sum().backward()
    inside = (torch.arange(4) < torch.tensor([1, 3])[:, None])[..., None]
    assert torch.equal(x.grad, torch.where(inside, 2.0, 0.0).expand(2, 4, 2))
