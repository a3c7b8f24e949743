"""Texts with `<mask>`: a special token where something is missing, text everywhere else."""

import pytest

from regard.text.missing import WithMasks
from regard.text.normaliser import Normaliser
from regard.text.tokenizer import train_tokenizer
from regard.text.vocabulary import MASK

TEXTS = ["The weather is cold.", "The soup, too, is cold."] * 5
KINDS = ("characters", "words", "bpe")


def tokenizer(kind, **changes):
    base = train_tokenizer(kind, TEXTS, size=300, normalise=Normaliser(**changes))
    return WithMasks(base)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "text",
    [
        "The <mask> is cold",
        "<mask> weather <mask> <mask>.",
        "is<mask>",
        "The  <mask>  cold <mask> is",
    ],
)
def test_pieces_lie_where_they_are_in_the_text(kind, text):
    masked = tokenizer(kind)
    pieces = masked.pieces(text)
    assert [piece.id for piece in pieces] == masked.encode(text) == masked.encode_batch([text])[0]
    for piece in pieces:
        assert text[piece.start : piece.end] == piece.text
    masks = [piece for piece in pieces if piece.id == MASK]
    assert len(masks) == text.count("<mask>")


def test_pieces_of_a_normalised_text_lie_where_they_are_in_it():
    masked = tokenizer("words", lowercase=True, spaced_punctuation=True)
    text = "The Soup, too, <mask>."
    normalised = masked.normalise(text)
    assert normalised == "the soup , too , <mask> ."
    pieces = masked.pieces(text)
    assert [normalised[piece.start : piece.end] for piece in pieces] == normalised.split()
    assert [piece.id for piece in pieces] == masked.encode(text)
