"""A small English-French grammar that draws grammatical sentence pairs without a download.

English to French is a function: "you" is always "tu", "they" always "ils", the simple past the
passé composé (the imperfect for the few verbs of state), "will" the simple future. The words, all
forms spelt out, are in phrases.toml, written for this project. A sentence is stated, negated or
asked; its predicate is an action, a wish, a quality, a possession or a place. English verbs are
contracted or not ("he's", "he is"), and a few sentences end in "!" or in nothing, as people type
them. The same seed gives the same sentences.
"""

import random
import re
import tomllib
from collections.abc import Callable, Iterator, Sequence
from importlib.resources import files
from typing import NamedTuple

from regard.data.pairs import stable_hash
from regard.errors import UserError

Key = tuple[str, str, str]
"""Construction, noun or pronoun, verb or adjective."""

Rng = random.Random

SHORT = 4
"""Words of a short sentence at most, its end not counted."""

PATIENCE = 100_000
"""Draws in a row without a new sentence before the grammar is called exhausted."""


class PhrasePair(NamedTuple):
    """A sentence, its translation, and the combination of words that decides its split."""

    english: str
    french: str
    key: Key


class Verb(NamedTuple):
    """A verb in both languages, with all its forms."""

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


class Adjective(NamedTuple):
    """An adjective in both languages and the groups of nouns that it suits."""

    english: str
    french: list[str]  # masculine, feminine, masculine plural, feminine plural
    place: str  # before the French noun, after it, or only in a predicate ("state")
    groups: list[str]


class NounPhrase(NamedTuple):
    """A noun phrase or pronoun in both languages.

    The person counts je, tu, il, nous, ils from 0 to 4.
    """

    english: str
    french: str
    head: str
    person: int = 2
    gender: str = "m"
    group: str = "person"
    pronoun: bool = False

    def agree(self, forms: Sequence[str]) -> str:
        """Choose among masculine, feminine, masculine plural and feminine plural."""
        feminine = self.gender == "f"
        plural = self.person > 2
        return forms[feminine + 2 * plural]


class Predicate(NamedTuple):
    """A verb and what follows it, with the noun and the word that name it in the key."""

    verb: Verb
    english: str
    french: str
    head: str  # empty: the subject's
    word: str
    before: NounPhrase = NounPhrase("", "", "")  # an object pronoun, which French puts first


class FrenchVerb(NamedTuple):
    """The finite form of a verb, and its participle, which is empty in a simple tense."""

    finite: str
    participle: str


class Clause(NamedTuple):
    """All that was drawn of a sentence: `phrase` says it in both languages."""

    construction: str
    subject: NounPhrase
    predicate: Predicate
    tense: str
    adverb: str  # "not" counts as one
    ask: bool
    why: tuple[str, str]  # in English and in French, like the next
    when: tuple[str, str]
    contraction: str
    end: str

    def english(self) -> str:
        """The English sentence."""
        said = say_english(
            self.subject, self.predicate, self.tense, self.adverb, self.ask, self.contraction
        )
        return spelt(f"{self.why[0]} {said} {self.when[0]} {self.end}", "english")

    def french(self, verb: FrenchVerb | None = None) -> str:
        """The French sentence. verb: other forms of the verb than those that agree."""
        said = say_french(self.subject, self.predicate, self.tense, self.adverb, self.ask, verb)
        return spelt(f"{self.why[1]} {said} {self.when[1]} {self.end}", "french")

    @property
    def key(self) -> Key:
        """The combination of words that decides the split."""
        head = self.predicate.head or self.subject.head
        return self.construction, head, self.predicate.word

    def phrase(self) -> PhrasePair:
        """The sentence, its translation and its combination of words."""
        return PhrasePair(self.english(), self.french(), self.key)


def rows(text: str, separator: str = ",") -> list[list[str]]:
    """Split a table of the TOML file into lines and cells."""
    return [line.split(separator) for line in text.strip().splitlines()]


def read_tables(tables: dict[str, str]) -> dict[str, list[list[str]]]:
    """Split every table of a section of the TOML file."""
    return {name: rows(text) for name, text in tables.items()}


def read_verb(
    english: str, french: str, rest: str, objects: str, animals: str, preposition: str
) -> Verb:
    """Read a verb from the cells of its line."""
    infinitive, *present = french.split(",")
    participle, auxiliary, future, imperative = rest.split(",")
    return Verb(
        english=english.split(","),
        present=present,
        objects=objects.split(),
        animals=bool(animals),
        preposition=preposition,
        infinitive=infinitive,
        participle=participle,
        auxiliary=auxiliary,
        future=future,
        imperative=imperative,
    )


