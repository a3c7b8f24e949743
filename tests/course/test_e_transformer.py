"""E. Lecture notes on the Transformer: E21, E23, E24, E26 to E28, E30 to E32.

The rows of this group share one text (… self-attention, Shaw, feed-forward, norms,
cross-attention); each test says which part of it it takes its row for.
"""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from regard.config import TransformerConfig
from regard.errors import UserError
from regard.models import build_model
from regard.nn import (
    POSITIONS,
    Attention,
    DecoderBlock,
    EncoderBlock,
    FeedForward,
    Mask,
    Residual,
    RMSNorm,
    SelfAttention,
    watch,
)

WIDTH = 12


def test_e21_self_attention_by_matrices(close):
    """softmax(XQ (XK)ᵀ / √d) XV, of one head, projected once more."""
    attention = SelfAttention(WIDTH, bias=False)
    x = torch.randn(2, 5, WIDTH)
    q, k, v = (x @ matrix.T for matrix in attention.qkv.weight.chunk(3))
    mixed = (q @ k.mT / math.sqrt(WIDTH)).softmax(-1) @ v
    close(attention(x, x, x), mixed @ attention.output.weight.T)


def test_e23_a_learned_vector_for_each_position(close):
    """It is added, is learned, and has an end, which an error names."""
    position = POSITIONS["learned"](WIDTH, max_positions=6)
    x = torch.randn(2, 4, WIDTH)
    places = torch.arange(4).expand(2, -1)
    out = position.embed(x, places)
    close(out, x + position.table[:4])
    (gradient,) = torch.autograd.grad(out.sum(), position.table)
    close(gradient[:4], torch.full((4, WIDTH), 2.0))
    assert gradient[4:].eq(0).all()
    with pytest.raises(UserError, match=r"model\.max_positions"):
        position.embed(x, places + 3)


def test_e24_relative_positions(close):
    """Shaw et al. 2018: k + a^K and v + a^V by clipped distance, written as a sum over pairs."""
    clip = 2
    position = POSITIONS["relative"](WIDTH, clip=clip)
    attention = Attention(WIDTH, position=position, bias=False)
    x = torch.randn(1, 6, WIDTH)
    q = x[0] @ attention.query.weight.T
    key_weight, value_weight = attention.keyvalue.weight.chunk(2)
    k = x[0] @ key_weight.T
    v = x[0] @ value_weight.T

    expected = []
    for i in range(6):
        rows = [max(-clip, min(clip, j - i)) + clip for j in range(6)]
        scores = [q[i] @ (k[j] + position.keys[row]) for j, row in enumerate(rows)]
        weights = (torch.stack(scores) / math.sqrt(WIDTH)).softmax(0)
        values = [weights[j] * (v[j] + position.values[row]) for j, row in enumerate(rows)]
        expected.append(torch.stack(values).sum(0))
    found = attention(x, x, x)
    close(found[0], torch.stack(expected) @ attention.output.weight.T)


def test_e26_without_a_feed_forward_layer_attention_only_averages(close):
    """With given weights self-attention is linear in its values; the feed-forward layer is not."""
    attention = SelfAttention(WIDTH, bias=False)
    x = torch.randn(1, 4, WIDTH)
    y = torch.randn(1, 4, WIDTH)
    same = torch.zeros(1, 4, WIDTH)  # equal keys: a mean, whatever the values are
    mean = attention(same, same, x)
    close(mean, mean[:, :1].expand_as(mean))
    close(attention(same, same, x + y), mean + attention(same, same, y))

    feed = FeedForward(WIDTH, 20)
    assert not feed(x + y).allclose(feed(x) + feed(y))
    close(feed(x), F.relu(x @ feed.inner.weight.T) @ feed.outer.weight.T)

    without = EncoderBlock(WIDTH, feedforward=False)
    assert not hasattr(without, "feed")
    assert without(x).shape == x.shape


def test_e27_the_future_is_masked():
    """In parallel, and yet no output depends on a later token; neither does a gradient."""
    block = DecoderBlock(WIDTH, heads=3)
    x = torch.randn(1, 5, WIDTH, requires_grad=True)
    source = torch.randn(1, 4, WIDTH)
    out = block(x, source)
    for t in range(5):
        (gradient,) = torch.autograd.grad(out[0, t].square().sum(), x, retain_graph=True)
        reached = gradient[0].abs().sum(-1) > 0
        assert torch.equal(reached, torch.arange(5) <= t)


