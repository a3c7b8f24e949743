"""Each fast twin against its readable form: values, gradients, chances."""

import pytest
import torch
import torch.nn.functional as F

from regard.models.predictor import summed_loss
from regard.nn import Mask, attend
from regard.nn.devices import cpu_has_bf16
from regard.nn.fast.cpu import kept, pooled, pooled_own
from regard.nn.fast.readonly import FEW, ReadOnly
from regard.nn.kernels import add_dropped, cross_entropy, dropout, read_only
from regard.nn.scores import ScaledDot

EPS = torch.finfo(torch.float32).eps


def close(ours, theirs):
    """In float64, where no processor's rounding comes near 1e-9 of the largest number."""
    assert ours.dtype == theirs.dtype == torch.float64
    torch.testing.assert_close(
        ours, theirs, atol=1e-9 * max(1.0, float(theirs.detach().abs().max())), rtol=0
    )


def randn(*shape):
    return torch.randn(*shape, dtype=torch.float64, requires_grad=True)


@pytest.mark.parametrize("p", [0.01, 0.1, 0.5, 0.9])
def test_dropout_hides_as_often_as_it_says(p):
    torch.manual_seed(1)
    mask = kept(torch.Size((1000, 401)), p)
    assert set(mask.unique().tolist()) == {0.0, mask.max().item()}
    assert float(mask.max()) == pytest.approx(
        1 / (1 - p), rel=1 / 65_536 / (1 - p)
    )  # p is one of so many steps
    sigma = (p * (1 - p) / mask.numel()) ** 0.5
    assert abs(float((mask == 0).float().mean()) - p) < 5 * sigma + 1e-5
    rows, columns = (
        (mask == 0).float().mean(1),
        (mask == 0).float().mean(0),
    )  # no row and no column is favoured
    assert float(rows.std()) == pytest.approx((p * (1 - p) / 401) ** 0.5, rel=0.2)
    assert float(columns.std()) == pytest.approx((p * (1 - p) / 1000) ** 0.5, rel=0.2)


def test_dropout_follows_the_seed_and_never_repeats_itself():
    def draw():
        return kept(torch.Size((50, 50)), 0.3)

    torch.manual_seed(3)
    first, second = draw(), draw()
    torch.manual_seed(3)
    assert torch.equal(draw(), first)
    assert not torch.equal(first, second)


def test_dropout_and_its_gradient():
    x = randn(40, 30)
    assert dropout(x, 0.5, False) is x
    assert torch.equal(dropout(x, 0.0, True), x)
    y = dropout(x, 0.5, True)
    y.sum().backward()
    close(y, x * x.grad)
    assert set(x.grad.unique().tolist()) == {0.0, 2.0}


def test_add_dropped_is_add_and_dropout():
    x, added = randn(20, 30), randn(20, 30)
    torch.manual_seed(5)
    found = add_dropped(x, added, 0.4, True)
    found.square().sum().backward()
    grads = x.grad.clone(), added.grad.clone()
    x.grad = added.grad = None
    torch.manual_seed(5)
    expected = x + dropout(added, 0.4, True)
    expected.square().sum().backward()
    close(found, expected)
    close(grads[0], x.grad)
    close(grads[1], added.grad)


@pytest.mark.parametrize("keys", [5, 70])
@pytest.mark.parametrize("causal", [False, True])
def test_pooled_is_attend(keys, causal):
    torch.manual_seed(0)
    score = ScaledDot(2, 8, 8)
    q, k, v = (randn(3, 2, keys, 8) for _ in range(3))
    mask = Mask(key_lengths=torch.tensor([keys, 2, keys - 1]), causal=causal)
    found = pooled(q, k, v, mask.bias(keys, keys, q), score.scale, 0.0)
    expected, _ = attend(q, k, v, mask, score)
    close(found, expected)
    slope = torch.randn_like(found)
    for one, other in zip(
        torch.autograd.grad(found, (q, k, v), slope),
        torch.autograd.grad(expected, (q, k, v), slope),
    ):
        close(one, other)
    own = torch.cat([x.detach().transpose(1, 2).flatten(2) for x in (q, k, v)], -1).requires_grad_()
    whole = pooled_own(own, 2, mask.bias(keys, keys, q), score.scale, 0.0)
    close(whole, expected.transpose(1, 2).flatten(2))
    (grad,) = torch.autograd.grad(whole, own, slope.transpose(1, 2).flatten(2))
    expected_grad = torch.autograd.grad(attend(q, k, v, mask, score)[0], (q, k, v), slope)
    close(grad, torch.cat([x.transpose(1, 2).flatten(2) for x in expected_grad], -1))


