"""A. The Transformer for translation, in d2l's setting."""

import math
import re
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

import regard
from regard.config import RNNConfig, TransformerConfig
from regard.data.batches import collate
from regard.models import build_model, copy_weights
from regard.nn import sinusoids
from regard.presets import preset
from regard.text.vocabulary import BOS, EOS

SOURCE = 20
TARGET = 24
PAD = 0
WIDTH = 32
HEADS = 4


class AddNorm(nn.Module):
    """LN(X + Y)."""

    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, x, y):
        return self.norm(x + y)


class Block(nn.Module):
    """The book's block: attention without biases, the norm after each sum."""

    def __init__(self, crossing):
        super().__init__()
        self.attention = nn.MultiheadAttention(WIDTH, HEADS, bias=False, batch_first=True)
        self.add1 = AddNorm()
        if crossing:
            self.cross = nn.MultiheadAttention(WIDTH, HEADS, bias=False, batch_first=True)
            self.add2 = AddNorm()
        self.dense1 = nn.Linear(WIDTH, 8)
        self.dense2 = nn.Linear(8, WIDTH)
        self.add3 = AddNorm()

    def forward(self, x, hidden=None, memory=None):
        if memory is None:
            y, _ = self.attention(x, x, x, key_padding_mask=hidden)
            x = self.add1(x, y)
        else:
            future = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
            y, _ = self.attention(x, x, x, attn_mask=future)
            x = self.add1(x, y)
            y, _ = self.cross(x, memory, memory, key_padding_mask=hidden)
            x = self.add2(x, y)
        return self.add3(x, self.dense2(F.relu(self.dense1(x))))


class Book(nn.Module):
    """Embeddings times √d plus sinusoids, two blocks on each side, a dense layer with a bias."""

    def __init__(self):
        super().__init__()
        self.source = nn.Embedding(SOURCE, WIDTH)
        self.target = nn.Embedding(TARGET, WIDTH)
        self.encoder = nn.ModuleList(Block(crossing=False) for _ in range(2))
        self.decoder = nn.ModuleList(Block(crossing=True) for _ in range(2))
        self.dense = nn.Linear(WIDTH, TARGET)
        with torch.no_grad():  # so that no bias is zero and no norm is one
            for parameter in self.parameters():
                parameter.add_(torch.randn_like(parameter), alpha=0.05)

    def forward(self, source, target):
        hidden = source == PAD
        memory = self.entered(self.source, source)
        for block in self.encoder:
            memory = block(memory, hidden)
        x = self.entered(self.target, target)
        for block in self.decoder:
            x = block(x, hidden, memory)
        return self.dense(x)

    def entered(self, embedding, tokens):
        places = sinusoids(torch.arange(tokens.shape[1]), WIDTH).to(torch.float64)
        return embedding(tokens) * math.sqrt(WIDTH) + places


def ours_of(book):
    """Our network in the preset's setting, narrower, without dropout, with the book's weights."""
    settings = {**preset("d2l")["model"], "width": WIDTH, "ffn": 8}
    no_dropout = {"dropout": 0.0, "attention_dropout": 0.0}
    model = build_model(TransformerConfig(**{**settings, **no_dropout}), SOURCE, TARGET)

    copy_weights(book.source, model.encoder.embedding)
    copy_weights(book.target, model.decoder.embedding)
    copy_weights(book.dense, model.decoder.out)
    theirs = [*book.encoder, *book.decoder]
    ours = [*model.encoder.blocks, *model.decoder.blocks]
    for their_block, our_block in zip(theirs, ours, strict=True):
        copy_weights(their_block.attention, our_block.attention)
        copy_weights(their_block.add1.norm, our_block.attention_residual.norm)
        if hasattr(their_block, "cross"):
            copy_weights(their_block.cross, our_block.cross)
            copy_weights(their_block.add2.norm, our_block.cross_residual.norm)
        copy_weights(their_block.dense1, our_block.feed.inner)
        copy_weights(their_block.dense2, our_block.feed.outer)
        copy_weights(their_block.add3.norm, our_block.feed_residual.norm)
    return model


