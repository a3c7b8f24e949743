"""Answers that repeat themselves: how they are found, and decoded again."""

import math
import re
from collections.abc import Callable, Sequence

from regard.search import Job

DecodeAgain = Callable[[list[Job], int], None]
"""(jobs, no_repeat): search the jobs again, with no n-gram of this size twice."""

_LOOP = re.compile(r"(.)\1{7,}|(..)\2{3,}|(.{3,32}?)\3{2,}", re.DOTALL)
"""A unit of 1 to 32 tokens, at least three times in a row and over at least 8 tokens."""
_THRICE = re.compile(r"(.{1,32}?)\1{2,}", re.DOTALL)
"""A unit of 1 to 32 tokens, at least three times in a row."""


def stuck(job: Job) -> list[int]:
    """The n-gram that an answer repeats by fault; [] if there is none.

    It stands there at least 3 times in a row, over 8 tokens or more, or up to the length limit. It
    is no fault where the model leaves the loop with a probability over 1/2 (a model that counts is
    sure when to stop, one that is stuck leaves by chance), nor where the source repeats something
    at least half as long.
    """
    if not job.found:
        return []

    best = job.found[0]
    text = _as_string(best.tokens)
    loops: list[tuple[int, str]] = []  # where each begins, and the unit that it repeats
    for match in _LOOP.finditer(text):
        unit = next(filter(None, match.groups()))  # of the three groups one has matched
        loops.append((match.start(), unit))
    if not best.finished:
        at_end = _THRICE.match(text[::-1])
        if at_end:
            loops.append((len(text) - at_end.end(), at_end[1][::-1]))
    if not loops:
        return []

    repeated = _longest_repeat(job.source)
    for start, unit in loops:
        end = start + len(unit)
        while end < len(text) and text[end] == text[end - len(unit)]:
            end += 1

        left_surely = end < len(best.logprobs) and best.logprobs[end] > math.log(0.5)
        if not left_surely and end - start > 2 * repeated:
            return [ord(character) for character in unit]

    return []


def _as_string(ids: Sequence[int]) -> str:
    """Ids as characters, one each: `re` is a fast way to look for repetitions."""
    return "".join(map(chr, ids))


def _longest_repeat(ids: Sequence[int]) -> int:
    """How many tokens the longest repetition in a source covers; 0: there is none."""
    return max((len(match[0]) for match in _THRICE.finditer(_as_string(ids))), default=0)


def free(
    jobs: Sequence[Job],
    decode_again: DecodeAgain,
    name: Callable[[list[int]], str],
    may: bool,
) -> dict[Job, tuple[str, int]]:
    """Note which answers repeat themselves: job -> (a note, no_repeat).

    If it `may` be, they are searched again with just enough no_repeat to break their loops. An
    answer that still repeats itself stays as it was, with a no_repeat of 0. name: the text of ids.
    """
    units: dict[Job, list[int]] = {}
    for job in jobs:
        unit = stuck(job)
        if unit:
            units[job] = unit

    notes = {job: (f"repeats {name(unit)!r} over and over", 0) for job, unit in units.items()}
    if not may:
        return notes

    sizes = {job: max(4, len(unit) + 1) for job, unit in units.items()}
    for size in set(sizes.values()):
        before = {job: job.found for job in sizes if sizes[job] == size}
        decode_again(list(before), size)

        for job, hypotheses in before.items():
            note = f"{notes[job][0]}: decoded again with no_repeat={size}"
            still_stuck = not job.found or stuck(job)
            if still_stuck:
                job.found = hypotheses
                notes[job] = (f"{note}, without success", 0)
            else:
                notes[job] = (note, size)

    return notes
