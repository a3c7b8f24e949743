"""What every tokenizer shares: the reserved ids, and the text as it is before it is cut."""

import re
import sys
import unicodedata
from functools import cache
from operator import and_

PAD, BOS, EOS, UNK = range(4)
MASK = 4  # if the vocabulary reserves any ids
# Ids beyond the four above that a vocabulary reserves unless text.reserved says otherwise: models
# keep their ids when one of these comes into use.
RESERVED = 12
# Where ordinary tokens start then. Of a given tokenizer: `tokenizer.first`.
FIRST = 4 + RESERVED
SPECIALS = (
    *("<pad>", "<bos>", "<eos>", "<unk>", "<mask>"),
    *(f"<sentinel{i}>" for i in range(1, 8)),
    *(f"<tag{i}>" for i in range(1, 5)),
)
assert len(SPECIALS) == FIRST
assert SPECIALS[MASK] == "<mask>"

UNKNOWN = "⁇"  # how <unk> shows in decoded text
_SURROGATE = re.compile("[\ud800-\udfff]")
_FEW_MARKS = 64  # on one letter; Python puts more in order in a time that grows with their square


def _may_have_many_marks(text: str) -> bool:
    """Whether two places next to each other hold marks, of places so close that one run has two."""
    combining = [unicodedata.combining(letter) for letter in text[:: _FEW_MARKS // 2]]
    return any(map(and_, map(bool, combining), map(bool, combining[1:])))


@cache
def _marks() -> re.Pattern[str]:
    """Many marks that combine with one letter."""
    marks = filter(unicodedata.combining, map(chr, range(sys.maxunicode + 1)))
    return re.compile(f"[{''.join(marks)}]{{{_FEW_MARKS},}}")


def _in_order(marks: re.Match[str]) -> str:
    """The same marks in the order that Unicode gives them."""
    return "".join(sorted(marks[0], key=unicodedata.combining))


def normalise(text: str) -> str:
    """The text as every tokenizer sees it.

    It is NFC, and lone surrogates, which Python lets be but which are no text, are U+FFFD.
    """
    if text.isascii():
        return text
    try:
        text.encode()  # quicker than to look for a surrogate
    except UnicodeEncodeError:
        text = _SURROGATE.sub("\ufffd", text)
    if len(text) > 20 * _FEW_MARKS and _may_have_many_marks(text):
        text = _marks().sub(_in_order, text)
    return unicodedata.normalize("NFC", text)
