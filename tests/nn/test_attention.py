"""Attention with widths of every kind, and parts of one's own."""

import math

import pytest
import torch

from regard.errors import UserError
from regard.nn import (
    POSITIONS,
    SCORES,
    Attention,
    Embedding,
    FeedForward,
    Layout,
    Mask,
    Position,
    Recurrent,
    Residual,
    RMSNorm,
    Score,
    SelfAttention,
)


@pytest.mark.parametrize("score", ["dot", "scaled_dot", "multiplicative", "additive"])
def test_every_width_may_differ(score):
    attention = Attention(6, key_width=5, value_width=7, inner=8, output=3, heads=2, score=score)
    memory = attention.project(torch.randn(2, 4, 5), torch.randn(2, 4, 7))
    found = attention.attend_to(
        torch.randn(2, 9, 6), memory, Mask(key_lengths=torch.tensor([4, 2]))
    )
    assert found.shape == (2, 9, 3)
    found.sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in attention.parameters())


@pytest.mark.parametrize("score", ["multiplicative", "additive"])
def test_raw_attention_compares_different_widths(score):
    """The textbook's form: no projections; the values come out as they went in."""
    attention = Attention(6, key_width=5, score=score, projections=False, score_width=4).double()
    query, keys, values = (
        torch.randn(2, *size, dtype=torch.float64) for size in ((3, 6), (4, 5), (4, 9))
    )
    found = attention.attend_to(query, attention.project(keys, values), Mask())
    assert found.shape == (2, 3, 9)
    low, high = values.min(1, keepdim=True).values, values.max(1, keepdim=True).values
    assert ((found >= low - 1e-9) & (found <= high + 1e-9)).all()


def test_raw_dot_attention_has_no_parameters():
    attention = Attention(4, score="dot", projections=False)
    assert list(attention.parameters()) == []
    keys = torch.eye(4)[None] * 50
    torch.testing.assert_close(attention.attend_to(keys, attention.project(keys), Mask()), keys)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"heads": 3}, "3 heads cannot share a width of 8: 8 is not divisible by 3"),
        ({"heads": 2, "projections": False}, "2 heads need projections: leave out projections="),
    ],
)
def test_heads_must_divide(wrong, message):
    with pytest.raises(UserError, match=message):
        Attention(8, **wrong)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Attention(8, score="aditive"), "no score 'aditive'; did you mean additive?"),
        (
            lambda: SelfAttention(8, score="scaleddot"),
            "no score 'scaleddot'; did you mean scaled_dot?",
        ),
        (lambda: Attention(8, position="rotery"), "no position 'rotery'; did you mean rotary?"),
        (lambda: Recurrent("ltsm", 4, 4), "no cell 'ltsm'; did you mean lstm?"),
        (
            lambda: FeedForward(4, 8, activation="swigul"),
            "no activation 'swigul'; did you mean swiglu?",
        ),
        (
            lambda: FeedForward(4, 8, activation="xyz"),
            "no activation 'xyz' (available: relu, gelu, geglu, swiglu)",
        ),
        (
            lambda: Residual(4, norm="layr", placement="pre", dropout=0.0),
            "no norm 'layr'; did you mean layer?",
        ),
        (
            lambda: Residual(4, norm="rms", placement="prae", dropout=0.0),
            "no placement 'prae'; did you mean pre?",
        ),
    ],
)
def test_a_misspelt_part_names_the_nearest(make, message):
    with pytest.raises(UserError) as caught:
        make()
    assert str(caught.value) == message


@pytest.mark.parametrize("name", ["none", "relative", "rotary", "alibi"])
@pytest.mark.parametrize("kind", [Attention, SelfAttention])
@torch.no_grad()
def test_a_position_by_name(kind, name):
    """The same as an object made for the width of all heads together."""
    attention = kind(6, inner=8, heads=2, position=name)
    assert type(attention.position) is POSITIONS[name]
    assert (attention.position.width, attention.position.heads) == (8, 2)

    by_object = kind(6, inner=8, heads=2, position=POSITIONS[name](8, 2))
    by_object.load_state_dict(attention.state_dict())
    x = torch.randn(2, 5, 6)
    mask = Mask(causal=True)
    assert torch.equal(
        attention.look(*attention.read(x), mask), by_object.look(*by_object.read(x), mask)
    )


