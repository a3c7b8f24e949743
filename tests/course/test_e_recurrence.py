"""E. Lecture notes on RNNs: E1, E4 to E6, E9 to E11, E13, E14, E16, E19.

The rows of this group share one text (cells, gates, clipping, depth, beam, BLEU, scores …); each
test says which part of it it takes its row for.
"""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from regard.config import RNNConfig, TrainConfig
from regard.data.batches import collate
from regard.models import Sums, build_model, copy_weights
from regard.nn import SCORES, Attention, Recurrent, watch
from regard.scoring import sentence_bleu
from regard.search import beam, greedy
from regard.text.vocabulary import BOS, EOS, PAD
from regard.training.trainer import Trainer

SIZE = 12
LENGTHS = torch.tensor([5, 3])
SOURCE = torch.tensor([[5, 6, 7, 8, EOS], [9, 10, EOS, PAD, PAD]])
ROWS = [([5, 6, 7, 8, EOS], [BOS, 4, 5, 6, EOS]), ([9, 10, EOS], [BOS, 7, EOS])]


def build(**settings):
    small = {"width": 8, "embedding": 6, "dropout": 0.0, "tie": "none"}
    return build_model(RNNConfig(**{**small, **settings}), SIZE, SIZE)


def with_biases(cells):
    """Cells whose biases are not zero, so that a formula without them would be noticed."""
    with torch.no_grad():
        for parameter in cells.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.2)
    return cells


def weights_of(cells):
    """W, U and the sum of both biases of the first layer."""
    layer = cells.torch
    return layer.weight_ih_l0, layer.weight_hh_l0, layer.bias_ih_l0 + layer.bias_hh_l0


def test_e1_a_plain_rnn(close):
    """h = tanh(Wx + Uh + b), the same weights at every step, of any length."""
    cells = with_biases(Recurrent("rnn", 3, 4))
    w, u, b = weights_of(cells)
    x = torch.randn(2, 6, 3)
    outputs, (final,) = cells(x)
    h = torch.zeros(2, 4)
    for t in range(6):
        h = torch.tanh(x[:, t] @ w.T + h @ u.T + b)
        close(outputs[:, t], h)
    close(final[0], h)


def test_e4_an_lstm(close):
    """Forget, input and output gates; the cell is changed by adding."""
    cells = with_biases(Recurrent("lstm", 3, 4))
    w, u, b = weights_of(cells)
    x = torch.randn(2, 6, 3)
    outputs, (final_h, final_c) = cells(x)
    h = torch.zeros(2, 4)
    c = torch.zeros(2, 4)
    for t in range(6):
        i, f, g, o = (x[:, t] @ w.T + h @ u.T + b).chunk(4, -1)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        h = o.sigmoid() * c.tanh()
        close(outputs[:, t], h)
    close(final_h[0], h)
    close(final_c[0], c)


def test_e4_a_gru(close):
    """Reset and update gates: h = (1 − z) ⊙ n + z ⊙ h."""
    cells = with_biases(Recurrent("gru", 3, 4))
    layer = cells.torch
    x = torch.randn(2, 6, 3)
    outputs, _ = cells(x)
    h = torch.zeros(2, 4)
    for t in range(6):
        from_x = x[:, t] @ layer.weight_ih_l0.T + layer.bias_ih_l0
        from_h = h @ layer.weight_hh_l0.T + layer.bias_hh_l0
        xr, xz, xn = from_x.chunk(3, -1)
        hr, hz, hn = from_h.chunk(3, -1)
        new = torch.tanh(xn + torch.sigmoid(xr + hr) * hn)
        z = torch.sigmoid(xz + hz)
        h = (1 - z) * new + z * h
        close(outputs[:, t], h)


@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_e5_an_open_gate_keeps_what_was_stored(kind, close):
    """With its gates set so, a cell carries its state, and the gradient, over 100 steps unchanged.

    LSTM: forget gate 1, input gate 0. GRU: update gate 1.
    """
    cells = Recurrent(kind, 3, 4)
    with torch.no_grad():
        for parameter in cells.parameters():
            parameter.zero_()
        if kind == "lstm":
            cells.torch.bias_ih_l0[:4] = -1e3  # input
            cells.torch.bias_ih_l0[4:8] = 1e3  # forget
        else:
            cells.torch.bias_ih_l0[4:8] = 1e3  # update
    stored = torch.randn(1, 2, 4, requires_grad=True)
    state = (torch.zeros(1, 2, 4), stored) if kind == "lstm" else (stored,)
    _, final = cells(torch.randn(2, 100, 3), hidden=state)
    close(final[-1], stored)
    (gradient,) = torch.autograd.grad(final[-1].sum(), stored)
    close(gradient, torch.ones_like(stored))


