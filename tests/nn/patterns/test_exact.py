"""Window, chunked and BigBird: what a token sees, and that blocks compute the same as a mask."""

import pytest
import torch

from regard.errors import UserError
from regard.nn import BigBird, Chunked, Mask, SelfAttention, Window, watch
from regard.nn.fast import blocked, choose
from regard.nn.fast.blocked import Blocks

LENGTH = 131  # of the longest text: not a whole number of any block
LENGTHS = torch.tensor([131, 7, 90])
PATTERNS = {
    "window": Window(3),
    "window as wide as a block": Window(20),
    "window with globals": Window(5, global_tokens=2),
    "only itself": Window(0),
    "chunked": Chunked(16),
    "chunked with neighbors": Chunked(8, neighbors=1),
    "chunked with more neighbors": Chunked(5, neighbors=2),
    "bigbird": BigBird(8, random_blocks=2),
    "bigbird with globals": BigBird(7, random_blocks=3, global_tokens=9),
    "bigbird without random blocks": BigBird(8, random_blocks=0),
    "causal bigbird": BigBird(8, random_blocks=2, global_tokens=1, causal=True),
}
INSIDE = [  # what acts inside attention: position, score
    (None, "scaled_dot"),
    ("rotary", "dot"),
    ("alibi", "scaled_dot"),
    ("relative", "scaled_dot"),
    ("relative", "additive"),
    (None, "multiplicative"),
]


@pytest.fixture(params=PATTERNS.values(), ids=PATTERNS.keys())
def pattern(request):
    return request.param


def mask_of(pattern, *, causal, lengths=LENGTHS):
    return Mask(key_lengths=None if causal else lengths, causal=causal, pattern=pattern)


def is_causal(pattern, causal):
    return causal or getattr(pattern, "causal", False)


# ---- what a token sees ----


def test_window_sees_both_sides_and_the_globals():
    seen = Mask(pattern=Window(1, global_tokens=1)).dense(5, 5)[0, 0]
    assert seen.int().tolist() == [
        [1, 1, 1, 1, 1],
        [1, 1, 1, 0, 0],
        [1, 1, 1, 1, 0],
        [1, 0, 1, 1, 1],
        [1, 0, 0, 1, 1],
    ]


def test_chunks_see_themselves_and_their_neighbors():
    alone = Mask(pattern=Chunked(2)).dense(5, 5)[0, 0].int().tolist()
    assert alone[0] == [1, 1, 0, 0, 0]
    assert alone[4] == [0, 0, 0, 0, 1]
    beside = Mask(pattern=Chunked(2, neighbors=1)).dense(5, 5)[0, 0].int().tolist()
    assert beside[0] == [1, 1, 1, 1, 0]
    assert beside[2] == [1, 1, 1, 1, 1]


def test_bigbird_sees_random_blocks_of_its_own_text_only():
    pattern = BigBird(4, random_blocks=2)
    blocks = pattern.key_blocks(torch.arange(100), torch.tensor([400]))[0, :, 3:]
    assert blocks.min() >= 0
    assert blocks.max() < 100
    assert len(blocks.unique()) > 50  # spread over the text
    short = pattern.key_blocks(torch.arange(100), torch.tensor([40]))[0, :, 3:]
    assert short.max() < 10


def test_a_causal_bigbird_draws_among_earlier_blocks():
    pattern = BigBird(4, random_blocks=3, causal=True)
    block = torch.arange(50)
    drawn = pattern.key_blocks(block, torch.tensor([200]))[0, :, 3:]
    assert (drawn < block[:, None].clamp(min=1)).all()
    assert (drawn[0] == -1).all()  # there is none before the first


def test_another_seed_draws_other_blocks():
    one, other = (
        BigBird(4, seed=seed).key_blocks(torch.arange(50), torch.tensor([200])) for seed in (0, 1)
    )
    assert not torch.equal(one, other)


def test_every_token_sees_itself(pattern):
    for causal in (False, True):
        seen = mask_of(pattern, causal=causal).dense(LENGTH, LENGTH)
        diagonal = seen.diagonal(dim1=-2, dim2=-1).squeeze(1)  # (B or 1, T)
        real = torch.arange(LENGTH) < LENGTHS[:, None]
        assert diagonal.expand(3, -1)[real].all()


