"""What a look at the training pairs tells: how long they are, what they are made of, what kind."""

import math
import random
import unicodedata
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from regard.data.pairs import Pair
from regard.data.splits import Stream
from regard.text.tags import split_tags

SAMPLE = 50_000
"""The most pairs that are looked at …"""
SAMPLE_CHARACTERS = 20_000_000
"""… and the most characters."""
SEED = 0
"""Of the sample: the same data gives the same plan, also where data.seed is another."""
STRAY = 10
"""A text this many times longer than usual is ignored as a mistake …"""
STRAYS = 0.02
"""… unless there are more of them, as a share of the pairs."""
SAFETY = 1.5
"""What an estimated number of subwords is multiplied by where there should not be too few."""
SPACED = 15
"""The most characters of a word on average, in scripts that put spaces between words."""
RARE = 5
"""A word that is seen fewer times is rare."""
WORD_CHARACTERS = 30
WORD_WORDS = 2.5
"""The most characters and words that a name, a lemma or a term has on average."""
TAGGED_CHARACTERS = 50
"""The same of what has tags: some forms are of several words."""
SYMBOL_CHARACTERS = 3.0
"""The most characters of a phoneme or a spaced letter on average."""
SYMBOLS = 300
"""The most different phonemes or spaced letters."""
OFTEN = 20
"""How many times a word of a closed vocabulary is seen on average, at least."""
CLOSED = 3000
"""The most words of a closed vocabulary."""
FORMULA = 40
"""The most characters of the alphabet of formulas."""
NEAR = 1.5
"""A text is nearly a word up to this factor on either side of WORD_CHARACTERS and WORD_WORDS."""
PERHAPS_OFTEN = (10, 40)
PERHAPS_CLOSED = (2000, 4500)
"""Where OFTEN and CLOSED leave it open whether a vocabulary is closed."""
SENTENCE_WORDS = 5
"""Texts of more words, or of more than NEAR times WORD_CHARACTERS, are ordinary sentences."""

FEW_CHARACTERS = 200_000
"""Texts of fewer characters in all are learned letter by letter: most words are seen once."""

SENTENCES = "sentence → sentence"
FEW_WORDS = "few words → few words"
TAGGED = "a word and its tags → its form"
SOUNDS = "word → sounds or letters"
WORDS = ("word → word", "word → another script")
"""Names of kinds between which the data may leave it open."""

TokenizerKind = Literal["characters", "words", "bpe"]


