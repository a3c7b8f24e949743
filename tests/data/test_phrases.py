"""The built-in English-French grammar: its size, its splits, and its French, read by a small
independent checker.
"""

import random
import re
import tomllib
from collections import Counter
from itertools import islice, pairwise
from pathlib import Path

import pytest

import regard.data.tasks.phrases as module
from regard.data.splits import open_data
from regard.data.tasks import TASKS
from regard.data.tasks.phrases import SHORT, PhrasePair, phrases, split_of
from regard.errors import UserError

WORDS = tomllib.loads(Path(module.__file__).with_name("phrases.toml").read_text(encoding="utf-8"))
Features = set[tuple[str, str]]  # (gender, number) a word may have
BOTH = {(g, n) for g in "mf" for n in "sp"}


def first(count: int, seed: int, split: str = "train") -> list[PhrasePair]:
    return list(islice(phrases(random.Random(seed), split), count))


class Checker:
    """Reads French with nothing but the lexicon: every form is looked up, none is built but the
    simple future.
    """

    def __init__(self) -> None:
        self.nouns: dict[str, Features] = {}
        self.adjectives: dict[str, Features] = {}
        self.before: set[str] = set()
        self.finite: dict[str, set[int]] = {}
        self.moving: dict[str, Features] = {}  # participles with être
        self.of_verbs: set[str] = set()  # every form of verbs that take "de"
        self.aspirated = set(WORDS["aspirated"].split())
        for text in WORDS["nouns"].values():
            for line in text.strip().splitlines():
                _, _, one, many, gender = line.split(",")
                self.nouns.setdefault(one, set()).add((gender, "s"))
                self.nouns.setdefault(many, set()).add((gender, "p"))
        self.nouns |= {"soir": {("m", "s")}, "semaine": {("f", "s")}}
        for line in WORDS["adjectives"]["words"].strip().splitlines():
            _, *forms, place, _ = line.split(",")
            for form, feature in zip(forms, (("m", "s"), ("f", "s"), ("m", "p"), ("f", "p"))):
                self.adjectives.setdefault(form, set()).add(feature)
                if place == "before":
                    self.before.add(form)
        for form in WORDS["adjectives"]["before_vowel"].values():
            self.adjectives[form] = {("m", "s")}
            self.before.add(form)
        for name in ("actions", "modals", "states"):
            for line in WORDS["verbs"][name].strip().splitlines():
                self.read_verb(line)
        for forms in WORDS["verbs"]["imperfect"].values():
            self.add_finite(forms.split())
        self.determiners = self.read_determiners()
        self.etre = {"suis", "es", "est", "sommes", "sont", "étais", "était", "étions", "étaient"}
        self.etre |= {"serai", "seras", "sera", "serons", "seront"}
        self.clitics = {"ne", "n'", "le", "la", "l'", "les"}

    def add_finite(self, forms: list[str]) -> None:
        for person, form in enumerate(forms):
            self.finite.setdefault(form, set()).add(person)

    def read_verb(self, line: str) -> None:
        _, french, rest, _, _, preposition = line.split("|")
        infinitive, *present = french.split(",")
        participle, auxiliary, stem, imperative = rest.split(",")
        future = [stem + ending for ending in ("ai", "as", "a", "ons", "ont")]
        self.add_finite(present)
        self.add_finite(future)
        if auxiliary == "être":
            for ending, feature in (
                ("", ("m", "s")),
                ("e", ("f", "s")),
                ("s", ("m", "p")),
                ("es", ("f", "p")),
            ):
                self.moving[participle + ending] = {feature}
        if preposition == "de":
            self.of_verbs |= {*present, *future, infinitive, imperative}
            self.of_verbs |= {participle + ending for ending in ("", "e", "s", "es")}

    def read_determiners(self) -> dict[str, Features]:
        masculine, feminine = {("m", "s")}, {("f", "s")}
        found: dict[str, Features] = {
            "l'": masculine | feminine,
            "cet": masculine,
            "du": masculine,
            "au": masculine,
        }
        for line in "".join(WORDS["determiners"].values()).strip().splitlines():
            _, _, one, other, many = line.split(",")
            found[one] = found.get(one, set()) | masculine
            found[other] = found.get(other, set()) | feminine
            found[many] = {("m", "p"), ("f", "p")}
        for word in ("mon", "ton", "son"):
            found[word] = masculine | feminine  # the feminine only before a vowel: see `phrase`
        return found | {"aux": {("m", "p"), ("f", "p")}, "de": BOTH, "d'": BOTH}

    def vowel(self, word: str) -> bool:
        return bool(re.match("[aeiouéèêâàôîœh]", word)) and word not in self.aspirated

    def tokens(self, sentence: str) -> list[str]:
        sentence = sentence.replace("aujourd'hui", "").replace("tous les jours", "")
        return re.sub(r"\b(\w{1,2}')", r"\1 ", sentence).split()

    def phrase(self, words: list[str], at: int) -> tuple[int, Features, list[str]]:
        """Read determiner, adjectives, noun, adjectives from `at`: where it ends, what it can be,
        what is wrong.
        """
        features, place, errors = set(self.determiners[words[at]]), at + 1, []
        early: list[str] = []
        while words[place] in self.adjectives and words[place] not in self.nouns:
            early.append(words[place])
            features &= self.adjectives[words[place]]
            place += 1
        if words[place] not in self.nouns:
            return at, set(), []
        noun = words[place]
        if words[at] in ("mon", "ton", "son") and not self.vowel(words[at + 1]):
            features -= {("f", "s")}
        if early and early[-1] in ("beau", "vieux") and ("m", "s") in features and self.vowel(noun):
            features -= {("m", "s")}
        if early and early[-1] in ("bel", "vieil") and not self.vowel(noun):
            errors.append(f"{early[-1]} {noun}")
        takes_de = self.of_verbs | {"près"}  # "des" may be "de les" after these
        if words[at] == "des" and early and not (set(words[:at]) & takes_de):
            errors.append(f"des {early[0]}")
        features &= self.nouns[noun]
        place += 1
        while (
            place < len(words)
            and words[place] in self.adjectives
            and words[place] not in self.finite
        ):
            features &= self.adjectives[words[place]]
            if words[place] in self.before:
                errors.append(f"{words[place]} after {noun}")
            place += 1
        errors += [f"{word} before {noun}" for word in early if word not in self.before]
        if not features:
            errors.append(f"no agreement: {' '.join(words[at:place])}")
        return place, features, errors

    def spelling(self, words: list[str]) -> list[str]:
        errors = []
        for word, following in pairwise(words):
            vowel = self.vowel(following)
            if vowel and word in ["je", "le", "la", "ne", "de", "que", "ma", "ta", "sa", "ce"]:
                errors.append(f"no elision: {word} {following}")
            if word.endswith("'") and not vowel:
                errors.append(f"elision: {word} {following}")
            if word in ("à", "de") and following in ("le", "les"):
                errors.append(f"no contraction: {word} {following}")
        return errors

    def negation(self, words: list[str]) -> list[str]:
        errors = []
        for at, word in enumerate(words):
            if word in ("ne", "n'") and not {"pas", "jamais"} & set(words[at : at + 5]):
                errors.append("ne alone")
            if word in ("pas", "jamais"):
                if not {"ne", "n'"} & set(words[max(0, at - 4) : at]):
                    errors.append(f"{word} without ne")
                known = self.etre | self.of_verbs
                after = words[at + 1 : at + 2]  # empty at the end of a sentence without a mark
                if {*after} & {"un", "une", "des", "du"} and words[at - 1] not in known:
                    errors.append(f"{word} {words[at + 1]}")
        return errors

    def clause(self, words: list[str], at: int) -> list[str]:
        """A subject that begins at `at` must agree with its verb, and with what "être" joins
        to it.
        """
        people = {"je": 0, "j'": 0, "tu": 1, "il": 2, "elle": 2, "nous": 3, "ils": 4}
        names = {name.split(":")[0]: name.split(":")[1] for name in WORDS["names"].split()}
        word = words[at]
        if word in people:
            person, place = people[word], at + 1
            features = {("f" if word == "elle" else "m", "p" if person > 2 else "s")}
        elif word in names:
            person, place, features = 2, at + 1, {(names[word], "s")}
        elif word in self.determiners and self.phrase(words, at)[1]:
            place, features, _ = self.phrase(words, at)
            person = 2 if {n for _, n in features} == {"s"} else 4
            if {n for _, n in features} == {"s", "p"}:
                return []
        else:
            return []
        while words[place] in self.clitics:
            place += 1
        if words[place] not in self.finite:
            return []
        if person not in self.finite[words[place]]:
            return [f"{word} ... {words[place]}"]
        if words[place] not in self.etre:
            return []
        while words[place + 1] in ["pas", "jamais", "souvent", "toujours"]:
            place += 1
        joined = self.adjectives.get(words[place + 1]) or self.moving.get(words[place + 1])
        return (
            [f"{word} est {words[place + 1]}"]
            if joined is not None and not joined & features
            else []
        )

    def errors(self, sentence: str) -> list[str]:
        words = self.tokens(sentence)
        found = self.spelling(words) + self.negation(words)
        for at, word in enumerate(words):
            if at == 0 or words[at - 1] in ("que", "qu'"):
                found += self.clause(words, at)
            if word in self.determiners:
                found += self.phrase(words, at)[2]
        return found