def read_verbs(name: str) -> list[Verb]:
    """Read a table of verbs."""
    return [read_verb(*row) for row in rows(WORDS["verbs"][name], "|")]


def read_conjugations(name: str) -> dict[str, list[str]]:
    """Read a table of verbs that lists only their forms in the five persons."""
    return {verb: forms.split() for verb, forms in WORDS["verbs"][name].items()}


def read_adjectives() -> list[Adjective]:
    """Read the table of adjectives."""
    return [
        Adjective(english, french, place, groups.split())
        for english, *french, place, groups in rows(WORDS["adjectives"]["words"])
    ]


def read_spelling(changes: list[tuple[str, str]]) -> list[tuple[re.Pattern[str], str]]:
    """Compile the changes of spelling of a language."""
    return [
        (re.compile(pattern.replace("VOWEL", f"(?={VOWEL})")), replacement)
        for pattern, replacement in changes
    ]


WORDS = tomllib.loads(
    files("regard.data.tasks").joinpath("phrases.toml").read_text(encoding="utf-8")
)

NOUNS = read_tables(WORDS["nouns"])
DETERMINERS = read_tables(WORDS["determiners"])
TIMES = read_tables(WORDS["time"])

ADJECTIVES = read_adjectives()
FITTING = {
    group: [adjective for adjective in ADJECTIVES if group in adjective.groups] for group in NOUNS
}
BEFORE_VOWEL = WORDS["adjectives"]["before_vowel"]

ACTIONS = read_verbs("actions")
MODALS = read_verbs("modals")
BE, HAVE = read_verbs("states")
IMPERFECT = read_conjugations("imperfect")
OPERATORS = read_conjugations("operators")
SHORT_OPERATORS = {"am": "'m", "are": "'re", "is": "'s", "will": "'ll"}
SHORT_NEGATIVES = {"will": "won't", "can": "can't"}  # of others by adding n't
CONTRACTIONS = ("n't", "n't", "'s", "", "")
"""What is contracted: isn't, 's not, or nothing; without "not", 's stands for both of the first."""
ENDS = {".": (*["."] * 8, "!", ""), "?": (*["?"] * 9, "")}
"""What may stand at the end of a sentence, by what usually does."""
FUTURE_ENDINGS = ("ai", "as", "a", "ons", "ont")

PRONOUNS = [
    NounPhrase(english, french, english, int(person), gender, pronoun=True)
    for english, french, _, _, _, person, gender in rows(WORDS["pronouns"])
]
STRESSED = {row[0]: row[2] for row in rows(WORDS["pronouns"])}
OBJECTS = [
    NounPhrase(english, french, head, int(person), gender)
    for head, _, _, english, french, person, gender in rows(WORDS["pronouns"])
    if english != "-"
]
NAMES = [
    NounPhrase(name, name, name, gender=gender)
    for name, gender in (entry.split(":") for entry in WORDS["names"].split())
]

ADVERBS = {english: (french, ne) for english, french, ne in rows(WORDS["adverbs"])}
PREPOSITIONS = [
    (english, french, places.split(), groups.split())
    for english, french, places, groups in rows(WORDS["prepositions"])
]
MASSES = WORDS["masses"].split()
OWNED = WORDS["owned"].split()

# Kinds of determiner.
KNOWN = ("definite", "possessive")
ANY = ("definite", "possessive", "indefinite", "number")

VOWEL = rf"(?!(?:{WORDS['aspirated'].replace(' ', '|')})\b)[aeiouhâàéèêîôœ]"
SPELLING = {language: read_spelling(changes) for language, changes in WORDS["spelling"].items()}


def spelt(text: str, language: str) -> str:
    """Join words as they are written side by side."""
    text = " ".join(text.split())
    for pattern, replacement in SPELLING[language]:
        text = pattern.sub(replacement, text)
    return text


def noun_phrase(
    rng: Rng, groups: Sequence[str], kinds: Sequence[str], *, negated: bool = False
) -> NounPhrase:
    """Draw a noun of one of the groups, a determiner of one of the kinds and perhaps adjectives."""
    group = rng.choice(groups)
    singular, plural, singulier, pluriel, gender = rng.choice(NOUNS[group])
    is_plural = rng.random() < 0.35 and group not in MASSES
    noun = plural if is_plural else singular
    nom = pluriel if is_plural else singulier
    phrase = NounPhrase("", "", singular, 4 if is_plural else 2, gender, group)

    determiner, determinant = _determiner(rng, phrase, kinds, negated=negated)
    adjectives, avant, apres = _adjectives(rng, phrase)
    if avant and determinant == "des":
        determinant = "de"
    if not is_plural and re.match(VOWEL, nom):
        avant = BEFORE_VOWEL.get(avant, avant)

    return phrase._replace(
        english=f"{determiner} {adjectives} {noun}",
        french=f"{determinant} {avant} {nom} {apres}",
    )


