"""The parts alone, in a model of one's own: one call each, batch first, as people know them."""

import doctest

import pytest
import torch
from torch import nn

from regard.errors import UserError
from regard.nn import (
    Attention,
    Block,
    DecoderBlock,
    EncoderBlock,
    FeedForward,
    Mask,
    SelfAttention,
    attention,
    blocks,
    layers,
    watch,
)

LENGTHS = torch.tensor([5, 2])
HIDDEN = torch.arange(5) >= LENGTHS[:, None]  # torch's: True = may not look


def randn(*shape):
    return torch.randn(*shape, dtype=torch.float64)


def copy_attention(ours, theirs):
    layers = [ours.qkv] if isinstance(ours, SelfAttention) else [ours.query, ours.keyvalue]
    with torch.no_grad():
        theirs.in_proj_weight.copy_(torch.cat([layer.weight for layer in layers]))
        theirs.in_proj_bias.copy_(torch.cat([layer.bias for layer in layers]))
    theirs.out_proj.load_state_dict(ours.output.state_dict())


@pytest.mark.parametrize("module", [attention, blocks, layers])
def test_the_examples_in_docstrings(module):
    found = doctest.testmod(module)
    assert found.attempted >= 2
    assert found.failed == 0


@pytest.mark.parametrize("kind", [Attention, SelfAttention])
@torch.no_grad()
def test_attention_is_that_of_torch(kind):
    ours = kind(16, heads=4).double()
    theirs = nn.MultiheadAttention(16, 4, batch_first=True, dtype=torch.float64).eval()
    copy_attention(ours, theirs)
    query, key, value = randn(2, 3, 16), randn(2, 5, 16), randn(2, 5, 16)

    expected, _ = theirs(query, key, value, key_padding_mask=HIDDEN)
    for mask in (LENGTHS, ~HIDDEN[:, None], Mask(key_lengths=LENGTHS)):
        torch.testing.assert_close(ours(query, key, value, mask), expected)
    torch.testing.assert_close(ours(query, key, value), theirs(query, key, value)[0])

    allowed = torch.ones(5, 5, dtype=torch.bool).tril()
    expected, _ = theirs(key, key, key, attn_mask=~allowed)
    for mask in (allowed, allowed[None, None], Mask(causal=True)):
        torch.testing.assert_close(ours(key, key, key, mask), expected)


@torch.no_grad()
def test_attention_is_what_models_ask_for():
    """The same bits as project once, ask often."""
    ours = Attention(8, heads=2)
    query, source = torch.randn(2, 3, 8), torch.randn(2, 5, 8)
    inner = ours.attend_to(query, ours.project(source), Mask(key_lengths=LENGTHS))
    assert torch.equal(ours(query, source, source, LENGTHS), inner)


@torch.no_grad()
def test_the_textbooks_attention():
    """One head without projections; the values may have any width."""
    additive = Attention(6, key_width=5, score="additive", projections=False)
    assert additive(torch.randn(2, 3, 6), torch.randn(2, 4, 5), torch.randn(2, 4, 9)).shape == (
        2,
        3,
        9,
    )
    dot = Attention(4, score="dot", projections=False)
    keys = torch.eye(4)[None] * 50
    with watch(dot) as record:
        torch.testing.assert_close(dot(keys, keys, keys), keys)
    torch.testing.assert_close(record.weights["attention"][0], torch.eye(4)[None, None])


