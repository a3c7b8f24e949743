"""Law 10: ours = theirs. With the same weights, torch's own layers, the papers' formulas and the
naive sums say the same.
"""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from regard.nn import (
    POSITIONS,
    Attention,
    Mask,
    Recurrent,
    SelfAttention,
    attend,
    masked_softmax,
    sinusoids,
)
from regard.nn.scores import SCORES

few = settings(max_examples=8, deadline=None, derandomize=True)
WIDTH, HEADS = 16, 4


def randn(*shape):
    return torch.randn(*shape, dtype=torch.float64)


def copy_attention(ours, theirs):
    own = [ours.qkv] if isinstance(ours, SelfAttention) else [ours.query, ours.keyvalue]
    with torch.no_grad():
        theirs.in_proj_weight.copy_(torch.cat([layer.weight for layer in own]))
        theirs.in_proj_bias.copy_(torch.cat([layer.bias for layer in own]))
        theirs.out_proj.load_state_dict(ours.output.state_dict())


# ---- attention ----


@pytest.mark.parametrize("fused", [True, False], ids=["fused", "readable"])
@few
@given(st.integers(0, 10_000), st.lists(st.integers(1, 6), min_size=1, max_size=3), st.booleans())
@torch.no_grad()
def test_attention(close, shake, fused, seed, lengths, causal):
    torch.manual_seed(seed)
    ours = shake(Attention(WIDTH, heads=HEADS)).double()
    ours.fused = fused
    theirs = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True, dtype=torch.float64).eval()
    copy_attention(ours, theirs)
    size, lengths = max(lengths), torch.tensor(lengths)
    x = randn(len(lengths), size, WIDTH)
    hidden = torch.arange(size) >= lengths[:, None]
    future = torch.ones(size, size, dtype=torch.bool).triu(1) if causal else None
    expected, _ = theirs(x, x, x, key_padding_mask=hidden, attn_mask=future)
    mask = Mask(key_lengths=lengths, causal=causal)
    close(ours.attend_to(x, ours.project(x), mask), expected)
    own = SelfAttention(WIDTH, heads=HEADS).eval().double()
    own.fused = fused
    own.qkv.load_state_dict({"weight": theirs.in_proj_weight, "bias": theirs.in_proj_bias})
    own.output.load_state_dict(ours.output.state_dict())
    close(own.look(*own.read(x), mask), expected)


@torch.no_grad()
def test_attention_across(close, shake):
    ours = shake(Attention(WIDTH, heads=HEADS)).double()
    theirs = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True, dtype=torch.float64).eval()
    copy_attention(ours, theirs)
    query, keys, values = randn(2, 3, WIDTH), randn(2, 5, WIDTH), randn(2, 5, WIDTH)
    close(ours.attend_to(query, ours.project(keys, values), Mask()), theirs(query, keys, values)[0])


@pytest.mark.parametrize("name", SCORES)
@torch.no_grad()
def test_scores_are_the_papers_formulas(close, name):
    score = SCORES[name](1, 6, 6, 5).double()
    query, key = randn(2, 1, 3, 6), randn(2, 1, 4, 6)
    found = score(query, score.prepare(key))
    p = dict(score.named_parameters())
    for b, t, s in [(0, 0, 0), (1, 2, 3), (0, 1, 2)]:
        q, k = query[b, 0, t], key[b, 0, s]
        match name:
            case "dot":
                expected = q @ k
            case "scaled_dot":
                expected = q @ k / math.sqrt(6)
            case "multiplicative":
                expected = q @ p["weight"][0] @ k
            case "additive":
                expected = p["v"][0].squeeze() @ torch.tanh(k @ p["w1"][0] + q @ p["w2"][0])
        close(found[b, 0, t, s], expected)


@torch.no_grad()
def test_attend_is_a_weighted_mean(close):
    """All keys alike: the mean of what may be seen."""
    score = SCORES["scaled_dot"](1, 4, 4)
    value = randn(2, 1, 5, 3)
    keys = torch.ones(2, 1, 5, 4, dtype=torch.float64)
    found, weights = attend(randn(2, 1, 1, 4), keys, value, torch.tensor([2, 5]), score)
    close(found[0, 0, 0], value[0, 0, :2].mean(0))
    close(found[1, 0, 0], value[1, 0].mean(0))
    close(weights[0, 0, 0], torch.tensor([0.5, 0.5, 0, 0, 0], dtype=torch.float64))


# ---- blocks ----


def copy_block(ours, theirs, cross=False):
    """Weights of a block of ours into a layer of torch's."""
    copy_attention(ours.attention, theirs.self_attn)
    norms = [(ours.attention_residual.norm, theirs.norm1)]
    if cross:
        copy_attention(ours.cross, theirs.multihead_attn)
        norms += [(ours.cross_residual.norm, theirs.norm2), (ours.feed_residual.norm, theirs.norm3)]
    else:
        norms += [(ours.feed_residual.norm, theirs.norm2)]
    for one, other in [
        *norms,
        (ours.feed.inner, theirs.linear1),
        (ours.feed.outer, theirs.linear2),
    ]:
        other.load_state_dict(one.state_dict())


