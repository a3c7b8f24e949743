"""Words and phrases that an answer must hold, or must not."""

import re
from collections.abc import Sequence

from regard.errors import UserError
from regard.search import Phrase, Words
from regard.search.lexical import LETTER
from regard.text.tokenizer import Tokenizer
from regard.text.vocabulary import UNK, normalise


def words(
    tokenizer: Tokenizer, must: str | Sequence[str], forbid: str | Sequence[str], prefix: str = ""
) -> Words:
    """The phrases as texts and tokens.

    Phrases that the vocabulary cannot write, or that contradict each other, are refused.
    """
    must, forbid = ([side] if isinstance(side, str) else side for side in (must, forbid))
    must, forbid = (
        [" ".join(normalise(text).split()) for text in texts] for texts in (must, forbid)
    )
    if not all((*must, *forbid)):
        raise UserError("an empty text can be neither demanded nor forbidden")
    whole = tokenizer.kind == "words"
    spaced = not whole and UNK not in tokenizer.encode(" ")
    later = {text: f" {text}" if spaced and re.match(LETTER, text) else text for text in must}
    phrases = [Phrase(text, tokenizer.encode(text), tokenizer.encode(later[text])) for text in must]
    for phrase in phrases:
        if UNK in phrase.later:
            raise UserError(
                f"{phrase.text!r} cannot be demanded: it is not in the target's vocabulary"
            )
    found = Words(
        phrases, forbid, tokenizer.decode, bounded=spaced or whole, tokens_are_words=whole
    )
    for text in (*must, normalise(prefix)):
        if broken := found.broken(text):
            raise UserError(
                f"{text!r} must come, but {broken[0]!r} in it is forbidden: one of them has to go"
            )
    return found
