"""What `regard demo` shows of its answers: right ones and wrong ones are marked."""

from dataclasses import dataclass

from regard.data.pairs import Pair
from regard.recipes.demo import COURSE, _examples


@dataclass
class Answer:
    source: str
    text: str


class Wrong:
    """A translator that knows one sentence of the course."""

    def translate(self, texts):
        return [Answer(text, "va !") for text in texts]


@dataclass
class Judged:
    pairs: list[Pair]
    answers: list[str]


def test_a_wrong_answer_is_marked_wrong():
    pairs = [Pair("he ate .", ("il a mangé .",), 1), Pair("she ate .", ("elle a mangé .",), 2)]
    rows = _examples(Judged(pairs, ["il a mangé .", "il a mangé ."]), Wrong())
    assert rows[0] == ("he ate .", "il a mangé .", "✓ the same")
    assert rows[1] == ("she ate .", "il a mangé .", "✗ elle a mangé .")

    course = rows[2:]
    assert [source for source, _, _ in course] == COURSE
    verdicts = [verdict.removesuffix(" (seen in training)") for _, _, verdict in course]
    wrong = ["✗ j'ai perdu .", "✗ il est calme .", "✗ je suis chez moi ."]
    assert verdicts == ["✓ the same", *wrong]
