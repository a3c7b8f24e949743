"""The kind of a task is recognised from its pairs: made here, of languages that do not exist."""

import random
import tempfile
from pathlib import Path

import numpy as np
import pytest

from regard.data.kept import Kept
from regard.data.pairs import Pair
from regard.data.splits import Stream, from_iterable
from regard.recipes import survey as surveying
from regard.recipes.planning import choose
from regard.recipes.survey import Side, survey

LATIN = "abcdefghijklmnoprstuvz"
GREEK = "αβγδεζηθικλμνξοπρστυφχψω"
HANGUL = [chr(0xAC00 + 7 * number) for number in range(400)]


def word(rng, letters, low=3, high=9):
    return "".join(rng.choices(letters, k=rng.randint(low, high)))


def sounds(rng):
    word_ = word(rng, LATIN)
    return word_, " ".join({"a": "ɑ", "c": "tʃ", "z": "dʒ"}.get(letter, letter) for letter in word_)


def syllables(rng):
    word_ = word(rng, HANGUL, 2, 4)
    return word_, " ".join(LATIN[ord(letter) % 20] for letter in word_ * 2)


def names(rng):
    name = word(rng, LATIN)
    return name, "".join(GREEK[LATIN.index(letter)] for letter in name)


def full_names(rng):
    first, last = names(rng), names(rng)
    return f"{first[0]} {last[0]}", f"{first[1]} {last[1]}"


def plurals(rng):
    noun = word(rng, LATIN)
    return noun, noun + "es"


def sums(rng):
    one, other = rng.randint(0, 999), rng.randint(0, 999)
    return f"{one}+{other}", str(one + other)


def commands(rng):
    verbs = rng.choices(["walk", "run", "jump", "look"], k=rng.randint(1, 4))
    return " and ".join(verbs), " ".join(f"I_{verb.upper()}" for verb in verbs)


def sentences(rng):
    words = [word(rng, LATIN, 1, 4) for _ in range(rng.randint(4, 12))]
    return " ".join(words), " ".join(w[::-1] for w in words)


def paragraphs(rng):
    words = [word(rng, LATIN, 2, 6) for _ in range(60)]
    return " ".join(words), " ".join(w.upper() for w in words)


def spelt_numbers(rng):
    number = str(rng.randint(0, 999_999))
    digits = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
    return number, " ".join(digits[int(digit)] for digit in number)


def read_numbers(rng):
    return spelt_numbers(rng)[::-1]


def labels(rng):
    return word(rng, LATIN), rng.choice(["french", "greek", "other"])


KINDS = [
    (spelt_numbers, "word → few words", "characters", "words"),
    (read_numbers, "few words → word", "words", "characters"),
    (labels, "word → few words", "characters", "words"),
    (sounds, "word → sounds or letters", "characters", "words"),
    (syllables, "word → sounds or letters", "characters", "words"),
    (names, "word → another script", "characters", "characters"),
    (full_names, "word → another script", "characters", "characters"),
    (plurals, "word → word", "characters", "characters"),
    (sums, "formula → result", "characters", "characters"),
    (commands, "few words → few words", "words", "words"),
    (sentences, "sentence → sentence", "bpe", "bpe"),
    (paragraphs, "sentence → sentence", "bpe", "bpe"),
]


@pytest.mark.parametrize("pairs", [300, 5000])
@pytest.mark.parametrize(("draw", "name", "source", "target"), KINDS)
def test_the_kind(draw, name, source, target, pairs):
    rng = random.Random(pairs)
    splits = from_iterable([draw(rng) for _ in range(pairs)])
    kind = survey(splits.train).kind()
    assert (kind.name, kind.source, kind.target) == (name, source, target)
    assert kind.evidence


def stream(pairs):
    """All pairs as training data: none is split off."""
    return Stream(lambda: [Pair(source, (target,), 1) for source, target in pairs])


