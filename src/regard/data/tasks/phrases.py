"""A small English-French grammar, written for this project: seeded, grammatical sentence pairs without a download.

English to French is a function: "you" is always "tu", "they" always "ils", the simple past the passé composé (the
imperfect for the few verbs of state), "will" the simple future. The words, all forms spelt out, are in phrases.toml.
A sentence is a frame (statement, question, "if" ...) around a subject and a kind of predicate (action, quality ...).
"""

import hashlib
import random
import tomllib
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from importlib.resources import files
from itertools import pairwise
from typing import NamedTuple

from regard.errors import UserError

__all__ = ["SPLITS", "Key", "Phrase", "draw", "generate", "phrases", "split_of"]

Key = tuple[str, str, str]  # construction, noun or pronoun, verb or adjective
Pair = tuple[str, str]  # English, French
Rng = random.Random
SPLITS = ("train", "dev", "test")
PATIENCE = 100_000  # draws in a row without a new sentence before the grammar is called exhausted


class Phrase(NamedTuple):
    """A sentence, its translation, and the combination of words that decides its split."""

    english: str
    french: str
    key: Key


class Noun(NamedTuple):
    english: Pair  # singular, plural
    french: Pair
    gender: str
    group: str


class Adjective(NamedTuple):
    english: str
    comparative: str
    french: tuple[str, ...]
    place: str
    groups: list[str]


class Verb(NamedTuple):
    english: tuple[str, ...]  # base, third person, past, -ing
    infinitive: str
    present: list[str]  # je, tu, il, nous, ils
    participle: str
    auxiliary: str
    future: str
    imperative: str
    objects: list[str]
    animals: bool  # an animal can do it
    preposition: str


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
    """A verb and what follows it. Head and word name them in the key; group is that of the object or adjective."""

    verb: Verb
    english: str = ""
    french: str = ""
    head: str = ""
    word: str = ""
    group: str = ""


def rows(text: str) -> list[list[str]]:
    return [line.split(",") for line in text.strip().splitlines()]


def read_verb(line: str) -> Verb:
    english, french, rest, objects, animals, preposition = line.split("|")
    infinitive, *present = french.split(",")
    participle, auxiliary, future, imperative = rest.split(",")
    forms = tuple(english.split(",")), infinitive, present, participle, auxiliary, future, imperative
    return Verb(*forms, objects.split(), bool(animals), preposition)


WORDS = tomllib.loads(files("regard.data.tasks").joinpath("phrases.toml").read_text(encoding="utf-8"))
NOUNS = {g: [Noun((e, es), (f, fs), x, g) for e, es, f, fs, x in rows(text)] for g, text in WORDS["nouns"].items()}
ADJECTIVES = [Adjective(e, c, tuple(f), p, g.split()) for e, c, *f, p, g in rows(WORDS["adjectives"]["words"])]
FITTING = {group: [a for a in ADJECTIVES if group in a.groups] for group in NOUNS}
ACTIONS, GIFTS, TASTES, OPINIONS, MODALS, (BE, HAVE) = (
    [read_verb(line) for line in WORDS["verbs"][name].strip().splitlines()]
    for name in ("actions", "gifts", "tastes", "opinions", "modals", "states")
)
WITHOUT_OBJECT = [v for v in ACTIONS if not v.objects or "nothing" in v.objects]
WITH_OBJECT = [v for v in ACTIONS if v.objects]
IMPERFECT = {verb: forms.split() for verb, forms in WORDS["verbs"]["imperfect"].items()}
PRONOUNS = [Np(e, f, e, int(p), g, pronoun=True) for e, f, _, _, _, p, g in rows(WORDS["pronouns"])]
STRESSED, OBJECT, CLITIC = ({row[0]: row[column] for row in rows(WORDS["pronouns"])} for column in (2, 3, 4))
NAMES = [Np(name, name, name, gender=gender) for name, gender in (n.split(":") for n in WORDS["names"].split())]
ADVERBS = {english: (french, ne) for english, french, ne in rows(WORDS["adverbs"])}
DETERMINERS = rows(WORDS["determiners"])
PREPOSITIONS = [(e, f, at.split(), who.split()) for e, f, at, who in rows(WORDS["prepositions"])]
TIMES = {tense: rows(text) for tense, text in WORDS["time"].items()}
SENSATIONS, WEATHER = rows(WORDS["sensations"]), rows(WORDS["weather"])
ASPIRATED, A_WORDS, AN_WORDS = (set(WORDS[name].split()) for name in ("aspirated", "a_words", "an_words"))
REFLEXIVE = ("me", "te", "se", "nous", "se")
ELIDED = {"je", "me", "te", "se", "le", "la", "ne", "de", "que"}
BEFORE_VOWEL = {"ma": "mon", "ta": "ton", "sa": "son", "ce": "cet"}
CONTRACTED = {("à", "le"): "au", ("à", "les"): "aux", ("de", "le"): "du", ("de", "les"): "des"}
MASSES = ("mass", "drink")
OWNED = ("thing", "device", "text", "clothes", "vehicle", "animal")
KNOWN = ("definite", "possessive")  # determiners of a subject
ANY = ("definite", "indefinite", "possessive", "number")
SOUND_RIGHT = {"kin": "possessive", "person": "definite indefinite number", "place": "definite indefinite"}


