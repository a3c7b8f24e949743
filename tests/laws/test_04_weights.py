"""Law 4: masked weights are exactly zero, rows sum to one, an empty row is zeros; watching changes
no bit.
"""

import copy
import threading

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from regard.models.segments import SegmentLevel
from regard.models.transformer import TransformerEncoder
from regard.nn import (
    LSH,
    SCORES,
    Attention,
    Layout,
    Mask,
    Routing,
    SelfAttention,
    Window,
    masked_softmax,
    watch,
)

few = settings(max_examples=25, deadline=None, derandomize=True)
TYPES = {
    "fp64": torch.float64,
    "fp32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
}


def tolerance(weights):
    """Of a row's sum: each weight is rounded once for the exponential, once for each addend of the
    sum, once when divided.
    """
    return torch.finfo(weights.dtype).eps * (weights.shape[-1] + 2)


def hold(weights, allowed):
    allowed = allowed.expand_as(weights)
    assert (weights[~allowed] == 0).all()
    assert (weights >= 0).all()
    total = weights.double().sum(-1)
    expected = allowed.any(-1).double()
    torch.testing.assert_close(total, expected, atol=tolerance(weights), rtol=0)


@pytest.mark.parametrize("kind", TYPES)
@few
@given(st.integers(0, 10_000), st.data())
def test_lengths_for_all_queries(kind, seed, data):
    dtype = TYPES[kind]
    lengths = torch.tensor(data.draw(st.lists(st.integers(0, 6), min_size=1, max_size=4)))
    scores = torch.randn(len(lengths), 2, 3, 6, generator=torch.Generator().manual_seed(seed)) * 20
    weights = masked_softmax(scores.to(dtype), lengths)
    assert weights.dtype == dtype
    hold(weights, torch.arange(6) < lengths[:, None, None, None])
    without_heads = masked_softmax(scores[:, 0].to(dtype), lengths)
    torch.testing.assert_close(without_heads, weights[:, 0], atol=tolerance(weights), rtol=0)


@pytest.mark.parametrize("kind", TYPES)
@few
@given(st.integers(0, 10_000), st.data())
def test_lengths_for_each_query(kind, seed, data):
    dtype = TYPES[kind]
    rows = st.lists(st.integers(0, 6), min_size=3, max_size=3)
    lengths = torch.tensor(data.draw(st.lists(rows, min_size=1, max_size=4)))
    scores = torch.randn(len(lengths), 2, 3, 6, generator=torch.Generator().manual_seed(seed)) * 20
    weights = masked_softmax(scores.to(dtype), lengths)
    hold(weights, torch.arange(6) < lengths[:, None, :, None])
    without_heads = masked_softmax(scores[:, 1].to(dtype), lengths)
    torch.testing.assert_close(without_heads, weights[:, 1], atol=tolerance(weights), rtol=0)


@pytest.mark.parametrize("kind", TYPES)
@few
@given(st.integers(0, 10_000))
def test_any_mask(kind, seed):
    dtype = TYPES[kind]
    random = torch.Generator().manual_seed(seed)
    scores = (torch.randn(3, 2, 4, 5, generator=random) * 20).to(dtype)
    allowed = torch.rand(3, 1, 4, 5, generator=random) < 0.4
    hold(masked_softmax(scores, allowed), allowed)
    hold(masked_softmax(scores, Mask(extra=allowed)), allowed)


@pytest.mark.parametrize("kind", TYPES)
def test_gradient_stays_finite_where_nothing_may_be_seen(kind):
    scores = torch.randn(2, 1, 3, 4).to(TYPES[kind]).requires_grad_()
    weights = masked_softmax(scores, torch.tensor([[0, 4, 2], [1, 0, 0]]))
    (weights.float() * torch.randn(2, 1, 3, 4)).sum().backward()
    assert scores.grad.isfinite().all()
    assert (scores.grad[0, 0, 0] == 0).all()
    assert (scores.grad[1, 0, 1:] == 0).all()


def test_no_mask_is_softmax():
    scores = torch.randn(2, 1, 3, 4)
    assert torch.equal(masked_softmax(scores), scores.softmax(-1))


@pytest.mark.parametrize("largest", [1e4, 6e4])
def test_very_large_scores(largest):
    scores = torch.full((1, 1, 2, 4), -largest, dtype=torch.float16)
    scores[..., 0] = largest
    hold(masked_softmax(scores, torch.tensor([3])), torch.arange(4) < 3)


