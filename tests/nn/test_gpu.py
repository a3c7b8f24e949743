"""The Triton kernels beside the formulas, and attention on a GPU beside the same on a CPU. All need
a CUDA device.
"""

import math

import pytest
import torch

from regard.nn import SCORES, Attention, Layout, Mask, SelfAttention, attend, watch
from regard.nn.fast import internals
from regard.nn.scores import ScaledDot

pytestmark = pytest.mark.gpu

UNIT = {torch.float32: 2**-24, torch.float16: 2**-11, torch.bfloat16: 2**-8}
"""The largest relative error of one rounding."""


@pytest.fixture
def gpu():
    """The module imports Triton, which only machines with a GPU need to have."""
    from regard.nn.fast import gpu

    return gpu


def bound(q, k, v, scale):
    """How far softmax(scale · q kᵀ) v, summed in float32 from numbers of this type, may be from the
    exact one.

    A score is a sum of D products; an error of e in it changes a weight by a factor of exp(e) at
    most, as does its largest in the sum of all; the result is a mean of values. The weights and the
    result are rounded to the type of the values.
    """
    width, keys = q.shape[-1], k.shape[-2]
    largest = scale * (q.abs().double() @ k.abs().double().mT).max().item()
    score_error = (width + 4) * UNIT[torch.float32] * largest
    weight_error = 2 * score_error + (keys + 16 + 4 * largest) * UNIT[torch.float32]
    rounding = 0.0 if q.dtype == torch.float32 else 3 * UNIT[q.dtype]
    return (math.expm1(weight_error) + rounding) * v.abs().max().item()


def heads(batch, queries, keys, width, dtype, *, strided):
    """Queries (B, H, T, D), keys and values (B, H, S, D), as models make them (strided) or in one
    piece.
    """
    count = 3
    if not strided:
        return [
            torch.randn(batch, count, n, width, device="cuda").to(dtype)
            for n in (queries, keys, keys)
        ]

    q = torch.randn(batch, queries, count, width, device="cuda").to(dtype).transpose(1, 2)
    room = torch.randn(2, batch, count, keys + 7, width, device="cuda").to(
        dtype
    )  # reserved room, partly filled
    return [q, room[0, :, :, :keys], room[1, :, :, :keys]]


def test_look_is_attend(gpu):
    """Every type, width of a head, number of queries and keys around the edges of a block; rows
    that see nothing are zeros.
    """
    torch.manual_seed(0)
    for dtype in UNIT:
        for width in (16, 32, 64, 128):
            for queries, keys in ((1, 1), (1, 33), (5, 31), (16, 32), (3, 64), (16, 65), (2, 200)):
                for strided in (False, True):
                    q, k, v = heads(4, queries, keys, width, dtype, strided=strided)
                    allowed = torch.rand(4, 1, queries, keys, device="cuda") < 0.6
                    allowed[1, :, 0] = False
                    allowed[2] = False
                    bias = torch.zeros_like(allowed, dtype=dtype).masked_fill(~allowed, -torch.inf)
                    score = ScaledDot(3, width, width)

                    assert gpu.can_look(q, k, v)
                    output = gpu.look(q, k, v, bias, score.scale)
                    expected, _ = attend(q.double(), k.double(), v.double(), allowed, score)

                    case = (
                        f"{dtype}, width {width}, {queries} queries, {keys} keys, strided {strided}"
                    )
                    assert output.shape == q.shape
                    assert output.dtype == dtype
                    assert (output[2] == 0).all(), case
                    assert (output[1, :, 0] == 0).all(), case
                    torch.testing.assert_close(
                        output.double(),
                        expected,
                        atol=bound(q, k, v, score.scale),
                        rtol=0,
                        msg=lambda m, c=case: f"{c}: {m}",
                    )


def test_look_adds_a_bias_of_every_head(gpu):
    """What ALiBi adds: finite numbers that differ by head, and −∞ among them; and a bias that is
    spread over sentences.
    """
    torch.manual_seed(1)
    q, k, v = heads(2, 4, 50, 32, torch.float32, strided=True)
    scale = 32**-0.5
    for shape in ((2, 3, 4, 50), (1, 3, 4, 50), (2, 1, 1, 50), (1, 1, 4, 50)):
        bias = -3 * torch.rand(shape, device="cuda")
        bias[..., ::4] = -torch.inf
        scores = scale * q.double() @ k.double().mT + bias.double()
        expected = scores.softmax(-1) @ v.double()
        output = gpu.look(q, k, v, bias, scale)
        torch.testing.assert_close(
            output.double(), expected, atol=bound(q, k, v, scale) * 2, rtol=0
        )