@pytest.fixture(scope="module")
def train() -> list[PhrasePair]:
    return first(30_000, 1)


@pytest.fixture(scope="module")
def held_out() -> dict[str, list[PhrasePair]]:
    return {split: first(1_000, 2, split) for split in ("dev", "test")}


@pytest.fixture(scope="module")
def checker() -> Checker:
    return Checker()


def test_there_are_many_pairs_of_many_words(train: list[PhrasePair]) -> None:
    assert len({(p.english, p.french) for p in train}) == 30_000
    assert 650 <= len({word for p in train for word in p.english.split()}) <= 1_000
    assert 1_000 <= len({word for p in train for word in p.french.split()}) <= 1_400
    assert 12 <= len({p.key[0] for p in train}) <= 16


def test_every_feature_of_the_grammar_is_met(train: list[PhrasePair]) -> None:
    french = " ".join(p.french for p in train)
    for feature in [
        "n'a pas",
        "ne seront jamais",
        "est-ce qu'",
        "pourquoi",
        "d'eau",
        "du pain",
        "au marché",
        "des magasins",
        "l'a aidée",
        "parties",
        "était",
        "auront",
        "de petites",
        "vieil ami",
        "cet",
        "mon épouse",
    ]:
        assert f" {feature}" in french, feature


@pytest.mark.parametrize(("them", "ending"), [("him", "é"), ("her", "ée"), ("them", "és")])
def test_a_participle_agrees_with_the_pronoun_before_it(
    train: list[PhrasePair], them: str, ending: str
) -> None:
    found = [
        p.french for p in train if p.english.endswith((f" helped {them} .", f" watched {them} ."))
    ]
    assert found
    assert all(re.search(rf"(aid|regard){ending} \.$", french) for french in found)