def test_pooled_with_dropout_has_the_gradient_of_its_own_mask():
    x = randn(2, 4, 12)

    def look(x):
        torch.manual_seed(9)
        return pooled_own(x, 2, None, 0.7, 0.3)

    assert torch.autograd.gradcheck(look, (x,))


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("bias", [False, True])
def test_cross_entropy_is_the_formula(smoothing, bias):
    """In several pieces, with padding among the targets."""
    torch.manual_seed(2)
    hidden, weight, b, targets = example(bias)
    given = [x for x in (hidden, weight, b) if x is not None]
    loss, nll, correct = cross_entropy(hidden, weight, b, targets, smoothing, ignore=0)
    real = targets != 0
    expected = summed_loss(F.linear(hidden[real], weight, b), targets[real], smoothing)
    close(loss, expected.loss)
    close(nll, expected.nll)
    assert int(correct) == int(expected.correct)
    for one, other in zip(
        torch.autograd.grad(loss / 7, given),
        torch.autograd.grad(expected.loss / 7, given),
        strict=True,
    ):
        close(one, other)
    with torch.no_grad():
        again = cross_entropy(hidden, weight, b, targets, smoothing, ignore=0)
    close(again[0], loss.detach())


def example(bias):
    """Hidden states, weights, biases or none, and targets with padding; more than one piece of
    cross_entropy.
    """
    size, width = 9000, 8
    hidden, weight = randn(600, width), randn(size, width)
    b = randn(size) if bias else None
    targets = torch.randint(1, size, (600,))
    targets[::7] = 0
    return hidden, weight, b, targets


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_cross_entropy_in_fp32_is_rounded_and_no_more(smoothing):
    """The bound of each number is that of the sums it was made by: terms · eps · the sum of
    magnitudes.
    """
    torch.manual_seed(2)
    hidden, weight, b, targets = example(bias=True)
    exact = cross_entropy(hidden, weight, b, targets, smoothing, ignore=0)
    slopes = torch.autograd.grad(exact[0], (hidden, weight, b))
    single = [x.detach().float().requires_grad_() for x in (hidden, weight, b)]
    found = cross_entropy(*single, targets, smoothing, ignore=0)
    grads = torch.autograd.grad(found[0], single)

    size, width = weight.shape
    h, w = hidden.detach().abs(), weight.detach().abs()
    logits = (
        EPS * (width + 1) * (h @ w.T + b.detach().abs()).max()
    )  # a logit is off by this at most
    logp = (
        2 * logits + EPS * size
    )  # and its log-probability by that, and by its own sum over the vocabulary
    rows = int((targets != 0).sum())
    largest = float(F.linear(hidden, weight, b).log_softmax(-1).detach().abs().max())
    assert float((found[0] - exact[0]).detach().abs()) <= rows * logp + EPS * rows * rows * largest
    # A slope p - target is off by logp of p, and by one rounding: at most logp + EPS of the
    # magnitudes' sum in each product.
    each = (
        F.linear(hidden, weight, b).softmax(-1) + F.one_hot(targets, size)
    ).detach()  # (N, V) magnitudes of slopes
    bounds = (
        (logp + EPS * size) * (each @ w),
        (logp + EPS * rows) * (each.T @ h),
        (logp + EPS * rows) * each.sum(0),
    )
    for one, other, bound in zip(grads, slopes, bounds, strict=True):
        assert ((one - other).abs() <= bound).all()


def test_a_float64_model_has_float64_losses():
    hidden, weight, b, targets = example(bias=True)
    assert {x.dtype for x in cross_entropy(hidden, weight, b, targets, 0.1, ignore=0)} == {
        torch.float64
    }
    with torch.no_grad():
        assert {x.dtype for x in cross_entropy(hidden, weight, b, targets, 0.1, ignore=0)} == {
            torch.float64
        }
    assert summed_loss(F.linear(hidden, weight, b), targets, 0.1).loss.dtype == torch.float64


@pytest.mark.parametrize("pad", [0, 3, 29])
def test_cross_entropy_ignores_the_padding_it_is_told(pad):
    """Any token may be the padding: its rows count for nothing, and all others do."""
    torch.manual_seed(2)
    hidden = torch.randn(60, 8, requires_grad=True)
    weight = torch.randn(30, 8, requires_grad=True)
    targets = torch.arange(60) % 30
    loss, nll, correct = cross_entropy(hidden, weight, None, targets, 0.1, ignore=pad)
    real = targets != pad
    loss_without, nll_without, correct_without = cross_entropy(
        hidden[real], weight, None, targets[real], 0.1, ignore=-1
    )
    assert 0 < int(real.sum()) < 60

    torch.testing.assert_close(
        loss, loss_without, rtol=1e-5, atol=0
    )  # sums of 60 numbers in another order
    torch.testing.assert_close(nll, nll_without, rtol=1e-5, atol=0)
    assert int(correct) == int(correct_without)
    (gradient,) = torch.autograd.grad(loss, hidden)
    assert (gradient[~real] == 0).all()
    assert (gradient[real] != 0).any(-1).all()


