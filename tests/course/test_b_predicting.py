"""B. Learning to calculate: curves, accuracies, prediction, beam (B23, B24, B27, B29 to B32, B35).

From a run as users train it, in float32, and from searches over tables of probabilities.
"""

import itertools
import math
from dataclasses import dataclass

import pytest
import torch

import regard
from regard.pictures.curves import curves
from regard.search import beam, greedy
from regard.text.vocabulary import BOS, EOS, PAD

QUESTIONS = ["1+2", "649+864", "-940-819", "12-7"]


@pytest.fixture(autouse=True)
def _in_double():
    """Runs are float32; tables of probabilities say float64 themselves."""


@dataclass
class Prefixes:
    """A state for searches over a table: the tokens that each hypothesis has read, (B, K, t)."""

    read: torch.Tensor

    def select(self, sentences, beams):
        rows = torch.arange(len(self.read)) if sentences is None else sentences
        return Prefixes(self.read[rows[:, None], beams])


def search_in(table, search, **settings):
    """Search for one answer in a table from prefixes to probabilities of the next token."""

    def step(tokens, state):
        shape = (*state.read.shape[:2], 1)
        read = torch.cat((state.read, tokens.view(shape)), dim=-1)
        rows = [table.get(tuple(prefix[1:]), NOTHING) for prefix in read.flatten(0, 1).tolist()]
        return torch.tensor(rows, dtype=torch.float64).log(), Prefixes(read)

    start = Prefixes(torch.zeros(1, 1, 0, dtype=torch.long))
    (found,) = search(step, start, batch=1, **settings)
    return found


A = 4
B = 5
NOTHING = [0.0, 0.0, 1.0, 0.0, 0.0, 0.0]  # <eos> for sure
GARDEN = {  # the likelier beginning has the less likely end
    (): [0, 0, 0, 0, 0.6, 0.4],
    (A,): [0, 0, 0, 0, 0.55, 0.45],
    (B,): [0, 0, 0, 0, 0.1, 0.9],
    (A, A): NOTHING,
    (A, B): NOTHING,
    (B, A): NOTHING,
    (B, B): NOTHING,
}


def test_b23_curves_of_training_and_validation(run):
    """Loss and accuracy of both, drawn from what the run has logged."""
    records = run.records()
    figure = curves({"sums": records})
    drawn = [list(line.get_ydata()) for axes in figure.axes for line in axes.get_lines()]
    for kind, name in itertools.product(("train", "dev"), ("loss", "accuracy")):
        values = [record[name] for record in records if record["kind"] == kind]
        assert len(values) >= 2
        assert any(line == pytest.approx(values) for line in drawn)


def test_b24_token_accuracy_and_loss_on_the_validation_formulas(run):
    """What is logged for dev = teacher forcing of every answer, padding not counted."""
    pairs = [(pair.source, pair.targets[0]) for pair in regard.evaluate(run, split="dev").pairs]
    scores = list(regard.load(run).scores(pairs))
    tokens = [token for score in scores for token in score.tokens]
    predicted = [token for score in scores for token in score.predicted]
    logprobs = [logprob for score in scores for logprob in score.logprobs]
    right = sum(token == best for token, best in zip(tokens, predicted, strict=True))
    logged = run.best_look()
    assert logged["tokens"] == len(tokens)
    assert logged["accuracy"] == pytest.approx(right / len(tokens))
    assert logged["loss"] == pytest.approx(-math.fsum(logprobs) / len(tokens), rel=1e-4)


def test_b27_prediction_token_by_token(run):
    """From <bos> on, the most likely token is written and read, until it is <eos>."""
    model = run.model().eval()
    for question in QUESTIONS:
        source = torch.tensor([[*run.source.encode(question), EOS]])
        length = torch.tensor([source.shape[1]])
        answer = [BOS]
        with torch.no_grad():
            while answer[-1] != EOS and len(answer) <= 6:
                logits = model(source, length, torch.tensor([answer]))[0, -1]
                logits[[PAD, BOS]] = -torch.inf
                answer.append(int(logits.argmax()))
            state = model.decoder.start(model.encoder(source, length))
            (found,) = greedy(model.step, state, batch=1, limit=[6])
        assert found.tokens == [token for token in answer[1:] if token != EOS]


def test_b29_many_questions_are_answered_as_each_alone(run):
    translator = regard.load(run)
    together = translator(QUESTIONS)
    assert [result.text for result in together] == [translator(text).text for text in QUESTIONS]


def test_b30_a_beam_of_one_is_greedy():
    found = search_in(GARDEN, greedy, limit=[5])
    assert found.tokens == [A, A]
    (only,) = search_in(GARDEN, beam, width=1, limit=[5])
    assert only == found


def test_b31_a_beam_of_two_finds_what_greedy_search_misses():
    """0.4 · 0.9 > 0.6 · 0.55: the answer that begins with the less likely token."""
    best, second = search_in(GARDEN, beam, width=2, n_best=2, limit=[5])
    assert best.tokens == [B, B]
    assert best.score == pytest.approx(math.log(0.4 * 0.9) / 3)  # two tokens and <eos>
    assert second.tokens == [A, A]
    assert second.score == pytest.approx(math.log(0.6 * 0.55) / 3)
    assert math.fsum(best.logprobs) == pytest.approx(math.log(0.36))


def test_b32_a_beam_that_is_wide_enough_searches_everything():
    """All answers of a random table, best first, with their probabilities."""
    draw = torch.Generator().manual_seed(3)
    table = {}
    for length in range(3):
        for prefix in itertools.product((A, B), repeat=length):
            row = torch.zeros(6, dtype=torch.float64)
            row[[EOS, A, B]] = torch.rand(3, generator=draw, dtype=torch.float64).softmax(-1)
            table[prefix] = row.tolist() if length < 2 else NOTHING

    answers = {}
    for length in range(3):
        for answer in itertools.product((A, B), repeat=length):
            steps = [*answer, EOS]
            chances = [table[tuple(answer[:i])][token] for i, token in enumerate(steps)]
            answers[answer] = math.log(math.prod(chances))
    best_first = sorted(answers, key=answers.get, reverse=True)

    found = search_in(table, beam, width=7, n_best=7, length_penalty=0.0, limit=[4])
    assert [tuple(one.tokens) for one in found] == best_first
    for one in found:
        assert one.score == pytest.approx(answers[tuple(one.tokens)])


def test_b35_examples_a_second(run):
    """Every line of training tells how fast it was, in formulas and in tokens."""
    lines = [record for record in run.records() if record["kind"] == "train"]
    for line in lines:
        assert line["examples_per_second"] > 0
        assert line["tokens_per_second"] > line["examples_per_second"]