def test_an_english_sentence_has_one_translation_and_one_combination(
    train: list[PhrasePair],
) -> None:
    seen: dict[str, PhrasePair] = {}
    for found in [*train, *first(10_000, 3)]:
        assert seen.setdefault(found.english, found) == found


def test_the_same_seed_gives_the_same_pairs_and_more_continue_fewer() -> None:
    task = TASKS["phrases"]
    for split in task.splits:
        few, many = list(task.pairs(200, 7, split=split)), list(task.pairs(500, 7, split=split))
        assert many[:200] == few == list(task.pairs(200, 7, split=split))
        assert list(task.pairs(200, 8, split=split)) != few
        assert [list(task.pairs(n, 7, split=split)) for n in range(6)] == [
            many[:n] for n in range(6)
        ]


def test_the_four_sentences_come_first_in_train_and_nowhere_else(
    held_out: dict[str, list[PhrasePair]],
) -> None:
    four = [
        ("go .", "va !"),
        ("i lost .", "j'ai perdu ."),
        ("he's calm .", "il est calme ."),
        ("i'm home .", "je suis chez moi ."),
    ]
    assert list(TASKS["phrases"].pairs(100, 5))[:4] == four
    for pairs in held_out.values():
        assert not {english for english, _ in four} & {p.english for p in pairs}


