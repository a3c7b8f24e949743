"""A long text -> sentences, and the gaps between them."""

import re
from collections.abc import Callable
from itertools import pairwise

_ENDS = re.compile(r"[.!?…][\"'”’»)\]]*\s+|[。！？][”’」』）]*\s*|\n\s*")
_SPACES = re.compile(r"\s+")


def pieces(text: str, ends: re.Pattern[str] = _ENDS) -> list[str]:
    """Sentences, each with the white space behind it."""
    bounds = [0, *(m.end() for m in ends.finditer(text)), len(text)]
    return [text[start:end] for start, end in pairwise(bounds) if start < end]


def cut(
    text: str, length: Callable[[str], int], room: int, most: int, packs: bool = True
) -> list[tuple[str, str]]:
    """(part, white space behind it): sentences; if it packs, several together up to `room` tokens,
    but not across a newline.

    A sentence with more than `room` stays whole; one with more than `most`, which memory may not
    hold, is cut between words.
    """
    parts, total, closed = [""], 0, False
    for sentence in pieces(text):
        for piece in pieces(sentence, _SPACES) if length(sentence) > most else [sentence]:
            size = length(piece)
            if parts[-1] and (closed or total + size > room):
                parts.append("")
                total = 0
            parts[-1] += piece
            total, closed = total + size, False
        closed = not packs or "\n" in sentence[len(sentence.rstrip()) :]
    return [(part.rstrip(), part[len(part.rstrip()) :]) for part in parts]
