"""A small English-French grammar, written for this project: seeded, grammatical sentence pairs
without a download.

English to French is a function: "you" is always "tu", "they" always "ils", the simple past the
passé composé (the imperfect for the few verbs of state), "will" the simple future. The words, all
forms spelt out, are in phrases.toml. A sentence is stated, negated or asked; its predicate is an
action, a wish, a quality, a possession or a place.
"""

import random
import re
import tomllib
from collections.abc import Callable, Iterator, Sequence
from importlib.resources import files
from typing import NamedTuple

from regard.data.pairs import stable_hash
from regard.errors import UserError

Key = tuple[str, str, str]  # construction, noun or pronoun, verb or adjective
Rng = random.Random
PATIENCE = 100_000  # draws in a row without a new sentence before the grammar is called exhausted


class Phrase(NamedTuple):
    """A sentence, its translation, and the combination of words that decides its split."""

    english: str
    french: str
    key: Key


class Verb(NamedTuple):
    english: list[str]  # base, third person, past
    present: list[str]  # je, tu, il, nous, ils
    objects: list[str]
    animals: bool  # an animal can do it
    preposition: str
    infinitive: str
    participle: str
    auxiliary: str
    future: str  # its stem
    imperative: str


class Np(NamedTuple):
    """A noun phrase or pronoun in both languages. Person counts je, tu, il, nous, ils as 0 to 4."""

    english: str
    french: str
    head: str
    person: int = 2
    gender: str = "m"
    group: str = "person"
    pronoun: bool = False

    def agree(self, forms: Sequence[str]) -> str:
        return forms[(self.gender == "f") + 2 * (self.person > 2)]


class Predicate(NamedTuple):
    """A verb and what follows it, the noun and the word that name it in the key, and a pronoun that
    French puts first.
    """

    verb: Verb
    english: str
    french: str
    head: str  # empty: the subject's
    word: str
    before: Np = Np("", "", "")


def rows(text: str, mark: str = ",") -> list[list[str]]:
    return [line.split(mark) for line in text.strip().splitlines()]


def read_verb(
    english: str, french: str, rest: str, objects: str, animals: str, preposition: str
) -> Verb:
    infinitive, *present = french.split(",")
    return Verb(
        english.split(","),
        present,
        objects.split(),
        bool(animals),
        preposition,
        infinitive,
        *rest.split(","),
    )


WORDS = tomllib.loads(
    files("regard.data.tasks").joinpath("phrases.toml").read_text(encoding="utf-8")
)
NOUNS, DETERMINERS, TIMES = (
    {k: rows(text) for k, text in WORDS[part].items()} for part in ("nouns", "determiners", "time")
)
ADJECTIVES = [
    (english, forms, place, groups.split())
    for english, *forms, place, groups in rows(WORDS["adjectives"]["words"])
]
FITTING = {
    group: [adjective for adjective in ADJECTIVES if group in adjective[-1]] for group in NOUNS
}
BEFORE_VOWEL = WORDS["adjectives"]["before_vowel"]
ACTIONS, MODALS, (BE, HAVE) = (
    [read_verb(*row) for row in rows(WORDS["verbs"][k], "|")]
    for k in ("actions", "modals", "states")
)
IMPERFECT, OPERATORS = (
    {k: text.split() for k, text in WORDS["verbs"][part].items()}
    for part in ("imperfect", "operators")
)
PRONOUNS = [Np(e, f, e, int(p), g, pronoun=True) for e, f, _, _, _, p, g in rows(WORDS["pronouns"])]
STRESSED = {row[0]: row[2] for row in rows(WORDS["pronouns"])}
OBJECTS = [
    Np(them, les, they, int(p), g)
    for they, _, _, them, les, p, g in rows(WORDS["pronouns"])
    if them != "-"
]
NAMES = [
    Np(name, name, name, gender=gender)
    for name, gender in (entry.split(":") for entry in WORDS["names"].split())
]
ADVERBS = {english: (french, ne) for english, french, ne in rows(WORDS["adverbs"])}
PREPOSITIONS = [(e, f, at.split(), who.split()) for e, f, at, who in rows(WORDS["prepositions"])]
MASSES, OWNED = WORDS["masses"].split(), WORDS["owned"].split()
KNOWN, ANY = (
    ("definite", "possessive"),
    ("definite", "possessive", "indefinite", "number"),
)  # kinds of determiner
VOWEL = rf"(?!(?:{WORDS['aspirated'].replace(' ', '|')})\b)[aeiouhâàéèêîôœ]"
SPELLING = {
    language: [
        (re.compile(pattern.replace("VOWEL", f"(?={VOWEL})")), short) for pattern, short in changes
    ]
    for language, changes in WORDS["spelling"].items()
}


