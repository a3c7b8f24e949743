"""B36. An RNN online: an output for every input, and wait-k as for Transformers."""

from dataclasses import replace

import pytest
import torch

import regard
from regard.config import RNNConfig
from regard.data.batches import collate
from regard.errors import UserError
from regard.inference.online import Sentence
from regard.inference.translator import Translator
from regard.models import build_model
from regard.recipes.evaluation import evaluate_waiting
from regard.recipes.reporter import Reporter
from regard.search import Rules
from regard.text.tokenizer import train_tokenizer
from regard.text.vocabulary import BOS, EOS

SIZE = 20
SOURCE = [7, 12, 5, 19, 8]
ONE_WAY = RNNConfig(width=12, embedding=8, bidirectional=False, dropout=0.0)
CELLS = ("linear", "rnn", "gru", "lstm")


def small(**settings):
    """A model whose answers do not all end at once."""
    model = build_model(replace(ONE_WAY, **settings), SIZE, SIZE).eval()
    with torch.no_grad():
        model.decoder.out.weight.mul_(5)
        model.decoder.out.bias[EOS] = -5
    return model


def recorded(model):
    """The logits of every step that the model takes from now on."""
    logits = []
    step = model.step

    def recording(tokens, state):
        new, state = step(tokens, state)
        logits.append(new[0].clone())
        return new, state

    model.step = recording
    return logits


def fresh_logits(model, prefix, written, wait):
    """Those after the tokens written, by a model that reads this part of the source anew."""
    model.wait_for(wait)
    source = torch.tensor([prefix])
    logits = model(source, torch.tensor([len(prefix)]), torch.tensor([written]))[0, -1]
    model.wait_for(0)
    return logits


@pytest.mark.parametrize("attention", ["before", "after", "none"])
@pytest.mark.parametrize("cell", CELLS)
@torch.no_grad()
def test_b36_every_input_has_its_output(cell, attention, close):
    """After source token t stands target token t: the one that a fresh reading gives."""
    for wait in (1, 2):
        model = small(cell=cell, attention=attention, encoder_layers=2, decoder_layers=2)
        logits = recorded(model)
        sentence = Sentence(model, Rules(), wait)
        for count, token in enumerate(SOURCE, 1):
            sentence.read(token)
            assert len(sentence.tokens) - 1 == max(0, count - wait + 1)  # as many as it may
            if len(sentence.tokens) > 1:
                expected = fresh_logits(model, SOURCE[:count], sentence.tokens[:-1], wait)
                close(logits[-1], expected)
        assert len(logits) == len(SOURCE) - wait + 1  # a step for each, none twice


@pytest.mark.parametrize("attention", ["before", "after", "none"])
@torch.no_grad()
def test_b36_logits_are_those_of_a_fresh_reading(attention, close):
    """Not only the tokens, and whatever comes later in the source."""
    model = small(cell="lstm", attention=attention, wait=1)
    target = torch.tensor([[BOS, 5, 6, 7, 8, 9]])
    whole = model(torch.tensor([[*SOURCE, EOS]]), torch.tensor([6]), target)
    for count in range(1, 6):
        prefix = torch.tensor([SOURCE[:count]])
        fresh = model(prefix, torch.tensor([count]), target[:, :count])
        close(fresh[:, -1], whole[:, count - 1])


@torch.no_grad()
def test_b36_without_attention_the_newest_state_decides(close):
    """The decoder starts from the encoder's state after each prefix, as if that were all."""
    model = small(cell="gru", attention="none", wait=2)
    target = torch.tensor([[BOS, 5, 6, 7]])
    whole = model(torch.tensor([[*SOURCE, EOS]]), torch.tensor([6]), target)
    model.wait_for(0)
    for t in range(4):
        prefix = torch.tensor([SOURCE[: t + 2]])
        plain = model(prefix, torch.tensor([t + 2]), target[:, : t + 1])
        close(plain[:, -1], whole[:, t])


def test_b36_both_directions_are_refused_for_the_true_reason():
    model = build_model(replace(ONE_WAY, bidirectional=True), SIZE, SIZE)
    tokens = train_tokenizer("characters", ["abc"], size=30)
    told = r"train one with model\.bidirectional=false .*also reads the source from its end"
    with pytest.raises(UserError, match=told):
        Translator(model, tokens, tokens).online(1)
    with pytest.raises(UserError, match=r"model\.wait=1 needs .* model\.bidirectional=false"):
        replace(ONE_WAY, bidirectional=True, wait=1)


@pytest.mark.parametrize("attention", ["after", "none"])
def test_b36_it_learns_to_answer_every_word_at_once(attention, tmp_path):
    """Capitals of words, each of which comes as soon as its word has come."""
    torch.set_default_dtype(torch.float32)
    rows = [f"{a} {b} {c}" for a in "abcd" for b in "abcd" for c in "abcd"]
    run = regard.train(
        [(row, row.upper()) for row in rows],
        out=tmp_path / "run",
        reporter=Reporter(quiet=True),
        data={"batch_sentences": 32, "dev": 4, "test": 4},
        text={"tokenizer": "words"},
        model={"kind": "rnn", "cell": "gru", "width": 24, "embedding": 16, "dropout": 0.0}
        | {"bidirectional": False, "attention": attention, "wait": 1},
        train={"steps": 60, "rate": 0.02, "warmup": 5, "smoothing": 0.0, "threads": 1}
        | {"evaluate_every": 60, "save_every": 60, "tensorboard": "off"},
    )
    translator = regard.load(run)
    live = translator.online(wait=1)
    answers = [live.read(word) for word in ("d ", "a ", "c ")]
    assert [answer.strip() for answer in answers] == ["D", "A", "C"]
    assert live.end() == ""
    assert translator("d a c").text == "D A C"  # a whole text is answered by the same rule

    [scores] = evaluate_waiting(run, [1])
    assert scores.exact_match == 1.0
    assert scores.average_lagging == 1.0


@torch.no_grad()
def test_b36_sentences_of_different_lengths_in_one_batch(close):
    for attention in ("before", "none"):
        model = small(cell="lstm", attention=attention, wait=2, decoder_layers=2)
        rows = [([7, 8, 9, 10, EOS], [BOS, 5, 6, 7, EOS]), ([11, EOS], [BOS, 8, EOS])]
        batch = collate(rows)
        together = model.predict(batch)
        for i, row in enumerate(rows):
            alone = model.predict(collate([row]))
            close(together[i, : alone.shape[1]], alone[0])
