"""Characters, bytes, words and subwords: four ways to cut a text, one class to use them through."""

import codecs
import json
import random
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cached_property, lru_cache
from itertools import chain, pairwise
from pathlib import Path
from typing import Any, NamedTuple

import tokenizers as hf

from regard.errors import UserError
from regard.files import write_text
from regard.files.reading import parse_json, read_bytes
from regard.text.alphabet import byte_alphabet
from regard.text.normaliser import Normaliser
from regard.text.subwords import check_subwords
from regard.text.tags import split_tags, tagged
from regard.text.vocabulary import PAD, RESERVED, SPECIALS, UNK, UNKNOWN

FORMAT = 2
FORMAT_WITHOUT_TAGS = 1  # which earlier versions of Regard can read, too
MOST = 64 << 20  # bytes of a file of tokenizers
KINDS = ("characters", "bytes", "words", "bpe", "unigram")
_UNKNOWN = UNKNOWN.encode()
# A token of these kinds is a code point, or a run without white space.
_PATTERNS = {"characters": re.compile(".", re.DOTALL), "words": re.compile(r"\S+")}
_CUTS = 1 << 18  # cut words that are remembered, some hundred bytes each


class Piece(NamedTuple):
    """A token as people see it; start and end count characters of the normalised text."""

    id: int
    text: str
    start: int
    end: int


class Tokenizer:
    """Text to ids and back; adds no specials, and decoding drops them.

    A token is the bytes it adds to decoded text, which may be part of a character only.
    """

    def __init__(
        self, kind: str, tokens: Sequence[bytes], normalise: Normaliser, reserved: int = RESERVED
    ) -> None:
        self.kind = kind
        self.normalise = normalise  # applied to every text before it is encoded
        self.reserved = reserved
        self.first = UNK + 1 + reserved  # the id of the first token that is no special
        self.joint = b" " if kind == "words" else b""  # what decoding puts between two tokens
        self._tokens = tokens
        self.size = self.first + len(tokens)
        self.text_size = self.size  # ids from here on are tags, which are no text
        self.tags: tuple[str, ...] = ()

    @property
    def target_side(self) -> "Tokenizer":
        """The tokenizer of the targets, where both sides share this vocabulary."""
        return self

    def text_of(self, source: str) -> str:
        """The text of a source, without its tags."""
        return source

    def encode(self, text: str) -> list[int]:
        """The ids of a text."""
        raise NotImplementedError

    def encode_batch(self, texts: list[str]) -> list[list[int]]:
        """The ids of each text."""
        return [self.encode(text) for text in texts]

    def pieces(self, text: str) -> list[Piece]:
        """The ids of encode, each with its share of the text."""
        ids = self.encode(text)
        pieces = []
        for id, shown, (start, end) in zip(ids, self.token_texts(ids), self.spans(ids)):
            pieces.append(Piece(id, shown, start, end))
        return pieces

    def decode(self, ids: Iterable[int]) -> str:
        """The text of the ids, without specials."""
        known = self._known
        parts = [known[id] if 0 <= id < self.size else _UNKNOWN for id in ids]
        if self.joint:
            parts = [part for part in parts if part]
        return self.joint.join(parts).decode("utf-8", "replace")

    def vary(self, ids: Sequence[int], dropout: float, seed: int) -> list[int]:
        """Other ids of the same text."""
        advice = "set text.dropout=0 or text.tokenizer=bpe"
        raise UserError(f"text.dropout needs a bpe tokenizer, not {self.kind}: {advice}")

    def spans(self, ids: Iterable[int]) -> list[tuple[int, int]]:
        """Where each token lies in decode(ids), in characters; a special is an empty span."""
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        spans = []
        end = 0  # characters finished so far
        for id in ids:
            token = self._known[id] if 0 <= id < self.size else _UNKNOWN
            if not token:
                spans.append((end, end))
                continue
            start = end + len(self.joint) if end else end
            end = start + len(decoder.decode(token))
            begun, _ = decoder.getstate()  # a character that the next token goes on with
            spans.append((start, end + len(begun.decode("utf-8", "replace"))))
        return spans

    def token_texts(self, ids: Iterable[int]) -> list[str]:
        """One string per id to show on an axis; specials by name."""
        shown = self._shown
        return [shown[id] if 0 <= id < self.size else UNKNOWN for id in map(int, ids)]

    @cached_property
    def _shown(self) -> list[str]:
        specials = SPECIALS[: self.first]
        return [*specials, *(token.decode("utf-8", "replace") for token in self._tokens)]

    def to_json(self) -> dict[str, Any]:
        """What `from_json` makes an equal tokenizer of."""
        content: dict[str, Any] = {"kind": self.kind}
        if not self.normalise.is_plain:
            content["normalise"] = self.normalise.to_json()
        if self.reserved != RESERVED:
            content["reserved"] = self.reserved
        return content

    @cached_property
    def _known(self) -> list[bytes]:
        """What each id adds to decoded text: nothing for specials, "⁇" for <unk>."""
        specials = [b""] * self.first
        specials[UNK] = _UNKNOWN
        return [*specials, *self._tokens]