def vowel(word: str) -> bool:
    return word == "y" or (word[0] in "aeiouhàâéèêëîïôœùû" and word not in ASPIRATED)


def spell_french(text: str) -> str:
    """Elide and contract, from the end: "de le ami" is "de l'ami", "à le chat" is "au chat"."""
    done: list[str] = []
    for word in reversed(text.split()):
        following = done[-1] if done else "."
        if (word in ELIDED and vowel(following)) or (word == "si" and following in ("il", "ils")):
            done[-1] = f"{word[:-1]}'{following}"
        elif (word, following) in CONTRACTED:
            done[-1] = CONTRACTED[word, following]
        else:
            done.append(BEFORE_VOWEL.get(word, word) if vowel(following) else word)
    return " ".join(reversed(done))


def spell_english(text: str) -> str:
    words = text.split()
    for place, (word, following) in enumerate(pairwise(words)):
        if word == "a" and (following in AN_WORDS or (following[0] in "aeiou" and following not in A_WORDS)):
            words[place] = "an"
    return " ".join(words)


def determiner(rng: Rng, noun: Noun, kinds: Sequence[str], plural: bool, negated: bool) -> Pair:
    kinds = [k for k in kinds if k in SOUND_RIGHT.get(noun.group, k)] or kinds
    kind = rng.choice([k for k in kinds if k != "number" or (plural and not negated)])
    if kind == "indefinite" and negated:  # "un chien", but "pas de chien"
        return "" if noun.group in MASSES else "any" if plural else "a", "de"
    if kind == "indefinite" and noun.group in MASSES:
        return "", "de la" if noun.gender == "f" else "de le"
    row = rng.choice([row for row in DETERMINERS if row[-1] == kind])
    return row[plural], row[4] if plural else row[2 + (noun.gender == "f")]


def noun_phrase(
    rng: Rng, groups: Sequence[str], kinds: Sequence[str], *, negated: bool = False, plural: bool | None = None
) -> Np:
    """A noun of one of the groups, a determiner of one of the kinds and, at times, one or two adjectives."""
    noun = rng.choice(NOUNS[rng.choice(groups)])
    plural = (rng.random() < 0.35 if plural is None else plural) and noun.english[1] != "-"
    english, french = determiner(rng, noun, kinds, plural, negated)
    np = Np("", "", noun.english[0], 4 if plural else 2, noun.gender, noun.group)
    before = after = ("", "")
    for adjective in rng.sample(FITTING[noun.group], 2) if rng.random() < 0.3 else ():
        if adjective.place in ("before", "first"):
            before = adjective.english, np.agree(adjective.french)
        elif adjective.place != "state":
            after = adjective.english, np.agree(adjective.french)
    if before[1] and french == "des":
        french = "de"
    if before[1] and not plural and noun.gender == "m" and vowel(noun.french[0]):
        before = before[0], WORDS["adjectives"]["before_vowel"].get(before[1], before[1])
    english = f"{english} {before[0]} {after[0]} {noun.english[plural]}"
    return np._replace(english=english, french=f"{french} {before[1]} {noun.french[plural]} {after[1]}")


