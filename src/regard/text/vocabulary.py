"""The ids every tokenizer shares, and the table of tokens behind characters and words."""

import re
import unicodedata
from collections.abc import Iterable

PAD, BOS, EOS, UNK, MASK = range(5)
FIRST = 16  # ordinary tokens start here, so that old models keep their ids when a reserved one comes into use
SPECIALS = (
    *("<pad>", "<bos>", "<eos>", "<unk>", "<mask>"),
    *(f"<sentinel{i}>" for i in range(1, 8)),
    *(f"<tag{i}>" for i in range(1, 5)),
)
assert len(SPECIALS) == FIRST

UNKNOWN = "⁇"  # how <unk> shows in decoded text
_SURROGATE = re.compile("[\ud800-\udfff]")


def normalise(text: str) -> str:
    """The text as every tokenizer sees it: NFC, and lone surrogates (not text, but Python lets them be) as U+FFFD."""
    if text.isascii():
        return text
    return unicodedata.normalize("NFC", _SURROGATE.sub("\ufffd", text))


class Vocabulary:
    """Ordinary tokens and their ids. A token that spells "<eos>" is an ordinary token."""

    def __init__(self, tokens: Iterable[str]) -> None:
        self.tokens = tuple(tokens)
        self._ids = {token: FIRST + i for i, token in enumerate(self.tokens)}
        if len(self._ids) != len(self.tokens):
            raise ValueError("a vocabulary holds each token once")

    def __len__(self) -> int:
        return FIRST + len(self.tokens)

    def ids(self, tokens: Iterable[str]) -> list[int]:
        get = self._ids.get
        return [get(token, UNK) for token in tokens]

    def text(self, id: int) -> str:
        """What an id adds to decoded text: nothing for specials, "⁇" for <unk> and ids that do not exist."""
        if FIRST <= id < len(self):
            return self.tokens[id - FIRST]
        return "" if 0 <= id < FIRST and id != UNK else UNKNOWN
