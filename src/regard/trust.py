"""Can an answer be trusted? Loops, source words nobody looked at, texts longer than any in training."""

import math
import re
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy.typing as npt

HARDLY = 0.2
"""A source word that got less attention than this, over all target tokens, was overlooked."""
_LOOP = re.compile(r"(.)\1{7,}|(..)\2{3,}|(.{3,32}?)\3{2,}", re.DOTALL)  # three times in a row and 8 tokens or more
_THRICE = re.compile(r"(.{1,32}?)\1{2,}", re.DOTALL)
_ENDS = re.compile(r"[.!?…][\"'”’»)\]]*\s+|[。！？][”’」』）]*\s*|\n\s*")
_SPACES = re.compile(r"\s+")


def stuck(source: Sequence[int], tokens: Sequence[int], logprobs: Sequence[float]) -> list[int]:
    """The n-gram that an answer repeats by fault, 3 times in a row or more: over 8 tokens, or up to its length limit. [] if none.

    It is no fault where the model leaves the loop with a probability over 1/2 (who counts is sure when to stop, who is stuck
    leaves by chance), nor where the source repeats something at least half as long.
    """
    text = "".join(map(chr, tokens))  # a string of ids, for `re` is fast
    loops = [(m.start(), next(filter(None, m.groups()))) for m in _LOOP.finditer(text)]
    if len(logprobs) == len(tokens) and (tail := _THRICE.match(text[::-1])):  # not ended by <eos>
        loops.append((len(text) - tail.end(), tail[1][::-1]))
    given = max((len(m[0]) for m in _THRICE.finditer("".join(map(chr, source)))), default=0) if loops else 0
    for start, unit in loops:
        end = start + len(unit)
        while end < len(text) and text[end] == text[end - len(unit)]:
            end += 1
        sure = end < len(logprobs) and logprobs[end] > math.log(0.5)
        if not sure and end - start > 2 * given:
            return [*map(ord, unit)]
    return []


def cut(text: str, lengths: Callable[[list[str]], list[int]], room: int, most: int) -> list[tuple[str, str]]:
    """(part, white space behind it): sentences packed together while they have at most `room` tokens, never across a newline.

    A sentence with more than `room` stays whole; one with more than `most`, which memory may not hold, is cut between words.
    """
    pieces = _cuts(text, _ENDS)
    pieces = [p for piece, size in zip(pieces, lengths(pieces)) for p in (_cuts(piece, _SPACES) if size > most else [piece])]
    parts, total = [""], 0
    for piece, size in zip(pieces, lengths(pieces)):
        if parts[-1] and (total + size > room or "\n" in parts[-1][len(parts[-1].rstrip()) :]):
            parts.append("")
            total = 0
        parts[-1] += piece
        total += size
    return [(part.rstrip(), part[len(part.rstrip()) :]) for part in parts]


def _cuts(text: str, after: re.Pattern[str]) -> list[str]:
    bounds = [0, *(m.end() for m in after.finditer(text)), len(text)]
    return [text[start:end] for start, end in pairwise(bounds) if start < end]


def overlooked(text: str, spans: Sequence[tuple[int, int]], looked: npt.NDArray[Any]) -> list[str]:
    """Words whose tokens together got less than HARDLY; spans: where each source token lies in the text."""
    words = [(m[0], *m.span()) for m in re.finditer(r"\S+", text)]
    return [w for w, a, b in words if sum(x for (s, e), x in zip(spans, looked) if s < b and e > a) < HARDLY]
