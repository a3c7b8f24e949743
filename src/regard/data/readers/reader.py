"""A file that was recognised: its rows, and how a row becomes a pair."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from regard.data.pairs import EMPTY_LINE, Pair, Skipped, read_features, read_positions
from regard.data.readers import files
from regard.data.readers.encodings import guess
from regard.data.readers.files import ReadSoFar
from regard.errors import UserError
from regard.text.tags import tagged
from regard.text.vocabulary import normalise

MAX_CHARACTERS = 10_000
TOO_LONG = f"a text of more than {MAX_CHARACTERS:,} characters"
_OFTEN = 100_000  # rows between two looks at how far a file has been read
_HOPELESS = 1_000_000  # rows without a single pair
Rows = Iterator[tuple[int, Any]]
"""Each row of a file with its number, counted from 1."""


class Skip(Exception):
    """Why a line gives no pair."""


@dataclass(frozen=True)
class Layout:
    """How files are laid out, as far as the caller says; None and "auto": see for yourself."""

    source: str | None = None
    target: str | None = None
    header: str = "auto"
    encoding: str | None = None
    positions: str | None = None
    features: str | None = None
    documents: str = "no"  # or what a text of a language model is


@dataclass(frozen=True)
class Reader:
    """Reads the pairs of a file, as often as asked."""

    misses_lines: ClassVar[bool] = True
    """Whether an empty line is a mistake."""

    paths: tuple[Path, ...]
    rows: Callable[[ReadSoFar | None], Rows]
    parse: Callable[[Any], list[str]]
    notes: list[str] = field(default_factory=list)  # what a person should know; may grow
    unit: str = "line"  # what the rows are called
    holds: str = "pair"  # what it reads, for a person
    needs_target: bool = True
    positions: Callable[[Any], Any] | None = None  # where the words of a row's source stand
    features: Callable[[Any], Any] | None = None  # the tags of a row's source

    @property
    def documents(self) -> str:
        """What a text of a language model is to it: a value of data.documents."""
        return "source"

    @property
    def name(self) -> str:
        """What the record of skipped lines calls it."""
        return " + ".join(path.name for path in self.paths)

    def pairs(self, skipped: Skipped, position: ReadSoFar | None = None) -> Iterator[Pair]:
        """The pairs of all rows. A row without a pair is noted by its number."""
        name = self.name
        skipped.units[name] = self.unit
        line = 0
        undecodable = 0
        found = False  # a pair
        moved = position.moved if position else None
        for line, row in self.rows(position):
            if line % _OFTEN == 0:
                if moved is not None:
                    moved()
                if line >= _HOPELESS and not found:
                    raise self._hopeless(line, skipped)
            if row == b"":  # there may be millions
                if self.misses_lines:
                    skipped.add(name, line, EMPTY_LINE)
                continue
            try:
                pairs = self.parsed(row, line)
                found = True
                yield from pairs
            except Skip as why:
                skipped.add(name, line, str(why))
            except UnicodeDecodeError:
                skipped.add(name, line, "not UTF-8")
                undecodable += 1

        if line >= 100 and undecodable > line / 10:
            raise self._wrong_encoding(undecodable, line)

    def parsed(self, row: Any, line: int) -> tuple[Pair, ...]:
        """The pair of a row, source first. Raises Skip if it has none."""
        source, *targets = [normalise(text.strip(" \t\r\n")) for text in self.parse(row)]
        if not all(targets):
            targets = [target for target in targets if target]
        if not source and not targets:
            raise Skip(EMPTY_LINE)
        if not source:
            raise Skip("empty source")
        if not targets and self.needs_target:
            raise Skip("empty target")
        targets = targets or [""]
        if len(source) > MAX_CHARACTERS or len(max(targets, key=len)) > MAX_CHARACTERS:
            raise Skip(TOO_LONG)
        if self.features is not None:
            where = f"{self.name} {self.unit} {line}"
            source = tagged(source, read_features(self.features(row), where))
        return (Pair(source, tuple(targets), line, self._positions(row, line)),)

    def _positions(self, row: Any, line: int) -> tuple[int, ...]:
        if self.positions is None:
            return ()
        return read_positions(self.positions(row), f"{self.name} {self.unit} {line}")

    def _hopeless(self, rows: int, skipped: Skipped) -> UserError:
        """The error that nobody need read on."""
        why = "; ".join(skipped.lines()[:2])
        return UserError(f"no {self.holds} in the first {rows:,} {self.unit}s: {why}")

    def _wrong_encoding(self, undecodable: int, lines: int) -> UserError:
        """The error that too much of a file is in another encoding."""
        block = b""
        for path in self.paths:
            with files.opened(path) as file:
                block += file.read(files.START)
        encoding, words = guess(block)
        return UserError(
            f"{self.name}: {undecodable:,} of {lines:,} {self.unit}s are not UTF-8; it looks like "
            f"{words}; if it is, add data.encoding={encoding}"
        )


def text_of(line: bytes) -> str:
    """A line as text, without a byte order mark."""
    if len(line) >= files.MAX_LINE:
        raise Skip("a line of 1 MB or more")
    return line.removeprefix(b"\xef\xbb\xbf").decode()