def test_key_blocks_name_all_that_is_seen(pattern):
    seen = mask_of(pattern, causal=False).dense(LENGTH, LENGTH)  # (B, 1, T, S)
    count = -(-LENGTH // pattern.block)
    table = pattern.key_blocks(torch.arange(count), LENGTHS)
    for text, _, query, key in seen.nonzero().tolist():
        if min(query, key) >= pattern.global_tokens:
            row = table[min(text, len(table) - 1), query // pattern.block]
            assert key // pattern.block in row.tolist()


def test_what_is_forgotten_is_never_seen_again(pattern):
    seen = mask_of(pattern, causal=True, lengths=None).dense(LENGTH, LENGTH)[0, 0]
    places = torch.arange(LENGTH)
    for now in (0, 1, 30, 77, 130):
        forgotten = pattern.is_forgotten(places, torch.tensor(now)) & (places < now)
        assert not seen[now:, forgotten].any()


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: Window(-1), "width=-1"),
        (lambda: Chunked(0), "width=0"),
        (lambda: BigBird(4, random_blocks=-2), "random_blocks=-2"),
    ],
)
def test_numbers_that_make_no_pattern(make, text):
    with pytest.raises(UserError, match=text):
        make()


# ---- blocks ----


def outcome(attention, x, pattern, *, causal, pays, monkeypatch):
    """Output of the real tokens, and gradients of input and weights."""
    monkeypatch.setattr(choose, "BLOCKS_PAY", pays)
    mask = mask_of(pattern, causal=causal)
    x = x.clone().requires_grad_()
    attention.zero_grad()
    queries, memory = attention.read(x)
    assert (choose.blocks_of(mask, queries, memory) is None) == (pays > 1)

    output = attention.look(queries, memory, mask)
    if not causal:
        output = output * (torch.arange(LENGTH) < LENGTHS[:, None])[..., None]
    (output * torch.linspace(-1, 1, output.shape[-1], dtype=x.dtype)).square().sum().backward()
    return [output.detach(), x.grad, *(p.grad.clone() for p in attention.parameters())]


@pytest.mark.parametrize(("position", "score"), INSIDE)
@pytest.mark.parametrize("causal", [False, True], ids=["both ways", "causal"])
def test_blocks_compute_what_the_mask_says(pattern, causal, position, score, monkeypatch):
    attention = SelfAttention(12, heads=3, position=position, score=score).double()
    x = torch.randn(3, LENGTH, 12, dtype=torch.float64)
    by_blocks = outcome(attention, x, pattern, causal=causal, pays=0, monkeypatch=monkeypatch)
    whole = outcome(attention, x, pattern, causal=causal, pays=1e9, monkeypatch=monkeypatch)
    for ours, theirs in zip(by_blocks, whole, strict=True):
        largest = max(1.0, theirs.abs().max().item())
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12 * largest)


def test_blocks_compute_what_the_mask_says_in_single_precision(pattern, monkeypatch):
    attention = SelfAttention(12, heads=3)
    x = torch.randn(3, LENGTH, 12)
    by_blocks = outcome(attention, x, pattern, causal=False, pays=0, monkeypatch=monkeypatch)
    whole = outcome(attention, x, pattern, causal=False, pays=1e9, monkeypatch=monkeypatch)
    torch.testing.assert_close(by_blocks[0], whole[0], rtol=0, atol=1e-5)


@pytest.mark.parametrize(("position", "score"), INSIDE)
def test_some_blocks_at_a_time_are_as_all(pattern, position, score, monkeypatch):
    """What a CPU does without gradients."""
    monkeypatch.setattr(choose, "BLOCKS_PAY", 0)
    attention = SelfAttention(12, heads=3, position=position, score=score).double()
    x = torch.randn(3, LENGTH, 12, dtype=torch.float64)
    all_at_once = attention(x, x, x, mask_of(pattern, causal=False)).detach()
    for size in (1, 40_000):
        monkeypatch.setattr(blocked, "KEY_BYTES", size)
        with torch.no_grad():
            some = attention(x, x, x, mask_of(pattern, causal=False))
        torch.testing.assert_close(some, all_at_once, rtol=0, atol=1e-12)


