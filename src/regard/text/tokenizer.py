"""Characters, bytes, words and subwords: four ways to cut a text, one class to use them through."""

import codecs
import json
import os
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import tokenizers as hf

from ..errors import UserError
from .vocabulary import FIRST, SPECIALS, UNK, UNKNOWN, Vocabulary, normalise

FORMAT = 1
KINDS = ("characters", "bytes", "words", "bpe", "unigram")


class Piece(NamedTuple):
    """A token as people see it; start and end count characters of the NFC-normalised text."""

    id: int
    text: str
    start: int
    end: int


class Tokenizer:
    """Text to ids and back; adds no specials, and decoding drops them."""

    kind: str
    size: int

    def encode(self, text: str) -> list[int]:
        raise NotImplementedError

    def encode_batch(self, texts: list[str]) -> list[list[int]]:
        return [self.encode(text) for text in texts]

    def pieces(self, text: str) -> list[Piece]:
        """The ids of encode, each with its share of the text."""
        raise NotImplementedError

    def decode(self, ids: Iterable[int]) -> str:
        raise NotImplementedError

    def spans(self, ids: Iterable[int]) -> list[tuple[int, int]]:
        """Where each token lies in decode(ids), in characters; a special is an empty span."""
        raise NotImplementedError

    def token_texts(self, ids: Iterable[int]) -> list[str]:
        """One string per id to show on an axis; specials by name."""
        return [SPECIALS[i] if 0 <= i < FIRST else self._show(i) for i in map(int, ids)]

    def to_json(self) -> dict[str, Any]:
        raise NotImplementedError

    def _show(self, id: int) -> str:
        raise NotImplementedError


class _Listed(Tokenizer):
    """Tokens from a vocabulary, joined by a separator."""

    joint: ClassVar[str]

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary
        self.size = len(vocabulary)

    def _show(self, id: int) -> str:
        return self.vocabulary.text(id)

    def decode(self, ids: Iterable[int]) -> str:
        return self.joint.join(filter(None, (self.vocabulary.text(int(i)) for i in ids)))

    def spans(self, ids: Iterable[int]) -> list[tuple[int, int]]:
        spans, end = [], 0
        for text in (self.vocabulary.text(int(i)) for i in ids):
            start = end + len(self.joint) if text and end else end
            end = start + len(text)
            spans.append((start, end))
        return spans

    def to_json(self) -> dict[str, Any]:
        return {"kind": self.kind, "tokens": list(self.vocabulary.tokens)}


class Characters(_Listed):
    """Every character (code point) is a token."""

    kind = "characters"
    joint = ""

    def encode(self, text: str) -> list[int]:
        return self.vocabulary.ids(normalise(text))

    def pieces(self, text: str) -> list[Piece]:
        text = normalise(text)
        return [Piece(id, text[i], i, i + 1) for i, id in enumerate(self.vocabulary.ids(text))]


class Words(_Listed):
    """Every run without white space is a token; decoding puts one space between words."""

    kind = "words"
    joint = " "

    def encode(self, text: str) -> list[int]:
        return self.vocabulary.ids(normalise(text).split())

    def pieces(self, text: str) -> list[Piece]:
        text, pieces, end = normalise(text), [], 0
        for word in text.split():
            start = text.index(word, end)
            end = start + len(word)
            pieces.append(Piece(self.vocabulary.ids([word])[0], word, start, end))
        return pieces


class _OfBytes(Tokenizer):
    """Tokens that stand for bytes of UTF-8: no text is ever unknown, but a token may be part of a character."""

    _bytes: list[bytes]  # of the ordinary tokens

    def _of(self, id: int) -> bytes:
        if FIRST <= id < self.size:
            return self._bytes[id - FIRST]
        return b"" if 0 <= id < FIRST and id != UNK else UNKNOWN.encode()

    def _show(self, id: int) -> str:
        return self._of(id).decode("utf-8", "replace")

    def decode(self, ids: Iterable[int]) -> str:
        return b"".join(self._of(int(i)) for i in ids).decode("utf-8", "replace")

    def spans(self, ids: Iterable[int]) -> list[tuple[int, int]]:
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        spans, done = [], 0  # done: characters decoded so far
        for token in (self._of(int(i)) for i in ids):
            first = last = None
            for value in token:
                done += len(decoder.decode(bytes((value,))))
                # a byte that waits for more belongs to the next character, any other to the one just finished
                last = done if decoder.getstate()[0] else done - 1
                first = last if first is None else first
            spans.append((done, done) if first is None or last is None else (first, last + 1))
        return spans

    def pieces(self, text: str) -> list[Piece]:
        ids = self.encode(text)
        return [Piece(id, self._show(id), *span) for id, span in zip(ids, self.spans(ids))]


class Bytes(_OfBytes):
    """Every byte of UTF-8 is a token: nothing to learn."""

    kind = "bytes"
    size = FIRST + 256

    def __init__(self) -> None:
        self._bytes = [bytes((value,)) for value in range(256)]

    def encode(self, text: str) -> list[int]:
        return [FIRST + value for value in normalise(text).encode()]

    def to_json(self) -> dict[str, Any]:
        return {"kind": self.kind}