@dataclass
class Side:
    """One side of the pairs, measured over a sample."""

    texts: int = 0
    characters: int = 0
    bytes: int = 0
    words: Counter[str] = field(default_factory=Counter)
    alphabet: Counter[str] = field(default_factory=Counter)
    lengths: Counter[int] = field(default_factory=Counter)  # in characters
    tags: int = 0

    def add(self, text: str, tags: int = 0) -> None:
        """Measure one more text, which has so many tags."""
        self.texts += 1
        self.tags += tags
        self.characters += len(text)
        self.bytes += len(text.encode(errors="replace"))
        self.words.update(text.split())
        self.alphabet.update(text)
        self.lengths[len(text)] += 1

    @property
    def mean_words(self) -> float:
        """Words of a text."""
        return self.words.total() / max(1, self.texts)

    @property
    def mean_characters(self) -> float:
        """Characters of a text."""
        return self.characters / max(1, self.texts)

    def tokens(self, tokenizer: str) -> float:
        """About how many tokens a text has, its <eos> included."""
        total = self.characters * self._tokens_a_character(tokenizer) + self.tags
        return total / max(1, self.texts) + 1

    def long_tokens(self, tokenizer: str) -> float:
        """How many tokens at most one text in twenty exceeds, rather too many than too few."""
        factor = self._tokens_a_character(tokenizer)
        if tokenizer in ("bpe", "unigram"):
            factor *= SAFETY
        tags = self.tags / max(1, self.texts)

        seen = 0
        for length in sorted(self.lengths):
            seen += self.lengths[length]
            if 20 * seen >= 19 * self.texts:
                return length * factor + tags + 1
        return 1.0

    def _tokens_a_character(self, tokenizer: str) -> float:
        """Exact, but for subwords, where it is a guess until they are learned."""
        characters = max(1, self.characters)
        if tokenizer == "words":
            return self.words.total() / characters
        if tokenizer == "bytes":
            return self.bytes / characters
        if tokenizer == "characters":
            return 1.0
        is_spaced = self.characters <= SPACED * self.words.total()
        return 0.25 if is_spaced else 0.7

    @property
    def is_symbols(self) -> bool:
        """Whether the texts are phonemes, or single letters, with spaces between them."""
        symbols = len(self.words)
        letters = sum(len(word) * count for word, count in self.words.items())
        is_short = letters <= SYMBOL_CHARACTERS * self.words.total()
        return self.mean_words >= 2 and 0 < symbols <= SYMBOLS and is_short and self._is_closed(5)

    @property
    def is_closed(self) -> bool:
        """Whether a few words come again and again, so that every one is seen often."""
        return 0 < len(self.words) <= CLOSED and self._is_closed(OFTEN)

    @property
    def is_surely_closed(self) -> bool:
        """Whether a few words come again so often that nobody would doubt it."""
        return 0 < len(self.words) <= PERHAPS_CLOSED[0] and self._is_closed(PERHAPS_OFTEN[1])

    @property
    def is_perhaps_closed(self) -> bool:
        """The same with limits so wide that the words may as well be open."""
        return 0 < len(self.words) <= PERHAPS_CLOSED[1] and self._is_closed(PERHAPS_OFTEN[0])

    def _is_closed(self, often: int) -> bool:
        return self.words.total() >= often * len(self.words)

    @property
    def is_formula(self) -> bool:
        """Whether the texts are mostly digits and signs, of a small alphabet."""
        signs = sum(count for sign, count in self.alphabet.items() if not sign.isalpha())
        is_small = 0 < len(self.alphabet) <= FORMULA and self.mean_characters <= 40
        return is_small and self.mean_words < 2 and 2 * signs > self.characters

    @property
    def is_word(self) -> bool:
        """Whether a text is a word or a name, and most of them are seen once."""
        is_short = self.mean_characters <= WORD_CHARACTERS and self.mean_words <= WORD_WORDS
        return is_short and not self.is_closed

    @property
    def is_nearly_word(self) -> bool:
        """Whether a text is about as long as the longest that is taken for a word."""
        characters = self.mean_characters / WORD_CHARACTERS
        words = self.mean_words / WORD_WORDS
        return 1 / NEAR <= max(characters, words) <= NEAR and not self.is_symbols

    @property
    def is_long_word(self) -> bool:
        """The same by its characters: names of people have two words, but few characters."""
        return self.is_nearly_word and self.mean_characters >= WORD_CHARACTERS / NEAR

    @property
    def is_long(self) -> bool:
        """Whether a text is an ordinary sentence."""
        return self.mean_characters > NEAR * WORD_CHARACTERS or self.mean_words > SENTENCE_WORDS

    @property
    def scripts(self) -> set[str]:
        """The scripts of most of the letters: LATIN, ARABIC, HANGUL …"""
        letters = Counter[str]()
        for letter, count in self.alphabet.items():
            if letter.isalpha() and unicodedata.category(letter) != "Lm":  # ʰ and ː modify others
                letters[unicodedata.name(letter, "?").split()[0]] += count
        return {script for script, count in letters.items() if 10 * count >= letters.total()}


@dataclass(frozen=True)
class Kind:
    """A kind of task: what its pairs are, how they are split into tokens, what shows it."""

    name: str
    source: TokenizerKind
    target: TokenizerKind
    share: bool
    evidence: str

    @property
    def is_spelling(self) -> bool:
        """Whether a word is spelled from another one, letter by letter and mostly in its order."""
        return self.name in (TAGGED, SOUNDS, *WORDS)


