"""One list of kernels: which one computes which call of an attention."""

from dataclasses import replace

import pytest
import torch

from regard.nn import Attention, Layout, Mask, SelfAttention
from regard.nn import choose as module
from regard.nn.choose import Case, choose, short


def layout_of(length, *, offsets=True):
    return Layout.of(torch.tensor([length, 2]), length, offsets=offsets)


@pytest.fixture
def case(monkeypatch):
    """Training on a GPU, packed rows in bfloat16, one side long: what a kernel of variable length
    is for.
    """
    monkeypatch.setattr(module, "has_flash", lambda device: device == "cuda")
    return Case(
        mask=Mask(),
        queries=8,
        keys=90,
        device="cuda",
        dtype=torch.bfloat16,
        width=64,
        product=True,
        plain=True,
        dropout=0.0,
        gradients=True,
        compiling=False,
        watched=False,
        layouts=(layout_of(8), layout_of(90)),
    )


def test_packed_rows_go_to_the_kernel_of_variable_length(case):
    assert choose(case) == "variable_length"
    assert choose(replace(case, layouts=case.layouts[::-1])) == "variable_length"
    own = layout_of(90)
    assert choose(replace(case, layouts=(own, own), mask=Mask(causal=True))) == "variable_length"


@pytest.mark.parametrize(
    "change",
    [
        {"dtype": torch.float32},
        {"device": "cpu"},
        {"device": "mps"},
        {"width": 20},
        {"width": 264},
        {"product": False},
        {"plain": False},
        {"dropout": 0.1},
        {"watched": True},
        {"layouts": (layout_of(8), layout_of(9))},
        {"layouts": (layout_of(8, offsets=False), layout_of(90))},
        {"layouts": (layout_of(8), layout_of(90, offsets=False))},
        {"mask": Mask(window=3)},
        {"mask": Mask(causal=True)},
        {"mask": Mask(extra=torch.ones(1, 1, 1, 90, dtype=torch.bool), filled=True)},
        {"mask": Mask(key_lengths=torch.tensor([90, 0]))},
        {"mask": Mask(key_lengths=torch.full((2, 8), 3))},
    ],
    ids=str,
)
def test_what_the_kernel_of_variable_length_does_not_know(case, change):
    assert choose(replace(case, **change)) == "heads"


def heads(queries=8, keys=20, width=16):
    return tuple(torch.randn(2, 2, n, width) for n in (queries, keys, keys))


@pytest.mark.parametrize(
    ("change", "kernel"),
    [
        ({}, "pooled"),
        ({"keys": 65}, "sdpa"),
        ({"device": "cpu", "keys": 65}, "pooled"),
        ({"device": "cpu", "keys": 257}, "sdpa"),
        ({"device": "mps"}, "pooled"),
        ({"device": "mps", "keys": 65}, "sdpa"),
        ({"term": True}, "sdpa"),
        ({"compiling": True}, "compiled"),
        ({"compiling": True, "keys": 65}, "sdpa"),
        ({"product": False}, "readable"),
        ({"gradients": False}, "sdpa"),
    ],
    ids=str,
)
def test_heads(case, change, kernel):
    given = replace(case, layouts=None, keys=20, heads=heads(), mask=Mask())
    assert choose(replace(given, **change)) == kernel


@pytest.mark.parametrize(
    ("change", "kernel"),
    [
        ({}, "pooled_own"),
        ({"keys": 65}, "heads"),
        ({"device": "mps"}, "pooled_own"),
        ({"compiling": True}, "heads"),
        ({"gradients": False}, "heads"),
        ({"plain": False}, "heads"),
        ({"own": False}, "heads"),
    ],
    ids=str,
)
def test_rows_of_self_attention(case, change, kernel):
    own = layout_of(20)
    given = replace(case, layouts=(own, own), own=True, queries=20, keys=20)
    assert choose(replace(given, **change)) == kernel


def test_a_device_that_was_never_measured():
    """Neither a CPU nor CUDA: `meta` stands for mps and whatever comes."""
    assert short("mps") == short("cuda")
    x = torch.randn(2, 3, 8, device="meta")
    attention = Attention(8, heads=2, dropout=0.5).to("meta")
    assert attention(x, attention.project(x), Mask(causal=True)).shape == x.shape

    own = SelfAttention(8, heads=2, dropout=0.5).to("meta")
    positions = torch.arange(3, device="meta").expand(2, -1)
    assert own.itself(x.flatten(0, 1), Mask(), positions, Layout(2, 3, None)).shape == (6, 8)
