"""Laws of tokenizers: nothing is lost, offsets are true, specials cannot be spelled."""

import json
import subprocess
import sys
import unicodedata

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from regard.errors import UserError
from regard.text import tokenizer as tokenizer_module
from regard.text.encoder import encoder_for
from regard.text.tokenizer import (
    Tokenizer,
    from_json,
    load_tokenizers,
    save_tokenizers,
    train_tokenizer,
)
from regard.text.vocabulary import BOS, EOS, FIRST, PAD, SPECIALS, UNK, UNKNOWN

TEXTS = ["he's calm . 😀", "il est calme !", "العربية hello hello <eos>", "déjà vu, 1 + 1 = 2"] * 20
KINDS = ("characters", "bytes", "words", "bpe", "unigram")
TOKENIZERS = {kind: train_tokenizer(kind, iter(TEXTS), size=400) for kind in KINDS}
OF_BYTES = ("bytes", "bpe", "unigram")
each = pytest.mark.parametrize("tokenizer", TOKENIZERS.values(), ids=KINDS)
each_of_bytes = pytest.mark.parametrize(
    "tokenizer", [TOKENIZERS[kind] for kind in OF_BYTES], ids=OF_BYTES
)

laws = settings(max_examples=60, deadline=None)
any_text = st.text()
any_ids = st.lists(st.integers(0, 420))


@each_of_bytes
@laws
@given(text=any_text)
def test_any_text_survives(tokenizer: Tokenizer, text: str) -> None:
    assert tokenizer.decode(tokenizer.encode(text)) == unicodedata.normalize("NFC", text)


@each_of_bytes
@pytest.mark.parametrize(
    "text", ["", " ", "  a\t\n", "\0", "👩‍👩‍👧 é e\u0301 ﷽", "\u2028\x85", "<eos> <pad>", "日本語"]
)
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
    assert all(
        piece.text == normal[piece.start : piece.end] for piece in pieces if "�" not in piece.text
    )
    covered = {i for piece in pieces for i in range(piece.start, piece.end)}
    assert covered >= {i for i, letter in enumerate(normal) if not letter.isspace()}


@each
@laws
@given(ids=any_ids)
@example(
    ids=[FIRST + 0xED, FIRST + 0xA0]
)  # bytes that could begin a character, and make two strange ones
def test_spans_cover_the_decoded_text(tokenizer: Tokenizer, ids: list[int]) -> None:
    text, spans = tokenizer.decode(ids), tokenizer.spans(ids)
    assert len(spans) == len(ids) == len(tokenizer.token_texts(ids))
    assert [start for start, _ in spans] == sorted(start for start, _ in spans)
    assert max((end for _, end in spans), default=0) == len(text)
    for id, (start, end), shown in zip(ids, spans, tokenizer.token_texts(ids)):
        if id < FIRST and id != UNK:
            assert start == end
        elif id >= FIRST and "�" not in text[start:end]:
            assert (
                shown == text[start:end] or "�" in shown
            )  # the parts of a whole character show as parts


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


BPE = train_tokenizer(
    "bpe", [" ".join(TEXTS), "merged merger merges emerged emerge " * 9], size=600
)
LONG = BPE.encode(
    "he merged the merger , emerged calm and is calm , calm as merges go . déjà vu hello hello !"
)


@laws
@given(text=any_text, dropout=st.sampled_from([0.0, 0.1, 0.5, 1.0]), seed=st.integers(0, 2**64))
def test_varied_ids_are_the_same_text(text: str, dropout: float, seed: int) -> None:
    ids = [BOS, *BPE.encode(text), UNK, *BPE.encode(f"{text} merged"), EOS, PAD]
    varied = BPE.vary(ids, dropout, seed)
    assert BPE.decode(varied) == BPE.decode(ids)
    assert [id for id in varied if id < FIRST] == [BOS, UNK, EOS, PAD]
    assert BPE.decode(varied[: varied.index(UNK)]) == unicodedata.normalize("NFC", text)
    assert (varied[0], varied[-2:]) == (BOS, [EOS, PAD])
    assert dropout or varied == ids
    if dropout == 1.0:
        assert len(varied) == 4 + len(
            BPE.decode([id for id in varied if id >= FIRST]).encode()
        )  # bytes


@laws
@given(ids=st.lists(st.integers(0, BPE.size - 1)), seed=st.integers(0, 99))
def test_varied_ids_of_no_text_are_the_same_bytes(ids: list[int], seed: int) -> None:
    def spelt(ids: list[int]) -> list[bytes]:
        return [b"<%d>" % id if id < FIRST else BPE._known[id] for id in ids]

    assert b"".join(spelt(BPE.vary(ids, 0.3, seed))) == b"".join(spelt(ids))


@laws
@given(text=any_text)
def test_the_least_dropout_is_the_librarys_own_cut(text: str) -> None:
    ids = BPE.encode(f"{text} merged {text}  calm   hello")
    assert BPE.vary(ids, 1e-300, 1) == ids


def test_cuts_vary_by_seed_alone() -> None:
    cuts = [tuple(BPE.vary(LONG, 0.1, seed)) for seed in range(50)]
    assert len(set(cuts)) > 40
    again = from_json(BPE.to_json())
    assert [tuple(again.vary(np.array(LONG), 0.1, seed)) for seed in reversed(range(50))] == cuts[
        ::-1
    ]
    longer = [
        sum(len(BPE.vary(LONG, dropout, seed)) for seed in range(50))
        for dropout in (0.0, 0.1, 0.5, 0.9)
    ]
    assert sorted(set(longer)) == longer