def spelt(text: str, language: str) -> str:
    """Words as they are written side by side."""
    text = " ".join(text.split())
    for pattern, short in SPELLING[language]:
        text = pattern.sub(short, text)
    return text


def noun_phrase(
    rng: Rng, groups: Sequence[str], kinds: Sequence[str], *, negated: bool = False
) -> Np:
    """A noun of one of the groups, a determiner of one of the kinds and, at times, one or two
    adjectives.
    """
    group = rng.choice(groups)
    thing, things, chose, choses, gender = rng.choice(NOUNS[group])
    mass = group in MASSES
    plural = rng.random() < 0.35 and not mass
    np = Np("", "", thing, 4 if plural else 2, gender, group)
    kind = rng.choice([kind for kind in kinds if kind != "number" or (plural and not negated)])
    one, many, *forms = rng.choice(DETERMINERS[kind])
    english, french = many if plural else one, np.agree([*forms, forms[-1]])
    if kind == "indefinite" and mass:
        english, french = "", np.agree(("de le", "de la"))
    if kind == "indefinite" and negated:  # "un chien", but "pas de chien"
        english, french = "any" if plural else english, "de"
    said = {"before": ("", ""), "after": ("", "")}
    for adjective, adjectif, place, _ in (
        rng.sample(FITTING[group], 2) if rng.random() < 0.3 else ()
    ):
        said[place] = adjective, np.agree(adjectif)
    (before, avant), (after, apres) = said["before"], said["after"]
    if avant and french == "des":
        french = "de"
    if not plural and re.match(VOWEL, chose):
        avant = BEFORE_VOWEL.get(avant, avant)
    english = f"{english} {before} {after} {things if plural else thing}"
    return np._replace(
        english=english, french=f"{french} {avant} {choses if plural else chose} {apres}"
    )


def someone(rng: Rng, *, animals: bool = False) -> Np:
    """A pronoun, a name, a person or an animal."""
    lot = rng.random()
    if lot < 0.6:
        return rng.choice(PRONOUNS if lot < 0.5 else NAMES)
    return noun_phrase(rng, ("person", "animal") if animals else ("person",), KNOWN)


def say_english(s: Np, p: Predicate, tense: str, adverb: str, ask: bool) -> str:
    base, third, past = p.verb.english
    own = OPERATORS.get(f"{base} {tense}")
    operator, main = (own or OPERATORS[tense])[s.person], "" if own else base
    if ask:
        return f"{operator} {s.english} {main} {p.english}"
    if adverb == "not" and operator != "am":
        negative = {"will": "won't", "can": "can't"}.get(operator, f"{operator}n't")
        return f"{s.english} {negative} {main} {p.english}"
    if finite := {"do": base, "does": third, "did": past}.get(operator):
        return f"{s.english} {adverb} {finite} {p.english}"
    short = (
        {"am": "'m", "are": "'re", "is": "'s", "will": "'ll"}.get(operator) if s.pronoun else None
    )
    return f"{s.english}{short or ' ' + operator} {adverb} {main} {p.english}"


def say_french(s: Np, p: Predicate, tense: str, adverb: str, ask: bool) -> str:
    verb, finite, participle = p.verb, p.verb.present[s.person], ""
    after, ne = ADVERBS.get(adverb, ("", ""))
    if tense == "future":
        finite = verb.future + ("ai", "as", "a", "ons", "ont")[s.person]
    elif tense == "past" and verb.infinitive in IMPERFECT:
        finite = IMPERFECT[verb.infinitive][s.person]
    elif tense == "past":
        helper, agreeing = (HAVE, p.before) if verb.auxiliary == "avoir" else (BE, s)
        finite, participle = (
            helper.present[s.person],
            verb.participle + agreeing.agree(("", "e", "s", "es")),
        )
    return (
        f"{'est-ce que' if ask else ''} {s.french} {ne} {p.before.french} {finite} {after} "
        f"{participle} {p.french}"
    )


def action(rng: Rng, negated: bool) -> tuple[Np, Predicate]:
    """This and the next four draw a subject and what is said of it."""
    verb = rng.choice(ACTIONS)
    s, group = someone(rng, animals=verb.animals), rng.choice(verb.objects or ["nothing"])
    if group == "nothing":
        return s, Predicate(verb, "", "", "", verb.english[0])
    if group == "person" and not verb.preposition and rng.random() < 0.3:
        them = rng.choice(OBJECTS)
        return s, Predicate(verb, them.english, "", "", verb.english[0], them)
    named = group == "person" and rng.random() < 0.2
    np = (
        rng.choice(NAMES)
        if named
        else noun_phrase(rng, (group,), KNOWN if verb.preposition else ANY, negated=negated)
    )
    return s, Predicate(
        verb, np.english, f"{verb.preposition} {np.french}", np.head, verb.english[0]
    )


