"""C. Attention in parts: the recurrent decoder."""

import pytest
import torch
from torch import nn

from regard.config import RNNConfig
from regard.errors import UserError
from regard.models import build_model, copy_weights
from regard.nn import sinusoids
from regard.pictures.heatmaps import heatmap
from regard.pictures.positions import positions_figure
from regard.text.vocabulary import BOS

SIZE = 20
PAD = 0
SOURCE = torch.tensor([[5, 6, 7, 8, 2], [9, 10, 2, PAD, PAD]])
LENGTHS = torch.tensor([5, 3])
TARGET = torch.tensor([[BOS, 11, 12], [BOS, 13, 14]])


def build(**settings):
    plain = {"bridge": "layers", "bidirectional": False, "dropout": 0.0, "cell": "gru"}
    sizes = {"width": 16, "embedding": 12, "encoder_layers": 2, "decoder_layers": 2}
    return build_model(RNNConfig(**{**plain, **sizes, **settings}), SIZE, SIZE)


class BookDecoder(nn.Module):
    """d2l's decoder with attention: additive, before a GRU of two layers, and `dense(state)`."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(SIZE, 12)
        self.w_query = nn.Linear(16, 16, bias=False)
        self.w_key = nn.Linear(16, 16, bias=False)
        self.v = nn.Linear(16, 1, bias=False)
        self.rnn = nn.GRU(12 + 16, 16, 2, batch_first=True)
        self.dense = nn.Linear(16, SIZE)

    def forward(self, tokens, memory, hidden, lengths):
        outputs = []
        for token in tokens.T:
            query = hidden[-1][:, None]  # (B, 1, D)
            scores = self.v(torch.tanh(self.w_query(query) + self.w_key(memory)))[..., 0]  # (B, S)
            seen = torch.arange(memory.shape[1]) < lengths[:, None]
            weights = scores.masked_fill(~seen, -torch.inf).softmax(-1)
            context = (weights[:, None] @ memory)[:, 0]  # (B, D)
            x = torch.cat((self.embedding(token), context), dim=-1)
            out, hidden = self.rnn(x[:, None], hidden)
            outputs.append(self.dense(out[:, 0]))
        return torch.stack(outputs, dim=1)


def test_c6_and_c7_the_books_decoder(close):
    """The readout is `dense(state)`, and layers start from the encoder's states of their own."""
    model = build(attention="before", score="additive", readout="state")
    book = BookDecoder()
    copy_weights(book.embedding, model.decoder.embedding)
    copy_weights(book.rnn, model.decoder.cells)
    copy_weights(book.dense, model.decoder.out)
    score = model.decoder.attention.score
    with torch.no_grad():
        score.w1[0].copy_(book.w_key.weight.T)
        score.w2[0].copy_(book.w_query.weight.T)
        score.v.view(-1).copy_(book.v.weight.view(-1))

    memory = model.encoder(SOURCE, LENGTHS)
    (hidden,) = memory.final
    close(model(SOURCE, LENGTHS, TARGET), book(TARGET, memory.states, hidden, LENGTHS))


def test_c7_every_layer_starts_from_the_same_layer():
    model = build(attention="none")
    memory = model.encoder(SOURCE, LENGTHS)
    _, hidden = model.encoder.cells(model.encoder.embedding(SOURCE), LENGTHS)
    (start,) = model.decoder.start(memory).hidden
    assert torch.equal(start, hidden[0])


@pytest.mark.parametrize("attention", ["before", "after"])
def test_e17_dense_of_context_and_state(attention, close):
    model = build(attention=attention, readout="context")
    assert model.decoder.out.weight.shape == (SIZE, 32)
    state = model.decoder.start(model.encoder(SOURCE, LENGTHS))
    both, _ = model.decoder.hidden(TARGET, state)
    assert both.shape == (2, 3, 32)
    close(model(SOURCE, LENGTHS, TARGET), model.decoder.out(both))


def test_c4_axis_labels_of_a_heatmap():
    words = ["a", "b", "c"]
    figure = heatmap(torch.eye(3), words, words, xlabel="Keys", ylabel="Queries")
    assert figure.axes[0].get_xlabel() == "Keys"
    assert figure.axes[0].get_ylabel() == "Queries"


def test_c14_columns_six_to_nine_of_the_sinusoids():
    table = sinusoids(torch.arange(60), 32)
    figure = positions_figure(table, "sinusoidal", columns=range(6, 10))
    lines = figure.axes[1].get_lines()
    assert [line.get_label() for line in lines] == [f"dimension {i}" for i in range(6, 10)]
    for line, column in zip(lines, range(6, 10)):
        angle = torch.arange(60) / 10_000 ** ((column - column % 2) / 32)
        expected = angle.cos() if column % 2 else angle.sin()
        assert torch.allclose(torch.tensor(line.get_ydata()), expected, atol=1e-5)
    with pytest.raises(UserError, match="from 0 to 31"):
        positions_figure(table, "sinusoidal", columns=[40])