def someone(rng: Rng, *, animals: bool = False, avoid: str = "", pronouns: float = 0.5) -> Np:
    """A pronoun, a name, a person or at times an animal, but not the one called `avoid`."""
    lot = rng.random()
    np = rng.choices(PRONOUNS, (2, 2, 1, 1, 2, 1))[0] if lot < pronouns else rng.choice(NAMES)
    if lot > pronouns + 0.1:
        np = noun_phrase(rng, ("person", "kin", "animal") if animals else ("person", "kin"), KNOWN)
    return someone(rng, animals=animals, avoid=avoid, pronouns=pronouns) if np.head == avoid else np


def another(rng: Rng, than: Np) -> Np:
    """Someone who is not the given one, nor part of them: not "i" beside "we"."""
    np = someone(rng, animals=True, avoid=than.head)
    return another(rng, than) if np.pronoun and than.pronoun and {np.head, than.head} == {"i", "we"} else np


def predicable(np: Np) -> list[Adjective]:
    """The adjectives that "to be" can join to the noun phrase, less those it already has."""
    return [a for a in FITTING[np.group] if a.place != "first" and a.english not in np.english.split()]


def stressed(np: Np) -> str:
    return STRESSED[np.head] if np.pronoun else np.agree(("lui", "elle", "eux", "elles"))


def say_english(s: Np, p: Predicate, tense: str, adverb: str, ask: bool) -> str:
    base, third, past, ing = p.verb.english
    operator, main = "did" if tense == "past" else "does" if s.person == 2 else "do", base
    if tense == "future" or base == "can":
        operator, main = ("will", base) if tense == "future" else ("can", "")
    elif base == "be" or tense == "progressive":
        forms = ("was", "were", "was", "were", "were") if tense == "past" else ("am", "are", "is", "are", "are")
        operator, main = forms[s.person], ing if tense == "progressive" else ""
    if ask:
        return f"{operator} {s.english} {main} {p.english}"
    if adverb == "not" and operator != "am":
        negative = {"will": "won't", "can": "can't"}.get(operator, f"{operator}n't")
        return f"{s.english} {negative} {main} {p.english}"
    if operator in ("do", "does", "did"):
        finite = past if tense == "past" else third if s.person == 2 else base
        return f"{s.english} {adverb} {finite} {p.english}"
    short = {"am": "'m", "are": "'re", "is": "'s", "will": "'ll"}.get(operator) if s.pronoun else None
    return f"{s.english}{short or ' ' + operator} {adverb} {main} {p.english}"


def say_french(s: Np, p: Predicate, tense: str, adverb: str, ask: bool, moved: Np | None) -> str:
    """`moved` is an object before the verb ("les", "combien de pommes"), with which the participle agrees."""
    verb, finite, participle = p.verb, p.verb.present[s.person], ""
    after, ne = ADVERBS.get(adverb, ("", ""))
    clitic = CLITIC[moved.head] if moved and moved.pronoun else REFLEXIVE[s.person] if verb.auxiliary == "se" else ""
    if tense == "future":
        finite = verb.future + ("ai", "as", "a", "ons", "ont")[s.person]
    elif tense == "past" and verb.infinitive in IMPERFECT:
        finite = IMPERFECT[verb.infinitive][s.person]
    elif tense == "past":
        helper, agrees = (HAVE, moved) if verb.auxiliary == "avoir" else (BE, s)
        finite, participle = helper.present[s.person], verb.participle
        if agrees:
            plural = "" if participle.endswith("s") else "s"
            participle += agrees.agree(("", "e", plural, "es"))
    return f"{'est-ce que' if ask else ''} {s.french} {ne} {clitic} {finite} {after} {participle} {p.french}"


def clause(s: Np, p: Predicate, tense: str, adverb: str = "", *, ask: bool = False, moved: Np | None = None) -> Pair:
    return say_english(s, p, tense, adverb, ask), say_french(s, p, tense, adverb, ask, moved)


# Kinds: each draws a subject and its predicate.


def action(rng: Rng, negated: bool, verbs: Sequence[Verb] = ()) -> tuple[Np, Predicate]:
    verb = rng.choice(verbs or (WITHOUT_OBJECT if rng.random() < 0.35 else WITH_OBJECT))
    p = Predicate(verb, word=verb.english[0])
    group = rng.choice(verb.objects or ["nothing"])
    if group != "nothing":
        np = noun_phrase(rng, (group,), KNOWN if verb.preposition else ANY, negated=negated)
        if group == "kin" and rng.random() < 0.2:
            np = rng.choice(NAMES)
        p = p._replace(english=np.english, french=f"{verb.preposition} {np.french}", head=np.head, group=group)
    return someone(rng, animals=verb.animals, avoid=p.head), p


