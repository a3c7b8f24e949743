"""Attention with widths of every kind, and parts of one's own."""

import math

import pytest
import torch

from regard.errors import UserError
from regard.nn import POSITIONS, Attention, Embedding, FeedForward, Mask, Position, Residual, RMSNorm, Score


@pytest.mark.parametrize("score", ["dot", "scaled_dot", "multiplicative", "additive"])
def test_every_width_may_differ(score):
    attention = Attention(6, key_width=5, value_width=7, inner=8, output=3, heads=2, score=score)
    memory = attention.project(torch.randn(2, 4, 5), torch.randn(2, 4, 7))
    found = attention(torch.randn(2, 9, 6), memory, Mask(key_lengths=torch.tensor([4, 2])))
    assert found.shape == (2, 9, 3)
    found.sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in attention.parameters())


@pytest.mark.parametrize("score", ["multiplicative", "additive"])
def test_raw_attention_compares_different_widths(score):
    """The textbook's form: no projections; the values come out as they went in."""
    attention = Attention(6, key_width=5, score=score, projections=False, score_width=4).double()
    query, keys, values = (torch.randn(2, *size, dtype=torch.float64) for size in ((3, 6), (4, 5), (4, 9)))
    found = attention(query, attention.project(keys, values), Mask())
    assert found.shape == (2, 3, 9)
    low, high = values.min(1, keepdim=True).values, values.max(1, keepdim=True).values
    assert ((found >= low - 1e-9) & (found <= high + 1e-9)).all()


def test_raw_dot_attention_has_no_parameters():
    attention = Attention(4, score="dot", projections=False)
    assert list(attention.parameters()) == []
    keys = torch.eye(4)[None] * 50
    torch.testing.assert_close(attention(keys, attention.project(keys), Mask()), keys)


@pytest.mark.parametrize("wrong", [{"heads": 3}, {"heads": 2, "projections": False}])
def test_heads_must_divide(wrong):
    with pytest.raises(UserError, match="heads"):
        Attention(8, **wrong)


class Negative(Score):
    """−|q − k|², which no fused kernel computes."""

    def forward(self, query, prepared):
        return -torch.cdist(query, prepared).square()


@torch.no_grad()
def test_a_score_of_ones_own():
    attention = Attention(8, heads=2, score=Negative)
    assert not attention.fused
    x = torch.randn(2, 3, 8)
    assert attention(x, attention.project(x), Mask(causal=True)).isfinite().all()


@pytest.mark.parametrize("kind", POSITIONS)
@torch.no_grad()
def test_dropout_acts_in_training_only(kind):
    torch.manual_seed(0)
    attention = Attention(8, heads=2, dropout=0.5, position=POSITIONS[kind](8, 2))
    x = torch.randn(2, 6, 8)

    def look():
        return attention(x, attention.project(x), Mask(causal=True))

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
    assert float(embedding(torch.arange(500)).detach().std()) == pytest.approx(1.0, abs=10 / math.sqrt(64_000))
    plain = Embedding(500, 64, scaled=False)
    assert torch.equal(plain(torch.tensor([3])), plain.weight[3:4])


def test_rms_norm_is_the_formula():
    norm, x = RMSNorm(6).double(), torch.randn(3, 6, dtype=torch.float64)
    with torch.no_grad():
        norm.weight.normal_()
    torch.testing.assert_close(norm(x), x / (x.square().mean(-1, keepdim=True) + norm.eps).sqrt() * norm.weight)


@pytest.mark.parametrize(("activation", "f"), [("geglu", torch.nn.functional.gelu), ("swiglu", torch.nn.functional.silu)])
def test_gated_feed_forward_is_the_formula(activation, f):
    feed, x = FeedForward(4, 6, activation=activation).double(), torch.randn(3, 4, dtype=torch.float64)
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
