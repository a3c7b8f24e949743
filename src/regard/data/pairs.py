"""A pair of texts, the record of the lines that gave none, and the hash that deals pairs out to splits."""

from collections import defaultdict
from collections.abc import Callable, Iterator
from hashlib import blake2b
from typing import NamedTuple

from ..errors import UserError


class Pair(NamedTuple):
    """A source and all its right answers; line is where it stood, counted from 1."""

    source: str
    targets: tuple[str, ...]
    line: int


_PHRASES = {
    "empty line": "that are empty",
    "empty source": "with an empty source",
    "empty target": "with an empty target",
    "too long": "that are too long",
    "not UTF-8": "that are not UTF-8",
    "bad JSON": "that are not a JSON object with two texts",
}


class Skipped:
    """Which lines were left out and why: counts, and the first ten line numbers of each reason.

    A stream is read many times and its lines come in order, so a line not beyond the last one noted is no news.
    """

    def __init__(self) -> None:
        self.counts: dict[tuple[str, str], int] = defaultdict(int)  # by (file, reason)
        self.first: dict[tuple[str, str], list[int]] = defaultdict(list)
        self._last: dict[tuple[str, str], int] = defaultdict(int)

    def add(self, file: str, line: int, reason: str) -> None:
        key = file, reason
        if line > self._last[key]:
            self._last[key] = line
            self.counts[key] += 1
            if len(self.first[key]) < 10:
                self.first[key].append(line)

    def __len__(self) -> int:
        return sum(self.counts.values())

    def lines(self) -> list[str]:
        """For people: "pairs.tsv: skipped 2 lines with one column (lines 3, 812)"."""
        return [self._line(file, reason) for file, reason in self.counts]

    def _line(self, file: str, reason: str) -> str:
        count, first = self.counts[file, reason], self.first[file, reason]
        numbers = ", ".join(map(str, first)) + (", …" if count > len(first) else "")
        s, phrase = "s" if count > 1 else "", _PHRASES.get(reason, f"with {reason}")
        if count == 1:
            phrase = phrase.replace("that are", "that is")
        return f"{file}: skipped {count:,} line{s} {phrase} (line{s} {numbers})"


def stable_hash(text: str, seed: int = 0) -> int:
    """64 bits that are the same on every machine and in every run."""
    return int.from_bytes(blake2b(text.encode(), digest_size=8, salt=seed.to_bytes(8, "little", signed=True)).digest())


OFFSETS = {"train": 0, "dev": 1, "test": 2, "long": 3}  # a split's own seed, added to the task's


def held_apart(
    draw: Callable[[], tuple[str, str]], count: int, split: str, key: Callable[[tuple[str, str]], str]
) -> Iterator[tuple[str, str]]:
    """`count` drawn pairs whose key belongs to this split alone: 8 of 10 keys to train, 1 each to dev and test."""
    home = {"train": range(8), "dev": range(8, 9), "test": range(9, 10)}.get(split, range(10))
    for _ in range(count):
        for _ in range(10_000):
            pair = draw()
            if stable_hash(key(pair)) % 10 in home:
                break
        else:
            raise UserError(f"too few different examples for a {split} split; ask for longer ones or more symbols")
        yield pair