@pytest.mark.parametrize("name", ["sinusoidal", "learned"])
def test_a_position_of_the_embeddings_is_refused_in_attention(name):
    """It would be ignored there."""
    with pytest.raises(UserError, match=f"'{name}' is added to embeddings.*rotary"):
        Attention(8, position=name)


@pytest.mark.parametrize("position", ["none", "relative", "rotary", "alibi"])
@pytest.mark.parametrize("score", ["dot", "scaled_dot", "multiplicative", "additive"])
@torch.no_grad()
def test_self_attention_is_attention(score, position):
    """Every public method of both, over the same numbers."""
    torch.manual_seed(0)
    one = Attention(6, inner=8, output=5, heads=2, score=score, position=position).double()
    two = SelfAttention(6, inner=8, output=5, heads=2, score=score, position=position).double()
    weights = one.state_dict()
    for name in ("weight", "bias"):
        weights[f"qkv.{name}"] = torch.cat(
            (weights.pop(f"query.{name}"), weights.pop(f"keyvalue.{name}"))
        )
    two.load_state_dict(weights)

    x, other = torch.randn(2, 2, 4, 6, dtype=torch.float64)
    values = torch.randn(2, 4, 6, dtype=torch.float64)
    positions = torch.tensor([[3, 1, 0, 7], [2, 4, 6, 8]])
    layout = Layout.of(torch.tensor([4, 2]), 4)
    rows = layout.pack(x)
    mask = Mask(key_lengths=torch.tensor([4, 2]))
    calls = [
        lambda a: a.ask(x, positions),
        lambda a: a.project(other, None, positions).key,
        lambda a: a.project(other, values).value,
        lambda a: a.read(x)[0],
        lambda a: a.read(rows, None, layout)[1].key,
        lambda a: a.attend_to(x, a.project(other), mask),
        lambda a: a.look(a.ask(x), a.project(other), mask),
        lambda a: a.itself(rows, mask, positions, layout),
        lambda a: a.across(rows, layout.pack(other), mask, positions, layout, layout),
        lambda a: a.lengths(a.project(x).value),
    ]
    for call in calls:
        torch.testing.assert_close(call(two), call(one), atol=1e-12, rtol=1e-12)


def test_self_attention_starts_as_it_always_did():
    """Names and shapes that saved runs hold."""
    shapes = {
        name: tuple(value.shape) for name, value in SelfAttention(6, heads=2).state_dict().items()
    }
    assert shapes == {
        "qkv.weight": (18, 6),
        "qkv.bias": (18,),
        "output.weight": (6, 6),
        "output.bias": (6,),
    }
    shapes = {
        name: tuple(value.shape)
        for name, value in Attention(6, heads=2, bias=False).state_dict().items()
    }
    assert shapes == {"query.weight": (6, 6), "keyvalue.weight": (12, 6), "output.weight": (6, 6)}


class Negative(Score):
    """−|q − k|², which no fused kernel computes."""

    def forward(self, query, prepared):
        return -torch.cdist(query, prepared).square()


@torch.no_grad()
def test_a_score_of_ones_own():
    attention = Attention(8, heads=2, score=Negative)
    assert not attention.fused
    x = torch.randn(2, 3, 8)
    assert attention.attend_to(x, attention.project(x), Mask(causal=True)).isfinite().all()