class Steep(nn.Module):
    """A loss of 1000 · Σw a token, whose gradient is the same everywhere."""

    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.zeros(4, 1))

    def loss(self, batch, smoothing=0.0):
        loss = 1000 * self.w.sum() * batch.tokens
        return Sums(loss, loss.detach(), torch.tensor(1), batch.tokens)


def test_e6_clipping_by_the_norm_of_the_whole_gradient(close):
    """g · min(1, c / |g|): a gradient of norm 2000 makes a step of length rate · c, no longer."""
    steps = {}
    for clip in (0.0, 1.0, 1e6):
        model = Steep()
        config = {"optimizer": "sgd", "rate": 0.1, "schedule": "constant", "warmup": 0}
        settings = TrainConfig(**config, precision="fp32", clip=clip)
        batch = collate(ROWS)
        device = torch.device("cpu")
        trainer = Trainer(model, lambda _, batch=batch: batch, settings, steps=1, device=device)
        trainer.update([batch])
        steps[clip] = model.w.detach()[:, 0]

    close(steps[0.0], torch.full((4,), -100.0))
    close(steps[1e6], steps[0.0])  # it is below: nothing is clipped
    close(steps[1.0].norm(), torch.tensor(0.1))
    close(steps[1.0], steps[0.0] / 2000)  # the direction stays


def test_e9_both_directions(close):
    """Forwards and backwards side by side; each sentence is turned around at its own end."""
    cells = with_biases(Recurrent("rnn", 3, 4, bidirectional=True))
    forwards = Recurrent("rnn", 3, 4)
    backwards = Recurrent("rnn", 3, 4)
    with torch.no_grad():
        for name, parameter in forwards.torch.named_parameters():
            parameter.copy_(getattr(cells.torch, name))
        for name, parameter in backwards.torch.named_parameters():
            parameter.copy_(getattr(cells.torch, name + "_reverse"))

    x = torch.randn(2, 5, 3)
    outputs, _ = cells(x, LENGTHS)
    for row, length in enumerate(LENGTHS.tolist()):
        sentence = x[row : row + 1, :length]
        there, _ = forwards(sentence)
        back, _ = backwards(sentence.flip(1))
        close(outputs[row, :length], torch.cat((there, back.flip(1)), -1)[0])
        assert outputs[row, length:].eq(0).all()


def test_e10_layers_on_top_of_each_other(close):
    """The second layer reads the states of the first."""
    cells = with_biases(Recurrent("gru", 3, 4, layers=2))
    first = Recurrent("gru", 3, 4)
    second = Recurrent("gru", 4, 4)
    with torch.no_grad():
        for name, parameter in first.torch.named_parameters():
            parameter.copy_(getattr(cells.torch, name))
        for name, parameter in second.torch.named_parameters():
            parameter.copy_(getattr(cells.torch, name.replace("l0", "l1")))
    x = torch.randn(2, 5, 3)
    outputs, (final,) = cells(x)
    below, (final_below,) = first(x)
    above, (final_above,) = second(below)
    close(outputs, above)
    close(final, torch.cat((final_below, final_above)))


def test_e11_the_loss_of_a_sentence_is_the_sum_of_its_tokens(close):
    """Teacher forcing: −Σ log P(yₜ | y₁ … yₜ₋₁, x), each from the true tokens before it."""
    model = build()
    batch = collate(ROWS)
    total = torch.zeros(())
    for source, target in ROWS:
        length = torch.tensor([len(source)])
        for t in range(1, len(target)):
            logits = model(torch.tensor([source]), length, torch.tensor([target[:t]]))
            total = total - logits[0, -1].log_softmax(-1)[target[t]]
    close(model.loss(batch).loss, total)


@torch.no_grad()
def test_e13_beam_search_with_an_rnn():
    """Greedy takes the best token each time; a beam is never worse by its own measure."""
    model = build().eval()
    state = model.decoder.start(model.encoder(SOURCE, LENGTHS))
    first = greedy(model.step, state, batch=2, limit=[6, 6], length_penalty=0.0)
    narrow = beam(model.step, state, width=1, batch=2, limit=[6, 6], length_penalty=0.0)
    assert [[one.tokens] for one in first] == [[one.tokens for one in found] for found in narrow]
    wide = beam(model.step, state, width=60, n_best=60, batch=2, limit=[2, 2], length_penalty=0.0)
    for row, found in enumerate(wide):
        assert [one.tokens for one in found[:1]] == [exhaustive(model, row)]


