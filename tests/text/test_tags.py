"""Tags after a text: one token each, never text, saved with the tokenizer, left as they are."""

import json
import pickle
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from regard.errors import UserError
from regard.text.encoder import encoder_for
from regard.text.normaliser import Normaliser
from regard.text.tags import read_tags, split_tags, tag_text, tagged
from regard.text.tokenizer import (
    Tagged,
    Tokenizer,
    from_json,
    load_tokenizers,
    save_tokenizers,
    train_tokenizer,
    with_tags,
)
from regard.text.vocabulary import BOS, EOS, PAD, UNK

KINDS = ("characters", "bytes", "words", "bpe", "unigram")
TEXTS = ["kedi N", "the big cat sat on the mat", "Straße No 5", "zorluk", "çok güzel, DAT"] * 20
TAGS = ["N", "DAT", "SG", "N", "V", "past tense", "İ", "N"]
BASES = {kind: train_tokenizer(kind, TEXTS, size=400) for kind in KINDS}
TOKENIZERS = {kind: with_tags(base, TAGS) for kind, base in BASES.items()}
each = pytest.mark.parametrize("kind", KINDS)
laws = settings(max_examples=60, deadline=None)
WORDS = ("kedi", "the", "big", "cat", "mat", "Straße", "güzel,", "5")
known_words = st.lists(st.sampled_from(WORDS), max_size=4)
known_tags = st.lists(st.sampled_from(sorted(set(TAGS))), max_size=4)


@pytest.mark.parametrize(
    ("cell", "tags"),
    [
        ("N;DAT;SG", ("N", "DAT", "SG")),
        (" N ; DAT;; SG\n", ("N", "DAT", "SG")),
        ("N DAT  SG", ("N", "DAT", "SG")),
        ("N,DAT, SG", ("N", "DAT", "SG")),
        ("Case=Dat|PronType=Int,Rel", ("Case=Dat", "PronType=Int,Rel")),
        ("past tense;3|4", ("past tense", "3|4")),
        ("N\tDAT", ("N", "DAT")),
        ("past tense;", ("past tense",)),
        ("", ()),
        (" ; ", ()),
    ],
)
def test_how_a_cell_spells_tags(cell: str, tags: tuple[str, ...]) -> None:
    assert read_tags(cell) == tags


@laws
@given(cell=st.text(st.sampled_from("ab;|, \t\n\u00a0")))
def test_tags_are_found_again(cell: str) -> None:
    tags = read_tags(cell)
    assert read_tags(tag_text(tags)) == tags
    assert split_tags(tagged("a text", tags)) == ("a text", tags)


@laws
@given(text=st.text(st.sampled_from("ab \t")), cell=st.text(st.sampled_from("ab; ")))
def test_a_tab_in_a_text_is_no_tag(text: str, cell: str) -> None:
    tags = read_tags(cell)
    assert split_tags(tagged(text, tags)) == (text.replace("\t", " "), tags)


@each
@laws
@given(words=known_words, tags=known_tags)
def test_a_source_survives(kind: str, words: list[str], tags: list[str]) -> None:
    tokenizer = TOKENIZERS[kind]
    source = tagged(" ".join(words), tags)
    ids = tokenizer.encode(source)
    assert tokenizer.decode(ids) == source
    assert tokenizer.decode([BOS, *ids, EOS, PAD]) == source


@each
@laws
@given(words=known_words, tags=known_tags)
def test_tags_are_one_token_each_after_those_of_the_text(
    kind: str, words: list[str], tags: list[str]
) -> None:
    tokenizer = TOKENIZERS[kind]
    text = " ".join(words)
    ids = tokenizer.encode(tagged(text, tags))
    text_ids = BASES[kind].encode(text)
    assert ids[: len(text_ids)] == text_ids
    assert tokenizer.token_texts(ids[len(text_ids) :]) == [f"<{tag}>" for tag in tags]
    assert all(id >= tokenizer.text_size for id in ids[len(text_ids) :])


@each
@laws
@given(text=st.text())
@example(text="N")
@example(text="<N>")
@example(text="N;DAT;SG")
def test_no_text_becomes_a_tag(kind: str, text: str) -> None:
    tokenizer = TOKENIZERS[kind]
    assert all(id < tokenizer.text_size for id in tokenizer.encode(text.replace("\t", " ")))
    assert all(id < tokenizer.text_size for id in tokenizer.target_side.encode(f"{text}\tN"))


def test_a_tag_is_another_token_than_its_letters() -> None:
    for tokenizer in TOKENIZERS.values():
        (letter,) = tokenizer.encode("N")[-1:]
        (tag,) = tokenizer.encode("\tN")
        assert tag != letter


@each
def test_an_unknown_tag_is_unknown_and_stays_so(kind: str) -> None:
    tokenizer = TOKENIZERS[kind]
    for cell in ("N;NEW;SG", "NEW;N", "NEW"):
        ids = tokenizer.encode(f"cat\t{cell}")
        assert ids.count(UNK) == 1
        assert tokenizer.encode(tokenizer.decode(ids)) == ids
    pieces = tokenizer.pieces("cat\tN;NEW")
    assert (pieces[-1].id, pieces[-1].text) == (UNK, "<NEW>")