class Subwords(_OfBytes):
    """BPE or Unigram over bytes, by the `tokenizers` library. It holds no special tokens: our id is its id + FIRST."""

    def __init__(self, kind: str, model: hf.Tokenizer) -> None:
        self.kind = kind
        self._model = model
        alphabet = _byte_alphabet()
        vocabulary = sorted(model.get_vocab().items(), key=lambda item: item[1])
        self._bytes = [bytes(alphabet[letter] for letter in token) for token, _ in vocabulary]
        self.size = FIRST + len(self._bytes)
        if [id for _, id in vocabulary] != list(range(len(vocabulary))) or len({*self._bytes} & _SINGLE) != 256:
            raise ValueError("a subword vocabulary holds every byte and has no holes")

    def encode(self, text: str) -> list[int]:
        return [FIRST + id for id in self._model.encode(normalise(text), add_special_tokens=False).ids]

    def encode_batch(self, texts: list[str]) -> list[list[int]]:
        encoded = self._model.encode_batch_fast([normalise(text) for text in texts], add_special_tokens=False)
        return [[FIRST + id for id in one.ids] for one in encoded]

    def to_json(self) -> dict[str, Any]:
        return {"kind": self.kind, "model": json.loads(self._model.to_str())}


_SINGLE = {bytes((value,)) for value in range(256)}


def _byte_alphabet() -> dict[str, int]:
    """The letter that stands for each byte (GPT-2's): printable Latin-1 is itself, the rest counts up from U+0100."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [value for value in range(256) if value not in set(printable)]
    return {chr(value): value for value in printable} | {chr(256 + i): value for i, value in enumerate(others)}


def train_tokenizer(kind: str, texts: Iterable[str], *, size: int) -> Tokenizer:
    """Learn a tokenizer of at most `size` ids from a stream of texts. The same texts give the same tokenizer."""
    if kind not in KINDS:
        raise UserError(f"no tokenizer {kind!r}; there are {', '.join(KINDS)}")
    if kind == "bytes":
        return Bytes()
    if kind in ("bpe", "unigram"):
        return _train_subwords(kind, texts, size)
    if size <= FIRST:
        raise UserError(f"a vocabulary of {size} has no room: {FIRST} ids are reserved, choose more")
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(normalise(text) if kind == "characters" else normalise(text).split())
    frequent = sorted(counts, key=lambda token: (-counts[token], token))[: size - FIRST]
    return Characters(Vocabulary(sorted(frequent))) if kind == "characters" else Words(Vocabulary(frequent))


def _train_subwords(kind: str, texts: Iterable[str], size: int) -> Subwords:
    if size < FIRST + 256:
        raise UserError(f"a {kind} vocabulary needs at least {FIRST + 256} ids (256 bytes and {FIRST} reserved), not {size}")
    settings: dict[str, Any] = {
        "vocab_size": size - FIRST,
        "initial_alphabet": sorted(_byte_alphabet()),
        "special_tokens": [],
        "show_progress": False,
    }
    trainers = {"bpe": hf.trainers.BpeTrainer, "unigram": hf.trainers.UnigramTrainer}
    model = hf.Tokenizer(hf.models.BPE() if kind == "bpe" else hf.models.Unigram())
    model.pre_tokenizer = hf.pre_tokenizers.ByteLevel(add_prefix_space=False)
    model.decoder = hf.decoders.ByteLevel()
    model.train_from_iterator((normalise(text) for text in texts), trainers[kind](**settings))
    return Subwords(kind, model if kind == "bpe" else _settled(model))


def _settled(model: hf.Tokenizer) -> hf.Tokenizer:
    """The same Unigram model, equal in every run.

    The library sums in the order of a randomly seeded hash table and gives the bytes that it did not need scores
    0.0001 apart in that order: so scores are rounded, those bytes share the lowest score, and ties are sorted.
    """
    content = json.loads(model.to_str())
    scores = dict(content["model"]["vocab"])
    lowest = min(scores.values())
    for piece, score in scores.items():
        needless = len(piece) == 1 and score <= lowest + 256 * 0.0001
        scores[piece] = round(lowest if needless else score, 4)
    content["model"]["vocab"] = sorted(scores.items(), key=lambda item: (-item[1], item[0]))
    return hf.Tokenizer.from_str(json.dumps(content))


def from_json(d: dict[str, Any]) -> Tokenizer:
    """The tokenizer that to_json described."""
    kind = d.get("kind")
    if kind == "bytes":
        return Bytes()
    if kind == "characters":
        return Characters(Vocabulary(d["tokens"]))
    if kind == "words":
        return Words(Vocabulary(d["tokens"]))
    if kind in ("bpe", "unigram"):
        return Subwords(kind, hf.Tokenizer.from_str(json.dumps(d["model"])))
    raise UserError(f"no tokenizer {kind!r}; there are {', '.join(KINDS)}")


def save(path: str | Path, source: Tokenizer, target: Tokenizer) -> None:
    """Both tokenizers in one JSON file; a shared one is stored once."""
    content = {"format": FORMAT, "source": source.to_json()}
    content["target"] = "source" if target is source else target.to_json()
    aside = Path(f"{path}.tmp")
    aside.write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")
    os.replace(aside, path)


def load(path: str | Path) -> tuple[Tokenizer, Tokenizer]:
    """(source, target) as saved; a shared tokenizer comes back as one object."""
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8"))
        if content["format"] > FORMAT:
            raise UserError(f"{path}: written by a newer Regard (format {content['format']}); update Regard to read it")
        source = from_json(content["source"])
        return source, source if content["target"] == "source" else from_json(content["target"])
    except OSError as error:
        raise UserError(f"{path}: cannot read the tokenizers ({error.strerror})") from error
    except UserError:
        raise
    except Exception as error:  # the tokenizers library raises bare Exception for a damaged model
        raise UserError(f"{path}: not a tokenizer file, or damaged ({type(error).__name__}: {error})") from error