def exhaustive(model, row):
    """The most likely answer of up to two steps, <eos> counted, by trying all."""
    source = SOURCE[row : row + 1]
    length = LENGTHS[row : row + 1]
    chances = {}

    def logprobs(read):
        logits = model(source, length, torch.tensor([[BOS, *read]]))[0, -1]
        logits[[PAD, BOS]] = -torch.inf
        return logits.log_softmax(-1).tolist()

    first = logprobs([])
    for a in range(2, SIZE):
        if a == EOS:
            chances[()] = first[a]
            continue
        second = logprobs([a])
        for b in range(2, SIZE):
            answer = (a,) if b == EOS else (a, b)
            chances[answer] = first[a] + second[b]
    return list(max(chances, key=chances.get))


def test_e14_bleu():
    """exp(min(0, 1 − |ref| / |hyp|)) · Π pₙ^(1/2ⁿ), as the notes count it by hand."""
    reference = list("ABCDEF")
    found = sentence_bleu(list("ABBCD"), reference, order=2)
    precisions = (4 / 5, 3 / 4)
    expected = math.exp(1 - 6 / 5) * precisions[0] ** 0.5 * precisions[1] ** 0.25
    assert found == pytest.approx(expected)
    assert sentence_bleu(reference, reference, order=4) == 1
    assert sentence_bleu(["X"], reference) == 0
    assert sentence_bleu([], reference) == 0


def test_e16_attention_looks_past_the_bottleneck():
    """Without attention the decoder knows the final state only; with it, every state."""
    for attention in ("none", "before", "after"):
        model = build(attention=attention, bidirectional=False, bridge="layers")
        memory = model.encoder(SOURCE, LENGTHS)
        states = memory.states.detach().requires_grad_()
        state = model.decoder.start(type(memory)(states, LENGTHS, memory.final))
        logits, _ = model.decoder(torch.tensor([[BOS, 4], [BOS, 5]]), state)
        if attention == "none":
            assert torch.autograd.grad(logits.sum(), states, allow_unused=True) == (None,)
            continue
        (gradient,) = torch.autograd.grad(logits.square().sum(), states)
        reached = gradient.abs().sum(-1) > 0
        assert torch.equal(reached, torch.arange(5) < LENGTHS[:, None])


def test_e16_the_context_is_a_mean_by_weights_that_sum_to_one(close):
    attention = Attention(8, score="additive", projections=False)
    query = torch.randn(2, 1, 8)
    states = torch.randn(2, 5, 8)
    with watch(attention) as record:
        context = attention(query, states, states, LENGTHS)
    (weights,) = record.weights["attention"]
    close(weights.sum(-1), torch.ones(2, 1, 1))
    assert weights[1, 0, 0, 3:].eq(0).all()
    close(context, weights[:, 0] @ states)


@pytest.mark.parametrize("name", ["dot", "multiplicative", "additive"])
def test_e19_scores(name, close):
    """s·h, sᵀWh and vᵀtanh(W₁h + W₂s), and the last two for states of different widths."""
    key_width = 4 if name == "dot" else 6
    score = SCORES[name](1, 4, key_width)
    query = torch.randn(2, 1, 3, 4)
    key = torch.randn(2, 1, 5, key_width)
    found = score(query, score.prepare(key))
    assert found.shape == (2, 1, 3, 5)
    for b, t, s in ((0, 0, 0), (1, 2, 4), (0, 1, 3)):
        q = query[b, 0, t]
        k = key[b, 0, s]
        if name == "dot":
            expected = q @ k
        elif name == "multiplicative":
            expected = q @ score.weight[0] @ k
        else:
            expected = torch.tanh(k @ score.w1[0] + q @ score.w2[0]) @ score.v[0, :, 0]
        close(found[b, 0, t, s], expected)


def test_e19_the_books_luong_decoder(close):
    """A GRU whose state asks, and tanh(W[context; state]) before the output (Luong et al. 2015)."""
    model = build(
        cell="gru", attention="after", score="multiplicative", bridge="layers", bidirectional=False
    )
    rnn = nn.GRU(6, 8, batch_first=True)
    copy_weights(rnn, model.decoder.cells)
    memory = model.encoder(SOURCE, LENGTHS)
    target = torch.tensor([[BOS, 4, 5], [BOS, 6, 7]])

    out, _ = rnn(F.embedding(target, model.decoder.embedding.weight), memory.final[0])
    scores = out @ model.decoder.attention.score.weight[0] @ memory.states.mT  # (B, T, S)
    hidden = torch.arange(5) >= LENGTHS[:, None]
    weights = scores.masked_fill(hidden[:, None], -torch.inf).softmax(-1)
    both = torch.cat((weights @ memory.states, out), -1)
    expected = model.decoder.out(torch.tanh(model.decoder.readout(both)))
    close(model(SOURCE, LENGTHS, target), expected)