class Listed(Tokenizer):
    """Characters or words, looked up in a list.

    A token that spells "<eos>" is an ordinary token.
    """

    def __init__(
        self, kind: str, tokens: list[str], normalise: Normaliser, reserved: int = RESERVED
    ) -> None:
        super().__init__(kind, [token.encode() for token in tokens], normalise, reserved)
        self._ids = {token: self.first + i for i, token in enumerate(tokens)}
        if len(self._ids) != len(tokens):
            raise ValueError("the vocabulary contains a token twice")

    def encode(self, text: str) -> list[int]:
        tokens = _PATTERNS[self.kind].findall(self.normalise(text))
        return [self._ids.get(token, UNK) for token in tokens]

    def pieces(self, text: str) -> list[Piece]:
        matches = _PATTERNS[self.kind].finditer(self.normalise(text))
        return [Piece(self._ids.get(match[0], UNK), match[0], *match.span()) for match in matches]

    def to_json(self) -> dict[str, Any]:
        return super().to_json() | {"tokens": list(self._ids)}


class Bytes(Tokenizer):
    """Every byte of UTF-8 is a token: nothing to learn, and no text is ever unknown."""

    def __init__(self, normalise: Normaliser, reserved: int = RESERVED) -> None:
        super().__init__("bytes", [bytes((value,)) for value in range(256)], normalise, reserved)

    def encode(self, text: str) -> list[int]:
        return [self.first + value for value in self.normalise(text).encode()]


class Subwords(Tokenizer):
    """BPE or Unigram over bytes, by the `tokenizers` library.

    The library's model holds no special tokens: our id is its id + first.
    """

    def __init__(
        self,
        kind: str,
        model: hf.Tokenizer,
        normalise: Normaliser,
        reserved: int = RESERVED,
    ) -> None:
        self._model = model
        alphabet = byte_alphabet()
        spellings = {id: token for token, id in model.get_vocab().items()}
        tokens = [
            bytes(alphabet[letter] for letter in spellings[id]) for id in range(len(spellings))
        ]
        super().__init__(kind, tokens, normalise, reserved)
        self._ids = {token: self.first + id for id, token in spellings.items()}

        # What a word begins with: a special, or a token that opens with a space.
        self._openers = {*range(self.first)}
        self._openers.update(
            self.first + id for id, token in enumerate(tokens) if token.startswith(b" ")
        )
        self._cuts = lru_cache(_CUTS)(self._cut)

    def encode(self, text: str) -> list[int]:
        encoding = self._model.encode(self.normalise(text), add_special_tokens=False)
        return [self.first + id for id in encoding.ids]

    def encode_batch(self, texts: list[str]) -> list[list[int]]:
        encodings = self._model.encode_batch_fast(
            [self.normalise(text) for text in texts], add_special_tokens=False
        )
        return [[self.first + id for id in encoding.ids] for encoding in encodings]

    def vary(self, ids: Sequence[int], dropout: float, seed: int) -> list[int]:
        """BPE-dropout (Provilkov et al., 2020), the same for the same arguments.

        Each word gets one of 16 cuts of its own.
        """
        if self.kind != "bpe":
            return super().vary(ids, dropout, seed)
        ids = [*map(int, ids)]
        if not dropout:
            return ids

        lots = iter(random.Random(seed).randbytes(len(ids)))
        varied: list[int] = []
        word: list[int] = []
        for id in (*ids, PAD):  # <pad> ends the last word
            if word and id in self._openers:
                varied += self._cuts(tuple(word), dropout, next(lots) % 16)
                word = []
            word.append(id)
        return varied

    def _cut(self, word: tuple[int, ...], dropout: float, number: int) -> list[int]:
        """BPE over a word, with each merge that could be the next left out at random.

        A special in front stays.
        """
        try:
            ordinary = [self._tokens[id - self.first] for id in word if id >= self.first]
            text = b"".join(ordinary).decode()
        except UnicodeDecodeError:  # a part of a character, as no text gives it
            return [*word]

        rng = random.Random(f"{word} {dropout} {number}")
        ids = [id for id in word if id < self.first]
        for letters, _ in self._model.pre_tokenizer.pre_tokenize_str(text):
            ids += self._merge([self._ids[letter] for letter in letters], dropout, rng)
        return ids

    def _merge(self, ids: list[int], dropout: float, rng: random.Random) -> list[int]:
        """Merge ids, the lowest rank first, until no merge is possible or all are left out."""
        merges = self._merges
        while True:
            candidates = [
                (*merges[pair], place)
                for place, pair in enumerate(pairwise(ids))
                if pair in merges and rng.random() >= dropout
            ]
            if not candidates:
                return ids
            _, merged, place = min(candidates)
            ids[place : place + 2] = [merged]

    @cached_property
    def _merges(self) -> dict[tuple[int, int], tuple[int, int]]:
        """Two ids to the rank of their merge and the id of the two in one."""
        ids = self._ids
        merges = json.loads(self._model.to_str())["model"]["merges"]
        return {
            (ids[left], ids[right]): (rank, ids[left + right])
            for rank, (left, right) in enumerate(merges)
        }

    def to_json(self) -> dict[str, Any]:
        return super().to_json() | {"model": json.loads(self._model.to_str())}

    def __reduce__(self) -> tuple[Any, ...]:
        return from_json, (self.to_json(),)