@torch.no_grad()
def test_watching_changes_no_bit(model, batch_of):
    batch = batch_of(1, [(5, 6), (1, 3), (3, 0)])
    plain = model(batch.source, batch.source_lengths, batch.target_in)
    with watch(model) as record:
        watched = model(batch.source, batch.source_lengths, batch.target_in)
    assert torch.equal(plain, watched)
    attentions = {name for name, part in model.named_modules() if isinstance(part, Attention)}
    assert set(record.weights) == attentions


@torch.no_grad()
def test_weights_of_every_attention(model, batch_of):
    batch = batch_of(2, [(5, 6), (1, 3), (3, 0)])
    with watch(model) as record:
        model(batch.source, batch.source_lengths, batch.target_in)
    length = batch.target_in.shape[1]
    inside = (torch.arange(batch.source.shape[1]) < batch.source_lengths[:, None])[:, None, None]
    past = torch.ones(length, length, dtype=torch.bool).tril()
    width, wait = batch.source.shape[1], model.decoder.wait or 99
    before = torch.ones(width, width, dtype=torch.bool).tril(0 if model.encoder.causal else 99)
    heard = torch.ones(length, width, dtype=torch.bool).tril(wait - 1)
    for name, calls in record.weights.items():
        weights = torch.cat(calls, dim=2)
        if name in record.mixtures:  # Linformer's
            hold(weights, torch.tensor(True))
            continue
        causal = name.startswith("decoder.blocks") and name.endswith("attention")
        assert weights.shape[2] == (width if name.startswith("encoder") else length)
        allowed = past if causal else inside & (before if name.startswith("encoder") else heard)
        allowed = allowed & own_rule(model, name)(*weights.shape[2:])
        hold(weights, allowed & within_pattern(model, name, batch, *weights.shape[2:]))


def within_pattern(model, name, batch, queries, keys):
    """What the pattern of an attention allows, (B, 1, T, S) or smaller."""
    is_encoder = name.startswith("encoder")
    pattern = model.encoder.pattern if is_encoder else model.decoder.pattern
    if pattern is None or name.endswith("cross") or name == "decoder.attention":
        return torch.tensor(True)
    lengths = batch.source_lengths if is_encoder else batch.target_lengths
    places = torch.arange(queries)[:, None], torch.arange(keys)
    return pattern.allows(*places, lengths[:, None, None, None])


def own_rule(model, name):
    """What the user's own mask says of queries and keys at their places, for an attention."""
    side = model.encoder if name.startswith("encoder") else model.decoder
    is_cross = name.endswith("cross") or name == "decoder.attention"
    rule = side.cross_rule if is_cross else side.mask_rule

    def allowed(queries, keys):
        if rule is None:
            return torch.tensor(True)
        return rule(
            torch.arange(queries)[None, None, :, None], torch.arange(keys)[None, None, None]
        )

    return allowed


@torch.no_grad()
def test_weights_of_every_attention_to_a_masked_text(masked, masked_batch_of):
    """Watching changes no bit; padding gets nothing, and neither does what a pattern forbids."""
    batch = masked_batch_of(2, [7, 3, 5])
    plain = masked(batch.source, batch.source_lengths)
    with watch(masked) as record:
        watched = masked(batch.source, batch.source_lengths)
    assert torch.equal(plain, watched)

    attentions = {name for name, part in masked.named_modules() if isinstance(part, Attention)}
    assert set(record.weights) == attentions
    width = batch.source.shape[1]
    inside = (torch.arange(width) < batch.source_lengths[:, None])[:, None, None]
    for name, calls in record.weights.items():
        weights = torch.cat(calls, dim=2)
        if name in record.mixtures:  # Linformer's
            hold(weights, torch.tensor(True))
            continue
        allowed = inside
        if masked.encoder.mask_rule is not None:
            places = torch.arange(width)
            allowed = allowed & masked.encoder.mask_rule(places[:, None], places)
        if masked.encoder.pattern is not None:
            places = torch.arange(width)
            lengths = batch.source_lengths[:, None, None, None]
            allowed = allowed & masked.encoder.pattern.allows(places[:, None], places, lengths)
        hold(weights, allowed)