def test_splits_share_no_combination(
    train: list[PhrasePair], held_out: dict[str, list[PhrasePair]]
) -> None:
    keys = [{p.key for p in part} for part in (train, held_out["dev"], held_out["test"])]
    assert not (keys[0] & keys[1])
    assert not (keys[0] & keys[2])
    assert not (keys[1] & keys[2])
    shares = [split_of(("x", str(number), "y")) for number in range(4_000)]
    assert 0.04 < shares.count("dev") / 4_000 < 0.06
    assert 0.04 < shares.count("test") / 4_000 < 0.06


@pytest.mark.parametrize("split", ["dev", "test"])
def test_words_and_constructions_of_held_out_sentences_are_in_train(
    train: list[PhrasePair], held_out: dict[str, list[PhrasePair]], split: str
) -> None:
    for side in (0, 1):
        known = {word for p in train[:20_000] for word in str(p[side]).split()}
        words = [word for p in held_out[split] for word in str(p[side]).split()]
        assert sum(word not in known for word in words) < 0.003 * len(words)
    assert {p.key[0] for p in held_out[split]} <= {p.key[0] for p in train}


def test_a_wrong_split_or_too_many_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="no split 'valid'"):
        TASKS["phrases"].pairs(1, 0, split="valid")
    monkeypatch.setattr(module, "PATIENCE", 2)
    with pytest.raises(UserError, match="use fewer"):
        list(open_data("phrases", dev=50).split("dev"))


def test_the_french_agrees(
    train: list[PhrasePair], held_out: dict[str, list[PhrasePair]], checker: Checker
) -> None:
    wrong = [
        (p.french, e) for p in [*train[:6_000], *held_out["dev"]] if (e := checker.errors(p.french))
    ]
    assert not wrong, f"{len(wrong)}: {wrong[:5]}"


@pytest.mark.parametrize(
    ("subject", "verb", "tense", "adverb", "forms", "french"),
    [
        ("he", "be", "present", "", {"he's calm", "he is calm"}, "il est calme"),
        (
            *("he", "be", "present", "not"),
            {"he isn't calm", "he's not calm", "he is not calm"},
            "il n'est pas calme",
        ),
        ("i", "be", "present", "not", {"i'm not calm", "i am not calm"}, "je ne suis pas calme"),
        (
            *("she", "sleep", "future", "not"),
            {"she won't sleep", "she will not sleep"},
            "elle ne dormira pas",
        ),
        ("they", "can", "present", "not", {"they can't sleep", "they cannot sleep"}, ""),
        ("we", "sleep", "present", "not", {"we don't sleep", "we do not sleep"}, ""),
    ],
)
def test_contracted_or_not_the_french_is_the_same(
    subject: str, verb: str, tense: str, adverb: str, forms: set[str], french: str
) -> None:
    [someone] = [pronoun for pronoun in module.PRONOUNS if pronoun.english == subject]
    verbs = [module.BE, *module.ACTIONS, *module.MODALS]
    [said] = [known for known in verbs if known.english[0] == verb and known.infinitive != "aller"]
    rest = {"be": ("calm", "calme"), "can": ("sleep", "dormir")}.get(verb, ("", ""))
    predicate = module.Predicate(said, *rest, "", rest[0])
    english = {
        module.say_english(someone, predicate, tense, adverb, False, contraction)
        for contraction in module.CONTRACTIONS
    }
    assert {module.spelt(text, "english") for text in english} == forms
    if french:
        translated = module.say_french(someone, predicate, tense, adverb, False)
        assert module.spelt(translated, "french") == french


