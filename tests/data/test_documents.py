"""Texts as rows: every token is predicted once, and texts begin and end only where they do."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from regard.data.batches import Batches
from regard.data.documents import encode_documents
from regard.data.pairs import Pair
from regard.errors import UserError
from regard.text.tokenizer import train_tokenizer
from regard.text.vocabulary import BOS, EOS

LETTERS = train_tokenizer("characters", ["abcdefghij"], size=100)
few = settings(max_examples=30, deadline=None)
some_texts = st.lists(st.text("abcdefghij", max_size=40), min_size=1, max_size=5).filter(any)


@pytest.fixture(scope="module")
def rows_of(tmp_path_factory):
    """rows_of(texts, max_length, causal): the targets of the corpus."""

    def make(texts, max_length, is_causal=True):
        corpus = encode_documents(
            (Pair(text, ("",), line) for line, text in enumerate(texts, 1)),
            LETTERS,
            tmp_path_factory.mktemp("texts") / "corpus",
            max_length=max_length,
            is_causal=is_causal,
        )
        rows = [corpus.row(row) for row in range(len(corpus))]
        assert [row[0].tolist() for row in rows] == [[EOS]] * len(rows)
        lengths = [len(row[1]) - 1 for row in rows]
        assert corpus.target_lengths.tolist() == lengths
        assert max(lengths) <= max_length
        return [row[1].tolist() for row in rows]

    return make


@few
@given(some_texts, st.integers(1, 12))
def test_a_causal_model_predicts_every_token_exactly_once(rows_of, texts, max_length):
    rows = rows_of(texts, max_length)
    predicted = [id for row in rows for id in row[1:]]
    expected = [id for text in texts if text for id in [*LETTERS.encode(text), EOS]]
    assert predicted == expected


@few
@given(some_texts, st.integers(1, 12))
def test_rows_of_one_text_are_linked_by_its_last_token(rows_of, texts, max_length):
    begins = BOS
    for row in rows_of(texts, max_length):
        assert row[0] == begins
        assert BOS not in row[1:]
        assert EOS not in row[:-1]
        begins = BOS if row[-1] == EOS else row[-1]
    assert begins == BOS  # the last text has ended


@few
@given(some_texts, st.integers(2, 12))
def test_an_encoder_reads_every_token_once_in_whole_rows(rows_of, texts, max_length):
    rows = rows_of(texts, max_length, is_causal=False)
    assert all((row[0], row[-1]) == (BOS, EOS) for row in rows)
    inside = [id for row in rows for id in row[1:-1]]
    assert inside == [id for text in texts for id in LETTERS.encode(text)]
    assert all(len(row) > 2 for row in rows)


def test_rows_of_a_long_text_are_nearly_equally_long(rows_of):
    for is_causal in (True, False):
        lengths = [len(row) for row in rows_of(["abcdefghij" * 10], 16, is_causal)]
        assert len(lengths) == 7
        assert max(lengths) - min(lengths) <= 1


def test_a_text_that_just_fits_is_one_row(rows_of):
    assert len(rows_of(["a" * 9], 10)) == 1
    assert len(rows_of(["a" * 10], 10)) == 2
    assert len(rows_of(["a" * 9], 10, is_causal=False)) == 1
    assert len(rows_of(["a" * 10], 10, is_causal=False)) == 2


def test_nothing_but_empty_texts_is_refused(rows_of):
    with pytest.raises(UserError, match="no text has a token"):
        rows_of(["", ""], 10)


def test_an_epoch_has_every_token_once(tmp_path):
    texts = ["abc" * length for length in range(1, 30)]
    pairs = (Pair(text, ("",), 1) for text in texts)
    corpus = encode_documents(pairs, LETTERS, tmp_path / "c", max_length=20, is_causal=True)
    batches = Batches(corpus, tokens=60, seed=1)
    tokens = sum(batches(step).tokens for step in range(batches.per_epoch))
    assert tokens == sum(len(text) + 1 for text in texts)