@torch.no_grad()
def test_fused_is_readable_in_a_masked_text(masked, masked_batch_of, close):
    batch = masked_batch_of(3, [7, 3, 5])
    readable = copy.deepcopy(masked)
    for part in readable.modules():
        if isinstance(part, Attention):
            part.fused = False
    fast = masked(batch.source, batch.source_lengths)
    close(fast, readable(batch.source, batch.source_lengths))
    close(masked.loss(batch).loss, readable.loss(batch).loss)


@torch.no_grad()
def test_fused_is_readable(model, batch_of, close):
    batch = batch_of(3, [(5, 6), (1, 3), (3, 0)])
    readable = copy.deepcopy(model)
    for part in readable.modules():
        if isinstance(part, Attention):
            part.fused = False
    fast = model(batch.source, batch.source_lengths, batch.target_in)
    slow = readable(batch.source, batch.source_lengths, batch.target_in)
    close(fast, slow)
    close(model.loss(batch).loss, readable.loss(batch).loss)


@torch.no_grad()
def test_a_source_that_may_not_be_seen_gives_zeros(close):
    """Fused or readable: nothing to look at is nothing found, not NaN."""
    attention = Attention(8, heads=2, bias=False).eval().double()
    x = torch.randn(2, 3, 8, dtype=torch.float64)
    mask = Mask(key_lengths=torch.tensor([3, 0]))
    fast = attention.attend_to(x, attention.project(x), mask)
    attention.fused = False
    slow = attention.attend_to(x, attention.project(x), mask)
    assert (fast[1] == 0).all()
    close(fast, slow)


def masks_with_empty_rows(queries, keys):
    """Each leaves some query nothing to look at, and some query something."""
    some = torch.rand(2, 1, queries, keys, generator=torch.Generator().manual_seed(5)) < 0.7
    some[0, :, 0] = False
    some[1, :, 1] = False
    by_head = some.repeat(1, 2, 1, 1)
    by_head[:, 1] = True
    each = torch.full((2, queries), keys - 1)
    each[:, 0] = 0
    each[1, 2] = 0
    return {
        "a sentence": Mask(key_lengths=torch.tensor([keys - 2, 0])),
        "a sentence, causal": Mask(key_lengths=torch.tensor([0, keys]), causal=True, offset=1),
        "lengths of each query": Mask(key_lengths=each),
        "any": Mask(extra=some),
        "one head": Mask(extra=by_head),
        "window": Mask(pattern=Window(1), offset=keys - 1),
        "any, causal": Mask(extra=some, causal=True, offset=keys),
    }


def gradients_of(attention, look, inputs):
    """The output, and its gradient with respect to inputs and parameters."""
    output = look()
    slope = torch.randn(
        output.shape, dtype=output.dtype, generator=torch.Generator().manual_seed(6)
    )
    wanted = [*inputs, *attention.parameters()]
    gradients = torch.autograd.grad(output, wanted, slope, allow_unused=True)
    return output, [g for g in gradients if g is not None]


@pytest.mark.parametrize(
    "keys", [7, 70, 300]
)  # whole matrices in place, whole matrices, blocked kernels
@pytest.mark.parametrize("position", ["none", "relative", "rotary", "alibi"])
@pytest.mark.parametrize("score", SCORES)
def test_nothing_to_look_at_gives_zeros_and_no_gradient(score, position, keys):
    """With gradients as without: no NaN, zeros in the row, and the readable formula everywhere
    else.
    """
    torch.manual_seed(0)
    queries = 4
    attention = Attention(8, heads=2, score=score, position=position, bias=False).double()
    query = torch.randn(2, queries, 8, dtype=torch.float64, requires_grad=True)
    source = torch.randn(2, keys, 8, dtype=torch.float64, requires_grad=True)

    def look():
        return attention.attend_to(query, attention.project(source), mask)

    fused = attention.fused
    for name, mask in masks_with_empty_rows(queries, keys).items():
        attention.fused = fused
        output, gradients = gradients_of(attention, look, (query, source))
        with torch.no_grad(), watch(attention) as record:
            unlearning = look()
        attention.fused = False
        expected, expected_gradients = gradients_of(attention, look, (query, source))

        seeing = mask.dense(queries, keys).any(-1).any(1).expand(2, -1)  # (B, T): by any head
        assert not seeing.all() or name == "one head"
        assert (output[~seeing] == 0).all(), name
        assert (gradients[0][~seeing] == 0).all(), name
        torch.testing.assert_close(output, expected, atol=1e-12, rtol=1e-12, msg=name)
        torch.testing.assert_close(unlearning, expected, atol=1e-12, rtol=1e-12, msg=name)
        for ours, theirs in zip(gradients, expected_gradients, strict=True):
            torch.testing.assert_close(ours, theirs, atol=1e-11, rtol=1e-11, msg=name)
        hold(record.weights["attention"][0], mask.dense(queries, keys))