def test_sentences_end_as_people_type_them(train: list[PhrasePair]) -> None:
    ends = [p.english[-1] if p.english[-1] in ".?!" else "" for p in train]
    shares = {end: ends.count(end) / len(ends) for end in set(ends)}
    assert 0.05 < shares["!"] < 0.1
    assert 0.08 < shares[""] < 0.12
    for p in train:
        bare = p.english[-1].isalpha()
        assert bare == p.french[-1].isalpha()


def test_the_english_is_spelt(train: list[PhrasePair]) -> None:
    for english in (p.english for p in train):
        assert not re.search(r"\ba [aeio]|\ban [^aeiouh]|  ", english)
        assert not re.search(r"^(he|she) (don't|have)\b|^(i|you|we|they) (does|has)", english)
        assert english == english.lower()
        assert english.endswith((" .", " ?", " !")) or english[-1].isalpha()


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("j'ai perdu .", "je ai perdu ."),
        ("l'enfant dort .", "le enfant dort ."),
        ("il n'est pas calme .", "il ne est pas calme ."),
        ("il n'est pas calme .", "il n'est calme ."),
        ("il ne dort pas .", "il dort pas ."),
        ("il boit de l'eau .", "il boit de la eau ."),
        ("il ne boit pas d'eau .", "il ne boit pas de eau ."),
        ("le hibou dort .", "l'hibou dort ."),
        ("l'école est fermée .", "la école est fermée ."),
        ("l'école est fermée .", "l'école est fermé ."),
        ("nous allons au marché .", "nous allons à le marché ."),
        ("je n'ai pas de chien .", "je n'ai pas un chien ."),
        ("j'ai de petits chats .", "j'ai des petits chats ."),
        ("j'ai un petit chat noir .", "j'ai un petit noir chat ."),
        ("j'ai un chat noir .", "j'ai une chat noir ."),
        ("j'ai une voiture verte .", "j'ai une voiture vert ."),
        ("j'ai des voitures vertes .", "j'ai des voitures verte ."),
        ("c'est un vieil ami .", "c'est un vieux ami ."),
        ("c'est mon épouse .", "c'est ma épouse ."),
        ("c'est ma mère .", "c'est mon mère ."),
        ("nous mangeons du pain .", "nous mangent du pain ."),
        ("tu mangeras du pain .", "tu mangera du pain ."),
        ("les chats dorment .", "les chats dort ."),
        ("la voiture est rouge .", "la voiture sont rouges ."),
        ("la femme est belle .", "la femme est beau ."),
        ("elle est partie .", "elle est parti ."),
        ("est-ce qu'elle est calme ?", "est-ce que elle est calme ?"),
        ("mes sœurs sont toujours grandes .", "mes sœurs sont toujours grands ."),
    ],
)
def test_the_checker_can_fail(checker: Checker, right: str, wrong: str) -> None:
    assert checker.errors(right) == []
    assert checker.errors(wrong)


def test_short_sentences_of_all_kinds_are_drawn(train: list[PhrasePair]) -> None:
    """Else a short sentence of a rare kind, such as "he's home", would be learned by chance."""
    short = [p for p in train if len(p.english.rstrip(" .!?").split()) <= SHORT]
    assert len(short) > 0.25 * len(train)
    kinds = Counter(re.match(r"\w+", p.key[0])[0] for p in short)
    assert set(kinds) == {"action", "wish", "quality", "possession", "place", "order"}
    assert min(kinds.values()) > 0.04 * len(short)