def gift(rng: Rng, negated: bool) -> tuple[Np, Predicate]:
    s, p = action(rng, negated, GIFTS)
    to = someone(rng, avoid=s.head, pronouns=0.0)
    return s, p._replace(english=f"{p.english} to {to.english}", french=f"{p.french} à {to.french}")


def modal(rng: Rng, negated: bool) -> tuple[Np, Predicate]:
    s, p = action(rng, negated)
    verb = rng.choice([v for v in MODALS + TASTES if not (negated and v.infinitive == "devoir")])
    link = {"be": "going to", "can": ""}.get(verb.english[0], "to")
    clitic = REFLEXIVE[s.person] if p.verb.auxiliary == "se" else ""
    english, french = f"{link} {p.word} {p.english}", f"{clitic} {p.verb.infinitive} {p.french}"
    return s, p._replace(verb=verb, english=english, french=french)


def taste(rng: Rng, negated: bool) -> tuple[Np, Predicate]:
    verb, noun = rng.choice(TASTES), rng.choice(NOUNS[rng.choice(("animal", "food", "text", "clothes", *MASSES))])
    mass = noun.group in MASSES
    the = "les" if not mass else "la" if noun.gender == "f" else "le"
    p = Predicate(verb, noun.english[not mass], f"{the} {noun.french[not mass]}", noun.english[0], verb.english[0])
    return someone(rng), p


def owning(rng: Rng, negated: bool) -> tuple[Np, Predicate]:
    np = noun_phrase(rng, (*OWNED, "kin", "food", *MASSES), ("indefinite", "number"), negated=negated)
    return someone(rng), Predicate(HAVE, np.english, np.french, np.head, "have")


def quality(rng: Rng, negated: bool, s: Np | None = None) -> tuple[Np, Predicate]:
    if s is None:
        things = rng.random() < 0.4
        s = noun_phrase(rng, list(NOUNS), KNOWN) if things else someone(rng, animals=True)
    adjective = rng.choice(predicable(s))
    return s, Predicate(BE, adjective.english, s.agree(adjective.french), s.head, adjective.english, adjective.place)


def possession(rng: Rng, negated: bool) -> tuple[Np, Predicate]:
    owner = rng.choice(NAMES) if rng.random() < 0.5 else noun_phrase(rng, ("kin",), KNOWN, plural=False)
    noun, plural = rng.choice(NOUNS[rng.choice(OWNED)]), rng.random() < 0.35
    english, person = f"{owner.english}'s {noun.english[plural]}", 4 if plural else 2
    s = Np(english, "", noun.english[0], person, noun.gender, noun.group)
    the = s.agree(("le", "la", "les", "les"))
    return quality(rng, negated, s._replace(french=f"{the} {noun.french[plural]} de {owner.french}"))


def comparison(rng: Rng, negated: bool) -> tuple[Np, Predicate]:
    s = someone(rng, animals=True)
    other = another(rng, s)
    adjective = rng.choice([a for a in predicable(s) if a.comparative != "-"])
    more, less, same = f"{adjective.comparative} than", f"less {adjective.english} than", f"as {adjective.english} as"
    english, french = rng.choice([(more, "plus"), (less, "moins"), (same, "aussi")])
    than = (OBJECT[other.head], stressed(other)) if other.pronoun else (other.english, other.french)
    french = f"{french} {s.agree(adjective.french)} que {than[1]}"
    return s, Predicate(BE, f"{english} {than[0]}", french, s.head, adjective.english)


def sensation(rng: Rng, negated: bool) -> tuple[Np, Predicate]:
    english, french = rng.choice(SENSATIONS)
    verb = HAVE._replace(english=BE.english)  # "he is hungry", "il a faim"
    return someone(rng, animals=True), Predicate(verb, english, french, "", english, "mood")


def age(rng: Rng, negated: bool) -> tuple[Np, Predicate]:
    english, french = rng.choice([(row[1], row[4]) for row in DETERMINERS if row[5] == "number"][:9])
    verb = HAVE._replace(english=BE.english)
    return someone(rng, animals=True), Predicate(verb, f"{english} years old", f"{french} ans", "", english)


def home(rng: Rng, negated: bool) -> tuple[Np, Predicate]:
    s = someone(rng)
    return s, Predicate(BE, "home", f"chez {stressed(s)}", "", "be", "mood")