def _determiner(
    rng: Rng, phrase: NounPhrase, kinds: Sequence[str], *, negated: bool
) -> tuple[str, str]:
    """Draw a determiner of one of the kinds, in English and in French."""
    plural = phrase.person > 2
    if negated or not plural:
        kinds = [kind for kind in kinds if kind != "number"]
    kind = rng.choice(kinds)
    english_singular, english_plural, *french_forms = rng.choice(DETERMINERS[kind])

    english = english_plural if plural else english_singular
    french = phrase.agree([*french_forms, french_forms[-1]])
    if kind == "indefinite" and phrase.group in MASSES:
        english = ""
        french = phrase.agree(("de le", "de la"))
    if kind == "indefinite" and negated:  # "un chien", but "pas de chien"
        english = "any" if plural else english
        french = "de"
    return english, french


def _adjectives(rng: Rng, phrase: NounPhrase) -> tuple[str, str, str]:
    """Draw at most two adjectives: in English, and in French before and after the noun."""
    if rng.random() >= 0.3:
        return "", "", ""

    english = {"before": "", "after": ""}
    french = {"before": "", "after": ""}
    for adjective in rng.sample(FITTING[phrase.group], 2):
        english[adjective.place] = adjective.english
        french[adjective.place] = phrase.agree(adjective.french)
    return f"{english['before']} {english['after']}", french["before"], french["after"]


def someone(rng: Rng, *, animals: bool = False) -> NounPhrase:
    """Draw a pronoun, a name, a person or an animal."""
    lot = rng.random()
    if lot < 0.5:
        return rng.choice(PRONOUNS)
    if lot < 0.6:
        return rng.choice(NAMES)
    groups = ("person", "animal") if animals else ("person",)
    return noun_phrase(rng, groups, KNOWN)


def say_english(
    subject: NounPhrase,
    predicate: Predicate,
    tense: str,
    adverb: str,
    ask: bool,
    contraction: str,
) -> str:
    """The English sentence, without its end. contraction: one of CONTRACTIONS."""
    base, third, past = predicate.verb.english
    operators = OPERATORS.get(f"{base} {tense}")
    if operators is None:
        operator = OPERATORS[tense][subject.person]
        main = base
    else:  # "be" and "can" need no other verb
        operator = operators[subject.person]
        main = ""

    if ask:
        return f"{operator} {subject.english} {main} {predicate.english}"
    if adverb == "not" and not _keeps_not(subject, operator, contraction):
        negative = _negative(operator, contraction)
        return f"{subject.english} {negative} {main} {predicate.english}"

    finite = {"do": base, "does": third, "did": past}.get(operator)
    if finite is not None:
        return f"{subject.english} {adverb} {finite} {predicate.english}"
    if contraction and subject.pronoun and operator in SHORT_OPERATORS:
        operator = SHORT_OPERATORS[operator]
    else:
        operator = f" {operator}"
    return f"{subject.english}{operator} {adverb} {main} {predicate.english}"


def _keeps_not(subject: NounPhrase, operator: str, contraction: str) -> bool:
    """Whether "not" stays a word beside a verb that may be contracted: "i'm not", "he's not"."""
    if operator == "am":
        return True
    return contraction == "'s" and subject.pronoun and operator in ("is", "are")


def _negative(operator: str, contraction: str) -> str:
    """The operator and its "not"."""
    if contraction:
        return SHORT_NEGATIVES.get(operator, f"{operator}n't")
    return "cannot" if operator == "can" else f"{operator} not"


def french_verb(subject: NounPhrase, predicate: Predicate, tense: str) -> FrenchVerb:
    """The forms of the verb that agree with the subject, or with an object pronoun before it."""
    verb = predicate.verb
    finite = verb.present[subject.person]
    participle = ""
    if tense == "future":
        finite = verb.future + FUTURE_ENDINGS[subject.person]
    elif tense == "past" and verb.infinitive in IMPERFECT:
        finite = IMPERFECT[verb.infinitive][subject.person]
    elif tense == "past" and verb.auxiliary == "avoir":
        finite = HAVE.present[subject.person]
        participle = verb.participle + predicate.before.agree(("", "e", "s", "es"))
    elif tense == "past":
        finite = BE.present[subject.person]
        participle = verb.participle + subject.agree(("", "e", "s", "es"))
    return FrenchVerb(finite, participle)