class Widened(Tokenizer):
    """A tokenizer whose vocabulary also has tags, which no text ever becomes.

    It is that of the targets where they share the vocabulary of sources with tags.
    """

    def __init__(self, base: Tokenizer, tags: Sequence[str]) -> None:
        tokens = [*base._tokens, *(b"" for _ in tags)]  # a tag adds nothing to decoded text
        super().__init__(base.kind, tokens, base.normalise, base.reserved)
        self.base = base
        self.tags = tuple(tags)
        self.text_size = base.size

    def encode(self, text: str) -> list[int]:
        return self.base.encode(text)

    def encode_batch(self, texts: list[str]) -> list[list[int]]:
        return self.base.encode_batch(texts)

    def pieces(self, text: str) -> list[Piece]:
        return self.base.pieces(text)

    def vary(self, ids: Sequence[int], dropout: float, seed: int) -> list[int]:
        return self.base.vary(ids, dropout, seed)

    @cached_property
    def _shown(self) -> list[str]:
        return [*self.base._shown, *map(_tag_shown, self.tags)]

    def to_json(self) -> dict[str, Any]:
        return self.base.to_json() | {"tags": list(self.tags)}


class Tagged(Widened):
    """A tokenizer of sources that have a text and, after a tab, tags: "kedi\\tN;DAT;SG".

    The text is cut by another tokenizer. Each tag is one token, another than that of any text; one
    that is not in the vocabulary is <unk>.
    """

    def __init__(self, base: Tokenizer, tags: Sequence[str]) -> None:
        super().__init__(base, tags)
        self.normalise = _TextNormaliser(**base.normalise.to_json())
        self._tag_ids = {tag: base.size + i for i, tag in enumerate(tags)}
        if len(self._tag_ids) != len(tags):
            raise ValueError("the vocabulary contains a tag twice")

    @cached_property
    def target_side(self) -> Tokenizer:
        """The same vocabulary for targets, which have no tags."""
        return Widened(self.base, self.tags)

    def text_of(self, source: str) -> str:
        text, _ = split_tags(source)
        return text

    def tag_ids(self, tags: Iterable[str]) -> list[int]:
        """The ids of tags."""
        return [self._tag_ids.get(tag, UNK) for tag in tags]

    def encode(self, text: str) -> list[int]:
        text, tags = split_tags(text)
        return [*self.base.encode(text), *self.tag_ids(tags)]

    def encode_batch(self, texts: list[str]) -> list[list[int]]:
        sources = [split_tags(text) for text in texts]
        rows = self.base.encode_batch([text for text, _ in sources])
        return [[*ids, *self.tag_ids(tags)] for ids, (_, tags) in zip(rows, sources, strict=True)]

    def pieces(self, text: str) -> list[Piece]:
        text, tags = split_tags(text)
        pieces = self.base.pieces(text)
        start = len(self.base.normalise(text)) + 1  # after the tab
        for tag, id in zip(tags, self.tag_ids(tags), strict=True):
            end = start + len(tag)
            pieces.append(Piece(id, _tag_shown(tag), start, end))
            start = end + 1  # after the semicolon
        return pieces

    def decode(self, ids: Iterable[int]) -> str:
        """The source of the ids: its text and, after a tab, its tags."""
        text_ids, tag_ids = self._parted(ids)
        tags = [name for name in map(self._tag_name, tag_ids) if name]
        return tagged(self.base.decode(text_ids), tags)

    def spans(self, ids: Iterable[int]) -> list[tuple[int, int]]:
        text_ids, tag_ids = self._parted(ids)
        spans = self.base.spans(text_ids)
        end = len(self.base.decode(text_ids))
        for name in map(self._tag_name, tag_ids):
            start = end + 1 if name else end  # a tab or a semicolon stands before a tag
            end = start + len(name)
            spans.append((start, end))
        return spans

    def vary(self, ids: Sequence[int], dropout: float, seed: int) -> list[int]:
        """Other ids of the same text, and the same tags."""
        text_ids, tag_ids = self._parted(ids)
        return [*self.base.vary(text_ids, dropout, seed), *tag_ids]

    def _parted(self, ids: Iterable[int]) -> tuple[list[int], list[int]]:
        """The ids of the text, and those from the first tag on.

        Where the text is made of bytes, an <unk> can only be a tag.
        """
        ids = [int(id) for id in ids]
        text_has_unknown = self.kind in _PATTERNS
        for place, id in enumerate(ids):
            if self.base.size <= id < self.size or (id == UNK and not text_has_unknown):
                return ids[:place], ids[place:]
        return ids, []

    def _tag_name(self, id: int) -> str:
        """The tag of an id after the text; empty for what is none, such as <eos>."""
        if self.base.size <= id < self.size:
            return self.tags[id - self.base.size]
        return UNKNOWN if id == UNK else ""


