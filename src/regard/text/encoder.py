"""Many texts to one array of ids, fast: what encoding a corpus needs.

`Tokenizer.encode` is the reference for each text.
"""

import re
from array import array
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from regard.text.normaliser import Normaliser
from regard.text.tags import split_tags
from regard.text.tokenizer import Bytes, Listed, Subwords, Tagged, Tokenizer, Widened
from regard.text.vocabulary import UNK

Ids = npt.NDArray[np.int32]
Lengths = npt.NDArray[np.int64]
Numbers = npt.NDArray[np.uint64]
TextEncoder = Callable[[Sequence[str]], tuple[Ids, Lengths]]
"""Texts -> their ids in one array, and how many each text has."""

_REMEMBERED = 1 << 18  # words whose ids are kept, some 200 bytes each
_BETWEEN_WORDS = re.compile(r"(?<=\S) (?=\S)")


def encoder_for(tokenizer: Tokenizer) -> TextEncoder:
    """An encoder for one corpus.

    It remembers words, so that the tokenizer, which threads may share, need not.
    """
    if isinstance(tokenizer, Tagged):
        return TextsAndTags(tokenizer)
    if isinstance(tokenizer, Widened):
        return encoder_for(tokenizer.base)
    if isinstance(tokenizer, Subwords):
        return WordByWord(tokenizer)
    if isinstance(tokenizer, Bytes):
        return AllBytes(tokenizer)
    if isinstance(tokenizer, Listed) and tokenizer.kind == "characters":
        return CharacterTable(tokenizer)
    return OneByOne(tokenizer)