@pytest.mark.filterwarnings("ignore:enable_nested_tensor")
@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.parametrize("placement", ["pre", "post"])
def test_transformer(build, transformer, close, placement, activation):
    """Encoder and decoder, as wholes, against nn.TransformerEncoderLayer and
    nn.TransformerDecoderLayer.
    """
    model = build(transformer(position="none", placement=placement, activation=activation))
    kind = {
        "activation": activation,
        "norm_first": placement == "pre",
        "batch_first": True,
        "dropout": 0.0,
    }
    kind["dtype"] = torch.float64
    source, lengths = torch.randint(5, 30, (3, 6)), torch.tensor([6, 2, 4])
    hidden = torch.arange(6) >= lengths[:, None]
    x = model.encoder.embedding(source)
    for block in model.encoder.blocks:
        layer = nn.TransformerEncoderLayer(
            16, 2, 24, **kind
        )  # in training mode: the plain path, without torch's fast one
        copy_block(block, layer)
        x = layer(x, src_key_padding_mask=hidden)
    states = model.encoder.norm(x)
    close(model.encoder(source, lengths).states[~hidden], states[~hidden])
    target = torch.randint(5, 30, (3, 5))
    future = nn.Transformer.generate_square_subsequent_mask(5).isinf()
    y = model.decoder.embedding(target)
    for block in model.decoder.blocks:
        layer = nn.TransformerDecoderLayer(16, 2, 24, **kind)
        copy_block(block, layer, cross=True)
        y = layer(y, states, tgt_mask=future, memory_key_padding_mask=hidden)
    logits = model.decoder.out(model.decoder.norm(y))
    close(model(source, lengths, target), logits)


# ---- recurrence ----

THEIRS = {"rnn": nn.RNN, "gru": nn.GRU, "lstm": nn.LSTM}


@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("both", [False, True], ids=["forwards", "both"])
@pytest.mark.parametrize("kind", THEIRS)
@torch.no_grad()
def test_recurrence(close, shake, kind, both, layers):
    ours = shake(Recurrent(kind, 5, 7, layers=layers, bidirectional=both)).double()
    slow = shake(Recurrent(kind, 5, 7, layers=layers, bidirectional=both, fast=False)).double()
    theirs = THEIRS[kind](5, 7, layers, batch_first=True, bidirectional=both, dtype=torch.float64)
    slow.load_state_dict(ours.state_dict())
    theirs.load_state_dict({name.split(".")[-1]: p for name, p in ours.state_dict().items()})
    x, lengths = randn(3, 6, 5), torch.tensor([2, 6, 1])
    for given_lengths in (None, lengths):
        fast_out, fast_end = ours(x, given_lengths)
        slow_out, slow_end = slow(x, given_lengths)
        close(fast_out, slow_out)
        for one, other in zip(fast_end, slow_end, strict=True):
            close(one, other)
    expected, end = theirs(x)
    out, own_end = ours(x)
    close(out, expected)
    for one, other in zip(own_end, end if kind == "lstm" else (end,), strict=True):
        close(one, other)
    out, own_end = ours(x, lengths)
    for row, length in enumerate(lengths.tolist()):
        alone, end = theirs(x[row : row + 1, :length])
        close(out[row, :length], alone[0])
        assert (out[row, length:] == 0).all()
        for one, other in zip(own_end, end if kind == "lstm" else (end,), strict=True):
            close(one[:, row], other[:, 0])


@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("both", [False, True], ids=["forwards", "both"])
@pytest.mark.parametrize("kind", THEIRS)
@torch.no_grad()
def test_recurrence_in_fp32(rounding, shake, kind, both, layers):
    """In fp32 torch may take oneDNN's kernels, which know no float64."""
    slow = shake(Recurrent(kind, 5, 7, layers=layers, bidirectional=both, fast=False))
    fast = Recurrent(kind, 5, 7, layers=layers, bidirectional=both)
    fast.load_state_dict(slow.state_dict())
    x, lengths = torch.randn(3, 6, 5), torch.tensor([2, 6, 1])

    def states(cells):
        out, end = cells(x.to(next(cells.parameters()).dtype), lengths)
        return torch.cat([out.flatten(), *(part.flatten() for part in end)])

    exact = slow.double()
    allowed = rounding(exact, states, terms=max(5, 7 * layers) + 7 + 2)
    torch.testing.assert_close(states(fast).double(), states(exact), atol=allowed, rtol=0)


@pytest.mark.parametrize("fast", [True, False], ids=["fast", "readable"])
@pytest.mark.parametrize("kind", THEIRS)
@torch.no_grad()
def test_recurrence_goes_on_where_it_stood(close, shake, kind, fast):
    cells = shake(Recurrent(kind, 5, 7, layers=2, fast=fast)).double()
    x = randn(2, 6, 5)
    whole, end = cells(x)
    first, middle = cells(x[:, :4])
    second, last = cells(x[:, 4:], hidden=middle)
    close(torch.cat((first, second), 1), whole)
    for one, other in zip(last, end, strict=True):
        close(one, other)