def wish(rng: Rng, negated: bool) -> tuple[Np, Predicate]:
    s, p = action(rng, negated)
    verb = rng.choice(MODALS)
    link = {"be": "going to", "can": ""}.get(verb.english[0], "to")
    english, french = (
        f"{link} {p.word} {p.english}",
        f"{p.before.french} {p.verb.infinitive} {p.french}",
    )
    return s, Predicate(verb, english, french, p.head, p.word)


def quality(rng: Rng, negated: bool) -> tuple[Np, Predicate]:
    s = someone(rng, animals=True) if rng.random() < 0.6 else noun_phrase(rng, list(NOUNS), KNOWN)
    english, forms, *_ = rng.choice(
        [adjective for adjective in FITTING[s.group] if adjective[0] not in s.english.split()]
    )
    return s, Predicate(BE, english, s.agree(forms), "", english)


def possession(rng: Rng, negated: bool) -> tuple[Np, Predicate]:
    np = noun_phrase(rng, OWNED, ("indefinite", "number"), negated=negated)
    return someone(rng), Predicate(HAVE, np.english, np.french, np.head, "have")


def place(rng: Rng, negated: bool) -> tuple[Np, Predicate]:
    english, french, places, groups = rng.choice(PREPOSITIONS)
    group = rng.choice(groups)
    s = someone(rng) if group == "person" else noun_phrase(rng, (group,), KNOWN)
    if group == "person" and rng.random() < 0.2:
        home = STRESSED[s.head] if s.pronoun else s.agree(("lui", "elle", "eux", "elles"))
        return s, Predicate(BE, "home", f"chez {home}", "", "home")
    np = noun_phrase(rng, places, ("definite",))
    return s, Predicate(BE, f"{english} {np.english}", f"{french} {np.french}", "", np.head)


KINDS: list[Callable[[Rng, bool], tuple[Np, Predicate]]] = [
    *[action] * 6,
    *[wish, quality] * 2,
    possession,
    place,
]


def sentence(rng: Rng) -> Phrase:
    kind, form = rng.choice(KINDS), rng.choice(("", "", "-not", "?"))
    s, p = kind(rng, form == "-not")
    usual = ("", "often", "always") if kind in (action, quality) else ("",)
    adverb = rng.choice({"": usual, "-not": ("not", "not", "never"), "?": ("",)}[form])
    tense = "present" if p.verb.english[2] == "-" else rng.choice(("present", "past", "future"))
    timed = kind is action and adverb in ("", "not") and rng.random() < 0.25
    when, quand = rng.choice(TIMES[tense]) if timed else ("", "")
    why, pourquoi = (
        rng.choice((("why", "pourquoi"), ("", ""), ("", ""))) if form == "?" else ("", "")
    )
    ask, end = (True, "?") if form == "?" else (False, ".")
    english = f"{why} {say_english(s, p, tense, adverb, ask)} {when} {end}"
    french = f"{pourquoi} {say_french(s, p, tense, adverb, ask)} {quand} {end}"
    return Phrase(
        spelt(english, "english"),
        spelt(french, "french"),
        (kind.__name__ + form, p.head or s.head, p.word),
    )


def order(rng: Rng) -> Phrase:
    negated = rng.random() < 0.3
    _, p = action(rng, negated)
    if p.before.french:  # "regarde-la" is another order of words
        return order(rng)
    no, ne, pas = ("don't", "ne", "pas") if negated else ("", "", "")
    english, french = f"{no} {p.word} {p.english} .", f"{ne} {p.verb.imperative} {pas} {p.french} !"
    return Phrase(spelt(english, "english"), spelt(french, "french"), ("order", p.head, p.word))


FIXED = [
    Phrase(english, french, (kind, head, word))
    for english, french, kind, head, word in rows(WORDS["fixed"])
]
KEPT = {fixed.key for fixed in FIXED}


def split_of(key: Key) -> str:
    """Nine combinations in ten are for training, one in twenty for dev, one in twenty for test."""
    return (
        "train"
        if key in KEPT
        else {0: "dev", 1: "test"}.get(stable_hash("|".join(key)) % 20, "train")
    )


def phrases(rng: Rng, split: str) -> Iterator[Phrase]:
    """Sentences of the split without end, no English twice."""
    yield from FIXED if split == "train" else ()
    seen, misses = {fixed.english for fixed in FIXED}, 0
    while misses < PATIENCE:
        found = order(rng) if rng.random() < 0.08 else sentence(rng)
        misses += 1
        if found.english not in seen and split_of(found.key) == split:
            seen.add(found.english)
            misses = 0
            yield found
    raise UserError(f"the grammar has no more than {len(seen):,} {split} phrases: ask for fewer")


def generate(rng: Rng, *, split: str) -> Iterator[tuple[str, str]]:
    """Distinct (English, French) pairs of the split."""
    return ((english, french) for english, french, _ in phrases(rng, split))