def sentences(count=12):
    draw = torch.Generator().manual_seed(2)

    def row(size):
        length = int(torch.randint(1, 8, (), generator=draw))
        return torch.randint(4, size, (length,), generator=draw).tolist()

    return collate([([*row(SOURCE), EOS], [BOS, *row(TARGET), EOS]) for _ in range(count)])


def test_a10_bias_in_the_output_layer():
    model = build_model(TransformerConfig(width=16, heads=2, output_bias=True), 30, 30)
    assert model.decoder.out.bias.shape == (30,)
    assert build_model(TransformerConfig(width=16, heads=2), 30, 30).decoder.out.bias is None


def test_a11_this_setting_exactly(close, steps):
    book = Book()
    ours = ours_of(book)
    batch = sentences()
    real = batch.target_in != PAD

    def book_loss():
        logits = book(batch.source, batch.target_in)
        return F.cross_entropy(logits.flatten(0, 1), batch.target_out.flatten(), ignore_index=PAD)

    def our_loss():
        return ours.loss(batch).loss / batch.tokens

    found = ours(batch.source, batch.source_lengths, batch.target_in)
    close(found[real], book(batch.source, batch.target_in)[real])
    close(torch.tensor(steps(ours, our_loss)), torch.tensor(steps(book, book_loss)))
    found = ours(batch.source, batch.source_lengths, batch.target_in)
    close(found[real], book(batch.source, batch.target_in)[real])


def test_a11_the_preset_is_the_books_setting():
    settings = preset("d2l")
    model = settings["model"]
    assert (model["width"], model["ffn"], model["heads"]) == (256, 64, 4)
    assert (model["encoder_layers"], model["decoder_layers"]) == (2, 2)
    assert model["dropout"] == model["attention_dropout"] == 0.2
    assert settings["train"]["betas"] == [0.9, 0.999]
    assert settings["train"]["epochs"] == 30
    assert settings["data"]["limit"] == 512


def scores_of_the_page():
    """The classes that the page about own parts defines."""
    page = Path(__file__).parents[2] / "docs" / "how-to" / "your-own-parts.md"
    blocks = re.findall(r"^```python\n(.*?)^```", page.read_text("utf-8"), re.M | re.S)
    (code,) = [block for block in blocks if "class Featurewise" in block]
    names = {"torch": torch, "nn": regard.nn}
    exec(code, names)
    return names["Featurewise"], names["Mixed"]


def test_a15_other_scores(close):
    """A weight for each feature, and a mixture of two scores."""
    featurewise, mixed = scores_of_the_page()
    query = torch.randn(2, 3, 4, 6)
    key = torch.randn(2, 3, 5, 6)

    score = featurewise(3, 6, 6)
    torch.nn.init.normal_(score.weight)
    weights = score.weight.expand(3, 5, 6)
    expected = torch.einsum("bhti,bhsi,hsi->bhts", query, key, weights)
    close(score(query, score.prepare(key)), expected)

    score = mixed(3, 6, 6)
    found = score(query, score.prepare(key))
    dot = score.dot(query, key)
    additive = score.additive(query, score.additive.prepare(key))
    close(found, (dot + additive) / 2)


def test_a15_they_decode_as_they_train(close):
    """With a cache, token by token, as a whole; in a Transformer and in an RNN."""
    batch = sentences()
    for score in scores_of_the_page():
        parts = {"score": score}
        name = f"custom:{score.__name__}"
        transformer = TransformerConfig(width=16, heads=2, score=name, tie="none")
        for config in (transformer, RNNConfig(width=16, score=name)):
            model = build_model(config, SOURCE, TARGET, parts).eval()
            whole = model(batch.source, batch.source_lengths, batch.target_in)
            state = model.decoder.start(model.encoder(batch.source, batch.source_lengths))
            for step in range(batch.target_in.shape[1]):
                logits, state = model.step(batch.target_in[:, step], state)
                close(logits, whole[:, step])