def test_a_dropped_merge_is_dropped_as_often_as_asked() -> None:
    two = train_tokenizer("bpe", ["ab"] * 9, size=FIRST + 257)
    whole = two.encode(" ".join(["ab"] * 9))  # the only merge: b after a
    drawn = [two._cut(two.encode("ab"), 0.3, number) for number in range(2_000)]
    assert 0.25 < sum(len(cut) == 2 for cut in drawn) / 2_000 < 0.35
    assert len(whole) == 9 + 8


def test_the_memory_of_cuts_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokenizer_module, "_CUTS", 10)
    small = from_json(BPE.to_json())
    for seed in range(50):
        assert small.vary(LONG, 0.1, seed) == BPE.vary(LONG, 0.1, seed)
        assert small._cuts.cache_info().currsize <= 10


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "bpe"])
def test_only_bpe_has_merges_to_leave_out(kind: str) -> None:
    with pytest.raises(UserError, match=f"not {kind}"):
        TOKENIZERS[kind].vary([20], 0.1, 1)


def test_unknown_characters_and_words() -> None:
    assert TOKENIZERS["characters"].encode("aЖ")[1] == UNK
    assert [piece.text for piece in TOKENIZERS["words"].pieces("il Ж  est")] == ["il", "Ж", "est"]
    assert TOKENIZERS["words"].decode(TOKENIZERS["words"].encode("il Ж  est")) == "il ⁇ est"


@each
def test_lone_surrogates_do_no_harm(tokenizer: Tokenizer) -> None:
    text = tokenizer.decode(tokenizer.encode("a\ud800b"))
    assert text.encode()  # what comes out can be written


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


@pytest.mark.parametrize(
    ("kind", "size"), [("bpe", 100), ("unigram", 271), ("words", 16), ("caracters", 300)]
)
def test_impossible_wishes(kind: str, size: int) -> None:
    with pytest.raises(UserError):
        train_tokenizer(kind, TEXTS, size=size)


def test_save_and_load(tmp_path) -> None:
    path = tmp_path / "tokenizer.json"
    save_tokenizers(path, TOKENIZERS["bpe"], TOKENIZERS["bpe"])
    source, target = load_tokenizers(path)
    assert source is target
    save_tokenizers(path, TOKENIZERS["bpe"], TOKENIZERS["characters"])
    source, target = load_tokenizers(path)
    assert (source.kind, target.kind) == ("bpe", "characters")
    assert [entry.name for entry in tmp_path.iterdir()] == ["tokenizer.json"]


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{}",
        "[1]",
        '{"format": 9}',
        '{"format": 1, "source": {"kind": "bpe", "model": {}}}',
        "\0",
    ],
)
def test_a_damaged_file_says_so(tmp_path, content: str) -> None:
    path = tmp_path / "tokenizer.json"
    with pytest.raises(UserError, match=r"tokenizer\.json"):
        load_tokenizers(path)
    path.write_text(content)
    with pytest.raises(UserError, match=r"tokenizer\.json"):
        load_tokenizers(path)


def test_training_is_the_same_in_every_process() -> None:
    program = (
        "import json; from regard.text.tokenizer import train_tokenizer as t;"
        "texts = [f'{i * 7919 % 1000} the cat sat on mat {i % 37}' for i in range(500)];"
        "print(json.dumps([t(k, texts, size=400).to_json() for k in ('bpe', 'unigram', 'words', "
        "'characters')]))"
    )
    runs = {
        subprocess.run([sys.executable, "-c", program], capture_output=True, check=True).stdout
        for _ in range(3)
    }
    assert len(runs) == 1


def test_text_needs_no_torch() -> None:
    program = "import regard.text.tokenizer, sys; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True)


# ---- what a vocabulary holds ----


@pytest.mark.parametrize("reserved", [0, 5])
@pytest.mark.parametrize("kind", KINDS)
def test_fewer_reserved_ids(kind, reserved):
    """Ids move down by those not reserved; everything else stays."""
    usual = TOKENIZERS[kind]
    moved = FIRST - 4 - reserved
    tokenizer = train_tokenizer(kind, iter(TEXTS), size=400 - moved, reserved=reserved)
    assert tokenizer.first == 4 + reserved
    assert tokenizer.size == usual.size - moved
    again = from_json(tokenizer.to_json())
    for text in TEXTS:
        ids = tokenizer.encode(text)
        assert ids == [id - moved if id >= FIRST else id for id in usual.encode(text)]
        assert tokenizer.decode(ids) == usual.decode(usual.encode(text))
        assert again.encode(text) == ids
        flat, _ = encoder_for(tokenizer)([text])
        assert flat.tolist() == ids


def test_rare_words_are_unknown():
    tokenizer = train_tokenizer("words", ["a a b", "c c b d"], size=100, min_count=2)
    assert tokenizer.decode(tokenizer.encode("a b c d")) == f"a b c {UNKNOWN}"
    with pytest.raises(UserError, match=r"text\.min_count=9"):
        train_tokenizer("words", ["a a b"], size=100, min_count=9)
