"""B26, D9, E12, E15: the probability of a given answer, sentence BLEU, scores by length."""

import collections
import json
import math
from dataclasses import replace

import numpy as np
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


def course_bleu(prediction, label, k):
    """The course's own function, word for word."""
    pred_tokens, label_tokens = prediction.split(" "), label.split(" ")
    len_pred, len_label = len(pred_tokens), len(label_tokens)
    score = math.exp(min(0, 1 - len_label / len_pred))
    for n in range(1, min(k, len_pred) + 1):
        num_matches, label_subs = 0, collections.defaultdict(int)
        for i in range(len_label - n + 1):
            label_subs[" ".join(label_tokens[i : i + n])] += 1
        for i in range(len_pred - n + 1):
            if label_subs[" ".join(pred_tokens[i : i + n])] > 0:
                num_matches += 1
                label_subs[" ".join(pred_tokens[i : i + n])] -= 1
        score *= math.pow(num_matches / (len_pred - n + 1), math.pow(0.5, n))
    return score


FOUR = {
    "go .": "va !",
    "i lost .": "j'ai perdu .",
    "he's calm .": "il est calme .",
    "i'm home .": "je suis chez moi .",
}


@pytest.mark.parametrize("k", [1, 2, 4])
def test_d9_sentence_bleu_as_in_the_course(k):
    answers = ["va !", "j'ai perdu moi .", "il est mouillé .", "je suis moi moi chez ."]
    references = [[label] for label in FOUR.values()]
    found = regard.scoring.sentence_scores(list(FOUR), answers, references, order=k)
    for one, answer, label in zip(found, answers, FOUR.values()):
        assert one.bleu == pytest.approx(course_bleu(answer, label, k))
    assert [one.correct for one in found] == [True, False, False, False]
    assert found[0].bleu == 1


@pytest.fixture
def answering(monkeypatch):
    """Let every run answer by a table: what a test is about is what is made of the answers."""

    def answer_by(table):
        translate = regard.Translator.translate

        def from_table(self, texts, **wishes):
            for result in translate(self, texts, **wishes):
                yield replace(result, text=table[result.source])

        monkeypatch.setattr(regard.Translator, "translate", from_table)

    return answer_by


def test_d9_by_a_command_that_marks_a_wrong_answer(run, tmp_path, answering):
    file = tmp_path / "four.tsv"
    file.write_text("".join(f"{source}\t{label}\n" for source, label in FOUR.items()))
    answers = {**FOUR, "i'm home .": "je suis calme ."}
    answering(answers)
    lines = call("evaluate", run.path, file, "--sentence-bleu", 2).splitlines()
    rows = [[cell.strip() for cell in line.strip("│").split("│")] for line in lines[3:7]]
    for row, (source, label) in zip(rows, FOUR.items(), strict=True):
        bleu = course_bleu(answers[source], label, 2)
        mark = "✓" if answers[source] == label else "✗ wrong"
        assert row == [source, answers[source], label, f"{bleu:.3f}", mark]

    values = json.loads(call("evaluate", run.path, file, "--sentence-bleu", 2, "--json"))
    assert [one["correct"] for one in values["sentences"]] == [True, True, True, False]


def test_d9_of_several_references_the_nearest_counts():
    (found,) = regard.scoring.sentence_scores(["go ."], ["va !"], [["cours vite !", "va !"]])
    assert (found.reference, found.bleu, found.correct) == ("va !", 1, True)


def test_e15_scores_by_length_of_the_source(run, tmp_path, answering):
    """Short sums are right, long ones are wrong: the table, JSON and Python tell it."""
    sums = {"1+1": "2", "2+2": "4", "11+11": "22", "1234+1": "1235", "12345+1": "12346"}
    answering({source: label if len(source) < 6 else "0" for source, label in sums.items()})
    file = tmp_path / "sums.tsv"
    file.write_text("".join(f"{source}\t{label}\n" for source, label in sums.items()))

    evaluation = regard.evaluate(run, file)
    scores = evaluation.by_length()
    lengths = np.repeat([one.bin.low for one in scores], [one.sentences for one in scores])
    assert lengths.tolist() == [3, 3, 5, 6, 7]
    right = [one.exact_match for one in scores if one.sentences]
    assert right == [1, 1, 0, 0]
    tokens = [sum(len(sums[s]) + 1 for s in sums if len(s) == n) for n in (3, 5, 6, 7)]
    losses = [one.loss for one in scores if one.sentences]
    assert np.average(losses, weights=tokens) == pytest.approx(evaluation.report.loss, rel=1e-5)

    picture = tmp_path / "lengths.png"
    said = call("evaluate", run.path, file, "--by-length", "--out", picture)
    rows = [line.split("│") for line in said.splitlines() if line.startswith("│")]
    table = {row[1].strip(): row[2].strip() for row in rows}
    assert table["3"] == "2"
    assert table["7 or more"] == "1"
    assert picture.stat().st_size > 1000

    values = json.loads(call("evaluate", run.path, file, "--by-length", "--json"))
    assert values["by_length"] == [one.as_dict() for one in scores]


def test_e15_two_runs_side_by_side(run, tmp_path):
    words = ["evaluate", run.path, "--by-length", "--against", run.path, "--json"]
    values = json.loads(call(*words))
    fields = ("low", "high", "sentences", "exact_match")
    both = (values["by_length"], values["against_by_length"])
    ours, theirs = ([[one[name] for name in fields] for one in scores] for scores in both)
    assert ours == theirs
    assert sum(one["sentences"] for one in values["by_length"]) == values["examples"]
