"""Encoding many texts at once gives what `Tokenizer.encode` gives for each."""

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from regard.text import encoder as encoder_module
from regard.text.encoder import encoder_for
from regard.text.normaliser import Normaliser
from regard.text.tokenizer import Tokenizer, train_tokenizer
from regard.text.vocabulary import normalise

TEXTS = [
    "he's calm . 😀",
    "il est calme !",
    "العربية hello hello <eos>",
    "déjà vu, 1 + 1 = 2",
    "don't  we'll\u00a0?",
] * 20
KINDS = ("characters", "bytes", "words", "bpe", "unigram")
TOKENIZERS = {kind: train_tokenizer(kind, TEXTS, size=400) for kind in KINDS}
each = pytest.mark.parametrize("tokenizer", TOKENIZERS.values(), ids=KINDS)

spaces = st.sampled_from(
    [" ", " ", " ", "  ", "\t", "\n", "\u00a0", "\u202f", "\u2003", "\x1c", "\x85", "\u3000"]
)
words = st.sampled_from(
    [
        "he's",
        "calm",
        "'s",
        "'",
        "12",
        "3a",
        "é",
        "e\u0301",
        "...",
        "😀",
        "ﷺ",
        "\u200b",
        "\ud800",
        "²",
        "_",
    ]
)
sentences = st.lists(st.one_of(spaces, words)).map("".join)


def encoded(tokenizer: Tokenizer, batches: list[list[str]]) -> list[list[int]]:
    """Text by text, what an encoder makes of the batches, one after the other."""
    encode = encoder_for(tokenizer)
    rows = []
    for batch in batches:
        ids, lengths = encode(batch)
        assert len(lengths) == len(batch)
        assert len(ids) == lengths.sum()
        rows += [row.tolist() for row in np.split(ids, np.cumsum(lengths)[:-1])] if batch else []
    return rows


@each
@settings(max_examples=150, deadline=None)
@given(batches=st.lists(st.lists(st.one_of(sentences, st.text()))))
@example(batches=[[]])
@example(batches=[["", " ", "a b", "  a  b ", "a \tb", "a b\u00a0c d"], ["a b", "a b"]])
def test_many_at_once_are_each_alone(tokenizer: Tokenizer, batches: list[list[str]]) -> None:
    assert encoded(tokenizer, batches) == [
        tokenizer.encode(text) for batch in batches for text in batch
    ]


def test_only_so_many_words_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoder_module, "_REMEMBERED", 20)
    tokenizer = TOKENIZERS["bpe"]
    encode = encoder_for(tokenizer)
    for first in range(0, 300, 3):
        texts = [f"calm {i} {i + 1} w{i % 7}" for i in range(first, first + 3)]
        ids, _ = encode(texts)
        assert ids.tolist() == [id for text in texts for id in tokenizer.encode(text)]
        assert len(encode._numbers) <= 20
        assert len(encode._ends) == len(encode._numbers) + 1
        assert len(encode._ids) == encode._ends[-1]


@given(st.lists(st.text(st.sampled_from("ab .é\n\t "), max_size=12), min_size=1, max_size=6))
def test_words_and_what_is_between_them(texts: list[str]) -> None:
    found = encoder_module._find_words(texts, Normaliser())
    simple = encoder_module._single_spaces(" ".join(texts))
    words, counts = encoder_module._split([normalise(text) for text in texts], simple=simple)
    assert [found.different[i] for i in found.places] == words
    assert found.counts.tolist() == counts.tolist()


words_of_texts = st.lists(
    st.lists(st.text("abé€", min_size=1, max_size=20), min_size=1, max_size=6),
    min_size=1,
    max_size=6,
)


@given(words_of_texts)
@example([["abababab", "abababababababab", "ababababa"], ["abababab"]])
def test_words_are_found_by_numpy(words: list[list[str]]) -> None:
    found = encoder_module._words_by_numpy([" ".join(row) for row in words])
    assert found is not None
    assert [found.different[i] for i in found.places] == [word for row in words for word in row]
    assert sorted(found.different) == sorted({word for row in words for word in row})
    assert found.counts.tolist() == [len(row) for row in words]


def test_different_words_of_one_hash_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def same_hash(slices):
        return np.zeros(len(slices[0][0]), np.uint64)

    monkeypatch.setattr(encoder_module, "_hash_words", same_hash)
    for text in ("a b", "a ab", "aaaaaaaab aaaaaaaac"):
        assert encoder_module._words_by_numpy([text]) is None
    assert encoder_module._words_by_numpy(["ab ab", "ab"]).different == ["ab"]


def test_the_ids_are_those_of_words_found_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = TOKENIZERS["bpe"]
    ids, lengths = encoder_for(tokenizer)(TEXTS)
    monkeypatch.setattr(encoder_module, "_words_by_numpy", lambda texts: None)
    plain_ids, plain_lengths = encoder_for(tokenizer)(TEXTS)
    assert ids.tolist() == plain_ids.tolist()
    assert lengths.tolist() == plain_lengths.tolist()