@pytest.mark.parametrize("method", ["forward", "__call__"])
def test_a_score_that_inherits_a_scale_and_computes_in_its_own_way_is_not_fused(method):
    """A fused kernel would compute the score that it inherits from instead."""
    scaled = SCORES["scaled_dot"]
    inherited = getattr(scaled, method)
    halved = {method: lambda self, query, prepared: inherited(self, query, prepared) / 2}
    half = type("Half", (scaled,), halved)

    x = torch.randn(2, 5, 8)
    ours = Attention(8, heads=2, score=half)
    plain = Attention(8, heads=2)
    plain.load_state_dict(ours.state_dict())
    with torch.no_grad():
        fast = ours(x, x, x)
        assert not ours.fused
        assert plain.fused
        assert not torch.allclose(fast, plain(x, x, x))
        plain.score.scale /= 2
        plain.fused = False
        torch.testing.assert_close(fast, plain(x, x, x))


@pytest.mark.parametrize("kind", POSITIONS)
@torch.no_grad()
def test_dropout_acts_in_training_only(kind):
    torch.manual_seed(0)
    attention = Attention(8, heads=2, dropout=0.5, position=POSITIONS[kind](8, 2))
    x = torch.randn(2, 6, 8)

    def look():
        return attention.attend_to(x, attention.project(x), Mask(causal=True))

    attention.eval()
    assert torch.equal(look(), look())
    attention.train()
    assert not torch.equal(look(), look())


def test_the_base_position_is_none():
    position, x = Position(8, 2), torch.randn(1, 3, 8)
    assert torch.equal(position.embed(x, torch.arange(3)[None]), x)
    assert position.key_term(x, x, x) is None
    assert position.value_term(x, x, x) is None


def test_the_end_of_a_learned_table_names_the_setting():
    position = POSITIONS["learned"](4, max_positions=5)
    x = torch.zeros(1, 5, 4)
    assert torch.equal(position.embed(x, torch.arange(5)[None])[0], position.table)
    with pytest.raises(UserError, match=r"model\.max_positions") as caught:
        position.embed(x, torch.arange(1, 6)[None])
    assert "5" in str(caught.value)


# ---- layers ----


def test_embedding_has_the_variance_that_scaling_asks_for():
    torch.manual_seed(0)
    embedding = Embedding(500, 64)
    # of 32,000 numbers the deviation is known to 1/√64,000; ten times that would be a mistake
    assert float(embedding(torch.arange(500)).detach().std()) == pytest.approx(
        1.0, abs=10 / math.sqrt(64_000)
    )
    plain = Embedding(500, 64, scaled=False)
    assert torch.equal(plain(torch.tensor([3])), plain.weight[3:4])


def test_rms_norm_is_the_formula():
    norm, x = RMSNorm(6).double(), torch.randn(3, 6, dtype=torch.float64)
    with torch.no_grad():
        norm.weight.normal_()
    torch.testing.assert_close(
        norm(x), x / (x.square().mean(-1, keepdim=True) + norm.eps).sqrt() * norm.weight
    )


@pytest.mark.parametrize(
    ("activation", "f"), [("geglu", torch.nn.functional.gelu), ("swiglu", torch.nn.functional.silu)]
)
def test_gated_feed_forward_is_the_formula(activation, f):
    feed, x = (
        FeedForward(4, 6, activation=activation).double(),
        torch.randn(3, 4, dtype=torch.float64),
    )
    one, other = feed.inner(x).chunk(2, -1)
    torch.testing.assert_close(feed(x), feed.outer(f(one) * other))


@pytest.mark.parametrize("placement", ["pre", "post"])
def test_residual(placement):
    x = torch.randn(3, 4, dtype=torch.float64)
    wrap = Residual(4, norm="layer", placement=placement, dropout=0.0).double()
    expected = x + 2 * wrap.norm(x) if placement == "pre" else wrap.norm(x + 2 * x)
    torch.testing.assert_close(wrap(x, lambda y: 2 * y), expected)
    bare = Residual(4, norm="none", placement=placement, dropout=0.0, residual=False)
    assert torch.equal(bare(x, lambda y: 2 * y), 2 * x)
