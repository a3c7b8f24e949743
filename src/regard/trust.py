"""Can an answer be trusted? Loops, source words nobody looked at, texts longer than any in training."""

import math
import re
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy.typing as npt

from regard.search import Job

Again = Callable[[list[Job], int], None]
HARDLY = 0.2  # a source word that got less attention than this, over all target tokens, was overlooked
_LOOP = re.compile(r"(.)\1{7,}|(..)\2{3,}|(.{3,32}?)\3{2,}", re.DOTALL)  # three times in a row and 8 tokens or more
_THRICE = re.compile(r"(.{1,32}?)\1{2,}", re.DOTALL)
_ENDS = re.compile(r"[.!?…][\"'”’»)\]]*\s+|[。！？][”’」』）]*\s*|\n\s*")
_SPACES = re.compile(r"\s+")


def stuck(job: Job) -> list[int]:
    """The n-gram that an answer repeats by fault, 3 times in a row or more: over 8 tokens, or up to its length limit. [] if none.

    It is no fault where the model leaves the loop with a probability over 1/2 (who counts is sure when to stop, who is stuck
    leaves by chance), nor where the source repeats something at least half as long.
    """
    if not job.found:
        return []
    best, text = job.found[0], "".join(map(chr, job.found[0].tokens))  # a string of ids, for `re` is fast
    loops = [(m.start(), next(filter(None, m.groups()))) for m in _LOOP.finditer(text)]
    if not best.finished and (tail := _THRICE.match(text[::-1])):
        loops.append((len(text) - tail.end(), tail[1][::-1]))
    given = max((len(m[0]) for m in _THRICE.finditer("".join(map(chr, job.source)))), default=0) if loops else 0
    for start, unit in loops:
        end = start + len(unit)
        while end < len(text) and text[end] == text[end - len(unit)]:
            end += 1
        sure = end < len(best.logprobs) and best.logprobs[end] > math.log(0.5)
        if not sure and end - start > 2 * given:
            return [*map(ord, unit)]
    return []


def free(jobs: Sequence[Job], again: Again, name: Callable[[list[int]], str], may: bool) -> dict[Job, tuple[str, int]]:
    """Search what is stuck `again`, if that may be, with just enough no_repeat to break its loop: job -> (a note, no_repeat)."""
    units = {job: unit for job in jobs if (unit := stuck(job))}
    sizes = {job: max(4, len(unit) + 1) for job, unit in units.items() if may}
    notes = {job: (f"repeats {name(unit)!r} over and over", 0) for job, unit in units.items()}
    for size in set(sizes.values()):
        first = {job: job.found for job in sizes if sizes[job] == size}
        again([*first], size)
        for job, old in first.items():
            caught = not job.found or bool(stuck(job))
            job.found = old if caught else job.found
            said = f"{notes[job][0]}: decoded again with no_repeat={size}"
            notes[job] = (f"{said}, in vain", 0) if caught else (said, size)
    return notes


def pieces(text: str, ends: re.Pattern[str] = _ENDS) -> list[str]:
    """Sentences, each with the white space behind it."""
    bounds = [0, *(m.end() for m in ends.finditer(text)), len(text)]
    return [text[start:end] for start, end in pairwise(bounds) if start < end]


def cut(text: str, length: Callable[[str], int], room: int, most: int, packs: bool = True) -> list[tuple[str, str]]:
    """(part, white space behind it): sentences; if it packs, several together up to `room` tokens, but not across a newline.

    A sentence with more than `room` stays whole; one with more than `most`, which memory may not hold, is cut between words.
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


def overlooked(text: str, spans: Sequence[tuple[int, int]], looked: npt.NDArray[Any]) -> list[str]:
    """Words whose tokens together got less than HARDLY; spans: where each source token lies in the text."""
    words = [(m[0], *m.span()) for m in re.finditer(r"\S+", text)]
    return [w for w, a, b in words if sum(x for (s, e), x in zip(spans, looked) if s < b and e > a) < HARDLY]
