"""A long text -> sentences, and the gaps between them."""

import re
from collections.abc import Callable
from itertools import pairwise

_ENDS = re.compile(r"[.!?…][\"'”’»)\]]*\s+|[。！？][”’」』）]*\s*|\n\s*")
_SPACES = re.compile(r"\s+")


def pieces(text: str, ends: re.Pattern[str] = _ENDS) -> list[str]:
    """Sentences, each with the white space behind it."""
    bounds = [0, *(match.end() for match in ends.finditer(text)), len(text)]
    return [text[start:end] for start, end in pairwise(bounds) if start < end]


def cut(
    text: str, length: Callable[[str], int], room: int, most: int, packs: bool = True
) -> list[tuple[str, str]]:
    """Cut a long text into (part, white space behind it), where a part is one or more sentences.

    If it packs, a part has several sentences, up to `room` tokens, but none across a newline. A
    sentence with more than `room` stays whole; one with more than `most`, which memory may not
    hold, is cut between words.
    """
    parts = [""]
    total = 0  # tokens of the last part
    closed = False  # whether the last part takes no more
    for sentence in pieces(text):
        fits = length(sentence) <= most
        for piece in [sentence] if fits else pieces(sentence, _SPACES):
            size = length(piece)
            if parts[-1] and (closed or total + size > room):
                parts.append("")
                total = 0
            parts[-1] += piece
            total += size
            closed = False
        closed = not packs or "\n" in _white_space_behind(sentence)
    return [(part.rstrip(), _white_space_behind(part)) for part in parts]


def _white_space_behind(text: str) -> str:
    return text[len(text.rstrip()) :]
