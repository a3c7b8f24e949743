"""A. The Transformer for translation, part by part: A1 to A9."""

import torch
import torch.nn.functional as F
from torch import nn

from regard.config import TransformerConfig
from regard.models import build_model, copy_weights
from regard.nn import (
    Attention,
    DecoderBlock,
    EncoderBlock,
    FeedForward,
    Mask,
    Residual,
    sinusoids,
    watch,
)

WIDTH = 24
HEADS = 4
SIZE = 20
LENGTHS = torch.tensor([5, 2])
HIDDEN = torch.arange(5) >= LENGTHS[:, None]  # torch's masks: True = may not look
SOURCE = torch.tensor([[5, 6, 7, 8, 2], [9, 2, 0, 0, 0]])
TARGET = torch.tensor([[1, 11, 12, 13], [1, 14, 15, 16]])
BOOK = {"placement": "post", "inner": 8, "bias": False}


def shake(module):
    """Move all weights, so that no bias is zero and no norm is one."""
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.1)
    return module


class BookBlock(nn.Module):
    """The book's block: X = LN(X + attention(X)) …, attention without biases."""

    def __init__(self, *, crossing=False):
        super().__init__()
        self.attention = nn.MultiheadAttention(WIDTH, HEADS, bias=False, batch_first=True)
        self.norm1 = nn.LayerNorm(WIDTH)
        if crossing:
            self.cross = nn.MultiheadAttention(WIDTH, HEADS, bias=False, batch_first=True)
            self.norm2 = nn.LayerNorm(WIDTH)
        self.dense1 = nn.Linear(WIDTH, 8)
        self.dense2 = nn.Linear(8, WIDTH)
        self.norm3 = nn.LayerNorm(WIDTH)
        shake(self)

    def forward(self, x, memory=None, *, hidden=None):
        if memory is None:
            x = self.norm1(x + self.attention(x, x, x, key_padding_mask=hidden)[0])
        else:
            future = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
            x = self.norm1(x + self.attention(x, x, x, attn_mask=future)[0])
            x = self.norm2(x + self.cross(x, memory, memory, key_padding_mask=hidden)[0])
        return self.norm3(x + self.dense2(F.relu(self.dense1(x))))

    def carry_over(self, ours):
        """Put the weights of this block into one of ours."""
        copy_weights(self.attention, ours.attention)
        copy_weights(self.norm1, ours.attention_residual.norm)
        if hasattr(self, "cross"):
            copy_weights(self.cross, ours.cross)
            copy_weights(self.norm2, ours.cross_residual.norm)
        copy_weights(self.dense1, ours.feed.inner)
        copy_weights(self.dense2, ours.feed.outer)
        copy_weights(self.norm3, ours.feed_residual.norm)


def transformer(**settings):
    """The book's network, of two blocks on each side, without dropout."""
    book = {"placement": "post", "bias": False, "output_bias": True, "tie": "none", "dropout": 0.0}
    sizes = {"width": WIDTH, "heads": HEADS, "ffn": 8, "encoder_layers": 2, "decoder_layers": 2}
    return shake(build_model(TransformerConfig(**book, **sizes, **settings), SIZE, SIZE)).eval()


def test_a1_position_wise_feed_forward(close):
    """ReLU between two dense layers, an output width of its own, each position by itself."""
    feed = FeedForward(4, 6, outputs=8)
    dense1 = shake(nn.Linear(4, 6))
    dense2 = shake(nn.Linear(6, 8))
    copy_weights(dense1, feed.inner)
    copy_weights(dense2, feed.outer)

    x = torch.randn(2, 3, 4)
    out = feed(x)
    assert out.shape == (2, 3, 8)
    close(out, dense2(F.relu(dense1(x))))

    same = feed(torch.ones(2, 3, 4))
    close(same, same[:1, :1].expand(2, 3, 8))
    close(feed(x[:, 1:2]), out[:, 1:2])


def test_a2_add_and_norm(close):
    """LN(X + dropout(Y)): X is left alone, of Y half is dropped and the rest doubled."""
    add_norm = Residual(WIDTH, norm="layer", placement="post", dropout=0.5)
    x = torch.randn(2, 3, WIDTH)
    y = torch.randn(2, 3, WIDTH)

    normalise = nn.LayerNorm(WIDTH)
    shake(normalise)
    copy_weights(normalise, add_norm.norm)
    close(add_norm.eval()(x, lambda _: y), normalise(x + y))

    seen = []
    add_norm.norm.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    out = add_norm.train()(x, lambda _: y)
    (total,) = seen
    dropped = total - x
    kept = dropped.abs() > 1e-12
    assert 0 < kept.sum() < kept.numel()
    close(dropped, torch.where(kept, 2 * y, 0.0))
    close(out, normalise(total))


