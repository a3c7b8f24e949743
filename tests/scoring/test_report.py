import json
import math
from typing import Any

import pytest

from regard.errors import UserError
from regard.scoring import metrics
from regard.scoring.report import Report, report, text_report

FIELDS = (
    "loss perplexity token_accuracy exact_match bleu bleu_signature chrf ter sequence_error wer "
    "cer examples seconds tokens_per_second"
)
HYPOTHESES = ["the cat sat on the mat", "a dog"]
REFERENCES = [["the cat sat on the mat"], ["the dog", "dogs"]]


def make(**changes: Any) -> Report:
    measured = {
        "loss": 0.5,
        "tokens": 8,
        "correct": 6,
        "seconds": 2.0,
        "generated_tokens": 30,
    } | changes
    return report(HYPOTHESES, REFERENCES, ["x", "y"], **measured)


def test_the_fields_of_evaluate_json_in_order() -> None:
    made = make()
    assert " ".join(json.loads(json.dumps(made.as_dict()))) == FIELDS
    assert made.perplexity == pytest.approx(math.exp(0.5))
    assert made.token_accuracy == 0.75
    assert made.exact_match == 0.5
    assert made.sequence_error == 0.5
    assert made.wer == metrics.wer(HYPOTHESES, REFERENCES)
    assert made.cer == metrics.cer(HYPOTHESES, REFERENCES)
    assert made.bleu == metrics.bleu(HYPOTHESES, REFERENCES).score
    assert made.examples == 2
    assert made.tokens_per_second == 15


def test_rows_fit_a_table() -> None:
    rows = make().rows()
    assert len(rows) == len(FIELDS.split())
    assert all(len(row) == 3 and all(row) for row in rows)
    assert rows[5][:2] == ("signature", make().bleu_signature)
    assert ("exact match", "50.00%") in [row[:2] for row in rows]


def test_bleu_is_left_out_of_one_word_answers() -> None:
    figures: dict[str, Any] = {"loss": 0.5, "tokens": 8, "correct": 6, "seconds": 2.0}
    answers = ["15", "-7", "New York"] + ["8"] * 20
    references = [[answer] for answer in answers]
    made = report(answers, references, answers, **figures, generated_tokens=30)
    assert made.as_dict()["bleu"] is None
    assert made.as_dict()["bleu_signature"] is None
    assert not {"BLEU", "signature"} & {name for name, _, _ in made.rows()}
    assert made.exact_match == 1


def test_the_table_says_what_papers_on_pronunciation_call_the_sequence_error() -> None:
    meanings = {name: meaning for name, _, meaning in make().rows()}
    assert "papers on pronunciation call it WER" in meanings["sequence error"]
    assert "PER" not in meanings


def test_nothing_overflows_and_json_stays_json() -> None:
    assert math.isfinite(make(loss=1e6).perplexity)
    assert make(tokens=0, correct=0, seconds=0.0).tokens_per_second == 0
    broken = make(loss=math.nan)
    assert broken.as_dict()["loss"] is None
    assert json.dumps(broken.as_dict(), allow_nan=False)
    assert broken.rows()


def test_sources_must_pair_up() -> None:
    with pytest.raises(UserError, match="same length"):
        report(
            HYPOTHESES,
            REFERENCES,
            ["x"],
            loss=0.0,
            tokens=1,
            correct=1,
            seconds=1.0,
            generated_tokens=1,
        )


def test_in_a_notebook_scores_are_a_table():
    found = text_report(
        loss=1.0,
        accuracy=0.5,
        texts=2,
        tokens=8,
        characters=20,
        unknown=0,
        seconds=0.1,
        predicts_all=True,
    )
    page = found._repr_html_()
    assert "<td" in page
    assert all(f">{name}<" in page and f">{value}<" in page for name, value, _ in found.rows())