def location(rng: Rng, group: str, only: str = "") -> tuple[str, str, str]:
    """Where something of the group can be: English, French, the noun."""
    english, french, places, _ = rng.choice([r for r in PREPOSITIONS if group in r[3] and r[0] in (only or r[0])])
    np = noun_phrase(rng, places, ("definite",), plural=False)
    return f"{english} {np.english}", f"{french} {np.french}", np.head


def place(rng: Rng, negated: bool) -> tuple[Np, Predicate]:
    group = rng.choice(rng.choice(PREPOSITIONS)[3])
    s = someone(rng) if group in ("person", "kin") else noun_phrase(rng, (group,), KNOWN)
    english, french, head = location(rng, s.group)
    return s, Predicate(BE, english, french, s.head, head)


# Frames: each builds a whole sentence.

Kind = Callable[[Rng, bool], tuple[Np, Predicate]]
KINDS: dict[str, Kind] = {
    kind.__name__: kind
    for kind in (action, gift, modal, taste, owning, quality, possession, comparison, sensation, age, home, place)
}
CALM = ("modal", "possession", "comparison", "age")  # kinds that sound odd with "often" or "never"


def phrase(construction: str, head: str, word: str, english: str, french: str) -> Phrase:
    return Phrase(spell_english(english), spell_french(french), (construction, head, word))


def tense_of(rng: Rng, verb: Verb, adverb: str = "") -> str:
    if verb.english[2] == "-":
        return "present"
    progressive = verb.english[3] != "-" and adverb in ("", "not")
    past = adverb != "no longer"
    return rng.choice(["present", "future"] + ["past"] * past + ["progressive"] * progressive)


def scene(rng: Rng, kinds: str, adverb: str = "") -> tuple[str, Np, Predicate, str]:
    """One of the kinds, a subject, a predicate, a tense."""
    kind = rng.choice(kinds.split())
    s, p = KINDS[kind](rng, bool(ADVERBS.get(adverb, ("", ""))[1]))
    return kind, s, p, tense_of(rng, p.verb, adverb)


def tail(rng: Rng, p: Predicate, tense: str, adverb: str) -> Pair:
    """Nothing, a time, a place or company, as the verb allows."""
    lot, be = rng.random(), p.verb.english[0] == "be"
    simple = p.group in ("", "food", "text", *MASSES) and p.verb in ACTIONS and p.verb.auxiliary == "avoir"
    if lot < 0.3 and adverb in ("", "not") and (p.group in ("mood", "state") if be else p.verb in ACTIONS + GIFTS):
        when = {"present": "present" if be else "habit", "progressive": "present"}.get(tense, tense)
        english, french = rng.choice(TIMES[when])
        return english, french
    if 0.3 < lot < 0.45 and simple and not p.verb.preposition:
        return location(rng, "person", only="in at")[:2]
    if 0.45 < lot < 0.55 and simple and not p.verb.preposition:
        np = someone(rng, pronouns=0.0)
        return f"with {np.english}", f"avec {np.french}"
    return "", ""


def statement(rng: Rng) -> Phrase:
    kind = rng.choice([*KINDS, *["action"] * 8, *["quality", "modal", "gift", "owning"] * 2])
    adverb = rng.choice(["", "", "not", "" if kind in CALM else rng.choice(list(ADVERBS))])
    kind, s, p, tense = scene(rng, kind, adverb)
    (english, french), (more, plus) = clause(s, p, tense, adverb), tail(rng, p, tense, adverb)
    name = f"{kind}-not" if adverb == "not" else kind
    return phrase(name, p.head or s.head, p.word, f"{english} {more} .", f"{french} {plus} .")


def question(rng: Rng) -> Phrase:
    english, french = rng.choice([("", ""), ("", ""), ("why", "pourquoi"), ("when", "quand"), ("where", "où")])
    broad = english in ("", "why")
    kind, s, p, tense = scene(rng, "action gift modal owning quality sensation home place" if broad else "action")
    if english == "where" and (p.verb.auxiliary != "avoir" or p.verb.preposition):
        english, french = "when", "quand"
    ask = clause(s, p, tense, ask=True)
    return phrase(f"{english}-{kind}?", p.head or s.head, p.word, f"{english} {ask[0]} ?", f"{french} {ask[1]} ?")


