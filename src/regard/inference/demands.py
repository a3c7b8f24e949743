"""Words and phrases that an answer must hold, or must not."""

import re
from collections.abc import Sequence

from regard.errors import UserError
from regard.search import Phrase, Words
from regard.search.lexical import LETTER
from regard.text.tokenizer import Tokenizer
from regard.text.vocabulary import UNK


def words(
    tokenizer: Tokenizer, must: str | Sequence[str], forbid: str | Sequence[str], prefix: str = ""
) -> Words:
    """The phrases that an answer must hold and those that it must not, as texts and tokens.

    Phrases that the vocabulary cannot write, or that contradict each other, are refused. prefix:
    the text with which every answer begins.
    """
    must = _normalised(must, tokenizer)
    forbid = _normalised(forbid, tokenizer)
    if not all((*must, *forbid)):
        raise UserError("an empty text can be neither required nor forbidden")

    tokens_are_words = tokenizer.kind == "words"
    spaced = not tokens_are_words and UNK not in tokenizer.encode(" ")
    phrases = [_phrase(tokenizer, text, spaced) for text in must]
    demands = Words(
        must=phrases,
        forbid=forbid,
        read=tokenizer.decode,
        bounded=spaced or tokens_are_words,
        tokens_are_words=tokens_are_words,
    )

    for text in (*must, tokenizer.normalise(prefix)):
        broken = demands.broken(text)
        if broken:
            raise UserError(
                f"{text!r} is required, but contains {broken[0]!r}, which is forbidden: "
                f"drop one of them"
            )

    return demands


def _normalised(texts: str | Sequence[str], tokenizer: Tokenizer) -> list[str]:
    """The texts, normalised and with single spaces; one text is a list of one."""
    if isinstance(texts, str):
        texts = [texts]
    return [" ".join(tokenizer.normalise(text).split()) for text in texts]


def _phrase(tokenizer: Tokenizer, text: str, spaced: bool) -> Phrase:
    """A demanded text and its tokens.

    spaced: whether the tokens write the space before a word.
    """
    later = text
    if spaced and re.match(LETTER, text):
        later = f" {text}"

    phrase = Phrase(text, tokenizer.encode(text), tokenizer.encode(later))
    if UNK in phrase.later:
        raise UserError(f"{text!r} cannot be required: it is not in the target vocabulary")
    return phrase
