"""The kind of a task is recognised from its pairs: made here, of languages that do not exist."""

import random

import pytest

from regard.data.splits import from_iterable
from regard.recipes.planning import choose
from regard.recipes.survey import survey

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


@pytest.mark.parametrize("stray", ["a" * 9_000, " ".join("a" * 9_000)], ids=["letters", "words"])
@pytest.mark.parametrize(("draw", "name", "source", "target"), KINDS)
def test_one_stray_line_does_not_change_the_kind(draw, name, source, target, stray):
    """Among 400 words, nine thousand letters raise the mean length by 22."""
    rng = random.Random(7)
    pairs = [draw(rng) for _ in range(400)]
    pairs.insert(200, (stray, stray))
    kind = survey(from_iterable(pairs).train).kind()
    assert (kind.name, kind.source, kind.target) == (name, source, target)


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