@pytest.mark.parametrize("stray", ["a" * 9_000, " ".join("a" * 9_000)], ids=["letters", "words"])
@pytest.mark.parametrize("where", ["source", "target", "both"])
@pytest.mark.parametrize(("draw", "name", "source", "target"), KINDS)
def test_a_stray_line_does_not_change_the_kind(draw, name, source, target, where, stray):
    """Among 400 words, nine thousand letters raise the mean length by 22."""
    rng = random.Random(7)
    pairs = [draw(rng) for _ in range(400)]
    usual_source, usual_target = pairs[0]
    pairs[200] = (
        usual_source if where == "target" else stray,
        usual_target if where == "source" else stray,
    )
    kind = survey(stream(pairs)).kind()
    assert (kind.name, kind.source, kind.target) == (name, source, target)


def test_a_tenth_of_the_texts_is_no_mistake():
    """Documents among sentences are as long as they are, and the plan must know."""
    rng = random.Random(2)
    document = " ".join(word(rng, LATIN) for _ in range(600))
    pairs = [sentences(rng) for _ in range(900)] + [(document, document)] * 100
    measured = survey(stream(pairs))
    assert measured.source.texts == measured.pairs == 1000
    assert measured.source.long_tokens("bpe") > 600


def test_one_long_target_of_every_pair_is_no_mistake():
    targets = (*["short"] * 20, "long" * 75)
    measured = survey(Stream(lambda: [Pair(f"word{i}", targets, i) for i in range(500)]))
    assert (measured.source.texts, measured.target.texts) == (500, 500 * 21)


@pytest.mark.parametrize("count", [0, 1, 2])
def test_hardly_any_pairs(count):
    pairs = [("a", "b"), ("a" * 100, "b" * 100)][:count]
    assert survey(stream(pairs)).source.texts == count


class Counting:
    """Pairs that are read anew every time, and how many of them were."""

    def __init__(self, pairs):
        self.pairs = pairs
        self.read = 0

    def __call__(self):
        for line, (source, target) in enumerate(self.pairs, 1):
            self.read += 1
            yield Pair(source, (target,), line)


def raw_stream(pairs):
    return Stream(Counting(pairs))


def kept_stream(pairs):
    return Stream(Kept(Counting(pairs), Path(tempfile.gettempdir())))


def dealt_stream(pairs):
    """The training pairs of a file of which every second line is a dev pair."""
    lines = [line for pair in pairs for line in (pair, ("dev", "dev"))]
    codes = np.tile(np.array([0, 1], np.uint8), len(pairs))
    return Stream(Kept(Counting(lines), Path(tempfile.gettempdir())), codes)


STREAMS = [raw_stream, kept_stream, dealt_stream]


