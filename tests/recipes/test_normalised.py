"""A run that lower-cases and spaces punctuation does so wherever it meets a text."""

import unicodedata

import pytest

import regard
from regard.recipes.reporter import Reporter

WORDS = ["Calm", "Tired", "Happy", "Sad", "Here", "Late"]
PAIRS = [(f"He is {one}, {two}.", f"Il est {two}, {one}!") for one in WORDS for two in WORDS]


@pytest.fixture(scope="module")
def run(tiny, tmp_path_factory):
    text = {"tokenizer": "words", "lowercase": True, "spaced_punctuation": True}
    settings = tiny | {"text": text, "data": {"batch_sentences": 12, "dev": 4, "test": 4}}
    out = tmp_path_factory.mktemp("runs") / "typed"
    return regard.train(PAIRS, out=out, reporter=Reporter(quiet=True), **settings)


def test_it_is_saved_with_the_run(run):
    opened = regard.Run.open(run.path)
    assert opened.config.text.lowercase
    assert opened.config.text.spaced_punctuation
    assert opened.source.encode("He is calm.") == opened.source.encode("he is calm .")
    card = (run.path / "README.md").read_text(encoding="utf-8")
    assert "lower-cased, punctuation separated by spaces" in card


def test_source_and_target_are_normalised_in_training(run):
    for tokenizer in (run.source, run.target):
        tokens = tokenizer.token_texts(range(16, tokenizer.size))
        assert {"he", "il", ",", "!", "calm"} <= {*tokens}
        assert tokens == [token.lower() for token in tokens]


def test_what_is_translated_is_normalised(run):
    translator = regard.load(run)
    typed, spaced = translator(["HE IS CALM, LATE.", "he is calm , late ."])
    assert typed.ids == spaced.ids
    assert typed.warnings == spaced.warnings
    assert "not in the vocabulary" not in str(typed.warnings)
    assert typed.source == "HE IS CALM, LATE."
    assert typed.attention.source == ["he", "is", "calm", ",", "late", ".", "<eos>"]
    assert typed.attention.text_in == "he is calm , late ."
    [demanded] = translator.translate(["He is late."], must="CALM")
    assert "calm" in demanded.text


def test_references_are_judged_in_the_same_form(run, here):
    answer = regard.load(run)("He is calm, late.").text
    (here / "judged.tsv").write_text(f"He is calm, late.\t{answer.upper()}\n", encoding="utf-8")
    report = regard.evaluate(run, "judged.tsv").report
    assert report.exact_match == 1
    assert "case:lc" in report.bleu_signature


def test_fine_tuning_keeps_it(run, tiny, here):
    settings = {"train": tiny["train"], "data": {"batch_sentences": 12, "dev": 4, "test": 4}}
    tuned = regard.train(
        PAIRS, out=here / "tuned", start_from=run.path, reporter=Reporter(quiet=True), **settings
    )
    assert tuned.config.text == run.config.text
    with pytest.raises(regard.errors.UserError, match=r"text\.lowercase cannot change"):
        regard.train(
            PAIRS,
            out=here / "other",
            start_from=run.path,
            reporter=Reporter(quiet=True),
            **settings | {"text": {"lowercase": False}},
        )


def test_hangul_is_split_in_the_source_only(tmp_path):
    """And the run answers the same however the syllables are spelt."""
    pairs = [(a + b, f"{a} {b}") for a in "가나다라마" for b in "각난닫랄맘"]
    run = regard.train(
        pairs,
        out=tmp_path / "run",
        reporter=Reporter(quiet=True),
        text={"tokenizer": "characters", "target_tokenizer": "words", "share": False, "jamo": True},
        model={"width": 16, "ffn": 16, "heads": 2, "encoder_layers": 1, "decoder_layers": 1},
        train={"steps": 3},
    )
    opened = regard.Run.open(run.path)
    assert len(opened.source.encode("가각")) == 5
    assert len(opened.target.encode("가 각")) == 2
    assert opened.target.decode(opened.target.encode("가 각")) == "가 각"

    translator = regard.load(run)
    whole, decomposed = translator(["가각", unicodedata.normalize("NFD", "가각")])
    assert whole.text == decomposed.text
    assert "never seen in training" not in str(whole.warnings)
    assert "not in the vocabulary" not in str(whole.warnings)
    assert regard.evaluate(run).report.examples > 0


def test_letters_of_hangul_need_two_vocabularies(tmp_path):
    with pytest.raises(regard.errors.UserError, match=r"set text\.share=false"):
        regard.train(
            [("가", "나")] * 9, out=tmp_path / "run", text={"jamo": True}, train={"steps": 3}
        )
