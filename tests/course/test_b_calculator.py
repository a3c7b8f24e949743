"""B. Learning to calculate."""

import re

import torch
import torch.nn.functional as F
from torch import nn

from regard.config import TextConfig, TransformerConfig
from regard.data.batches import collate
from regard.data.splits import open_data
from regard.models import build_model, copy_weights
from regard.nn import sinusoids
from regard.presets import preset
from regard.text.tokenizer import train_tokenizer
from regard.text.vocabulary import BOS, EOS

SIZE = 16  # ten digits, two signs, four special tokens
PAD = 0


class Course(nn.Module):
    """The course's network: one embedding, `nn.Transformer`, a linear layer."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(SIZE, 64)
        self.transformer = nn.Transformer(64, 4, 2, 2, 64, dropout=0.0, batch_first=True)
        self.out = nn.Linear(64, SIZE)
        with torch.no_grad():  # so that no bias is zero and no norm is one
            for parameter in self.parameters():
                parameter.add_(torch.randn_like(parameter), alpha=0.05)

    def forward(self, source, target):
        hidden = source == PAD
        future = nn.Transformer.generate_square_subsequent_mask(target.shape[1]).isinf()
        states = self.transformer(
            self.embedded(source),
            self.embedded(target),
            tgt_mask=future,
            src_key_padding_mask=hidden,
            memory_key_padding_mask=hidden,
        )
        return self.out(states)

    def embedded(self, tokens):
        places = sinusoids(torch.arange(tokens.shape[1]), 64).to(torch.float64)
        return self.embedding(tokens) + places


def ours_of(theirs):
    """Our network of this setting, with their weights."""
    settings = preset("course")["model"]
    model = build_model(TransformerConfig(**{**settings, **NO_DROPOUT}), SIZE, SIZE)
    copy_weights(theirs.transformer, model)
    copy_weights(theirs.embedding, model.encoder.embedding)
    copy_weights(theirs.out, model.decoder.out)
    return model


NO_DROPOUT = {
    "dropout": 0.0,
    "embedding_dropout": 0.0,
    "attention_dropout": 0.0,
    "activation_dropout": 0.0,
}


def formulas(count=20):
    """Questions and answers of different lengths, as ids."""
    draw = torch.Generator().manual_seed(1)

    def row(longest):
        length = int(torch.randint(1, longest, (), generator=draw))
        return torch.randint(4, SIZE, (length,), generator=draw).tolist()

    return collate([([*row(8), EOS], [BOS, *row(5), EOS]) for _ in range(count)])


def test_b18_this_network_exactly(close, steps):
    theirs = Course()
    ours = ours_of(theirs)
    batch = formulas()
    assert ours.decoder.embedding is ours.encoder.embedding
    assert ours.decoder.out.weight is not ours.decoder.embedding.weight

    def their_loss():
        logits = theirs(batch.source, batch.target_in)
        return F.cross_entropy(logits.flatten(0, 1), batch.target_out.flatten(), ignore_index=PAD)

    def our_loss():
        return ours.loss(batch).loss / batch.tokens

    real = batch.target_in != PAD
    found = ours(batch.source, batch.source_lengths, batch.target_in)
    close(found[real], theirs(batch.source, batch.target_in)[real])

    their_losses = steps(theirs, their_loss)
    our_losses = steps(ours, our_loss)
    close(torch.tensor(our_losses), torch.tensor(their_losses))
    assert our_losses[-1] < our_losses[0]
    found = ours(batch.source, batch.source_lengths, batch.target_in)
    close(found[real], theirs(batch.source, batch.target_in)[real])


def test_b3_a_vocabulary_of_sixteen():
    options = preset("course")["data"]["options"]
    formulas = open_data("arithmetic", options={**options, "train": 200})
    texts = [text for pair in formulas.train for text in (pair.source, *pair.targets)]
    text = TextConfig(**preset("course")["text"])
    tokenizer = train_tokenizer(text.tokenizer, texts, size=text.size, reserved=text.reserved)
    assert tokenizer.size == SIZE


def test_b_longer_formulas_than_in_training():
    splits = open_data("arithmetic", options={"train": 200, "test": 50})
    longest = max(len(pair.source) for pair in splits.train)
    assert longest <= len("-1000-1000")
    pairs = list(splits.long)
    assert len(pairs) == 50
    for pair in pairs:
        first, sign, second = re.fullmatch(r"(-?\d{5})([+-])(\d{5})", pair.source).groups()
        total = int(first) + int(sign + second)
        assert pair.targets == (str(total),)
