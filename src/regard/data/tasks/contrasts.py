"""Contrastive pairs from the English-French grammar: a sentence, its translation, and a wrong one.

The wrong translation differs from the right one in one feature, and no reader of French would take
it for a translation of the English sentence. Where the grammar only follows a convention ("they"
is "ils", "the teacher" is "le professeur"), what breaks the convention is not called wrong: "je
suis heureuses" is a wrong translation of "i'm happy", but "je suis heureuse" is none.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from regard.data.tasks import phrases
from regard.data.tasks.phrases import Clause, FrenchVerb, Kind, NounPhrase, Rng
from regard.errors import UserError
from regard.records.contrast import ContrastItem

ENDINGS = ("", "e", "s", "es")
"""Of a participle: masculine, feminine, masculine plural, feminine plural."""
OBJECT_ENDINGS = {pronoun.agree(ENDINGS) for pronoun in phrases.OBJECTS}

HOMES = ("moi", "toi", "lui", "elle", "eux", "elles")
"""Who may be at home; not "nous": who says "i'm home" may well mean "chez nous"."""

ANY_GENDER = ("je", "tu", "nous", "les")
"""Pronouns for men and women alike, whatever gender the grammar gives them."""

PEOPLE = {english for english, *_ in phrases.NOUNS["person"]}


class Feature(NamedTuple):
    """A feature that a translation can get wrong."""

    kind: str
    constructions: Sequence[Kind]  # whose sentences may have it
    wrong: Callable[[Clause], list[str]]
    """The translations of a clause that are wrong in this feature, and perhaps the right one."""


def verb_agreement(clause: Clause) -> list[str]:
    """The finite verb in another person: "elle mangeons du pain"."""
    verb = _verb(clause)
    return [
        clause.french(verb._replace(finite=_verb(clause, subject).finite))
        for subject in (clause.subject._replace(person=person) for person in range(5))
    ]


def adjective_agreement(clause: Clause) -> list[str]:
    """The adjective after "être" in another gender or number: "la maison est petit"."""
    predicate = clause.predicate
    return [
        clause._replace(predicate=predicate._replace(french=form)).french()
        for form in _wrong_forms(clause.subject, _adjective_forms(clause))
    ]


def participle_agreement(clause: Clause) -> list[str]:
    """The participle in another gender or number: "elle est parti", "je l'ai aidé" for "her"."""
    verb = _verb(clause)
    predicate = clause.predicate
    if not verb.participle:
        return []
    if predicate.verb.auxiliary == "être":
        wrong = _wrong_forms(clause.subject, ENDINGS)
    elif predicate.before.french:
        # Those that some object has: a form that no sentence has would be too easy to tell.
        wrong = _wrong_forms(predicate.before, ENDINGS)
        wrong = [ending for ending in wrong if ending in OBJECT_ENDINGS]
    else:  # "elle a dansé"
        wrong = []
    return [
        clause.french(verb._replace(participle=predicate.verb.participle + ending))
        for ending in wrong
    ]


def subject_pronoun(clause: Clause) -> list[str]:
    """Another subject pronoun with which the other words agree, too: "elle dort" for "he"."""
    if not clause.subject.pronoun or _is_home(clause):
        return []
    return [
        clause._replace(subject=pronoun).french()
        for pronoun in phrases.PRONOUNS
        if _agreeing_words(clause, pronoun) == _agreeing_words(clause, clause.subject)
    ]


def object_pronoun(clause: Clause) -> list[str]:
    """Another object pronoun: "je le vois" for "her"."""
    predicate = clause.predicate
    if not predicate.before.french or _verb(clause).participle:  # which would change, too
        return []
    return [
        clause._replace(predicate=predicate._replace(before=pronoun)).french()
        for pronoun in phrases.OBJECTS
    ]


def stressed_pronoun(clause: Clause) -> list[str]:
    """Somebody else's home: "je suis chez lui"."""
    if not _is_home(clause):
        return []
    predicate = clause.predicate
    right = predicate.french.removeprefix("chez ")
    acceptable = {right}
    if _has_any_gender(clause.subject) and right in ("lui", "eux"):
        acceptable.add({"lui": "elle", "eux": "elles"}[right])
    return [
        clause._replace(predicate=predicate._replace(french=f"chez {pronoun}")).french()
        for pronoun in HOMES
        if pronoun not in acceptable
    ]