# ---- positions ----


@few
@given(st.integers(1, 9), st.lists(st.integers(0, 5000), min_size=1, max_size=5))
def test_sinusoids_are_the_formula(width, places):
    table = sinusoids(torch.tensor(places), width)
    assert table.shape == (len(places), width)
    for row, place in zip(table, places, strict=True):
        for i, found in enumerate(row.tolist()):
            exponent = math.log(10000) * 2 * (i // 2) / width
            angle = place * math.exp(-exponent)
            # fp32: an exponent is rounded twice, so its power is known to eps · exponent; that, the
            # power's own rounding and
            # the product's make the angle known to eps · (exponent + 2); and the wave is rounded
            # once more.
            allowed = torch.finfo(torch.float32).eps * (angle * (exponent + 2) + 1)
            assert found == pytest.approx(
                math.cos(angle) if i % 2 else math.sin(angle), rel=0, abs=allowed
            )


@few
@given(st.integers(0, 10_000), st.integers(-8, 8), st.integers(0, 40))
@torch.no_grad()
def test_rotary_scores_know_distance_only(close, seed, distance, place):
    torch.manual_seed(seed)
    rotary = POSITIONS["rotary"](8, 1)
    q, k = randn(1, 1, 1, 8), randn(1, 1, 1, 8)

    def score(at):
        return (
            rotary.rotate(q, torch.tensor([[at]]))
            * rotary.rotate(k, torch.tensor([[at + distance]]))
        ).sum()

    close(score(place + 8), score(8))
    close(rotary.rotate(q, torch.tensor([[place]])).norm(), q.norm())
    assert torch.equal(rotary.rotate(q, torch.tensor([[0]])), q)


@torch.no_grad()
def test_rotary_turns_by_the_papers_angles(close):
    rotary = POSITIONS["rotary"](6, 1)
    for pair in range(3):
        x = torch.zeros(1, 1, 1, 6, dtype=torch.float64)
        x[..., 2 * pair] = 1.0
        angle = 5 / 10000 ** (2 * pair / 6)
        turned = rotary.rotate(x, torch.tensor([[5]]))[0, 0, 0, 2 * pair : 2 * pair + 2]
        close(turned, torch.tensor([math.cos(angle), math.sin(angle)], dtype=torch.float64))


@pytest.mark.parametrize("heads", [1, 2, 3, 8])
@torch.no_grad()
def test_alibi_is_the_formula(heads):
    alibi = POSITIONS["alibi"](8 * heads, heads)
    q_pos, k_pos = torch.tensor([[0, 4, 9]]), torch.tensor([[0, 1, 2, 7]])
    term = alibi.key_term(torch.randn(1, heads, 3, 8), q_pos, k_pos)
    for h in range(heads):
        slope = 2 ** (-8 * (h + 1) / heads)
        for i, q in enumerate(q_pos[0].tolist()):
            for j, k in enumerate(k_pos[0].tolist()):
                # fp32: the exponent, at most 8, is rounded once, the power and the product once
                # each.
                allowed = torch.finfo(torch.float32).eps * (8 / 2 + 1)
                assert float(term[0, h, i, j]) == pytest.approx(-slope * abs(q - k), rel=allowed)


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("causal", [False, True])
@torch.no_grad()
def test_relative_is_shaws_sum(close, shake, causal, score):
    """Against the tensors a_ij (T, S, D) of the paper, written out: the score of k + a, whatever
    its scale.
    """
    width, heads, clip, length = 8, 2, 2, 6
    size = width // heads
    position = POSITIONS["relative"](width, heads, clip=clip)
    attention = shake(Attention(width, heads=heads, score=score, position=position)).double()
    x = randn(2, length, width)
    found = attention.attend_to(x, attention.project(x), Mask(causal=causal))
    place = torch.arange(length)
    index = (place[None, :] - place[:, None]).clamp(-clip, clip) + clip
    key_vectors, value_vectors = position.keys[index], position.values[index]  # (T, S, D/H)

    def heads_of(y):
        return y.unflatten(-1, (heads, size)).transpose(1, 2)

    q, (k, v) = (
        heads_of(attention.query(x)),
        (heads_of(part) for part in attention.keyvalue(x).chunk(2, -1)),
    )
    term = torch.einsum("bhtd,tsd->bhts", q, key_vectors)
    scale = 1.0 if score in ("dot", "multiplicative") else 1 / math.sqrt(size)
    scores = attention.score(q, attention.score.prepare(k)) + term * scale
    weights = masked_softmax(
        scores, torch.ones(length, length, dtype=torch.bool).tril() if causal else None
    )
    mixed = torch.einsum("bhts,bhsd->bhtd", weights, v) + torch.einsum(
        "bhts,tsd->bhtd", weights, value_vectors
    )
    close(found, attention.output(mixed.transpose(1, 2).flatten(2)))