def say_french(
    subject: NounPhrase,
    predicate: Predicate,
    tense: str,
    adverb: str,
    ask: bool,
    verb: FrenchVerb | None = None,
) -> str:
    """The French sentence, without its end. verb: other forms of the verb than those that agree."""
    finite, participle = verb or french_verb(subject, predicate, tense)
    after, ne = ADVERBS.get(adverb, ("", ""))
    opening = "est-ce que" if ask else ""
    return (
        f"{opening} {subject.french} {ne} {predicate.before.french} {finite} {after} "
        f"{participle} {predicate.french}"
    )


def action(rng: Rng, negated: bool) -> tuple[NounPhrase, Predicate]:
    """Draw somebody who does something; this and the next four draw a subject and a predicate."""
    verb = rng.choice(ACTIONS)
    base = verb.english[0]
    subject = someone(rng, animals=verb.animals)
    group = rng.choice(verb.objects or ["nothing"])
    if group == "nothing":
        return subject, Predicate(verb, "", "", "", base)

    if group == "person" and not verb.preposition and rng.random() < 0.3:
        pronoun = rng.choice(OBJECTS)
        return subject, Predicate(verb, pronoun.english, "", "", base, before=pronoun)

    if group == "person" and rng.random() < 0.2:
        patient = rng.choice(NAMES)
    else:
        kinds = KNOWN if verb.preposition else ANY
        patient = noun_phrase(rng, (group,), kinds, negated=negated)
    french = f"{verb.preposition} {patient.french}"
    return subject, Predicate(verb, patient.english, french, patient.head, base)


def wish(rng: Rng, negated: bool) -> tuple[NounPhrase, Predicate]:
    """Draw somebody who wants to do something, can do it or is going to."""
    subject, wished = action(rng, negated)
    verb = rng.choice(MODALS)
    link = {"be": "going to", "can": ""}.get(verb.english[0], "to")
    english = f"{link} {wished.word} {wished.english}"
    french = f"{wished.before.french} {wished.verb.infinitive} {wished.french}"
    return subject, Predicate(verb, english, french, wished.head, wished.word)


def quality(rng: Rng, negated: bool) -> tuple[NounPhrase, Predicate]:
    """Draw somebody or something and an adjective that is not in its noun phrase already."""
    if rng.random() < 0.6:
        subject = someone(rng, animals=True)
    else:
        subject = noun_phrase(rng, list(NOUNS), KNOWN)

    words = subject.english.split()
    fitting = [adjective for adjective in FITTING[subject.group] if adjective.english not in words]
    adjective = rng.choice(fitting)
    french = subject.agree(adjective.french)
    return subject, Predicate(BE, adjective.english, french, "", adjective.english)


def possession(rng: Rng, negated: bool) -> tuple[NounPhrase, Predicate]:
    """Draw somebody who has something."""
    thing = noun_phrase(rng, OWNED, ("indefinite", "number"), negated=negated)
    return someone(rng), Predicate(HAVE, thing.english, thing.french, thing.head, "have")


def place(rng: Rng, negated: bool) -> tuple[NounPhrase, Predicate]:
    """Draw somebody or something and where it is."""
    english, french, places, groups = rng.choice(PREPOSITIONS)
    group = rng.choice(groups)
    subject = someone(rng) if group == "person" else noun_phrase(rng, (group,), KNOWN)
    if group == "person" and rng.random() < 0.2:
        return subject, _at_home(subject)

    where = noun_phrase(rng, places, ("definite",))
    english = f"{english} {where.english}"
    french = f"{french} {where.french}"
    return subject, Predicate(BE, english, french, "", where.head)


def _at_home(subject: NounPhrase) -> Predicate:
    if subject.pronoun:
        stressed = STRESSED[subject.head]
    else:
        stressed = subject.agree(("lui", "elle", "eux", "elles"))
    return Predicate(BE, "home", f"chez {stressed}", "", "home")


Kind = Callable[[Rng, bool], tuple[NounPhrase, Predicate]]
"""Draws a subject and a predicate; whether they are negated is given."""

KINDS: list[Kind] = [
    *[action] * 6,
    *[wish, quality] * 2,
    possession,
    place,
]


