"""Pairs that are read once from where they are, and later from a temporary file."""

import tempfile
import weakref
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from regard.data.pairs import Pair
from regard.errors import UserError

Flags = npt.NDArray[np.bool_]
_CHUNK = 1_000  # pairs


class _Chunk(NamedTuple):
    """Where some pairs lie in the file."""

    start: int  # byte
    size: int  # bytes
    rows: int
    escaped: bool


class Kept:
    """Pairs that are kept in a file while they are read for the first time.

    Call it to read; later readings come from the file. A reading that is left before its end keeps
    nothing.

    The file has a line for each pair: its number, its source and its targets with tabs between
    them, as they come out of a reader: cleaned and normalised. Behind the number stand the
    positions of the words, if there are any. Nobody else sees the file, and the system removes it
    when the process ends, however it ends. Memory: one record for a thousand pairs.
    """

    def __init__(
        self,
        read: Callable[[], Iterable[Pair]],
        folder: Path,
        *,
        share: Callable[[int], float | None] = lambda pairs: None,
        tell: Callable[[float], None] = lambda share: None,
    ) -> None:
        self._read: Callable[[], Iterable[Pair]] | None = read
        self._folder = folder
        self._share = share  # pairs read so far -> the share of all that is to be read
        self._tell = tell  # is told that share
        self._file: Any = None
        self._chunks: list[_Chunk] = []
        self._count = 0  # pairs that were read so far

    @property
    def complete(self) -> bool:
        """Whether the pairs have been read to their end."""
        return self._read is None

    def __len__(self) -> int:
        if not self.complete:
            raise ValueError("the number of pairs is not known until all of them have been read")
        return sum(chunk.rows for chunk in self._chunks)

    def __call__(self) -> Iterator[Pair]:
        if self._read is not None:
            return self._first(self._read)
        return self.select(None)

    def fill(self) -> None:
        """Read to the end, unless that has been done."""
        if not self.complete:
            for _ in self():
                pass

    def select(self, wanted: Flags | None) -> Iterator[Pair]:
        """The pairs at the places where `wanted` is True; None: all."""
        first = 0
        for chunk in self._chunks:
            parse = _escaped_pair if chunk.escaped else _pair
            if wanted is None:
                yield from map(parse, self._rows(chunk))
                continue

            places = np.flatnonzero(wanted[first : first + chunk.rows])
            first += chunk.rows
            if len(places):
                rows = self._rows(chunk)
                yield from (parse(rows[i]) for i in places.tolist())

    def _first(self, read: Callable[[], Iterable[Pair]]) -> Iterator[Pair]:
        """Hand on what is read, and keep it."""
        self._chunks = []
        self._count = 0
        stream = iter(read())
        while pairs := list(islice(stream, _CHUNK)):
            try:
                self._append(pairs)
            except OSError as error:
                reason = error.strerror or error
                raise UserError(
                    f"{self._folder}: cannot write a temporary copy of the text ({reason}); free "
                    f"disk space, or choose another folder with --out"
                ) from error
            self._count += len(pairs)
            self.tell_share()
            yield from pairs
        self._read = None

    def tell_share(self) -> None:
        """Tell how much of what is to be read has been read, if that is known."""
        share = self._share(self._count)
        if share is not None:
            self._tell(share)

    def _append(self, pairs: list[Pair]) -> None:
        """Write some pairs at the end of the file."""
        fields = [(_number(pair), pair.source, *pair.targets) for pair in pairs]
        text = "\n".join(map("\t".join, fields))
        tabs = sum(len(pair.targets) for pair in pairs) + len(pairs)
        escaped = "\\" in text or text.count("\n") != len(pairs) - 1 or text.count("\t") != tabs
        if escaped:
            text = "\n".join("\t".join(map(_escape, row)) for row in fields)
        content = text.encode()

        if self._file is None:
            self._file = tempfile.TemporaryFile(dir=self._folder)  # noqa: SIM115
            weakref.finalize(self, self._file.close)
        start = 0
        if self._chunks:
            start = self._chunks[-1].start + self._chunks[-1].size
        self._file.seek(start)
        self._file.write(content)
        self._file.flush()  # a full disk shows here, not when it is read
        self._chunks.append(_Chunk(start, len(content), len(pairs), escaped))

    def _rows(self, chunk: _Chunk) -> list[str]:
        self._file.seek(chunk.start)
        return self._file.read(chunk.size).decode().split("\n")


def _number(pair: Pair) -> str:
    """The line of a pair, and the positions of its words, if it has any."""
    return " ".join(map(str, (pair.line, *pair.positions)))


def _pair(row: str) -> Pair:
    return _made(*row.split("\t"))


def _escaped_pair(row: str) -> Pair:
    return _made(*map(_unescape, row.split("\t")))


def _made(number: str, source: str, *targets: str) -> Pair:
    if " " not in number:
        return Pair(source, targets, int(number))
    line, *positions = map(int, number.split())
    return Pair(source, targets, line, tuple(positions))


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\t", "\\t").replace("\n", "\\n")


def _unescape(text: str) -> str:
    if "\\" not in text:
        return text
    parts = text.split("\\\\")  # at every escaped backslash
    return "\\".join(part.replace("\\t", "\t").replace("\\n", "\n") for part in parts)