@dataclass
class Survey:
    """What a look at the training pairs found."""

    pairs: int
    source: Side
    target: Side

    def kind(self) -> Kind:
        """What kind of task this is, by what its two sides are made of."""
        source = self.source
        target = self.target
        of_source = f"sources of {source.mean_characters:.0f} characters"
        symbols = f"targets of {len(target.words)} symbols with spaces between them"
        end: TokenizerKind = "words" if target.is_symbols else "characters"

        if source.tags and source.mean_characters <= TAGGED_CHARACTERS:
            same = end == "characters" and source.scripts == target.scripts
            return Kind(TAGGED, "characters", end, same, "it has tags")
        if source.is_formula and target.is_formula:
            evidence = f"{len(source.alphabet | target.alphabet)} different characters"
            return Kind("formula → result", "characters", "characters", True, evidence)
        if source.is_word and target.is_symbols:
            evidence = f"{of_source}, {symbols}"
            return Kind(SOUNDS, "characters", "words", False, evidence)
        if source.is_word and target.is_word:
            return self._of_words(of_source)
        if (source.is_word or source.is_formula) and target.is_closed:
            evidence = f"{of_source}, targets of only {len(target.words):,} different words"
            return Kind("word → few words", "characters", "words", False, evidence)
        if source.is_closed and (target.is_word or target.is_formula):
            evidence = f"sources of only {len(source.words):,} different words"
            return Kind("few words → word", "words", "characters", False, evidence)
        if source.is_closed and target.is_closed:
            words = len(source.words | target.words)
            evidence = f"only {words:,} different words, each seen often"
            return Kind(FEW_WORDS, "words", "words", True, evidence)

        return _of_sentences(_open_words(max(source, target, key=lambda side: len(side.words))))

    def rival(self) -> Kind | None:
        """The second-best kind, where the first is borderline; its evidence says why.

        Characters or BPE is open where both sides are about as long as long names. Words or BPE is
        open where both vocabularies are just about closed. Ordinary sentences are left to BPE.
        """
        first = self.kind()
        sides = (self.source, self.target)
        if first.name == FEW_WORDS:
            is_sure = all(side.is_surely_closed for side in sides)
            return None if is_sure else _of_sentences(self._nearly_closed())
        if first.name in WORDS and all(side.is_long_word for side in sides):
            return _of_sentences(self._nearly_words())
        if first.name != SENTENCES or any(side.is_long for side in sides):
            return None
        if all(side.is_perhaps_closed for side in sides):
            return Kind(FEW_WORDS, "words", "words", True, self._nearly_closed())
        if all(side.is_nearly_word for side in sides):
            return self._of_words(self._nearly_words())
        return None

    def _nearly_closed(self) -> str:
        """Why the words may be few or many, for a person."""
        words = max(len(side.words) for side in (self.source, self.target))
        seen = min(side.words.total() / len(side.words) for side in (self.source, self.target))
        return f"{words:,} different words, each seen about {seen:.0f} times: neither few nor many"

    def _nearly_words(self) -> str:
        """Why the texts may be names or sentences, for a person."""
        source = self.source
        target = self.target
        return (
            f"texts of {source.mean_words:.1f} and {target.mean_words:.1f} words, "
            f"{source.mean_characters:.0f} and {target.mean_characters:.0f} characters: between "
            f"names and sentences"
        )

    def _of_words(self, of_source: str) -> Kind:
        """What kind it is where both sides are words, by their scripts."""
        one = self.source.scripts
        other = self.target.scripts
        if one == other:
            return Kind(WORDS[0], "characters", "characters", True, of_source)
        evidence = f"{of_source}, {_script_names(one)} and {_script_names(other)}"
        return Kind(WORDS[1], "characters", "characters", False, evidence)


@dataclass
class TextSurvey:
    """What a look at the training texts of a language model found."""

    texts: int
    side: Side

    @property
    def characters(self) -> int:
        """About how many characters there are in all."""
        return round(self.texts * self.side.mean_characters)

    def kind(self) -> Kind:
        """What the texts are, by what they are made of."""
        side = self.side
        amount = f"{self.characters:,} characters"
        if side.is_formula:
            return _of_texts("formulas", "characters", amount)
        if side.is_symbols:
            return _of_texts("symbols with spaces between them", "words", amount)
        if side.is_word:
            return _of_texts("words or names", "characters", amount)
        kind: TokenizerKind = "characters" if self.characters < FEW_CHARACTERS else "bpe"
        return _of_texts("texts", kind, amount)


