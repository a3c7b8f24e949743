"""Law 15: every kernel of `nn/fast/choose.py` computes what `attend` does.

Gradients on and off, queries that may look at nothing, one side long and the other short; exactly
in float64, and in float32 and bfloat16 within a bound from magnitudes and lengths.
"""

import contextlib
import itertools

import pytest
import torch

from regard.nn import SCORES, Layout, Mask, Window, attend

choose = pytest.importorskip("regard.nn.fast.choose")
lengths = pytest.importorskip("regard.nn.fast.lengths")

HEADS = 2
WIDTH = 8
SIDES = [(7, 7), (3, 70), (70, 3)]
MASKS = {
    "none": lambda queries, keys: Mask(),
    "causal": lambda queries, keys: Mask(causal=True, offset=max(0, keys - queries)),
    "lengths": lambda queries, keys: Mask(key_lengths=torch.tensor([keys, 2])),
    "empty rows": lambda queries, keys: Mask(key_lengths=torch.tensor([keys, 0])),
    "window": lambda queries, keys: Mask(pattern=Window(1), offset=max(0, keys - queries)),
}
KINDS = [torch.float64, torch.float32, torch.bfloat16]


def common(mask, queries, keys, *, gradients):
    """The fields of `choose.KernelCase`."""
    return {
        "mask": mask,
        "queries": queries,
        "keys": keys,
        "device": "cpu",
        "heads": HEADS,
        "width": WIDTH,
        "scale": WIDTH**-0.5,
        "plain": True,
        "dropout": 0.0,
        "gradients": gradients,
        "compiling": False,
        "watched": False,
    }


def reference(q, k, v, mask):
    """`attend` of (B, H, T, D) each, in float64."""
    score = SCORES["scaled_dot"](HEADS, WIDTH, WIDTH)
    output, _ = attend(q.double(), k.double(), v.double(), mask, score)
    return output


def bound(q, k, v):
    """How far a kernel that computes in the type of q may be from float64.

    A score is off by eps times its terms; a weight by as much again, relatively; and the sum over
    the keys adds eps for each of them.
    """
    eps = torch.finfo(q.dtype).eps
    magnitudes = q.double().abs() @ k.double().abs().mT * WIDTH**-0.5  # (B, H, T, S)
    score_error = eps * (WIDTH + 3) * magnitudes.max().item()
    weight_error = 2 * torch.tensor(2 * score_error).expm1().item()
    return v.double().abs().max().item() * (weight_error + eps * (k.shape[2] + 4))


def compare(ours, expected, inputs, *, gradients):
    q, k, v = inputs
    assert ours.dtype == q.dtype
    torch.testing.assert_close(ours.double(), expected, atol=bound(q, k, v), rtol=0)
    if gradients and q.dtype == torch.float64:
        direction = torch.randn_like(expected)
        for mine, theirs in zip(
            torch.autograd.grad((ours * direction).sum(), inputs, retain_graph=True),
            torch.autograd.grad((expected * direction).sum(), inputs),
            strict=True,
        ):
            torch.testing.assert_close(mine, theirs, atol=1e-9, rtol=0)


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("gradients", [True, False], ids=["gradients", "none"])
@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize(("queries", "keys"), SIDES)
@pytest.mark.parametrize("kernel", [choose.Pooled(), choose.Sdpa()], ids=lambda k: type(k).__name__)
def test_heads(kernel, queries, keys, name, gradients, kind):
    mask = MASKS[name](queries, keys)
    shapes = [(2, HEADS, length, WIDTH) for length in (queries, keys, keys)]
    inputs = [torch.randn(shape, dtype=kind, requires_grad=gradients) for shape in shapes]
    with contextlib.nullcontext() if gradients else torch.no_grad():
        q, k, v = inputs
        given = common(mask, queries, keys, gradients=gradients)
        case = choose.HeadsCase(**given, query=q, key=k, value=v, term=None)
        compare(kernel(case), reference(*inputs, mask), inputs, gradients=gradients)


def heads_of(x):
    """(B, T, inner) -> (B, H, T, D)"""
    return x.unflatten(-1, (HEADS, -1)).transpose(1, 2)


@pytest.fixture
def by_length(monkeypatch):
    """The kernel of variable length needs a GPU: here its readable twin stands for it."""
    monkeypatch.setattr(choose, "by_length", lengths.by_length_readable)


@pytest.mark.usefixtures("by_length")
@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("length", [5, 70])
@pytest.mark.parametrize(
    "kernel", [choose.OwnByLength(), choose.OwnPooled()], ids=lambda k: type(k).__name__
)
def test_rows_that_look_at_each_other(kernel, length, causal, kind):
    sizes = torch.tensor([length, 2])
    layout = Layout.of(sizes, length, offsets=True)
    mask = Mask(key_lengths=sizes, causal=causal)
    qkv = torch.randn(int(sizes.sum()), 3 * HEADS * WIDTH, dtype=kind, requires_grad=True)

    given = common(mask, length, length, gradients=True)
    case = choose.RowsCase(**given, query_layout=layout, key_layout=layout, dtype=kind)
    ours = kernel(case, qkv)  # (N, inner)

    inputs = [heads_of(layout.spread(part)) for part in qkv.chunk(3, -1)]  # (B, H, T, D)
    expected = layout.pack(reference(*inputs, mask).transpose(1, 2).flatten(2))  # (N, inner)
    torch.testing.assert_close(ours.double(), expected, atol=bound(*inputs), rtol=0)
    if kind == torch.float64:
        direction = torch.randn_like(expected)
        (mine,) = torch.autograd.grad((ours * direction).sum(), qkv, retain_graph=True)
        (theirs,) = torch.autograd.grad((expected * direction).sum(), qkv)
        torch.testing.assert_close(mine, theirs, atol=1e-9, rtol=0)


@pytest.mark.usefixtures("by_length")
@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize(("queries", "keys"), SIDES)
def test_rows_that_look_at_others(queries, keys, kind):
    sides = [torch.tensor([length, 2]) for length in (queries, keys)]
    layouts = [Layout.of(side, int(side.max()), offsets=True) for side in sides]
    mask = Mask(key_lengths=sides[1])
    rows = [int(sides[0].sum()), int(sides[1].sum()), int(sides[1].sum())]
    inputs = [torch.randn(n, HEADS * WIDTH, dtype=kind) for n in rows]

    given = common(mask, queries, keys, gradients=False)
    places = {"query_layout": layouts[0], "key_layout": layouts[1]}
    case = choose.RowsCase(**given, **places, dtype=kind)
    ours = choose.AcrossByLength()(case, *inputs)  # (N, inner)

    by_input = [layouts[0], layouts[1], layouts[1]]
    padded = [heads_of(layout.spread(x)) for layout, x in zip(by_input, inputs)]  # (B, H, T, D)
    expected = layouts[0].pack(reference(*padded, mask).transpose(1, 2).flatten(2))  # (N, inner)
    torch.testing.assert_close(ours.double(), expected, atol=bound(*padded), rtol=0)


def test_no_kernel_is_forgotten():
    kernels = itertools.chain(choose.OWN, choose.ACROSS, choose.HEADS)
    names = {type(kernel).__name__ for kernel in kernels}
    of_a_gpu = {"FewQueries"}  # tests/nn/test_gpu.py
    here = {"OwnByLength", "OwnPooled", "AcrossByLength", "Pooled", "Sdpa"}
    assert names == here | of_a_gpu
