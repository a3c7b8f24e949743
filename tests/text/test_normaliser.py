"""What a run does to texts before they become tokens: lower case, and spaces around punctuation."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.text.encoder import encoder_for
from regard.text.normaliser import Normaliser
from regard.text.tokenizer import KINDS, from_json, train_tokenizer

BOTH = Normaliser(lowercase=True, spaced_punctuation=True)
TEXTS = ["He is calm.", "Où est-il, Paul ? Là !", "(«3.14» et 1,000)", "ΟΔΥΣΣΕΥΣ…", "日本。"]


@pytest.mark.parametrize(
    ("typed", "seen"),
    [
        ("He is calm.", "he is calm ."),
        ("he's calm .", "he's calm ."),
        ("He’s calm!", "he's calm !"),
        ("Really?!", "really ? !"),
        ("Wait...", "wait ..."),
        ("Va\u202f!", "va !"),
        ("Est-ce qu'il dort?", "est-ce qu'il dort ?"),
        ("hello,world", "hello , world"),
        ("It costs 1,000.50 at 10:30.", "it costs 1,000.50 at 10:30 ."),
        ("see example.com", "see example.com"),
        ('She said "no" (twice).', 'she said " no " ( twice ) .'),
        ("¿Qué?", "¿ qué ?"),
        ("好。", "好 。"),
        ("", ""),
    ],
)
def test_what_people_type(typed, seen):
    assert BOTH(typed) == seen


def test_each_setting_alone():
    assert Normaliser(lowercase=True)("He is calm.") == "he is calm."
    assert Normaliser(spaced_punctuation=True)("He is calm.") == "He is calm ."
    assert Normaliser()("He is calm.") == "He is calm."


@given(st.text(alphabet=st.sampled_from("aÀ1.,:!?'’()«» \u00a0\u0301İΣ日。"), max_size=12))
def test_a_second_time_changes_nothing(text):
    assert BOTH(BOTH(text)) == BOTH(text)


@pytest.mark.parametrize("kind", KINDS)
def test_a_tokenizer_carries_it(kind):
    tokenizer = train_tokenizer(kind, TEXTS, size=400, normalise=BOTH)
    plain = train_tokenizer(kind, map(BOTH, TEXTS), size=400)
    again = from_json(tokenizer.to_json())
    assert tokenizer.to_json() != plain.to_json()
    assert "normalise" not in plain.to_json()
    for text in TEXTS:
        assert tokenizer.encode(text) == plain.encode(BOTH(text)) == again.encode(text)
        assert [piece.id for piece in tokenizer.pieces(text)] == tokenizer.encode(text)

    ids, lengths = encoder_for(tokenizer)(TEXTS)
    assert ids.tolist() == [id for text in TEXTS for id in tokenizer.encode(text)]
    assert lengths.tolist() == [len(tokenizer.encode(text)) for text in TEXTS]


def test_hangul_syllables_become_letters_and_nothing_else_does():
    split = Normaliser(jamo=True)
    assert split("한국 é") == "\u1112\u1161\u11ab\u1100\u116e\u11a8 é"
    assert split(split("한국")) == split("한국")
    assert not split.is_plain
    assert Normaliser()("한국") == "한국"