class OneByOne:
    """Any tokenizer, by its own method."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer

    def __call__(self, texts: Sequence[str]) -> tuple[Ids, Lengths]:
        rows = self.tokenizer.encode_batch(list(texts))
        lengths = np.fromiter(map(len, rows), np.int64, len(rows))
        flat = np.fromiter((id for row in rows for id in row), np.int32, int(lengths.sum()))
        return flat, lengths


class TextsAndTags:
    """Sources with tags: the texts as those of any tokenizer, and the tags of each after it."""

    def __init__(self, tokenizer: Tagged) -> None:
        self._encode_texts = encoder_for(tokenizer.base)
        self._tag_ids = tokenizer.tag_ids

    def __call__(self, texts: Sequence[str]) -> tuple[Ids, Lengths]:
        sources = [split_tags(text) for text in texts]
        text_ids, text_lengths = self._encode_texts([text for text, _ in sources])
        rows = [self._tag_ids(tags) for _, tags in sources]
        tag_lengths = np.fromiter(map(len, rows), np.int64, len(rows))

        lengths = text_lengths + tag_lengths
        starts = np.cumsum(lengths) - lengths
        ids = np.empty(int(lengths.sum()), np.int32)
        ids[consecutive(starts, text_lengths)] = text_ids
        tags = np.fromiter((id for row in rows for id in row), np.int32, int(tag_lengths.sum()))
        ids[consecutive(starts + text_lengths, tag_lengths)] = tags
        return ids, lengths


class AllBytes:
    """Bytes, which are their own numbers."""

    def __init__(self, tokenizer: Bytes) -> None:
        self._normalise = tokenizer.normalise
        self._first = tokenizer.first

    def __call__(self, texts: Sequence[str]) -> tuple[Ids, Lengths]:
        encoded = [self._normalise(text).encode() for text in texts]
        lengths = np.fromiter(map(len, encoded), np.int64, len(encoded))
        values = np.frombuffer(b"".join(encoded), np.uint8)
        return values.astype(np.int32) + self._first, lengths


class CharacterTable:
    """Characters, looked up in an array by their code points."""

    def __init__(self, tokenizer: Listed) -> None:
        self._normalise = tokenizer.normalise
        tokens = tokenizer.to_json()["tokens"]
        first = tokenizer.first
        points = {ord(token): first + i for i, token in enumerate(tokens) if len(token) == 1}
        size = max(points, default=0) + 2  # the last entry: every point beyond
        self._table = np.full(size, UNK, np.int32)
        self._table[[*points]] = [*points.values()]

    def __call__(self, texts: Sequence[str]) -> tuple[Ids, Lengths]:
        texts = [self._normalise(text) for text in texts]
        lengths = np.fromiter(map(len, texts), np.int64, len(texts))
        points = np.frombuffer("".join(texts).encode("utf-32-le"), "<u4")
        return self._table[np.minimum(points, len(self._table) - 1)], lengths


class WordByWord:
    """BPE and Unigram, with the ids of each word remembered.

    Most words of a text have been met before. The tokenizer cuts a text before every space that
    stands alone between two words (GPT-2's pattern takes the space to the word behind it), and its
    model never looks across a cut. So the ids of a text are those of its words, each with the space
    before it. `_numbers` has a word as it is where a space precedes it, and with " " in front where
    it opens a text.
    """

    def __init__(self, tokenizer: Subwords) -> None:
        self.tokenizer = tokenizer
        self._numbers = _Numbers()
        self._ids = array("i")  # of all remembered words, one after the other
        self._ends = array("q", [0])  # where those of each word end; 0: where the first begins

    def __call__(self, texts: Sequence[str]) -> tuple[Ids, Lengths]:
        known = len(self._ends) - 1
        words = _find_words(texts, self.tokenizer.normalise)
        numbers = self._numbered(words)
        self._learn(self._numbers.new)

        ids, sizes = self._remembered(numbers)
        first_words = np.cumsum(words.counts) - words.counts  # of each text
        lengths = np.add.reduceat(sizes, first_words) if len(texts) else np.empty(0, np.int64)

        if known + len(self._numbers.new) > _REMEMBERED:
            self._forget(known)
        self._numbers.new.clear()
        return ids, lengths

    def _remembered(self, numbers: npt.NDArray[np.int64]) -> tuple[Ids, Lengths]:
        """The ids of words, one after the other, and how many each word has."""
        ends = np.frombuffer(self._ends, np.int64)
        starts = ends[numbers]
        sizes = ends[numbers + 1] - starts
        places = consecutive(starts, sizes)
        if not len(places):
            return np.empty(0, np.int32), sizes
        return np.frombuffer(self._ids, np.int32)[places], sizes

    def _numbered(self, words: "_Words") -> npt.NDArray[np.int64]:
        """The number of each word."""
        opens_text = np.zeros(len(words.places), np.int64)
        opens_text[np.cumsum(words.counts) - words.counts] = 1

        # Row 0: a word's number behind a space. Row 1: its number where it opens a text.
        table = np.zeros((2, len(words.different)), np.int64)
        used = np.zeros((2, len(words.different)), np.bool_)
        used[opens_text, words.places] = True
        inner = np.flatnonzero(used[0])
        table[0, inner] = [self._numbers[words.different[i]] for i in inner.tolist()]
        opening = np.flatnonzero(used[1])
        table[1, opening] = [self._numbers[f" {words.different[i]}"] for i in opening.tolist()]
        return table[opens_text, words.places]

    def _learn(self, words: list[str]) -> None:
        """Append the ids of new words to those of the others."""
        parts = [word[1:] if word.startswith(" ") else f" {word}" for word in words]
        for ids in self.tokenizer.encode_batch(parts):
            self._ids.extend(ids)
            self._ends.append(len(self._ids))

    def _forget(self, known: int) -> None:
        """Drop the new words.

        Only the first words are remembered: by Zipf's law they are the frequent ones.
        """
        for word in self._numbers.new:
            del self._numbers[word]
        del self._ends[known + 1 :]
        del self._ids[self._ends[-1] :]


class _Numbers(dict[str, int]):
    """Words, numbered as they come."""

    def __init__(self) -> None:
        self.new: list[str] = []

    def __missing__(self, word: str) -> int:
        number = self[word] = len(self)
        self.new.append(word)
        return number


class _Words(NamedTuple):
    """The words of some texts."""

    different: list[str]
    places: npt.NDArray[np.int64]
    """Of each word of each text: where it stands in `different`."""
    counts: Lengths
    """How many words each text has: at least one, which may be empty."""


def _find_words(texts: Sequence[str], normalise: Normaliser) -> _Words:
    """The words of all texts, which are normalised first."""
    together = " ".join(texts)
    if normalise(together) != together:
        texts = [normalise(text) for text in texts]
        together = " ".join(texts)

    simple = _single_spaces(together)
    words = _words_by_numpy(texts) if simple else None  # nearly every corpus, nearly always
    if words is None:
        return _words_one_by_one(texts, simple=simple)
    return words


def _words_one_by_one(texts: Sequence[str], *, simple: bool) -> _Words:
    """The words of all texts, by Python alone.

    In simple texts one space stands between two words, and there is no other white space.
    """
    words, counts = _split(texts, simple=simple)
    numbers: dict[str, int] = {}
    places = [numbers.setdefault(word, len(numbers)) for word in words]
    return _Words(list(numbers), np.array(places, np.int64), counts)


def _words_by_numpy(texts: Sequence[str]) -> _Words | None:
    """The words of simple texts in half the time; `different` is in any order.

    Python sees each word but once: sorting brings words of equal hash together. None if two of them
    are different words, which 64 bits make unlikely.
    """
    content = " ".join(texts).encode()
    letters = np.frombuffer(content + b" ", np.uint8)
    ends = np.flatnonzero(letters == ord(" "))
    starts = np.concatenate([[0], ends[:-1] + 1])
    sizes = ends - starts  # bytes of each word
    slices = _eight_bytes_at_a_time(content, starts, sizes)

    hashes = _hash_words(slices)
    order = np.argsort(hashes)
    opens_group = np.ones(len(order), np.bool_)
    opens_group[1:] = np.diff(hashes[order]) != 0
    examples = order[opens_group]  # a word of each group
    groups = np.empty(len(order), np.int64)
    groups[order] = np.cumsum(opens_group) - 1

    example_of_word = examples[groups]
    if not np.array_equal(sizes, sizes[example_of_word]):
        return None
    for words, values in slices:
        value_of_word = np.zeros(len(sizes), np.uint64)
        value_of_word[words] = values
        if not np.array_equal(values, value_of_word[example_of_word[words]]):
            return None

    with_spaces = letters[consecutive(starts[examples], sizes[examples] + 1)]
    different = with_spaces.tobytes().decode().split(" ")[:-1]
    counts = np.fromiter((text.count(" ") for text in texts), np.int64, len(texts)) + 1
    return _Words(different, groups, counts)


def _eight_bytes_at_a_time(
    content: bytes, starts: Lengths, sizes: Lengths
) -> list[tuple[Lengths, Numbers]]:
    """The bytes 0 to 7 of words as numbers, then 8 to 15, and so on.

    Each comes with the places of the words that are long enough to have any.
    """
    padded = content + bytes(8)
    at_byte: Numbers = np.ndarray((len(content),), "<u8", padded, strides=(1,))
    masks = np.array([(1 << 8 * size) - 1 for size in range(9)], np.uint64)
    slices = []
    words = np.arange(len(starts))
    first = 0
    while len(words):
        values = at_byte[starts[words] + first] & masks[np.minimum(sizes[words] - first, 8)]
        slices.append((words, values))
        first += 8
        words = words[sizes[words] > first]
    return slices


def _hash_words(slices: list[tuple[Lengths, Numbers]]) -> Numbers:
    """64 bits for each word, mixed from its bytes by multiplication and shift."""
    hashes = np.zeros(len(slices[0][0]), np.uint64)
    for words, values in slices:
        mixed = (hashes[words] + values) * np.uint64(0x9E3779B97F4A7C15)  # wraps around
        hashes[words] = mixed ^ (mixed >> np.uint64(29))
    return hashes


def consecutive(firsts: Lengths, lengths: Lengths) -> Lengths:
    """Count up from each of `firsts`, as often as its length says."""
    before = np.cumsum(lengths) - lengths
    return np.repeat(firsts - before, lengths) + np.arange(int(lengths.sum()))


def _split(texts: Sequence[str], *, simple: bool) -> tuple[list[str], Lengths]:
    """The words of all texts one after the other, and how many each text has."""
    words: list[str] = []
    counts = []
    for text in texts:
        parts = text.split(" ") if simple or _single_spaces(text) else _BETWEEN_WORDS.split(text)
        words += parts
        counts.append(len(parts))
    return words, np.array(counts, np.int64)


def _single_spaces(text: str) -> bool:
    """Whether all white space is one space between two words.

    All other white space is not printable to Python.
    """
    if text == "" or text.startswith(" ") or text.endswith(" "):
        return False
    return text.isprintable() and "  " not in text
