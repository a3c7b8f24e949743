"""Answers that repeat themselves: how they are found, and decoded again."""

import math
import re
from collections.abc import Callable, Sequence

from regard.search import Job

Again = Callable[[list[Job], int], None]
_LOOP = re.compile(
    r"(.)\1{7,}|(..)\2{3,}|(.{3,32}?)\3{2,}", re.DOTALL
)  # three times in a row and 8 tokens or more
_THRICE = re.compile(r"(.{1,32}?)\1{2,}", re.DOTALL)


def stuck(job: Job) -> list[int]:
    """The n-gram that an answer repeats by fault, 3 times in a row or more: over 8 tokens, or up to
    its length limit. [] if none.

    It is no fault where the model leaves the loop with a probability over 1/2 (who counts is sure
    when to stop, who is stuck leaves by chance), nor where the source repeats something at least
    half as long.
    """
    if not job.found:
        return []
    best, text = (
        job.found[0],
        "".join(map(chr, job.found[0].tokens)),
    )  # a string of ids, for `re` is fast
    loops = [(m.start(), next(filter(None, m.groups()))) for m in _LOOP.finditer(text)]
    if not best.finished and (tail := _THRICE.match(text[::-1])):
        loops.append((len(text) - tail.end(), tail[1][::-1]))
    given = (
        max((len(m[0]) for m in _THRICE.finditer("".join(map(chr, job.source)))), default=0)
        if loops
        else 0
    )
    for start, unit in loops:
        end = start + len(unit)
        while end < len(text) and text[end] == text[end - len(unit)]:
            end += 1
        sure = end < len(best.logprobs) and best.logprobs[end] > math.log(0.5)
        if not sure and end - start > 2 * given:
            return [*map(ord, unit)]
    return []


def free(
    jobs: Sequence[Job], again: Again, name: Callable[[list[int]], str], may: bool
) -> dict[Job, tuple[str, int]]:
    """Search what is stuck `again`, if that may be, with just enough no_repeat to break its loop:
    job -> (a note, no_repeat).
    """
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
