"""A pair of texts, the record of skipped lines, and the hash that deals pairs out to splits."""

from collections import defaultdict
from collections.abc import Iterable
from hashlib import blake2b
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from regard.errors import UserError
from regard.text.positions import Located
from regard.text.tags import read_tags

LAST_POSITION = 10**6


class Pair(NamedTuple):
    """A source and all its right answers; line is where it stood, counted from 1.

    A source with tags has them after a tab: "kedi\\tN;DAT;SG" (see regard.text.tags).
    positions: where the words of the source stand, if that is not one after the other.
    """

    source: str
    targets: tuple[str, ...]
    line: int
    positions: tuple[int, ...] = ()

    @property
    def located(self) -> str:
        """The source, which tells where its words stand, if they have positions."""
        return Located(self.source, self.positions) if self.positions else self.source


def read_positions(cell: Any, where: str) -> tuple[int, ...]:
    """The positions that a cell of data holds: "0 1 2", or a list of whole numbers.

    where: what an error begins with.
    """
    values = cell
    if isinstance(cell, str | int):
        values = str(cell).split()
    try:
        numbers = tuple(int(str(value)) for value in values)
    except (TypeError, ValueError):
        numbers = ()
    if not numbers or min(numbers) < 0 or max(numbers) > LAST_POSITION:
        raise UserError(
            f"{where}: positions {str(cell)[:40]!r}; write a whole number from 0 to "
            f"{LAST_POSITION:,} for each word of the source, with spaces between them"
        )
    return numbers


def read_features(cell: Any, where: str) -> tuple[str, ...]:
    """The tags that a cell of data holds: "N;DAT;SG", or a list of tags; none if it is empty.

    where: what an error begins with.
    """
    is_empty = cell is None or (isinstance(cell, float) and cell != cell)
    if is_empty or type(cell).__name__ in ("NAType", "NaTType"):
        return ()
    tags = cell if isinstance(cell, list | tuple) else [cell]
    if not all(isinstance(tag, str | int) for tag in tags):
        raise UserError(
            f"{where}: tags {str(cell)[:40]!r}; write them with semicolons between them, such as "
            f"N;DAT;SG, or as a list of strings"
        )
    text = ";".join(map(str, tags))
    return read_tags(text.encode(errors="replace").decode())


EMPTY_LINE = "empty line"
ONE_COLUMN = "one column"
"""Why a line with a text alone gives no pair."""
TEXTS_WANTED = (
    "to train a language model on these texts, add train.objective=causal (or masked, denoise)"
)
"""What to do about texts where pairs are asked for."""
CURES = {"not UTF-8": "data.encoding=latin-1 or cp1252 may read them"}
"""What to do about lines that were skipped for a reason."""


class Skipped:
    """Which lines were left out and why: counts, and the first ten line numbers of each reason.

    A stream is read many times and its lines come in order, so a line not beyond the last one noted
    is no news.
    """

    def __init__(self, unit: str = "line") -> None:
        self.unit = unit  # what is counted
        self.units: dict[str, str] = {}  # the same by file, where it differs
        self.counts: dict[tuple[str, str], int] = defaultdict(int)  # by (file, reason)
        self.first: dict[tuple[str, str], list[int]] = defaultdict(list)
        self._last: dict[tuple[str, str], int] = defaultdict(int)

    def add(self, file: str, line: int, reason: str) -> None:
        """Note a line, unless an earlier reading has noted it."""
        key = file, reason
        if line <= self._last[key]:
            return
        self._last[key] = line
        self.counts[key] += 1
        if len(self.first[key]) < 10:
            self.first[key].append(line)

    def __len__(self) -> int:
        return sum(self.counts.values())

    def reasons(self) -> set[str]:
        """Why lines were left out; empty lines need no reason."""
        return {reason for _, reason in self.counts} - {EMPTY_LINE}

    def lines(self) -> list[str]:
        """For people: "pairs.tsv: skipped 2 lines: one column (lines 3, 812)"."""
        messages = []
        for (file, reason), count in self.counts.items():
            numbers = ", ".join(map(str, self.first[file, reason]))
            if count > 10:
                numbers += ", …"
            unit = self.units.get(file, self.unit)
            units = unit if count == 1 else f"{unit}s"
            message = f"{file}: skipped {count:,} {units}: {reason} ({units} {numbers})"
            if reason in CURES:
                message += f"; {CURES[reason]}"
            messages.append(message)
        return messages


def stable_hashes(texts: Iterable[str], seed: int = 0) -> npt.NDArray[np.uint64]:
    """stable_hash of many texts."""
    salt = seed.to_bytes(8, "little", signed=True)
    digests = [blake2b(text.encode(), digest_size=8, salt=salt).digest() for text in texts]
    return np.frombuffer(b"".join(digests), ">u8").astype(np.uint64)


def stable_hash(text: str, seed: int = 0) -> int:
    """64 bits that are the same on every machine and in every run."""
    salt = seed.to_bytes(8, "little", signed=True)
    return int.from_bytes(blake2b(text.encode(), digest_size=8, salt=salt).digest())