@pytest.mark.parametrize(
    ("mask", "message"),
    [
        (torch.ones(2, 5, dtype=torch.bool), r"mask\[:, None, :\]"),
        (torch.zeros(3, 5), "True = may look"),
        (torch.tensor([5, 2, 1]), r"lengths of the keys as whole numbers, \(2,\)"),
        (torch.ones(7, 5, dtype=torch.bool), r"\(T, S\) = \(3, 5\)"),
    ],
)
def test_a_mask_that_does_not_fit_is_told(mask, message):
    with pytest.raises(UserError, match=message):
        Attention(8)(torch.randn(2, 3, 8), *[torch.randn(2, 5, 8)] * 2, mask)


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        (((2, 3, 7), (2, 5, 8), (2, 5, 8)), r"query has the shape \(2, 3, 7\)"),
        (
            ((3, 8), (5, 8), (5, 8)),
            r"query has the shape \(3, 8\): it must be \(batch, length, 8\)",
        ),
        (((1, 3, 8), (2, 5, 8), (2, 5, 8)), "the same batch size"),
        (((2, 3, 8), (2, 5, 8), (2, 4, 8)), "5 keys and 4 values"),
    ],
)
def test_a_shape_that_does_not_fit_is_told(shapes, message):
    with pytest.raises(UserError, match=message):
        Attention(8)(*(torch.randn(shape) for shape in shapes))


@pytest.mark.parametrize("placement", ["pre", "post"])
@torch.no_grad()
def test_blocks_are_those_of_torch(placement):
    common = {"batch_first": True, "norm_first": placement == "pre", "dtype": torch.float64}
    ours = EncoderBlock(16, heads=4, inner=24, placement=placement).double()
    theirs = nn.TransformerEncoderLayer(16, 4, 24, dropout=0.0, **common)
    copy_attention(ours.attention, theirs.self_attn)
    theirs.linear1.load_state_dict(ours.feed.inner.state_dict())
    theirs.linear2.load_state_dict(ours.feed.outer.state_dict())
    source = randn(2, 5, 16)
    expected = theirs(source, src_key_padding_mask=HIDDEN)
    torch.testing.assert_close(ours(source, LENGTHS), expected)

    ours = DecoderBlock(16, heads=4, inner=24, placement=placement).double()
    theirs = nn.TransformerDecoderLayer(16, 4, 24, dropout=0.0, **common)
    copy_attention(ours.attention, theirs.self_attn)
    copy_attention(ours.cross, theirs.multihead_attn)
    theirs.linear1.load_state_dict(ours.feed.inner.state_dict())
    theirs.linear2.load_state_dict(ours.feed.outer.state_dict())
    x = randn(2, 3, 16)
    future = torch.ones(3, 3, dtype=torch.bool).triu(1)
    expected = theirs(x, source, tgt_mask=future, memory_key_padding_mask=HIDDEN)
    torch.testing.assert_close(ours(x, source, source_mask=LENGTHS), expected)

    everything = Mask()  # the caller's own rule, in place of the causal one
    expected = theirs(x, source, memory_key_padding_mask=HIDDEN)
    torch.testing.assert_close(ours(x, source, everything, LENGTHS), expected)


def test_blocks_learn():
    """Every weight has a gradient, also with lengths, rotary positions and dropout."""
    options = {"heads": 2, "position": "rotary", "norm": "rms", "activation": "swiglu"}
    encoder = EncoderBlock(8, **options, dropout=0.1)
    decoder = DecoderBlock(8, **options, dropout=0.1)
    source = encoder(torch.randn(2, 5, 8), LENGTHS)
    decoder(torch.randn(2, 3, 8), source, LENGTHS.clamp(max=3), LENGTHS).sum().backward()
    for weight in (*encoder.parameters(), *decoder.parameters()):
        assert weight.grad is not None
        assert weight.grad.isfinite().all()


def test_a_feed_forward_of_another_width():
    feed = FeedForward(4, outputs=3)
    assert feed(torch.randn(2, 5, 4)).shape == (2, 5, 3)
    assert feed.inner.out_features == 16
    assert FeedForward(4, 8)(torch.randn(4)).shape == (4,)


def test_a_block_has_the_names_that_saved_runs_hold():
    names = {name.split(".")[0] for name in Block(8, heads=2, crossing=True).state_dict()}
    assert names == {
        "attention",
        "attention_residual",
        "cross",
        "cross_residual",
        "feed",
        "feed_residual",
    }