def test_no_matrix_of_all_tokens_is_made(pattern, monkeypatch):
    """Every tensor of the forward pass has far fewer numbers than there are pairs of tokens."""
    length = 4096
    attention = SelfAttention(8, heads=1)
    queries, memory = attention.read(torch.randn(1, length, 8))
    mask = Mask(pattern=pattern, causal=is_causal(pattern, causal=False))
    largest = 0

    class Measured(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            nonlocal largest
            result = function(*args, **(kwargs or {}))
            if isinstance(result, torch.Tensor):
                largest = max(largest, result.numel())
            return result

    with Measured(), torch.no_grad():
        attention.look(queries, memory, mask)
    assert 0 < largest < length * length / 8


def test_watching_shows_rows_with_zeros_outside(pattern, monkeypatch):
    attention = SelfAttention(12, heads=3)
    queries, memory = attention.read(torch.randn(3, LENGTH, 12))
    mask = mask_of(pattern, causal=False)
    monkeypatch.setattr(choose, "BLOCKS_PAY", 0)
    with torch.no_grad(), watch(attention) as record:
        watched = attention.look(queries, memory, mask)
    with torch.no_grad():
        unwatched = attention.look(queries, memory, mask)
    [weights] = record.weights["attention"]
    assert torch.equal(watched, unwatched)
    assert weights.shape == (3, 3, LENGTH, LENGTH)
    assert (weights[~mask.dense(LENGTH, LENGTH).expand_as(weights)] == 0).all()


def test_a_text_does_not_see_its_company(pattern, monkeypatch):
    """By blocks, alone and unpadded or in a batch: the same."""
    monkeypatch.setattr(choose, "BLOCKS_PAY", 0)
    attention = SelfAttention(12, heads=3).double()
    x = torch.randn(3, LENGTH, 12, dtype=torch.float64)
    together = attention(x, x, x, mask_of(pattern, causal=False))
    for row, length in enumerate(LENGTHS.tolist()):
        one = x[row : row + 1, :length]
        alone = attention(one, one, one, Mask(pattern=pattern))
        torch.testing.assert_close(together[row : row + 1, :length], alone, rtol=0, atol=1e-12)


def test_gradients_are_the_same_in_every_run():
    """Also of global keys, which all blocks add to: indexing would add them in any order."""
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    attention = SelfAttention(32, heads=2)
    x = torch.randn(2, 2048, 32)
    gradients = []
    for _ in range(6):
        attention.zero_grad()
        attention(x, x, x, Mask(pattern=Window(16, global_tokens=16))).square().sum().backward()
        gradients.append(attention.qkv.weight.grad.clone())
    torch.set_num_threads(threads)
    assert all(torch.equal(gradient, gradients[0]) for gradient in gradients)


def test_no_texts_at_all(pattern, monkeypatch):
    monkeypatch.setattr(choose, "BLOCKS_PAY", 0)
    x = torch.zeros(0, LENGTH, 12)
    with torch.no_grad():
        assert SelfAttention(12)(x, x, x, Mask(pattern=pattern)).shape == x.shape


def test_a_mask_serves_inference_and_then_training():
    attention = SelfAttention(8)
    x = torch.randn(1, 400, 8)
    mask = Mask(pattern=Window(8))
    with torch.inference_mode():
        attention(x, x, x, mask)
    attention(x, x, x, mask).sum().backward()
    assert attention.qkv.weight.grad is not None


def test_short_texts_and_steps_of_decoding_are_computed_whole():
    attention = SelfAttention(8)
    queries, memory = attention.read(torch.randn(1, 40, 8))
    assert choose.blocks_of(Mask(pattern=Window(8)), queries, memory) is None
    long, of_long = attention.read(torch.randn(1, 400, 8))
    assert isinstance(choose.blocks_of(Mask(pattern=Window(8)), long, of_long), Blocks)
    assert choose.blocks_of(Mask(pattern=Window(8), offset=399), long[:, :, -1:], of_long) is None
    own = torch.ones(400, 400, dtype=torch.bool)
    assert choose.blocks_of(Mask(pattern=Window(8), extra=own), long, of_long) is None