class _TextNormaliser(Normaliser):
    """Normalises the text of a source, and leaves its tags as they are."""

    def __call__(self, text: str) -> str:
        text, tags = split_tags(text)
        return tagged(super().__call__(text), tags)


def _tag_shown(tag: str) -> str:
    """A tag as people see it among other tokens."""
    return f"<{tag}>"


def with_tags(source: Tokenizer, tags: Iterable[str]) -> Tagged:
    """A tokenizer that also has these tags, the most frequent first."""
    counts = Counter(tags)
    return Tagged(source, sorted(counts, key=lambda tag: (-counts[tag], tag)))


def train_tokenizer(
    kind: str,
    texts: Iterable[str],
    *,
    size: int,
    normalise: Normaliser | None = None,
    min_count: int = 1,
    reserved: int = RESERVED,
) -> Tokenizer:
    """Learn a tokenizer of at most `size` ids from a stream of texts.

    The same texts give the same tokenizer. normalise: what it does to every text first; if it is
    left out, NFC only. min_count: how often a word or character must occur. reserved: ids to
    reserve beside <pad>, <bos>, <eos> and <unk>.
    """
    normalise = normalise or Normaliser()
    if kind not in KINDS:
        raise UserError(f"no tokenizer {kind!r} (available: {', '.join(KINDS)})")
    if kind == "bytes":
        return Bytes(normalise, reserved)

    first = UNK + 1 + reserved
    room = size - first
    needed = least_tokens(kind)
    if room < needed:
        raise UserError(
            f"a {kind} vocabulary of {size} is too small: it needs at least {first + needed} ids, "
            f"of which {first} are reserved; raise text.size"
        )
    if kind in _PATTERNS:
        tokens = _frequent(kind, map(normalise, texts), room, min_count)
        return Listed(kind, tokens, normalise, reserved)
    model = _train_subwords(kind, map(normalise, texts), room)
    return Subwords(kind, model, normalise, reserved)


def least_tokens(kind: str) -> int:
    """How many ordinary tokens a kind of tokenizer has at least; subwords include all bytes."""
    return 1 if kind in _PATTERNS else 256


def _frequent(kind: str, texts: Iterable[str], room: int, min_count: int) -> list[str]:
    """The most frequent characters or words; of those as frequent, the first by code point."""
    find_tokens = _PATTERNS[kind].findall
    counts = Counter(chain.from_iterable(map(find_tokens, texts)))
    tokens = [token for token, count in counts.items() if count >= min_count]
    if counts and not tokens:
        raise UserError(
            f"none of the {kind} occurs {min_count} times, as text.min_count={min_count} demands: "
            f"lower it"
        )
    return sorted(tokens, key=lambda token: (-counts[token], token))[:room]


def _train_subwords(kind: str, texts: Iterable[str], room: int) -> hf.Tokenizer:
    """A model of at most `room` tokens, among them all bytes."""
    settings: dict[str, Any] = {
        "vocab_size": room,
        "initial_alphabet": sorted(byte_alphabet()),
        "special_tokens": [],
        "show_progress": False,
    }
    model = hf.Tokenizer(hf.models.BPE() if kind == "bpe" else hf.models.Unigram())
    model.pre_tokenizer = hf.pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = hf.trainers.BpeTrainer if kind == "bpe" else hf.trainers.UnigramTrainer
    model.train_from_iterator(texts, trainer(**settings))
    return model if kind == "bpe" else _settled(model)