def test_a3_multi_head_attention_with_copied_weights(close):
    theirs = shake(nn.MultiheadAttention(WIDTH, HEADS, bias=False, batch_first=True))
    ours = Attention(WIDTH, heads=HEADS, bias=False)
    copy_weights(theirs, ours)
    query = torch.randn(2, 3, WIDTH)
    source = torch.randn(2, 5, WIDTH)

    expected, expected_weights = theirs(
        query, source, source, key_padding_mask=HIDDEN, average_attn_weights=False
    )
    with watch(ours) as record:
        close(ours(query, source, source, LENGTHS), expected)
    close(record.weights["attention"][0], expected_weights)


def test_a4_one_encoder_block_alone(close):
    """One object, one call: (B, T, D) in and out."""
    book = BookBlock()
    block = EncoderBlock(WIDTH, heads=HEADS, **BOOK)
    book.carry_over(block)
    x = torch.randn(2, 5, WIDTH)
    out = block(x, mask=LENGTHS)
    assert out.shape == x.shape
    real = ~HIDDEN
    close(out[real], book(x, hidden=HIDDEN)[real])


def test_a4_one_decoder_block_alone(close):
    """One object, one call, causal by itself."""
    book = BookBlock(crossing=True)
    block = DecoderBlock(WIDTH, heads=HEADS, **BOOK)
    book.carry_over(block)
    x = torch.randn(2, 4, WIDTH)
    memory = torch.randn(2, 5, WIDTH)
    out = block(x, memory, source_mask=LENGTHS)
    assert out.shape == x.shape
    close(out, book(x, memory, hidden=HIDDEN))


def test_a5_encoder_with_copied_weights(close):
    """The book's encoder, to 1e-9: embeddings times √d, sinusoids, two blocks."""
    model = transformer()
    blocks = [BookBlock(), BookBlock()]
    for book, ours in zip(blocks, model.encoder.blocks, strict=True):
        book.carry_over(ours)

    x = F.embedding(SOURCE, model.encoder.embedding.weight) * WIDTH**0.5
    x = x + positions(5)
    for book in blocks:
        x = book(x, hidden=HIDDEN)
    found = model.encoder(SOURCE, LENGTHS).states
    assert found.shape == (2, 5, WIDTH)
    real = ~HIDDEN
    close(found[real], x[real])


def test_a6_decoder_with_copied_weights(close):
    """The book's decoder over the same memory, to 1e-9, up to the logits."""
    model = transformer()
    blocks = [BookBlock(crossing=True), BookBlock(crossing=True)]
    for book, ours in zip(blocks, model.decoder.blocks, strict=True):
        book.carry_over(ours)

    memory = model.encoder(SOURCE, LENGTHS)
    x = F.embedding(TARGET, model.decoder.embedding.weight) * WIDTH**0.5
    x = x + positions(4)
    for book in blocks:
        x = book(x, memory.states, hidden=HIDDEN)
    logits, _ = model.decoder(TARGET, model.decoder.start(memory))
    close(logits, x @ model.decoder.out.weight.T + model.decoder.out.bias)


def positions(length):
    """The sinusoids, whose formula C12 holds, in the float32 in which models add them."""
    return sinusoids(torch.arange(length), WIDTH).to(torch.float64)


def test_a7_weights_of_every_block():
    """Every block's weights can be read: rows sum to one, padding and future have weight zero."""
    model = transformer()
    with watch(model) as record, torch.no_grad():
        model(SOURCE, LENGTHS, TARGET)

    encoder = [f"encoder.blocks.{i}.attention" for i in range(2)]
    decoder = [f"decoder.blocks.{i}.attention" for i in range(2)]
    cross = [f"decoder.blocks.{i}.cross" for i in range(2)]
    assert set(record.weights) == {*encoder, *decoder, *cross}

    shapes = [(encoder, (2, HEADS, 5, 5)), (decoder, (2, HEADS, 4, 4)), (cross, (2, HEADS, 4, 5))]
    for names, shape in shapes:
        for name in names:
            (weights,) = record.weights[name]
            assert weights.shape == shape
            assert torch.allclose(weights.sum(-1), torch.ones(shape[:-1]))
    for name in [*encoder, *cross]:
        assert record.weights[name][0][1, :, :, 2:].eq(0).all()
    for name in decoder:
        assert record.weights[name][0].triu(1).eq(0).all()


def test_a8_the_cache_gives_what_the_whole_gives(close):
    """Token by token with kept keys and values = the whole target at once."""
    model = transformer()
    whole = model(SOURCE, LENGTHS, TARGET)
    state = model.decoder.start(model.encoder(SOURCE, LENGTHS))
    for step in range(TARGET.shape[1]):
        logits, state = model.step(TARGET[:, step], state)
        close(logits, whole[:, step])


def test_a9_lengths_one_to_t_for_each_query_are_the_causal_mask(close):
    """The book trains its decoder with `dec_valid_lens` = 1 … T for each query."""
    attention = shake(Attention(WIDTH, heads=HEADS, bias=False))
    x = torch.randn(2, 4, WIDTH)
    lengths = torch.arange(1, 5).repeat(2, 1)  # (B, T)
    by_length = attention(x, x, x, lengths)
    close(by_length, attention(x, x, x, Mask(causal=True)))
    assert not torch.allclose(by_length, attention(x, x, x))
