"""Laws of tokenizers: nothing is lost, offsets are true, specials cannot be spelled."""

import json
import subprocess
import sys
import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from regard.errors import UserError
from regard.text.tokenizer import Tokenizer, from_json, load, save, train_tokenizer
from regard.text.vocabulary import BOS, EOS, FIRST, PAD, SPECIALS, UNK

TEXTS = ["he's calm . 😀", "il est calme !", "العربية hello hello <eos>", "déjà vu, 1 + 1 = 2"] * 20
KINDS = ("characters", "bytes", "words", "bpe", "unigram")
TOKENIZERS = {kind: train_tokenizer(kind, iter(TEXTS), size=400) for kind in KINDS}
OF_BYTES = ("bytes", "bpe", "unigram")
each = pytest.mark.parametrize("tokenizer", TOKENIZERS.values(), ids=KINDS)
each_of_bytes = pytest.mark.parametrize("tokenizer", [TOKENIZERS[kind] for kind in OF_BYTES], ids=OF_BYTES)

laws = settings(max_examples=60, deadline=None)
any_text = st.text()
any_ids = st.lists(st.integers(0, 420))


@each_of_bytes
@laws
@given(text=any_text)
def test_any_text_survives(tokenizer: Tokenizer, text: str) -> None:
    assert tokenizer.decode(tokenizer.encode(text)) == unicodedata.normalize("NFC", text)


@each_of_bytes
@pytest.mark.parametrize("text", ["", " ", "  a\t\n", "\0", "👩‍👩‍👧 é e\u0301 ﷽", "\u2028\x85", "<eos> <pad>", "日本語"])
def test_awkward_text_survives(tokenizer: Tokenizer, text: str) -> None:
    assert tokenizer.decode(tokenizer.encode(text)) == unicodedata.normalize("NFC", text)


@laws
@given(text=st.text(st.sampled_from("".join(set("".join(TEXTS))))))
def test_known_characters_survive(text: str) -> None:
    tokenizer = TOKENIZERS["characters"]
    assert tokenizer.decode(tokenizer.encode(text)) == unicodedata.normalize("NFC", text)


@laws
@given(words=st.lists(st.sampled_from(["he's", "calm", ".", "😀", "est", "<eos>"])))
def test_known_words_survive(words: list[str]) -> None:
    tokenizer = TOKENIZERS["words"]
    assert tokenizer.decode(tokenizer.encode("  ".join(words))) == " ".join(words)


@each
@laws
@given(text=any_text)
def test_pieces_are_the_ids_with_their_share_of_the_text(tokenizer: Tokenizer, text: str) -> None:
    normal = unicodedata.normalize("NFC", text)
    pieces = tokenizer.pieces(text)
    assert [piece.id for piece in pieces] == tokenizer.encode(text)
    assert all(piece.text == normal[piece.start : piece.end] for piece in pieces if "�" not in piece.text)
    covered = {i for piece in pieces for i in range(piece.start, piece.end)}
    assert covered >= {i for i, letter in enumerate(normal) if not letter.isspace()}


@each
@laws
@given(ids=any_ids)
def test_spans_cover_the_decoded_text(tokenizer: Tokenizer, ids: list[int]) -> None:
    text, spans = tokenizer.decode(ids), tokenizer.spans(ids)
    assert len(spans) == len(ids) == len(tokenizer.token_texts(ids))
    assert [start for start, _ in spans] == sorted(start for start, _ in spans)
    assert max((end for _, end in spans), default=0) == len(text)
    for id, (start, end), shown in zip(ids, spans, tokenizer.token_texts(ids)):
        if id < FIRST and id != UNK:
            assert start == end
        elif id >= FIRST and "�" not in text[start:end]:
            assert shown == text[start:end] or "�" in shown  # the parts of a whole character show as parts


@each
@laws
@given(texts=st.lists(any_text, max_size=5))
def test_a_batch_is_its_texts(tokenizer: Tokenizer, texts: list[str]) -> None:
    assert tokenizer.encode_batch(texts) == [tokenizer.encode(text) for text in texts]