@pytest.mark.parametrize("length", [7, 70, 300])
@pytest.mark.parametrize("position", ["none", "relative", "rotary", "alibi"])
@pytest.mark.parametrize("score", SCORES)
def test_tokens_that_may_not_see_each_other(score, position, length):
    """The same where one product makes queries, keys and values, of packed rows."""
    torch.manual_seed(0)
    attention = SelfAttention(8, heads=2, score=score, position=position, bias=False).double()
    x = torch.randn(2 * length, 8, dtype=torch.float64, requires_grad=True)
    layout = Layout(2, length, None)
    positions = torch.arange(length).expand(2, -1)

    def look():
        return attention.itself(x, mask, positions, layout)

    fused = attention.fused
    for name, mask in masks_with_empty_rows(length, length).items():
        attention.fused = fused
        output, gradients = gradients_of(attention, look, (x,))
        with torch.no_grad():
            unlearning = look()
        attention.fused = False
        expected, expected_gradients = gradients_of(attention, look, (x,))

        seeing = mask.dense(length, length).any(-1).any(1).expand(2, -1).flatten()
        assert (output[~seeing] == 0).all(), name
        torch.testing.assert_close(output, expected, atol=1e-12, rtol=1e-12, msg=name)
        torch.testing.assert_close(unlearning, expected, atol=1e-12, rtol=1e-12, msg=name)
        for ours, theirs in zip(gradients, expected_gradients, strict=True):
            torch.testing.assert_close(ours, theirs, atol=1e-11, rtol=1e-11, msg=name)


def test_a_source_that_is_hidden_whole_has_finite_gradients(model, batch_of):
    """In every model: the user's own mask hides all of one sentence and nothing of the other."""
    batch = batch_of(4, [(5, 6), (3, 4)])
    allowed = torch.ones(2, 1, 1, batch.source.shape[1], dtype=torch.bool)
    allowed[1] = False

    masks = {}
    refuses = any(isinstance(part, LSH | Routing | SegmentLevel) for part in model.modules())
    if isinstance(model.encoder, TransformerEncoder) and not refuses:
        masks["encoder_mask"] = allowed
    if any(name.endswith(("cross", "decoder.attention")) for name, _ in model.named_modules()):
        masks["cross_mask"] = allowed
    logits = model(batch.source, batch.source_lengths, batch.target_in, **masks)
    gradients = torch.autograd.grad(
        logits.square().sum(), list(model.parameters()), allow_unused=True
    )
    assert logits.isfinite().all()
    assert all(gradient.isfinite().all() for gradient in gradients if gradient is not None)


def test_rules_that_leave_every_query_something():
    """Where the structure says so, nobody looks for empty rows."""
    full = torch.ones(1, 1, 3, 5, dtype=torch.bool)
    for mask in (
        Mask(),
        Mask(causal=True),
        Mask(causal=True, offset=4),
        Mask(key_lengths=torch.tensor([1, 5])),
    ):
        assert mask.never_empty
        assert mask.seeing(3, 5) is None
    assert Mask(extra=full, filled=True).never_empty
    assert Mask.known(full, torch.zeros(1, 1, 3, 5)).never_empty

    assert not Mask(key_lengths=torch.tensor([0, 5])).never_empty
    assert not Mask(
        key_lengths=torch.tensor([0, 5]), filled=True
    ).never_empty  # on a CPU a promise is checked
    assert not Mask(extra=full).never_empty
    assert not Mask(pattern=Window(1)).never_empty
    elsewhere = torch.ones(
        2, dtype=torch.long, device="meta"
    )  # stands for a GPU, which nobody should wait for
    assert not Mask(key_lengths=elsewhere).never_empty
    assert Mask(key_lengths=elsewhere, filled=True).never_empty


@torch.no_grad()
def test_watching_is_of_one_thread_only():
    attention = Attention(8)
    x = torch.randn(1, 3, 8)

    def look():
        attention.attend_to(x, attention.project(x), Mask())

    with watch(attention) as record:
        other = threading.Thread(target=look)
        other.start()
        other.join()
        assert not record.weights
        look()
    look()
    assert [len(calls) for calls in record.weights.values()] == [1]