def sentence(rng: Rng, kinds: Sequence[Kind] = KINDS) -> PhrasePair:
    """Draw a sentence of one of the kinds that is stated, negated or asked."""
    return clause(rng, kinds).phrase()


def clause(rng: Rng, kinds: Sequence[Kind] = KINDS) -> Clause:
    """Draw the choices that make a sentence."""
    kind = rng.choice(kinds)
    form = rng.choice(("", "", "-not", "?"))
    ask = form == "?"
    subject, predicate = kind(rng, form == "-not")

    adverb = _adverb(rng, kind.__name__, form)
    tense = "present"
    if predicate.verb.english[2] != "-":  # the verb has a past
        tense = rng.choice(("present", "past", "future"))

    when, quand = "", ""
    if kind is action and adverb in ("", "not") and rng.random() < 0.25:
        when, quand = rng.choice(TIMES[tense])
    why, pourquoi = "", ""
    if ask:
        why, pourquoi = rng.choice((("why", "pourquoi"), ("", ""), ("", "")))

    contraction = rng.choice(CONTRACTIONS)
    end = rng.choice(ENDS["?" if ask else "."])
    return Clause(
        construction=kind.__name__ + form,
        subject=subject,
        predicate=predicate,
        tense=tense,
        adverb=adverb,
        ask=ask,
        why=(why, pourquoi),
        when=(when, quand),
        contraction=contraction,
        end=end,
    )


def _adverb(rng: Rng, kind: str, form: str) -> str:
    """Draw the adverb of a sentence, empty if it has none; "not" counts as one."""
    if form == "-not":
        return rng.choice(("not", "not", "never"))
    if form == "" and kind in ("action", "quality"):
        return rng.choice(("", "often", "always"))
    # One choice is a draw too: without it all later draws would be others.
    return rng.choice(("",))


def order(rng: Rng) -> PhrasePair:
    """Draw an order, perhaps a negative one."""
    negated = rng.random() < 0.3
    _, predicate = action(rng, negated)
    if predicate.before.french:  # "regarde-la" is another order of words
        return order(rng)

    no, ne, pas = "", "", ""
    if negated:
        no, ne, pas = _negative("do", rng.choice(CONTRACTIONS)), "ne", "pas"
    end = rng.choice(ENDS["."])
    english = f"{no} {predicate.word} {predicate.english} {end}"
    french = f"{ne} {predicate.verb.imperative} {pas} {predicate.french} {'!' if end else ''}"
    key = ("order", predicate.head, predicate.word)
    return PhrasePair(spelt(english, "english"), spelt(french, "french"), key)


def short_sentence(rng: Rng) -> PhrasePair:
    """Draw a short sentence or order, all kinds equally often, also those that are rarely short."""
    kind = rng.choice([None, *dict.fromkeys(KINDS)])
    while True:
        phrase = order(rng) if kind is None else sentence(rng, [kind])
        words = phrase.english.rstrip(" .!?").split()
        if len(words) <= SHORT:
            return phrase


def any_sentence(rng: Rng) -> PhrasePair:
    """Draw a sentence or an order of any length, one in five of them short."""
    lot = rng.random()
    if lot < 0.2:
        return short_sentence(rng)
    return order(rng) if lot < 0.27 else sentence(rng)


FIXED = [
    PhrasePair(english, french, (kind, head, word))
    for english, french, kind, head, word in rows(WORDS["fixed"])
]
KEPT = {phrase.key for phrase in FIXED}


def split_of(key: Key) -> str:
    """Nine combinations in ten are for training, one in twenty for dev, one in twenty for test."""
    if key in KEPT:
        return "train"
    return {0: "dev", 1: "test"}.get(stable_hash("|".join(key)) % 20, "train")


def phrases(rng: Rng, split: str) -> Iterator[PhrasePair]:
    """Sentences of the split without end, no English twice."""
    if split == "train":
        yield from FIXED

    seen = {phrase.english for phrase in FIXED}
    misses = 0
    while misses < PATIENCE:
        phrase = any_sentence(rng)
        misses += 1
        if phrase.english not in seen and split_of(phrase.key) == split:
            seen.add(phrase.english)
            misses = 0
            yield phrase
    raise UserError(f"the grammar has only {len(seen):,} {split} phrases; use fewer")


def generate(rng: Rng, *, split: str) -> Iterator[tuple[str, str]]:
    """Distinct (English, French) pairs of the split."""
    return ((english, french) for english, french, _ in phrases(rng, split))
