"""Each fast twin against its readable form: values, gradients, chances."""

import pytest
import torch
import torch.nn.functional as F

from regard.models.seq2seq import summed_loss
from regard.nn import Mask, attend
from regard.nn.devices import cpu_has_bf16
from regard.nn.kernels import add_dropped, cross_entropy, dropout, kept, pooled, pooled_own
from regard.nn.layers import FEW, ReadOnly, read_only
from regard.nn.scores import ScaledDot


def close(ours, theirs, atol=1e-5):
    torch.testing.assert_close(ours, theirs, atol=atol, rtol=1e-4)


@pytest.mark.parametrize("p", [0.01, 0.1, 0.5, 0.9])
def test_dropout_hides_as_often_as_it_says(p):
    torch.manual_seed(1)
    mask = kept(torch.Size((1000, 401)), p)
    assert set(mask.unique().tolist()) == {0.0, mask.max().item()}
    assert float(mask.max()) == pytest.approx(1 / (1 - p), rel=1e-3)
    sigma = (p * (1 - p) / mask.numel()) ** 0.5
    assert abs(float((mask == 0).float().mean()) - p) < 5 * sigma + 1e-5
    rows, columns = (mask == 0).float().mean(1), (mask == 0).float().mean(0)  # no row and no column is favoured
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
    x = torch.randn(40, 30, requires_grad=True)
    assert dropout(x, 0.5, False) is x
    assert torch.equal(dropout(x, 0.0, True), x)
    y = dropout(x, 0.5, True)
    y.sum().backward()
    close(y, x * x.grad)
    assert set(x.grad.unique().tolist()) == {0.0, 2.0}


def test_add_dropped_is_add_and_dropout():
    x, added = torch.randn(20, 30, requires_grad=True), torch.randn(20, 30, requires_grad=True)
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
    q, k, v = (torch.randn(3, 2, keys, 8, dtype=torch.float64, requires_grad=True) for _ in range(3))
    mask = Mask(key_lengths=torch.tensor([keys, 2, keys - 1]), causal=causal)
    found = pooled(q, k, v, mask.bias(keys, keys, q), score.scale, 0.0)
    expected, _ = attend(q, k, v, mask, score)
    close(found, expected)
    slope = torch.randn_like(found)
    for one, other in zip(torch.autograd.grad(found, (q, k, v), slope), torch.autograd.grad(expected, (q, k, v), slope)):
        close(one, other)
    own = torch.cat([x.detach().transpose(1, 2).flatten(2) for x in (q, k, v)], -1).requires_grad_()
    whole = pooled_own(own, 2, mask.bias(keys, keys, q), score.scale, 0.0)
    close(whole, expected.transpose(1, 2).flatten(2))
    (grad,) = torch.autograd.grad(whole, own, slope.transpose(1, 2).flatten(2))
    expected_grad = torch.autograd.grad(attend(q, k, v, mask, score)[0], (q, k, v), slope)
    close(grad, torch.cat([x.transpose(1, 2).flatten(2) for x in expected_grad], -1))


def test_pooled_with_dropout_has_the_gradient_of_its_own_mask():
    x = torch.randn(2, 4, 12, dtype=torch.float64, requires_grad=True)

    def look(x):
        torch.manual_seed(9)
        return pooled_own(x, 2, None, 0.7, 0.3)

    assert torch.autograd.gradcheck(look, (x,))


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("bias", [False, True])
def test_cross_entropy_is_the_formula(smoothing, bias):
    """In several pieces, with padding among the targets."""
    torch.manual_seed(2)
    size, width = 9000, 8
    hidden, weight = torch.randn(600, width, requires_grad=True), torch.randn(size, width, requires_grad=True)
    b = torch.randn(size, requires_grad=True) if bias else None
    targets = torch.randint(1, size, (600,))
    targets[::7] = 0
    given = [x for x in (hidden, weight, b) if x is not None]
    loss, nll, correct = cross_entropy(hidden, weight, b, targets, smoothing, ignore=0)
    real = targets != 0
    expected = summed_loss(F.linear(hidden[real], weight, b), targets[real], smoothing)
    torch.testing.assert_close(loss, expected.loss, rtol=1e-5, atol=1e-3)
    torch.testing.assert_close(nll, expected.nll, rtol=1e-5, atol=1e-3)
    assert int(correct) == int(expected.correct)
    for one, other in zip(torch.autograd.grad(loss / 7, given), torch.autograd.grad(expected.loss / 7, given), strict=True):
        close(one, other, atol=1e-5)
    with torch.no_grad():
        again = cross_entropy(hidden, weight, b, targets, smoothing, ignore=0)
    torch.testing.assert_close(again[0], loss.detach())


@pytest.mark.parametrize("pad", [0, 3, 29])
def test_cross_entropy_ignores_the_padding_it_is_told(pad):
    """Any token may be the padding: its rows count for nothing, and all others do."""
    torch.manual_seed(2)
    hidden = torch.randn(60, 8, requires_grad=True)
    weight = torch.randn(30, 8, requires_grad=True)
    targets = torch.arange(60) % 30
    loss, nll, correct = cross_entropy(hidden, weight, None, targets, 0.1, ignore=pad)
    real = targets != pad
    loss_without, nll_without, correct_without = cross_entropy(hidden[real], weight, None, targets[real], 0.1, ignore=-1)
    assert 0 < int(real.sum()) < 60

    torch.testing.assert_close(loss, loss_without, rtol=1e-5, atol=0)  # sums of 60 numbers in another order
    torch.testing.assert_close(nll, nll_without, rtol=1e-5, atol=0)
    assert int(correct) == int(correct_without)
    (gradient,) = torch.autograd.grad(loss, hidden)
    assert (gradient[~real] == 0).all()
    assert (gradient[real] != 0).any(-1).all()


@pytest.mark.parametrize("rows", [1, 5, 64, 65])
@pytest.mark.parametrize("bias", [True, False])
def test_read_only_is_linear(rows, bias):
    torch.manual_seed(0)
    model, x = torch.nn.Sequential(torch.nn.Linear(48, 80, bias=bias)), torch.randn(rows, 3, 48)[:, 0]
    expected = model(x).detach()
    read_only(model)
    assert isinstance(model[0], ReadOnly)
    with torch.no_grad():
        torch.testing.assert_close(model(x), expected)
        torch.testing.assert_close(model(x[:, None]), expected[:, None])
    torch.testing.assert_close(model(x), expected)


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
    # x and the answer are rounded in bfloat16, sums are kept in float32; in float32 nothing is rounded but the sums.
    unit = 2 * 2**-8 if in_half else 48 * 2**-24
    with torch.no_grad():
        answer = model(x)
    assert answer.dtype == torch.float32
    assert ((answer - exact).abs() <= unit * size).all()
    assert bool((answer == answer.bfloat16()).all()) == in_half


def test_the_rule_is_the_default(monkeypatch):
    for amx in (True, False):
        monkeypatch.setattr("regard.nn.layers.has_amx", lambda amx=amx: amx)
        assert (ReadOnly(torch.nn.Linear(4, 4), torch.bfloat16).wide is None) == amx
        assert ReadOnly(torch.nn.Linear(4, 4)).wide is None
