"""The text as a run's tokenizers see it: NFC, and what else its settings ask for."""

import re
import unicodedata
from dataclasses import asdict, dataclass
from typing import Any

from regard.text.vocabulary import normalise

MARKS = '.,!?;:…"“”„«»()[]{}¿¡。、，！？；：「」『』（）《》【】،؛؟۔।॥'
"""Punctuation that stands beside a word and is no part of it, unlike apostrophes and hyphens."""

_MARK = re.escape(MARKS)
# The first two are inside a word or a number, as in example.com, 3.14, 1,000 and 10:30.
_MARKS = re.compile(rf"(?<=\w)\.(?=\w)|(?<=\d)[,:](?=\d)|([{_MARK}])\1*")
_SYLLABLES = re.compile("[가-힣]+")
# What keyboards and word processors write instead of an apostrophe and a space.
_PLAIN = str.maketrans({"’": "'", "‘": "'", "ʼ": "'", "\u00a0": " ", "\u202f": " "})


@dataclass(frozen=True)
class Normaliser:
    """Brings texts into the form that a model was trained on; a second time changes nothing.

    It looks at one word at a time, so that the words of a text may be normalised one by one.
    """

    lowercase: bool = False
    spaced_punctuation: bool = False
    jamo: bool = False

    @property
    def is_plain(self) -> bool:
        """Whether it does no more than every tokenizer does."""
        return not (self.lowercase or self.spaced_punctuation or self.jamo)

    def __call__(self, text: str) -> str:
        text = normalise(text)
        if self.lowercase:
            text = normalise(text.lower())
        if self.spaced_punctuation:
            text = _MARKS.sub(_spaced, text.translate(_PLAIN))
        if self.jamo:
            text = _SYLLABLES.sub(_letters, text)
        return text

    def to_json(self) -> dict[str, Any]:
        """What the arguments of an equal normaliser are."""
        return asdict(self)


def _letters(match: re.Match[str]) -> str:
    """Hangul syllables as their letters."""
    return unicodedata.normalize("NFD", match[0])


def _spaced(match: re.Match[str]) -> str:
    """A mark, or several equal ones, with a space on each side that has none."""
    if match[1] is None:
        return match[0]

    text = match.string
    before = text[match.start() - 1 : match.start()]
    after = text[match.end() : match.end() + 1]
    left = " " if before and not before.isspace() else ""
    # The next mark brings its own space.
    right = " " if after and not after.isspace() and after not in MARKS else ""
    return f"{left}{match[0]}{right}"
