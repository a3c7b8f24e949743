import math
from functools import cache

import pytest
import sacrebleu
from hypothesis import given, settings
from hypothesis import strategies as st

from regard.errors import UserError
from regard.scoring import metrics
from regard.scoring.metrics import edit_distance, sentence_bleu

HYPOTHESES = [
    "The cat sat on the mat.",
    "A dog barked at night",
    "",
    "we went home very early today",
]
REFERENCES = [
    "The cat sat on a mat.",
    "The dog barked all night",
    "Nothing at all .",
    "we went home very early today",
]
ONE_EACH = [[r] for r in REFERENCES]
words = st.lists(st.sampled_from("abcd"), max_size=20)


@cache
def distance_by_definition(a: tuple[str, ...], b: tuple[str, ...]) -> int:
    """The fewest edits, by trying each kind of edit on the first item."""
    if not a or not b:
        return len(a) + len(b)
    shorter = [
        distance_by_definition(a[1:], b),
        distance_by_definition(a, b[1:]),
        distance_by_definition(a[1:], b[1:]),
    ]
    return shorter[2] if a[0] == b[0] else 1 + min(shorter)


@pytest.mark.parametrize("name", ["bleu", "chrf", "ter"])
def test_corpus_scores_are_those_of_sacrebleu(name: str) -> None:
    ours = getattr(metrics, name)(HYPOTHESES, ONE_EACH)
    theirs = getattr(sacrebleu, f"corpus_{name}")(HYPOTHESES, [REFERENCES])
    assert ours.score == pytest.approx(theirs.score)
    assert "version:" in ours.signature
    assert "nrefs:1" in ours.signature


def test_the_tokeniser_is_in_the_signature_and_changes_the_score() -> None:
    plain = metrics.bleu(HYPOTHESES, ONE_EACH, tokenize="none")
    assert plain.score == pytest.approx(
        sacrebleu.corpus_bleu(HYPOTHESES, [REFERENCES], tokenize="none").score
    )
    assert "tok:none" in plain.signature
    assert plain.score != metrics.bleu(HYPOTHESES, ONE_EACH).score


@pytest.mark.parametrize("name", ["bleu", "chrf", "ter"])
def test_ragged_references(name: str) -> None:
    """Repeating a reference adds nothing, so a ragged list must score like the same list filled up
    by repetition.
    """
    score = getattr(metrics, name)
    ragged = [[r] for r in REFERENCES]
    ragged[1] = ["The dog barked all night", "A dog barked in the night"]
    filled = [answers if len(answers) == 2 else answers * 2 for answers in ragged]
    assert score(HYPOTHESES, ragged).score == pytest.approx(score(HYPOTHESES, filled).score)
    better = score(HYPOTHESES, ragged).score - score(HYPOTHESES, ONE_EACH).score
    assert better < 0 if name == "ter" else better > 0


@pytest.mark.parametrize("name", ["bleu", "chrf", "ter", "exact_match", "wer", "cer"])
def test_mistakes_are_told_in_words(name: str) -> None:
    score = getattr(metrics, name)
    with pytest.raises(UserError, match="empty"):
        score([], [])
    with pytest.raises(UserError, match="same length"):
        score(["a"], [["a"], ["b"]])
    with pytest.raises(UserError, match="output 1 needs a list"):
        score(["a"], ["a"])
    with pytest.raises(UserError, match="output 2 needs a list"):
        score(["a", "b"], [["a"], []])


def test_all_outputs_empty() -> None:
    empty, answers = ["", ""], [["a b c d"], ["e f"]]
    assert metrics.bleu(empty, answers).score == 0
    assert metrics.chrf(empty, answers).score == 0
    assert metrics.ter(empty, answers).score == 100
    assert metrics.exact_match(empty, answers) == 0
    assert metrics.sequence_error(empty, answers) == 1
    for rate in (metrics.wer, metrics.cer):
        assert rate(empty, answers) == 1
        assert rate([""], [[""]]) == 0
        assert rate(["x"], [[""]]) == 1