def _settled(model: hf.Tokenizer) -> hf.Tokenizer:
    """The same Unigram model, equal in every run.

    The library sums in the order of a randomly seeded hash table and gives the bytes that it did
    not need scores 0.0001 apart in that order: so scores are rounded, those bytes share the lowest
    score, and ties are sorted.
    """
    content = json.loads(model.to_str())
    scores = dict(content["model"]["vocab"])
    lowest = min(scores.values())
    for piece, score in scores.items():
        needless = len(piece) == 1 and score <= lowest + 256 * 0.0001
        scores[piece] = round(lowest if needless else score, 4)
    content["model"]["vocab"] = sorted(scores.items(), key=lambda item: (-item[1], item[0]))
    return hf.Tokenizer.from_str(json.dumps(content))


def from_json(content: dict[str, Any]) -> Tokenizer:
    """The tokenizer that to_json described.

    Raises ValueError, KeyError or TypeError where it described none.
    """
    if "tags" in content:
        base = {name: value for name, value in content.items() if name != "tags"}
        return Tagged(from_json(base), _listed_tags(content["tags"]))

    kind = content["kind"]
    if kind not in KINDS:
        raise UserError(f"no tokenizer {kind!r:.40} (available: {', '.join(KINDS)})")
    normalise = Normaliser(**content.get("normalise", {}))
    if not all(isinstance(value, bool) for value in normalise.to_json().values()):
        raise ValueError("normalise: not true or false")
    reserved = content.get("reserved", RESERVED)
    if type(reserved) is not int or not 0 <= reserved <= RESERVED:
        raise ValueError("reserved is no count of ids")
    if kind == "bytes":
        return Bytes(normalise, reserved)
    if kind in _PATTERNS:
        return Listed(kind, _listed_tokens(kind, content["tokens"]), normalise, reserved)

    check_subwords(kind, content["model"])
    try:
        model = hf.Tokenizer.from_str(json.dumps(content["model"]))
    except Exception as error:  # the library raises it bare
        raise ValueError(f"{error!s:.80}") from None
    return Subwords(kind, model, normalise, reserved)


def _listed_tokens(kind: str, tokens: Any) -> list[str]:
    """The tokens of a list, if each is one by the pattern of its kind."""
    is_token = _PATTERNS[kind].fullmatch
    if not isinstance(tokens, list) or not all(map(is_token, tokens)):
        raise ValueError(f"a token is none of {kind}")
    return tokens


def _listed_tags(tags: Any) -> list[str]:
    """The tags of a list, if each is one that a source can carry."""
    if not isinstance(tags, list) or not tags or not all(isinstance(tag, str) for tag in tags):
        raise ValueError("tags: no list of texts")
    for tag in tags:
        if split_tags(tagged("", [tag])) != ("", (tag,)):
            raise ValueError(f"{tag!r:.40} is no tag")
    return tags


def save_tokenizers(path: str | Path, source: Tokenizer, target: Tokenizer) -> None:
    """Both tokenizers in one JSON file; a shared one is stored once."""
    write_text(Path(path), both_as_json(source, target))


def both_as_json(source: Tokenizer, target: Tokenizer) -> str:
    """The content of a file of tokenizers."""
    content = {
        "format": FORMAT if source.tags else FORMAT_WITHOUT_TAGS,
        "source": source.to_json(),
        "target": "source" if target is source.target_side else target.to_json(),
    }
    return json.dumps(content, ensure_ascii=False)


def load_tokenizers(path: str | Path) -> tuple[Tokenizer, Tokenizer]:
    """(source, target) as saved.

    A shared tokenizer comes back as one object, or as the two sides of one that has tags.
    """
    try:
        content = parse_json(read_bytes(Path(path), MOST))
        if type(content["format"]) is not int:
            raise ValueError("no format")
        if content["format"] > FORMAT:
            raise UserError(
                f"{path}: written by a newer Regard (format {content['format']}); update Regard "
                f"to read it"
            )
        source = from_json(content["source"])
        if content["target"] == "source":
            return source, source.target_side
        return source, from_json(content["target"])
    except OSError as error:
        raise UserError(f"{path}: cannot read the tokenizers ({error.strerror})") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        words = " ".join(str(error).split())
        raise UserError(
            f"{path}: not a tokenizer file, or damaged ({type(error).__name__}: {words:.120})"
        ) from error
