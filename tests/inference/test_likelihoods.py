"""How likely a given target is."""

import json
import math

import pytest
import torch

import regard
from regard.data.batches import collate
from regard.records.likelihood import Likelihood
from regard.text.vocabulary import BOS, EOS

PAIRS = [("12+34", "46"), ("1+1", "2"), ("999+1", "1000"), ("5-3", "x"), ("", "")]


@pytest.fixture(scope="module")
def translator(run):
    return regard.load(run, device="cpu")


def test_it_is_the_loss_of_the_reference(translator):
    for source, target in PAIRS:
        found = translator.score(source, target)
        row = (
            [*translator.source.encode(source), EOS],
            [BOS, *translator.target.encode(target), EOS],
        )
        sums = translator.model.loss(collate([row]))
        assert found.total == pytest.approx(-sums.nll.item(), rel=1e-5)
        assert found.accuracy * sums.tokens == pytest.approx(sums.correct.item())
        assert found.perplexity == pytest.approx(math.exp(-found.total / sums.tokens))


def test_tokens_and_predictions_are_side_by_side(translator):
    found = translator.score("12+34", "46")
    assert found.tokens == ["4", "6", "<eos>"]
    assert len(found.logprobs) == len(found.predicted) == 3


def test_many_are_as_one_by_one(translator):
    pairs = PAIRS * 300
    found = list(translator.scores(iter(pairs)))
    assert [(each.source, each.target) for each in found] == pairs
    for each, (source, target) in zip(found, PAIRS):
        assert each.logprobs == pytest.approx(translator.score(source, target).logprobs, rel=1e-4)


def test_an_ensemble_has_likelihoods(run):
    one = regard.load(run, device="cpu").score("1+1", "2")
    both = regard.load(run, run, device="cpu").score("1+1", "2")
    assert both.logprobs == pytest.approx(one.logprobs, rel=1e-4)


def test_json_keeps_it(translator):
    found = translator.score("1+1", "2")
    values = json.loads(json.dumps(found.as_dict()))
    assert Likelihood.from_dict(values) == found


def test_what_is_hardly_possible_has_a_perplexity():
    found = Likelihood("a", "b", ["b"], [-5000.0], ["c"], [-0.1], [False])
    assert 1e300 < found.perplexity < math.inf


def test_accuracy_is_of_ids_and_not_of_their_texts():
    """Two bytes that are no character of their own look the same."""
    found = Likelihood(
        "a", "é", ["\ufffd"] * 2, [-1.0] * 2, ["\ufffd"] * 2, [-0.5] * 2, [True, False]
    )
    assert found.accuracy == 0.5


def test_accuracy_ignores_what_does_not_count():
    predicted = torch.tensor([[5, 6, 7], [8, 9, 4]])
    target = torch.tensor([[5, 6, 0], [8, 1, 0]])
    assert regard.scoring.accuracy(predicted, target, ignore=0) == 0.75
    assert regard.scoring.accuracy(predicted, target) == 0.5
    assert math.isnan(regard.scoring.accuracy([0], [0], ignore=0))
    with pytest.raises(regard.UserError, match="must be equal"):
        regard.scoring.accuracy([1, 2], [1])