def negation(clause: Clause) -> list[str]:
    """The negation left out: "il dort" for "he doesn't sleep"."""
    if clause.adverb not in ("not", "never"):
        return []
    if "de" in clause.predicate.french.split():  # "pas de chien" is "un chien" without "pas"
        return []
    return [clause._replace(adverb="").french()]


FEATURES = [
    Feature("verb agreement", phrases.KINDS, verb_agreement),
    Feature("adjective agreement", [phrases.quality], adjective_agreement),
    Feature("participle agreement", [phrases.action], participle_agreement),
    Feature("subject pronoun", phrases.KINDS, subject_pronoun),
    Feature("object pronoun", [phrases.action], object_pronoun),
    Feature("stressed pronoun", [phrases.place], stressed_pronoun),
    Feature("negation", phrases.KINDS, negation),
]


def generate(rng: Rng, *, split: str) -> Iterator[ContrastItem]:
    """Contrasts of the split, one of each kind in turn, no sentence twice in a kind.

    A kind of which there are no more is left out from then on.
    """
    seen: set[tuple[str, str]] = set()
    features = list(FEATURES)
    while features:
        for feature in list(features):
            item = _draw(rng, feature, split, seen)
            if item is None:
                features.remove(feature)
            else:
                seen.add((item.kind, item.source))
                yield item
    raise UserError(f"the grammar has only {len(seen):,} {split} contrasts; use fewer")


def _draw(
    rng: Rng, feature: Feature, split: str, seen: set[tuple[str, str]]
) -> ContrastItem | None:
    """A new contrast of a kind; None: there seem to be no more."""
    for _ in range(phrases.PATIENCE):
        clause = phrases.clause(rng, feature.constructions)
        if phrases.split_of(clause.key) != split:
            continue
        english = clause.english()
        right = clause.french()
        wrong = [text for text in dict.fromkeys(feature.wrong(clause)) if text != right]
        if wrong and (feature.kind, english) not in seen:
            return ContrastItem(english, right, rng.choice(wrong), feature.kind)
    return None


def _verb(clause: Clause, subject: NounPhrase | None = None) -> FrenchVerb:
    """The forms of a clause's verb, with its own subject or with another."""
    return phrases.french_verb(subject or clause.subject, clause.predicate, clause.tense)


def _adjective_forms(clause: Clause) -> list[str]:
    """All forms of the adjective after "être"; none: the clause does not have one."""
    if not clause.construction.startswith(phrases.quality.__name__):
        return []
    fitting = phrases.FITTING[clause.subject.group]
    [forms] = [word.french for word in fitting if word.english == clause.predicate.word]
    return forms


def _agreeing_words(clause: Clause, subject: NounPhrase) -> list[str]:
    """The words of a clause that a subject decides, other than itself."""
    forms = _adjective_forms(clause)
    adjective = [subject.agree(forms)] if forms else []
    return [*_verb(clause, subject), *adjective]


def _is_home(clause: Clause) -> bool:
    return clause.predicate.word == "home"


def _wrong_forms(governor: NounPhrase, forms: Sequence[str]) -> list[str]:
    """The forms that cannot agree with a noun or pronoun."""
    if not forms:
        return []
    acceptable = {governor.agree(forms)}
    if _has_any_gender(governor):
        acceptable |= {governor._replace(gender=gender).agree(forms) for gender in "mf"}
    return [form for form in forms if form not in acceptable]


def _has_any_gender(phrase: NounPhrase) -> bool:
    """Whether its gender is only the grammar's choice: "je", or "the teacher", who may be a woman.

    A noun such as "roi" counts as one of these, too.
    """
    if phrase.french in ANY_GENDER:
        return True
    return phrase.head in PEOPLE and phrase.gender == "m"