def _of_texts(name: str, tokenizer: TokenizerKind, evidence: str) -> Kind:
    return Kind(name, tokenizer, tokenizer, True, evidence)


def _of_sentences(evidence: str) -> Kind:
    return Kind(SENTENCES, "bpe", "bpe", True, evidence)


def _open_words(side: Side) -> str:
    """Why the words of this side are better split, for a person."""
    words = len(side.words)
    rare = sum(count < RARE for count in side.words.values())
    if 5 * rare >= words:
        return f"{words:,} different words, many of them rare"
    return f"{words:,} different words, seen {side.words.total() / words:.0f} times on average"


def _script_names(scripts: set[str]) -> str:
    """Scripts for a person: Latin, CJK/Hiragana …"""
    names = [script if script == "CJK" else script.capitalize() for script in sorted(scripts)]
    return "/".join(names) or "no letters"


def survey(pairs: Stream, *, has_tags: bool = False) -> Survey:
    """Measure a sample of the pairs, and count all. has_tags: whether the sources have tags."""
    count = pairs.count()
    sample = _sample(pairs, count)

    source = Side()
    target = Side()
    for pair in _without_strays(sample):
        if has_tags:
            text, tags = split_tags(pair.source)
            source.add(text, len(tags))
        else:
            source.add(pair.source)
        _add_all(target, pair.targets)
    return Survey(count, source, target)


def survey_texts(texts: Stream) -> TextSurvey:
    """Measure a sample of the texts of a language model, and count all."""
    count = texts.count()
    side = Side()
    _add_all(side, (pair.source for pair in _sample(texts, count)))
    return TextSurvey(count, side)


def _sample(pairs: Stream, count: int) -> list[Pair]:
    """At most SAMPLE of the `count` pairs, from everywhere in the stream; fewer if they are long.

    Many files are sorted by length, so that the first pairs say little about the others.
    """
    rng = random.Random(SEED)
    sample: list[Pair] = []
    characters = 0
    share = 1.0  # of the pairs that are kept
    for pair in pairs.sample(SAMPLE, SEED, total=count):
        if share < 1 and rng.random() >= share:
            continue
        sample.append(pair)
        characters += _characters([pair])
        while characters > SAMPLE_CHARACTERS and len(sample) > 1:
            sample = _half(sample, rng)
            characters = _characters(sample)
            share /= 2
    return sample


def _half(sample: list[Pair], rng: random.Random) -> list[Pair]:
    """One of every two neighbours, drawn at random: files may alternate between two kinds."""
    return [rng.choice(sample[place : place + 2]) for place in range(0, len(sample), 2)]


def _characters(pairs: Iterable[Pair]) -> int:
    return sum(len(pair.source) + sum(map(len, pair.targets)) for pair in pairs)


def _without_strays(sample: list[Pair]) -> list[Pair]:
    """The pairs without those that are far too long, unless there are too many of these."""
    sources = [len(pair.source) for pair in sample]
    targets = [max(map(len, pair.targets), default=0) for pair in sample]
    most_source = STRAY * _usual_length(sources)
    most_target = STRAY * _usual_length(targets)

    kept = [
        pair
        for pair, source, target in zip(sample, sources, targets)
        if source <= most_source and target <= most_target
    ]
    return kept if len(sample) - len(kept) <= STRAYS * len(sample) else sample


def _usual_length(lengths: Iterable[int]) -> float:
    """The mean without as many of the longest as may be strays; at least 1."""
    shortest_first = sorted(lengths)
    strays = math.ceil(STRAYS * len(shortest_first))
    usual = shortest_first[: len(shortest_first) - strays] or shortest_first
    return max(1.0, sum(usual) / max(1, len(usual)))


def _add_all(side: Side, texts: Iterable[str]) -> None:
    for text in texts:
        side.add(text)
