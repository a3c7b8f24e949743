"""One list of kernels: which one computes which call of an attention."""

from dataclasses import replace

import pytest
import torch

from regard.nn import Attention, Layout, Mask, SelfAttention, Window
from regard.nn.fast import choose
from regard.nn.fast.choose import (
    HeadsCase,
    RowsCase,
    across_kernel,
    heads_kernel,
    own_kernel,
    short,
)


def layout_of(length, *, offsets=True):
    return Layout.of(torch.tensor([length, 2]), length, offsets=offsets)


COMMON = {
    "mask": Mask(),
    "device": "cuda",
    "heads": 2,
    "width": 64,
    "scale": 0.125,
    "plain": True,
    "dropout": 0.0,
    "gradients": True,
    "compiling": False,
    "watched": False,
}


def name_of(kernel):
    return None if kernel is None else type(kernel).__name__


@pytest.fixture
def rows(monkeypatch):
    """Training on a GPU, packed rows in bfloat16, one side long.

    That is what a kernel of variable length is for.
    """
    monkeypatch.setattr(choose, "has_flash", lambda device: device == "cuda")
    sides = {"query_layout": layout_of(8), "key_layout": layout_of(90)}
    return RowsCase(**COMMON, queries=8, keys=90, **sides, dtype=torch.bfloat16)


def test_packed_rows_go_to_the_kernel_of_variable_length(rows):
    assert name_of(across_kernel(rows)) == "AcrossByLength"
    turned = replace(rows, query_layout=rows.key_layout, key_layout=rows.query_layout)
    assert name_of(across_kernel(turned)) == "AcrossByLength"
    own = layout_of(90)
    itself = replace(rows, query_layout=own, key_layout=own, mask=Mask(causal=True))
    assert name_of(own_kernel(itself)) == "OwnByLength"


@pytest.mark.parametrize(
    "change",
    [
        {"dtype": torch.float32},
        {"device": "cpu"},
        {"device": "mps"},
        {"width": 20},
        {"width": 264},
        {"scale": None},
        {"plain": False},
        {"dropout": 0.1},
        {"watched": True},
        {"key_layout": layout_of(9)},
        {"query_layout": layout_of(8, offsets=False)},
        {"key_layout": layout_of(90, offsets=False)},
        {"mask": Mask(pattern=Window(2))},
        {"mask": Mask(causal=True)},
        {"mask": Mask(extra=torch.ones(1, 1, 1, 90, dtype=torch.bool), filled=True)},
        {"mask": Mask(key_lengths=torch.tensor([90, 0]))},
        {"mask": Mask(key_lengths=torch.full((2, 8), 3))},
    ],
    ids=str,
)
def test_what_the_kernel_of_variable_length_does_not_know(rows, change):
    assert across_kernel(replace(rows, **change)) is None


@pytest.mark.parametrize(
    ("change", "kernel"),
    [
        ({}, "Pooled"),
        ({"keys": 65}, "Sdpa"),
        ({"device": "cpu", "keys": 65}, "Pooled"),
        ({"device": "cpu", "keys": 257}, "Sdpa"),
        ({"device": "mps"}, "Pooled"),
        ({"device": "mps", "keys": 65}, "Sdpa"),
        ({"term": torch.zeros(1)}, "Sdpa"),
        ({"compiling": True}, None),
        ({"compiling": True, "keys": 65}, "Sdpa"),
        ({"scale": None}, None),
        ({"gradients": False}, "Sdpa"),
    ],
    ids=str,
)
def test_heads(change, kernel):
    query = torch.randn(2, 2, 8, 16)
    key = value = torch.randn(2, 2, 20, 16)
    sides = {"query": query, "key": key, "value": value, "term": None}
    case = HeadsCase(**COMMON, queries=8, keys=20, **sides)
    assert name_of(heads_kernel(replace(case, **change))) == kernel


@pytest.mark.parametrize(
    ("change", "kernel"),
    [
        ({}, "OwnPooled"),
        ({"keys": 65}, None),
        ({"device": "mps"}, "OwnPooled"),
        ({"compiling": True}, None),
        ({"gradients": False}, None),
        ({"plain": False}, None),
    ],
    ids=str,
)
def test_rows_of_self_attention(rows, change, kernel):
    own = layout_of(20)
    case = replace(rows, query_layout=own, key_layout=own, queries=20, keys=20)
    assert name_of(own_kernel(replace(case, **change))) == kernel


def test_a_device_that_was_never_measured():
    """Neither a CPU nor CUDA: `meta` stands for mps and whatever comes."""
    assert short("mps") == short("cuda")
    x = torch.randn(2, 3, 8, device="meta")
    attention = Attention(8, heads=2, dropout=0.5).to("meta")
    assert attention.attend_to(x, attention.project(x), Mask(causal=True)).shape == x.shape

    own = SelfAttention(8, heads=2, dropout=0.5).to("meta")
    positions = torch.arange(3, device="meta").expand(2, -1)
    assert own.itself(x.flatten(0, 1), Mask(), positions, Layout(2, 3, None)).shape == (6, 8)