@each
@laws
@given(words=known_words, tags=known_tags)
def test_pieces_and_spans_have_their_share_of_the_source(
    kind: str, words: list[str], tags: list[str]
) -> None:
    tokenizer = TOKENIZERS[kind]
    source = tagged(" ".join(words), tags)
    pieces = tokenizer.pieces(source)
    ids = tokenizer.encode(source)
    assert [piece.id for piece in pieces] == ids
    shares = [source[piece.start : piece.end] for piece in pieces][len(ids) - len(tags) :]
    assert shares == tags
    spans = tokenizer.spans([*ids, EOS])
    assert [source[start:end] for start, end in spans[len(ids) - len(tags) : -1]] == tags
    assert len(spans) == len(ids) + 1


@each
def test_many_sources_at_once(kind: str) -> None:
    tokenizer = TOKENIZERS[kind]
    sources = ["kedi\tN;DAT", "the cat", "\tV", "", "mat\tNEW;SG", "big mat\tpast tense;"]
    rows = [tokenizer.encode(source) for source in sources]
    assert tokenizer.encode_batch(sources) == rows
    ids, lengths = encoder_for(tokenizer)(sources)
    assert lengths.tolist() == [len(row) for row in rows]
    assert ids.tolist() == [id for row in rows for id in row]
    ids, _ = encoder_for(tokenizer.target_side)(["the cat"])
    assert ids.tolist() == BASES[kind].encode("the cat")
    assert np.array_equal(encoder_for(tokenizer)([])[1], [])


def test_preparation_leaves_tags_alone() -> None:
    normalise = Normaliser(lowercase=True, spaced_punctuation=True)
    base = train_tokenizer("words", ["kedi , dat"], size=100, normalise=normalise)
    tokenizer = with_tags(base, ["DAT", "e\u0301", "A.B"])
    source = "Kedi,\tDAT;e\u0301;A.B"
    assert tokenizer.normalise(source) == "kedi ,\tDAT;e\u0301;A.B"
    assert tokenizer.normalise(tokenizer.normalise(source)) == tokenizer.normalise(source)
    assert tokenizer.token_texts(tokenizer.encode(source)) == [
        *("kedi", ","),
        *("<DAT>", "<e\u0301>", "<A.B>"),
    ]


def test_bpe_dropout_leaves_tags_alone() -> None:
    tokenizer = with_tags(train_tokenizer("bpe", ["merged merges " * 30], size=300), TAGS)
    source = "merged merges\tDAT;NEW;SG"
    ids = [*tokenizer.encode(source), EOS]
    varied = [tokenizer.vary(ids, 0.5, seed) for seed in range(20)]
    assert len({tuple(one) for one in varied}) > 1
    assert all(one[-4:] == ids[-4:] for one in varied)
    assert {tokenizer.decode(one) for one in varied} == {tokenizer.decode(ids)}
    with pytest.raises(UserError, match="needs a bpe tokenizer"):
        TOKENIZERS["words"].vary(ids, 0.5, 0)


@each
def test_saved_and_loaded(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    tokenizer = TOKENIZERS[kind]
    save_tokenizers(path, tokenizer, tokenizer.target_side)
    source, target = load_tokenizers(path)
    assert json.loads(path.read_text("utf-8"))["format"] == 2
    assert source.to_json() == tokenizer.to_json()
    assert source.tags == ("N", "DAT", "SG", "V", "past tense", "İ")  # the most frequent first
    assert target is source.target_side
    assert source.size == target.size == tokenizer.size
    again = pickle.loads(pickle.dumps((source, target)))
    for one in (source, again[0]):
        assert one.encode("kedi\tDAT;N") == tokenizer.encode("kedi\tDAT;N")
    assert target.encode("kedi\tN") == BASES[kind].encode("kedi\tN")
    assert again[1] is again[0].target_side

    save_tokenizers(path, tokenizer, BASES["characters"])
    source, target = load_tokenizers(path)
    assert isinstance(source, Tagged)
    assert target.tags == ()


@each
def test_without_tags_nothing_is_written_otherwise(kind: str, tmp_path: Path) -> None:
    base = BASES[kind]
    path = tmp_path / "tokenizer.json"
    save_tokenizers(path, base, base)
    content = {"format": 1, "source": base.to_json(), "target": "source"}
    assert path.read_text("utf-8") == json.dumps(content, ensure_ascii=False)
    source, target = load_tokenizers(path)
    assert source is target
    assert "tags" not in base.to_json()
    assert source.text_of("kedi\tN") == "kedi\tN"
    assert source.encode("kedi\tN") == base.encode("kedi\tN")


@pytest.mark.parametrize("tags", [[], "N", ["N", "N"], [1], [""], ["a;b"], ["a\tb"], [" a"], {}])
def test_damaged_tags_are_refused(tags: object) -> None:
    content = BASES["bytes"].to_json() | {"tags": tags}
    with pytest.raises(ValueError, match=r"tag"):
        from_json(content)


def test_the_target_side_shows_tags_and_writes_nothing_of_them() -> None:
    for tokenizer in TOKENIZERS.values():
        side: Tokenizer = tokenizer.target_side
        tag = tokenizer.encode("\tDAT")[0]
        assert side.token_texts([tag]) == ["<DAT>"]
        assert side.decode([tag, *side.encode("cat"), tag]) == "cat"