def who(rng: Rng) -> Phrase:
    adverb = rng.choice(["", "", "not"])
    kind, _, p, tense = scene(rng, "action action gift owning", adverb)
    english, french = clause(Np("who", "qui", "who"), p, tense, adverb)
    return phrase(f"who-{kind}?", p.head or "who", p.word, f"{english} ?", f"{french} ?")


def what(rng: Rng) -> Phrase:
    verb = rng.choice([v for v in WITH_OBJECT if not v.preposition])
    s = someone(rng, animals=verb.animals)
    english, french = clause(s, Predicate(verb), tense_of(rng, verb), ask=True)
    people = "kin" in verb.objects
    word, mot = ("who", "qui ") if people else ("what", "qu'")
    return phrase("what?", s.head, verb.english[0], f"{word} {english} ?", f"{mot}{french.lstrip()} ?")


def how_many(rng: Rng) -> Phrase:
    verb = rng.choice([v for v in WITH_OBJECT if not v.preposition and len(set(v.objects) & set(OWNED)) > 3] + [HAVE])
    group = rng.choice([g for g in verb.objects or OWNED if g in OWNED])
    noun = rng.choice(NOUNS[group])
    moved = Np("", "", noun.english[0], 4, noun.gender)
    english, french = clause(someone(rng), Predicate(verb), tense_of(rng, verb), ask=True, moved=moved)
    english, french = f"how many {noun.english[1]} {english} ?", f"combien de {noun.french[1]} {french} ?"
    return phrase("how-many?", noun.english[0], verb.english[0], english, french)


def where_is(rng: Rng) -> Phrase:
    np = noun_phrase(rng, (*OWNED, "kin", "place"), KNOWN)
    past = rng.random() < 0.3
    english, french = clause(np._replace(english="", french=""), Predicate(BE), "past" if past else "present")
    return phrase("where-is?", np.head, "be", f"where {english} {np.english} ?", f"où {french} {np.french} ?")


def it_is(rng: Rng) -> Phrase:
    np = noun_phrase(rng, (*OWNED, "kin", "person", "place"), ("definite", "indefinite", "possessive"))
    no = rng.random() < 0.4
    np = np._replace(english=np.english.removeprefix("some "))  # "these are cats"
    english = ("these aren't" if no else "these are") if np.person > 2 else "it isn't" if no else "it's"
    french = ("ce ne sont pas" if no else "ce sont") if np.person > 2 else "ce n'est pas" if no else "c'est"
    return phrase("it-is", np.head, "not" if no else "be", f"{english} {np.english} .", f"{french} {np.french} .")


def there_is(rng: Rng) -> Phrase:
    group, no = rng.choice([*OWNED, "food", "person", *MASSES]), rng.random() < 0.3
    np = noun_phrase(rng, (group,), ("indefinite", "number"), negated=no)
    english, french, spot = location(rng, group)
    verb, a = rng.choice([(("there's", "there are"), "a"), (("there was", "there were"), "avait")])
    what_there = "no " + np.english.split(" ", 1)[1] if no else np.english
    neg = ("ne", "pas") if no else ("", "")
    french = f"il {neg[0]} y {a} {neg[1]} {np.french} {french} ."
    return phrase("there-is", np.head, spot, f"{verb[np.person > 2]} {what_there} {english} .", french)


def object_pronoun(rng: Rng) -> Phrase:
    verb = rng.choice([v for v in WITH_OBJECT if "kin" in v.objects and not v.preposition])
    moved, adverb = rng.choice(PRONOUNS), rng.choice(["", "not", rng.choice(list(ADVERBS))])
    s, tense = another(rng, moved), tense_of(rng, verb, adverb)
    english, french = clause(s, Predicate(verb, OBJECT[moved.head]), tense, adverb, moved=moved)
    return phrase("object-pronoun", s.head, verb.english[0], f"{english} .", f"{french} .")


def imperative(rng: Rng) -> Phrase:
    style = rng.choice(["", "please", "don't", "let's"])
    kind, _, p, _ = scene(rng, "action action gift", "not" if style == "don't" else "")
    if p.verb.auxiliary == "se" or p.verb.english[3] == "-":
        return imperative(rng)
    order = p.verb.present[3] if style == "let's" else p.verb.imperative
    before, after, end = {"don't": ("ne", "pas", ""), "please": ("", "", ", s'il te plaît")}.get(style, ("", "", ""))
    english, french = f"{style} {p.word} {p.english} .", f"{before} {order} {after} {p.french} {end} !"
    return phrase(f"{style}-{kind}!", p.head, p.word, english, french)