def test_e28_many_heads_cost_as_much_as_one(close):
    """h heads of d / h features: as many weights; each looks in its own way, then all are mixed."""
    sizes = {
        sum(p.numel() for p in Attention(WIDTH, heads=heads).parameters()) for heads in (1, 2, 3, 6)
    }
    assert len(sizes) == 1

    attention = Attention(WIDTH, heads=3, bias=False)
    x = torch.randn(2, 5, WIDTH)
    key_weight, value_weight = attention.keyvalue.weight.chunk(2)
    heads = []
    weights_by_head = []
    for head in range(3):
        rows = slice(4 * head, 4 * head + 4)
        q = x @ attention.query.weight[rows].T
        k = x @ key_weight[rows].T
        weights_by_head.append((q @ k.mT / 2.0).softmax(-1))
        heads.append(weights_by_head[-1] @ (x @ value_weight[rows].T))
    with watch(attention) as record:
        found = attention(x, x, x)
    close(found, torch.cat(heads, -1) @ attention.output.weight.T)
    close(record.weights["attention"][0], torch.stack(weights_by_head, 1))


@pytest.mark.parametrize("placement", ["pre", "post"])
def test_e28_residual_connections(placement, close):
    """x + f(LN(x)), or LN(x + f(x)); switched off, f alone is left."""
    dense = nn.Linear(WIDTH, WIDTH)
    x = torch.randn(2, 3, WIDTH)
    plain = nn.LayerNorm(WIDTH)
    for kept in (True, False):
        part = Residual(WIDTH, norm="layer", placement=placement, dropout=0.0, residual=kept)
        carried = x if kept else torch.zeros_like(x)
        before = carried + dense(plain(x))
        after = plain(carried + dense(x))
        close(part(x, dense), before if placement == "pre" else after)


def test_e30_layer_norm(close):
    """(x − μ) / √(σ² + ε) · γ + β, each token by itself; RMSNorm leaves out μ and β."""
    part = Residual(WIDTH, norm="layer", placement="post", dropout=0.0)
    with torch.no_grad():
        part.norm.weight.normal_()
        part.norm.bias.normal_()
    x = 3 + 5 * torch.randn(2, 4, WIDTH)
    mean = x.mean(-1, keepdim=True)
    variance = (x - mean).square().mean(-1, keepdim=True)
    expected = (x - mean) / (variance + 1e-5).sqrt() * part.norm.weight + part.norm.bias
    close(part(x, torch.zeros_like), expected)

    rms = RMSNorm(WIDTH)
    close(rms(x), x / (x.square().mean(-1, keepdim=True) + 1e-5).sqrt())


def test_e31_why_scores_are_divided_by_the_root_of_the_width():
    """The variance of q·k is d, so the softmax saturates; after the division it is 1."""
    for width in (16, 256):
        query = torch.randn(1, 1, 400, width)
        key = torch.randn(1, 1, 400, width)
        variances = {}
        for name in ("dot", "scaled_dot"):
            score = Attention(width, score=name, projections=False).score
            variances[name] = score(query, score.prepare(key)).var().item()
        assert variances["dot"] == pytest.approx(width, rel=0.1)
        assert variances["scaled_dot"] == pytest.approx(1, rel=0.1)


def test_e32_cross_attention(close):
    """Queries come from the decoder, keys and values from the encoder's last layer."""
    config = TransformerConfig(
        width=WIDTH, heads=3, encoder_layers=2, decoder_layers=2, dropout=0.0
    )
    model = build_model(config, 20, 20).eval()
    source = torch.tensor([[5, 6, 7, 2], [8, 2, 0, 0]])
    lengths = torch.tensor([4, 2])
    target = torch.tensor([[1, 9, 10], [1, 11, 12]])
    seen = []
    for block in model.decoder.blocks:
        block.cross_residual.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    with watch(model) as record:
        model(source, lengths, target)

    memory = model.encoder(source, lengths).states
    for i, block in enumerate(model.decoder.blocks):
        query = block.cross_residual.norm(seen[i]).view(2, 3, WIDTH)
        with watch(block.cross) as alone:
            block.cross(query, memory, memory, Mask(key_lengths=lengths))
        weights = record.weights[f"decoder.blocks.{i}.cross"][0]
        assert weights.shape == (2, 3, 3, 4)
        close(weights, alone.weights["attention"][0])
        assert weights[1, ..., 2:].eq(0).all()