@pytest.mark.parametrize("make", STREAMS)
@pytest.mark.parametrize("limit", ["SAMPLE", "SAMPLE_CHARACTERS"])
def test_the_order_of_a_file_hardly_matters(make, limit, monkeypatch):
    """Sorted by length, its first tenth would be half as long as the mean."""
    rng = random.Random(3)
    pairs = [sentences(rng) for _ in range(6000)]
    characters = sum(len(source) + len(target) for source, target in pairs)
    monkeypatch.setattr(surveying, limit, {"SAMPLE": 600}.get(limit, characters // 10))

    measured = survey(make(sorted(pairs, key=lambda pair: len(pair[0]))))
    mean = sum(len(source) for source, _ in pairs) / len(pairs)
    assert measured.pairs == 6000
    assert measured.source.texts >= 300
    assert measured.source.mean_characters == pytest.approx(mean, rel=0.06)
    assert measured.source.long_tokens("characters") > 1.4 * mean
    assert measured == survey(make(sorted(pairs, key=lambda pair: len(pair[0]))))


@pytest.mark.parametrize("limit", ["SAMPLE", "SAMPLE_CHARACTERS"])
def test_every_second_pair_may_be_of_another_kind(limit, monkeypatch):
    """Such as translations to and fro: a sample of every second pair would see one kind only."""
    pairs = [("a", "b"), ("b", "a")] * 2000
    monkeypatch.setattr(surveying, limit, 1000)
    measured = survey(raw_stream(pairs))
    share = measured.source.alphabet["a"] / measured.source.texts
    assert measured.source.texts >= 200
    assert share == pytest.approx(0.5, abs=0.15)


@pytest.mark.parametrize("make", STREAMS)
def test_all_of_a_small_file_is_measured(make):
    """Each text once, in the order of the file."""
    rng = random.Random(4)
    pairs = [sentences(rng) for _ in range(500)]
    expected = Side()
    for source, _ in pairs:
        expected.add(source)
    measured = survey(make(pairs))
    assert measured.pairs == 500
    assert measured.source == expected
    assert list(measured.source.words) == list(expected.words)


@pytest.mark.parametrize("make", STREAMS)
@pytest.mark.parametrize(("count", "texts"), [(99, 99), (100, 100), (101, 100), (1000, 100)])
def test_a_sample_has_at_most_so_many_pairs(make, count, texts, monkeypatch):
    monkeypatch.setattr(surveying, "SAMPLE", 100)
    measured = survey(make([("a", "b")] * count))
    assert (measured.source.texts, measured.pairs) == (texts, count)


def test_a_sample_never_has_more_than_so_many_characters(monkeypatch):
    """But for the pair that is one too many, not even while it is drawn."""
    sizes = []
    half = surveying._half

    def watched(sample, rng):
        sizes.append(20 * len(sample))
        return half(sample, rng)

    monkeypatch.setattr(surveying, "SAMPLE_CHARACTERS", 1000)
    monkeypatch.setattr(surveying, "_half", watched)
    measured = survey(raw_stream([("a" * 10, "b" * 10)] * 2000))
    assert set(sizes) == {1020}
    assert 20 <= measured.source.texts <= 50
    assert measured.pairs == 2000


def test_a_pair_that_is_too_long_alone_is_measured(monkeypatch):
    monkeypatch.setattr(surveying, "SAMPLE_CHARACTERS", 10)
    assert survey(raw_stream([("a" * 100, "b")])).source.texts == 1


@pytest.mark.parametrize(("make", "passes"), [(raw_stream, 2), (kept_stream, 1)])
def test_a_large_file_is_read_twice_at_most(make, passes, monkeypatch):
    monkeypatch.setattr(surveying, "SAMPLE", 10)
    pairs = make([("a", "b")] * 5000)
    counting = pairs.read if make is raw_stream else pairs.read._read
    survey(pairs)
    assert counting.read == passes * 5000


@pytest.mark.parametrize(
    ("text", "tokenizer"),
    [("好" * 500, "bytes"), ("ή" * 500, "bytes"), ("abc " * 100, "words"), ("abc", "characters")],
)
def test_tokens_that_can_be_counted_are(text, tokenizer):
    side = survey(stream([(text, text)] * 3)).source
    count = {"bytes": len(text.encode()), "words": len(text.split()), "characters": len(text)}
    assert side.tokens(tokenizer) == pytest.approx(count[tokenizer] + 1)
    assert side.long_tokens(tokenizer) == pytest.approx(count[tokenizer] + 1)


def test_text_without_spaces_has_more_subwords():
    """A Chinese character is about a token; of English, a token has about four."""
    assert survey(stream([("好" * 500, "x")] * 3)).source.long_tokens("bpe") > 500
    assert survey(stream([("good " * 100, "x")] * 3)).source.long_tokens("bpe") < 200


@pytest.mark.parametrize("words", [1, 3])
def test_a_word_and_its_tags(words):
    """Also where forms are of several words, as in `… mı?`."""
    rng = random.Random(words)
    pairs = []
    for _ in range(300):
        lemma = " ".join(word(rng, LATIN) for _ in range(words))
        pairs.append({"lemma": lemma, "form": f"{lemma}es", "tags": "N;PL"})
    splits = from_iterable(pairs, source="lemma", target="form", features="tags")
    kind = survey(splits.train, has_tags=True).kind()
    assert kind.name == "a word and its tags → its form"
    assert (kind.source, kind.target) == ("characters", "characters")


def test_a_handful_of_pairs_is_no_error():
    kind = survey(from_iterable([("a b c", "x y z")] * 5).train).kind()
    assert kind.name


@pytest.mark.parametrize(("draw", "is_split"), [(syllables, True), (sounds, False)])
def test_hangul_is_split_into_letters(draw, is_split):
    rng = random.Random(1)
    splits = from_iterable([draw(rng) for _ in range(300)])
    chosen, choices = choose(splits, {}, lambda model, load: 1000.0)
    assert chosen["text"].get("jamo", False) == is_split
    assert ("Hangul" in str(choices[0])) == is_split