def reported(rng: Rng) -> Phrase:
    s = someone(rng)
    thought = clause(s, Predicate(rng.choice(OPINIONS)), "present")
    adverb = rng.choice(["", "", "not"])
    kind, other, p, tense = scene(rng, "action quality sensation modal owning home", adverb)
    english, french = clause(other, p, tense, adverb)
    english, french = f"{thought[0]} that {english} .", f"{thought[1]} que {french} ."
    return phrase(f"that-{kind}", p.head or other.head, p.word, english, french)


def condition(rng: Rng) -> Phrase:
    kind, s, p, _ = scene(rng, "sensation quality home action")
    _, doer, q, _ = scene(rng, "action")
    (english, french), (then, alors) = clause(s, p, "present"), clause(doer, q, "future")
    english, french = f"if {english} , {then} .", f"si {french} , {alors} ."
    return phrase(f"if-{kind}", q.head or doer.head, q.word, english, french)


def relative(rng: Rng) -> Phrase:
    np = noun_phrase(rng, ("person",), ("definite",))
    _, p = action(rng, False)
    _, q = quality(rng, False, np)
    doer = np._replace(english=f"{np.english} who", french=f"{np.french} qui")
    nobody = np._replace(english="", french="")
    (english, french), (is_, est) = clause(doer, p, tense_of(rng, p.verb)), clause(nobody, q, "present")
    return phrase("relative", p.head or np.head, p.word, f"{english} {is_} .", f"{french} {est} .")


def weather(rng: Rng) -> Phrase:
    (english, french), (when, quand) = rng.choice(WEATHER), rng.choice([["", ""], *TIMES["present"]])
    return phrase("weather", when, english, f"{english} {when} .", f"{french} {quand} .")


FRAMES = (
    *[statement] * 27, *[question] * 8, *[imperative, object_pronoun, reported, condition] * 3,
    *[there_is, who, what, relative] * 2, how_many, it_is, where_is, weather,
)  # fmt: skip
FIXED = (
    Phrase("go .", "va !", ("-action!", "", "go")),
    Phrase("i lost .", "j'ai perdu .", ("action", "i", "lose")),
    Phrase("he's calm .", "il est calme .", ("quality", "he", "calm")),
    Phrase("i'm home .", "je suis chez moi .", ("home", "i", "be")),
)
KEPT = {fixed.key for fixed in FIXED}
VERBS = {verb.english[0] for verb in ACTIONS}


@lru_cache(maxsize=1 << 18)
def split_of(key: Key) -> str:
    """Nine combinations in ten are for training; one in twenty for dev, one in twenty for test.

    A verb with "i", "you" or "we" is for training: held out, its French form would be met nowhere else.
    """
    if key in KEPT or (key[1] in ("i", "you", "we") and key[2] in VERBS):
        return "train"
    lot = int.from_bytes(hashlib.sha256("|".join(key).encode()).digest()[:4]) / 2**32
    return "dev" if lot < 0.05 else "test" if lot < 0.1 else "train"


def draw(rng: Rng) -> Phrase:
    """Any sentence of the grammar, of any split."""
    return rng.choice(FRAMES)(rng)


def phrases(count: int, seed: int, *, split: str = "train") -> Iterator[Phrase]:
    """Yield `count` sentences of the split, no English twice; more of them only continues the same sequence."""
    if split not in SPLITS:
        raise UserError(f"no split {split!r} of the phrases; choose one of {', '.join(SPLITS)}")
    rng = random.Random(seed)
    seen = {fixed.english for fixed in FIXED}
    made = min(count, len(FIXED)) if split == "train" else 0
    yield from FIXED[:made]
    idle = 0
    while made < count:
        found = draw(rng)
        if found.english in seen or split_of(found.key) != split:
            idle += 1
            if idle > PATIENCE:
                raise UserError(f"the grammar found only {made} {split} phrases, {count} were asked: ask for fewer")
            continue
        seen.add(found.english)
        made, idle = made + 1, 0
        yield found


def generate(count: int, seed: int, *, split: str = "train") -> Iterator[Pair]:
    """Yield `count` distinct (English, French) pairs of the split: "train", "dev" or "test"."""
    for found in phrases(count, seed, split=split):
        yield found.english, found.french
