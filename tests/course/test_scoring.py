"""B26, D9, E12, E15: the probability of a given answer, sentence BLEU, scores by length."""

import json
import math

import pytest
import torch
from typer.testing import CliRunner

import regard
from regard.cli import app
from regard.data.batches import collate
from regard.text.vocabulary import BOS, EOS


@pytest.fixture
def _in_double():
    """Trained runs are float32: the rest of this folder works in float64."""


@pytest.fixture(scope="module")
def translator(run):
    return regard.load(run, device="cpu")


def call(*words):
    """Standard output of a command that should succeed."""
    done = CliRunner().invoke(app, [str(word) for word in words], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


def logits_of(translator, source, target):
    """The model's logits (T, V) for a target that is given, and the ids (T,) of that target."""
    row = ([*translator.source.encode(source), EOS], [BOS, *translator.target.encode(target), EOS])
    batch = collate([row])
    with torch.inference_mode():
        logits = translator.model(batch.source, batch.source_lengths, batch.target_in)
    return logits[0], batch.target_out[0]


def test_b26_the_argmax_of_123_plus_123_given_the_answer(run, translator):
    logits, ids = logits_of(translator, "123+123", "246")
    values = json.loads(call("score", run.path, "123+123", "246", "--json"))
    assert values["tokens"] == ["2", "4", "6", "<eos>"]
    assert values["predicted"] == translator.target.token_texts(logits.argmax(-1))
    assert values["correct"] == (logits.argmax(-1) == ids).tolist()
    best = logits.log_softmax(-1).amax(-1)
    assert values["predicted_logprobs"] == pytest.approx(best.tolist(), rel=1e-4)


def test_b26_as_a_table(run, translator):
    found = translator.score("123+123", "246")
    lines = call("score", run.path, "123+123", "246", "--tokens").splitlines()
    assert lines[0] == "123+123 → 246"
    rows = [[cell.strip() for cell in line.strip("│").split("│")] for line in lines if "│" in line]
    assert [row[0] for row in rows] == found.tokens
    assert [row[2] for row in rows] == found.predicted
    assert [row[1] for row in rows] == [f"{math.exp(value):.2%}" for value in found.logprobs]
    assert ["wrong" in row[4] for row in rows] == [not correct for correct in found.correct]


def test_e12_the_probability_of_a_target_is_a_product(translator):
    found = translator.score("12+34", "46")
    logits, ids = logits_of(translator, "12+34", "46")
    probabilities = logits.softmax(-1).gather(-1, ids[:, None])[:, 0]  # (T,)
    assert math.exp(found.total) == pytest.approx(probabilities.prod().item(), rel=1e-4)
    assert found.per_token == pytest.approx(found.total / 3)


def test_e12_the_probabilities_of_all_first_tokens_are_one(translator):
    ordinary = range(translator.target.first, translator.target.size)
    tokens = [translator.target.decode([id]) for id in ordinary]
    first = [math.exp(translator.score("1+1", token).logprobs[0]) for token in tokens]
    logits, _ = logits_of(translator, "1+1", "")
    special = logits.softmax(-1)[0, : translator.target.first].sum().item()
    assert sum(first) + special == pytest.approx(1, abs=1e-4)