def test_error_rates_take_the_nearest_reference() -> None:
    outputs = ["T AH M EY T OW", "R EH D", "K AE T"]
    answers = [["T AH M AA T OW", "T AH M EY T OW"], ["R IY D", "R EH D IY"], ["D AO G"]]
    assert metrics.exact_match(outputs, answers) == pytest.approx(1 / 3)
    assert metrics.sequence_error(outputs, answers) == pytest.approx(2 / 3)
    # 0 of 6; one edit to either, the longer has 4; 3 of 3
    assert metrics.wer(outputs, answers) == pytest.approx(4 / 13)
    reversed_answers = [list(reversed(texts)) for texts in answers]
    assert metrics.wer(outputs, reversed_answers) == metrics.wer(outputs, answers)


def test_word_and_character_error_rate_by_hand() -> None:
    outputs = ["the cat sat", "a dog"]
    answers = [["the cats sat down"], ["a dog"]]
    assert metrics.wer(outputs, answers) == pytest.approx(2 / 6)  # cats, down
    assert metrics.cer(outputs, answers) == pytest.approx(6 / 22)  # s, " down"
    assert not hasattr(metrics, "per")


@pytest.mark.parametrize(
    ("references", "applies"),
    [
        ([["15"], ["-7"]], False),
        ([["2024-01-02"], ["1999-12-31"]], False),
        ([["猫が好きです。"]], False),  # no spaces: one word to BLEU
        ([["oui"]] * 95 + [["je suis ici ."]] * 5, False),
        ([["New York"], ["San Diego"]], False),  # no four tokens: BLEU is always 0
        ([["Je suis calme."], ["Va !"]], True),
        ([["K AE T S"], ["D AO G"]], True),
    ],
)
def test_where_bleu_says_something(references: list[list[str]], applies: bool) -> None:
    assert metrics.bleu_applies(references) == applies


@pytest.mark.parametrize("name", ["bleu", "chrf", "ter"])
def test_no_warning_about_tokenised_text(
    name: str, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    outputs = ["he is calm ."] * 200
    references = [["she is calm ."]] * 200
    getattr(metrics, name)(outputs, references)
    metrics.sacre(name).corpus_score(outputs, metrics.columns(references))
    assert not caplog.records
    assert capfd.readouterr() == ("", "")


@given(words, words)
def test_edit_distance_is_that_of_the_definition(a: list[str], b: list[str]) -> None:
    assert edit_distance(a, b) == distance_by_definition(tuple(a), tuple(b))


@given(words, words, words)
def test_edit_distance_is_a_distance(a: list[str], b: list[str], c: list[str]) -> None:
    assert edit_distance(a, b) == edit_distance(b, a)
    assert edit_distance(a, c) <= edit_distance(a, b) + edit_distance(b, c)
    assert (edit_distance(a, b) == 0) == (a == b)


def test_sentence_bleu_by_hand() -> None:
    hypothesis, reference = ["he", "is", "calm"], ["he", "is", "very", "calm", "today"]
    # p_1 = 3/3, p_2 = 1/2 ("he is"), p_3 = 0/1
    assert sentence_bleu(hypothesis, reference, 2) == pytest.approx(
        math.exp(1 - 5 / 3) * 1 * 0.5**0.25
    )
    assert sentence_bleu(hypothesis, reference) == 0
    # "the" is found once only, as often as the reference has it; the output is longer, so no
    # penalty
    assert sentence_bleu(["the"] * 4, ["the", "cat"], 1) == pytest.approx((1 / 4) ** 0.5)


def test_sentence_bleu_leaves_out_orders_longer_than_the_output() -> None:
    assert sentence_bleu(["yes"], ["yes"]) == 1
    assert sentence_bleu(["a", "b"], ["a", "b"], order=4) == 1
    assert sentence_bleu([], ["a"]) == 0
    assert sentence_bleu([], []) == 0
    assert sentence_bleu(["a"], []) == 0


@given(words, words)
@settings(max_examples=50)
def test_sentence_bleu_stays_between_none_and_all(a: list[str], b: list[str]) -> None:
    assert 0 <= sentence_bleu(a, b) <= 1
    assert not a or sentence_bleu(a, a) == 1
