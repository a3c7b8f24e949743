"""Where the tokens of a text stand, if its user says where its words stand."""

import re
from bisect import bisect_left
from collections.abc import Sequence
from typing import Self

from regard.errors import UserError, counted
from regard.text.tokenizer import Tokenizer

_WORD = re.compile(r"\S+")


class Located(str):
    """A text that says where its words stand, such as how deep each lies in a tree.

    Whoever encodes the text finds the positions there; for everybody else it is a text.
    """

    positions: tuple[int, ...]

    def __new__(cls, text: str, positions: Sequence[int]) -> Self:
        located = super().__new__(cls, text)
        located.positions = tuple(positions)
        return located


def positions_in(tokenizer: Tokenizer, text: str) -> list[int]:
    """The positions of the tokens of a text, then that of <eos>; empty: nobody says them."""
    if not isinstance(text, Located):
        return []
    return token_positions(tokenizer, text, text.positions, repr(text[:40]))


def word_positions(tokenizer: Tokenizer, ids: Sequence[int], positions: Sequence[int]) -> list[int]:
    """The position of each word of decode(ids), from those of the tokens."""
    starts = [word.start() for word in _WORD.finditer(tokenizer.decode(ids))]
    words = [max(0, bisect_left(starts, end) - 1) for _, end in tokenizer.spans(ids)]
    by_word = dict(zip(words, positions))  # all tokens of a word have the same
    return [by_word[word] for word in range(len(starts))]


def token_positions(
    tokenizer: Tokenizer, text: str, positions: Sequence[int], where: str
) -> list[int]:
    """The position of each token of a text, then that of <eos>.

    positions: of each word, which is what stands between white space in the normalised text. Every
    token of a word has the position of the word; white space has that of the word before it. <eos>
    has one more than the largest. where: what an error begins with.
    """
    normalised = tokenizer.normalise(text)
    starts = [word.start() for word in _WORD.finditer(normalised)]
    if len(starts) != len(positions):
        advice = "give one for each word"
        if normalised.split() != text.split():
            advice += "; punctuation marks count as words (text.spaced_punctuation)"
        raise UserError(
            f"{where}: {counted(len(positions), 'position')} for {counted(len(starts), 'word')}: "
            f"{advice}"
        )

    # A token belongs to the word that its last character is in.
    words = [max(0, bisect_left(starts, piece.end) - 1) for piece in tokenizer.pieces(text)]
    return [*(positions[word] for word in words), max(positions, default=-1) + 1]