@pytest.mark.parametrize("rows", [1, 5, 64, 65])
@pytest.mark.parametrize("bias", [True, False])
def test_read_only_is_linear(rows, bias):
    torch.manual_seed(0)
    model, x = (
        torch.nn.Sequential(torch.nn.Linear(48, 80, bias=bias)),
        torch.randn(rows, 3, 48)[:, 0],
    )
    expected = model(x).detach()
    # Two ways to add up 48 products and a bias are no further apart than 49 · eps · the sum of
    # their magnitudes.
    sizes = x.abs() @ model[0].weight.detach().abs().T + (
        model[0].bias.detach().abs() if bias else 0
    )
    apart = {"atol": 49 * EPS * float(sizes.max()), "rtol": 0}
    read_only(model)
    assert isinstance(model[0], ReadOnly)
    with torch.no_grad():
        torch.testing.assert_close(model(x), expected, **apart)
        torch.testing.assert_close(model(x[:, None]), expected[:, None], **apart)
    torch.testing.assert_close(model(x), expected, **apart)


@pytest.mark.parametrize("wide", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("rows", [1, FEW, FEW + 1, 100])
def test_the_arithmetic_of_many_rows_is_told_not_timed(rows, wide, monkeypatch):
    """bfloat16 weights either way; the caller says in what more than a few rows are multiplied."""
    if not cpu_has_bf16():
        pytest.skip("this CPU does not multiply bfloat16")
    monkeypatch.setattr("time.perf_counter", lambda: pytest.fail("a stopwatch"))
    torch.manual_seed(0)
    layer, x = torch.nn.Linear(48, 80), torch.randn(rows, 48)
    model = torch.nn.Sequential(layer)
    read_only(model, torch.bfloat16, wide=wide)
    weight, bias = (value.detach().bfloat16() for value in (layer.weight, layer.bias))
    in_half = rows <= FEW or wide == torch.bfloat16
    exact = F.linear(x.double(), weight.double(), bias.double())
    size = F.linear(x.abs().double(), weight.abs().double(), bias.abs().double())
    # x and the answer are rounded in bfloat16, sums are kept in float32; in float32 nothing is
    # rounded but the sums.
    unit = 2 * 2**-8 if in_half else 48 * 2**-24
    with torch.no_grad():
        answer = model(x)
    assert answer.dtype == torch.float32
    assert ((answer - exact).abs() <= unit * size).all()
    assert bool((answer == answer.bfloat16()).all()) == in_half


def test_the_rule_is_the_default(monkeypatch):
    for amx in (True, False):
        monkeypatch.setattr("regard.nn.fast.readonly.has_amx", lambda amx=amx: amx)
        assert (ReadOnly(torch.nn.Linear(4, 4), torch.bfloat16).wide is None) == amx
        assert ReadOnly(torch.nn.Linear(4, 4)).wide is None


@pytest.mark.skipif(not cpu_has_bf16(), reason="this CPU does not run torch's bfloat16 products")
@pytest.mark.parametrize("rows", [1, 5, 64, 65])
def test_read_only_in_bf16_where_onednn_has_none(rows, monkeypatch):
    """A CPU with AVX2 alone multiplies bfloat16 by torch, and refuses to lay out its matrices."""
    torch.manual_seed(0)
    layer, x = torch.nn.Linear(48, 80), torch.randn(rows, 48)
    by_torch = ReadOnly(layer, torch.bfloat16)
    with torch.no_grad(), monkeypatch.context() as patch:
        patch.setattr("regard.nn.fast.readonly.can_pack", lambda kind: False)
        expected = by_torch(x)
    with torch.no_grad():
        found = ReadOnly(layer, torch.bfloat16)(x)
    assert found.dtype == expected.dtype == torch.float32
    # The input, the weights and the result are rounded to bfloat16, whose eps is 2^-7; the sums are
    # fp32.
    sizes = x.abs() @ layer.weight.detach().abs().T + layer.bias.detach().abs()
    allowed = float(torch.finfo(torch.bfloat16).eps * sizes.max())
    torch.testing.assert_close(found, expected, rtol=0, atol=allowed)