def test_what_look_cannot(gpu):
    def can(queries=1, width=64, dtype=torch.float32, other=torch.float32):
        q = torch.zeros(1, 2, queries, width, device="cuda", dtype=dtype)
        k = torch.zeros(1, 2, 9, width, device="cuda", dtype=other)
        return gpu.can_look(q, k, k)

    assert can()
    assert not can(queries=17)
    assert not can(width=48)
    assert not can(width=256)
    assert not can(dtype=torch.bfloat16)
    turned = torch.zeros(1, 2, 64, 9, device="cuda").mT
    assert not gpu.can_look(turned, turned, turned)


@pytest.mark.parametrize("dtype", UNIT, ids=str)
@pytest.mark.parametrize("size", [1, 5, 127, 128, 129, 4096, 4097, 5000, 32003])
def test_scan_is_max_and_logsumexp(gpu, size, dtype):
    """Vocabularies that fill their parts and that do not; logits that are forbidden."""
    torch.manual_seed(size)
    part = 128
    logits = (8 * torch.randn(7, size, device="cuda")).to(dtype)
    logits[1:, ::3] = -torch.inf
    logits[2, : size // 2] = -torch.inf
    logits[3] = -torch.inf
    logits[4, 0] = 5
    highest, ids, total = gpu.scan(logits, part)

    fill = -size % part
    parts = torch.nn.functional.pad(logits.float(), (0, fill), value=-torch.inf).unflatten(
        1, (-1, part)
    )
    assert torch.equal(highest, parts.amax(-1))
    real = highest > -torch.inf
    assert torch.equal(logits.float().gather(1, ids.clamp(max=size - 1))[real], highest[real])
    first = part * torch.arange(parts.shape[1], device="cuda")
    assert ((ids >= first) & (ids < first + part)).all()

    exact = logits.double().logsumexp(-1, keepdim=True)
    assert torch.equal(total.isinf(), exact.isinf())
    # A sum of V numbers that are not negative, each an exponential of a difference of at most some
    # hundred.
    largest = logits.float().where(logits > -torch.inf, 0).abs().max().item()
    error = (size + 16 + 4 * largest) * 2**-24 + 4 * 2**-24 * (largest + math.log(size))
    finite = ~exact.isinf()
    torch.testing.assert_close(total.double()[finite], exact[finite], atol=error, rtol=0)


def test_scan_takes_the_first_of_equals(gpu):
    """As the ordinary search does on a CPU: of equal logits the smallest id."""
    logits = torch.zeros(3, 300, device="cuda")
    logits[1, [40, 41, 127, 200, 255]] = 2.0
    _, ids, _ = gpu.scan(logits, 128)
    assert ids.tolist() == [[0, 128, 256], [40, 200, 256], [0, 128, 256]]


def test_scan_does_not_hide_a_nan(gpu):
    """One among many logits makes the sum of its row none, and of no other row: whoever reads it is
    warned.
    """
    logits = torch.randn(4, 1000, device="cuda")
    logits[1, 700] = torch.nan
    logits[3, 0] = torch.nan
    _, _, total = gpu.scan(logits, 128)
    assert total.isnan().flatten().tolist() == [False, True, False, True]


def test_scan_of_logits_that_lie_apart(gpu):
    """A view on longer rows."""
    logits = torch.randn(5, 3, 300, device="cuda")
    for view in (logits[:, -1], logits[:, 0, :200], logits[:, 1].T):
        highest, ids, total = gpu.scan(view, 128)
        expected = gpu.scan(view.contiguous().clone(), 128)
        assert all(torch.equal(a, b) for a, b in zip((highest, ids, total), expected, strict=True))


# ---- attention, on a GPU beside a CPU ----


@pytest.mark.parametrize("keys", [7, 70, 300])
@pytest.mark.parametrize("position", ["none", "relative", "rotary", "alibi"])
@pytest.mark.parametrize("score", SCORES)
def test_nothing_to_look_at_on_a_gpu(score, position, keys):
    """Law 4 with gradients on and off: zeros, no NaN, and what a CPU computes in float64 everywhere
    else.
    """
    torch.manual_seed(0)
    queries = 4
    attention = Attention(32, heads=2, score=score, position=position, bias=False)
    query, source = torch.randn(2, queries, 32), torch.randn(2, keys, 32)
    each = torch.full((2, queries), keys - 1)
    each[:, 0] = 0
    masks = [
        {"key_lengths": torch.tensor([keys - 2, 0])},
        {"key_lengths": each},
        {"extra": torch.zeros(2, 1, queries, keys).bool()},
    ]
    masks[2]["extra"][0, :, 1:] = True

    def run(device, dtype, rules):
        module = Attention(32, heads=2, score=score, position=position, bias=False)
        module.load_state_dict(attention.state_dict())
        module.to(device, dtype)
        module.fused = module.fused and device == "cuda"
        x, s = (t.to(device, dtype).requires_grad_() for t in (query, source))
        mask = Mask(**{name: value.to(device) for name, value in rules.items()})
        output = module.attend_to(x, module.project(s), mask)
        gradients = torch.autograd.grad(output.square().sum(), [x, s])
        with torch.no_grad():
            quietly = module.attend_to(x, module.project(s), mask)
        return [t.detach().double().cpu() for t in (output, quietly, *gradients)]

    for rules in masks:
        ours = run("cuda", torch.float32, rules)
        theirs = run("cpu", torch.float64, rules)
        assert all(t.isfinite().all() for t in ours)
        seeing = Mask(**rules).dense(queries, keys).any(-1)[:, 0].expand(2, queries)
        assert (ours[0][~seeing] == 0).all()
        assert (ours[1][~seeing] == 0).all()
        assert (ours[2][~seeing] == 0).all()
        for a, b in zip(ours, theirs, strict=True):
            # Four products deep, each a sum of up to 300 numbers; TF32 is off unless somebody asks
            # for it.
            assert float((a - b).norm()) <= 4 * 300 * 2**-24 * max(1.0, float(b.norm()))


@pytest.mark.parametrize("length", [7, 70, 300])
def test_tokens_that_may_not_see_each_other_on_a_gpu(length):
    torch.manual_seed(0)
    attention = SelfAttention(32, heads=2, bias=False).cuda()
    x = torch.randn(2 * length, 32, device="cuda", requires_grad=True)
    positions = torch.arange(length, device="cuda").expand(2, -1)
    mask = Mask(key_lengths=torch.tensor([0, length - 1], device="cuda"))
    output = attention.itself(x, mask, positions, Layout(2, length, None))
    (gradient,) = torch.autograd.grad(output.square().sum(), x)
    assert (output[:length] == 0).all()
    assert (gradient[:length] == 0).all()
    assert gradient.isfinite().all()
    assert (output[length:] != 0).any()


@pytest.mark.parametrize("dtype", UNIT, ids=str)
@torch.no_grad()
def test_decoding_looks_by_triton(gpu, dtype, monkeypatch):
    """One query over keys of which some are hidden goes to the kernel, and finds what the readable
    path finds.
    """
    calls = []
    look = gpu.look
    monkeypatch.setattr(gpu, "look", lambda *given: calls.append(1) or look(*given))
    torch.manual_seed(0)
    attention = Attention(128, heads=2, score="scaled_dot").to("cuda", dtype).eval()
    x, source = (
        torch.randn(3, 1, 128, device="cuda", dtype=dtype),
        torch.randn(3, 40, 128, device="cuda", dtype=dtype),
    )
    mask = Mask(key_lengths=torch.tensor([40, 1, 17], device="cuda"))
    with watch(attention) as record:
        fast = attention.attend_to(x, attention.project(source), mask)
    assert calls == [1]
    assert torch.equal(
        record.weights["attention"][0] > 0, mask.dense(1, 40, x.device).expand(-1, 2, -1, -1)
    )

    reference = Attention(128, heads=2).to("cuda").double().eval()
    reference.load_state_dict(
        {name: value.double() for name, value in attention.state_dict().items()}
    )
    reference.fused = False
    slow = reference.attend_to(x.double(), reference.project(source.double()), mask)
    # Four products, each of up to 128 numbers, rounded once each to the type.
    error = 4 * (2 * UNIT[dtype] + 128 * 2**-24)
    assert float((fast.double() - slow).norm()) <= error * float(slow.norm()) + error


@torch.no_grad()
def test_relu_in_one_kernel_on_a_gpu():
    x, weight, bias = torch.randn(9, 64), torch.randn(80, 64), torch.randn(80)
    exact = internals.linear_relu_public(x.double(), weight.double(), bias.double())
    error = 66 * 2**-24 * float((x.abs() @ weight.abs().T + bias.abs()).max())
    ours = internals.linear_relu(x.cuda(), weight.cuda(), bias.cuda()).cpu().double()
    torch.testing.assert_close(ours, exact, atol=error, rtol=0)
    assert internals._fuses_relu("cuda")