@each
@laws
@given(text=st.one_of(any_text, st.sampled_from(SPECIALS)))
def test_text_never_becomes_a_special(tokenizer: Tokenizer, text: str) -> None:
    ids = tokenizer.encode(f"{text}<eos>")
    assert all(FIRST <= id < tokenizer.size or id == UNK for id in ids)
    if tokenizer.kind in OF_BYTES:
        assert UNK not in ids


@each
def test_specials_are_dropped_and_the_unknown_shows(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("calme")
    assert tokenizer.decode([BOS, *ids, EOS, PAD, PAD]) == tokenizer.decode(ids)
    assert tokenizer.decode([UNK]) == "⁇" == tokenizer.decode([tokenizer.size])
    assert tokenizer.token_texts([BOS, EOS, UNK]) == ["<bos>", "<eos>", "<unk>"]


def test_unknown_characters_and_words() -> None:
    assert TOKENIZERS["characters"].encode("aЖ")[1] == UNK
    assert [piece.text for piece in TOKENIZERS["words"].pieces("il Ж  est")] == ["il", "Ж", "est"]
    assert TOKENIZERS["words"].decode(TOKENIZERS["words"].encode("il Ж  est")) == "il ⁇ est"


@each
def test_lone_surrogates_do_no_harm(tokenizer: Tokenizer) -> None:
    tokenizer.decode(tokenizer.encode("a\ud800b"))


@each
@laws
@given(text=any_text)
def test_json_round_trip(tokenizer: Tokenizer, text: str) -> None:
    again = _again(tokenizer.kind)
    assert again.size == tokenizer.size
    assert again.encode(text) == tokenizer.encode(text)


def _again(kind: str, made: dict[str, Tokenizer] = {}) -> Tokenizer:  # noqa: B006  # made once for all examples
    if kind not in made:
        made[kind] = from_json(json.loads(json.dumps(TOKENIZERS[kind].to_json())))
    return made[kind]


def test_size_is_kept_to() -> None:
    assert TOKENIZERS["bytes"].size == FIRST + 256
    assert train_tokenizer("words", TEXTS, size=FIRST + 3).size == FIRST + 3
    assert all(tokenizer.size <= 400 for tokenizer in TOKENIZERS.values())


@pytest.mark.parametrize(("kind", "size"), [("bpe", 100), ("unigram", 271), ("words", 16), ("caracters", 300)])
def test_impossible_wishes(kind: str, size: int) -> None:
    with pytest.raises(UserError):
        train_tokenizer(kind, TEXTS, size=size)


def test_save_and_load(tmp_path) -> None:
    path = tmp_path / "tokenizer.json"
    save(path, TOKENIZERS["bpe"], TOKENIZERS["bpe"])
    source, target = load(path)
    assert source is target
    save(path, TOKENIZERS["bpe"], TOKENIZERS["characters"])
    source, target = load(path)
    assert (source.kind, target.kind) == ("bpe", "characters")
    assert [entry.name for entry in tmp_path.iterdir()] == ["tokenizer.json"]


@pytest.mark.parametrize(
    "content", ["", "{}", "[1]", '{"format": 9}', '{"format": 1, "source": {"kind": "bpe", "model": {}}}', "\0"]
)
def test_a_damaged_file_says_so(tmp_path, content: str) -> None:
    path = tmp_path / "tokenizer.json"
    with pytest.raises(UserError, match=r"tokenizer\.json"):
        load(path)
    path.write_text(content)
    with pytest.raises(UserError, match=r"tokenizer\.json"):
        load(path)


def test_training_is_the_same_in_every_process() -> None:
    program = (
        "import json; from regard.text.tokenizer import train_tokenizer as t;"
        "texts = [f'{i * 7919 % 1000} the cat sat on mat {i % 37}' for i in range(500)];"
        "print(json.dumps([t(k, texts, size=400).to_json() for k in ('bpe', 'unigram', 'words', 'characters')]))"
    )
    runs = {subprocess.run([sys.executable, "-c", program], capture_output=True, check=True).stdout for _ in range(3)}
    assert len(runs) == 1


def test_text_needs_no_torch() -> None:
    program = "import regard.text.tokenizer, sys; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True)
