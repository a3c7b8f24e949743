"""The bytes of a file: unpacked if it is gzip, turned into UTF-8 if it is something else."""

import codecs
import gzip
import io
import os
import stat
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, BinaryIO

from regard.data.readers.encodings import BOMS, is_binary, known_encoding
from regard.data.readers.pipes import copy_of_pipe, is_open_pipe
from regard.data.readers.refused import refusal
from regard.errors import UserError

MAX_LINE = 1_000_000  # bytes
START = 1 << 16  # bytes that are looked at before a file is read
_BLOCK = 1 << 20


class ReadSoFar:
    """How far a file has been read, for a progress bar."""

    def __init__(self) -> None:
        self.file: BinaryIO | None = None  # as it lies on disk: not yet unpacked
        self.rows: tuple[int, int] | None = None  # of Parquet: how many are read, and of how many
        self.moved: Callable[[], None] | None = None  # called every now and then while reading

    def share(self) -> float | None:
        """The share of the file that has been read, if that is known."""
        if self.rows is not None:
            return self.rows[0] / max(1, self.rows[1])
        if self.file is None or self.file.closed:
            return None
        return self.file.tell() / max(1, os.fstat(self.file.fileno()).st_size)


@dataclass(frozen=True)
class Start:
    """The first bytes of a file, as UTF-8, by which its format is recognised."""

    block: bytes
    complete: bool  # there is no more than this
    encoding: str | None  # of the file; None: UTF-8

    def lines(self) -> list[bytes]:
        """The lines that are complete, without their ends."""
        lines = self.block.removeprefix(codecs.BOM_UTF8).split(b"\n")
        if not self.complete or not lines[-1]:
            lines.pop()
        return lines

    def text(self) -> str:
        """The lines that are complete, as text; bytes that are not UTF-8 become surrogates."""
        return b"\n".join(self.lines()).decode("utf-8", "surrogateescape")


def plain_name(path: Path) -> str:
    """The name without its .gz."""
    return path.name.removesuffix(".gz")


def start_of(path: Path, encoding: str | None = None) -> Start:
    """The first bytes of a file, unless it cannot be read as pairs."""
    check_file(path)
    with opened(path) as file:
        block = file.read(START)
    if not block:
        raise UserError(f"{path}: the file is empty")
    complete = len(block) < START
    if block.startswith(b"PAR1"):
        return Start(block, complete, None)

    found = known_encoding(encoding) or _encoding_by_mark(block)
    if found is not None:
        decoder = codecs.getincrementaldecoder(found)("replace")
        try:
            text = decoder.decode(block, complete)
        except UnicodeError as error:  # UTF-16 without the mark that tells the order of its bytes
            raise UserError(
                f"{path}: not in the encoding {found} ({error}); leave data.encoding out, or give "
                f"another one"
            ) from None
        block = text.removeprefix("\ufeff").encode("utf-8", "replace")
    refused = refusal(path, block)
    if refused is not None:
        raise UserError(f"{path}: {refused}")
    if is_binary(block):
        raise UserError(
            f"{path}: a binary file, or text in an unknown encoding; save it as TSV, CSV, JSON "
            f"lines or Parquet, in UTF-8"
        )
    if b"\n" not in block and b"\r" in block.rstrip(b"\r"):
        raise UserError(f"{path}: its lines end with CR only; save it with LF line endings")
    return Start(block, complete, found)


def check_file(path: Path) -> None:
    """Refuse what is no file that can be read to its end."""
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError) as error:  # a NUL in a name is a ValueError
        raise UserError(f"{path}: {reason_of(path, error)}") from None
    if stat.S_ISDIR(mode):
        raise UserError(f"{path}: a folder, not a file")
    if stat.S_ISREG(mode) or is_open_pipe(path):
        return
    if stat.S_ISFIFO(mode):
        raise UserError(
            f"{path}: a named pipe, not a file; write its contents to a file, or pass the command "
            f"that fills it: <(COMMAND)"
        )
    kind = "a socket" if stat.S_ISSOCK(mode) else "a device"
    raise UserError(f"{path}: {kind}, not a file; give a file of texts or pairs")


def reason_of(path: Path, error: OSError | ValueError) -> str:
    """Why a file cannot be opened, in plain words."""
    if isinstance(error, FileNotFoundError):
        if path.is_symlink():
            return f"a link to {os.readlink(path)}, which does not exist"
        return "no such file"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror[0].lower() + error.strerror[1:]
    return "no such file"


def _encoding_by_mark(block: bytes) -> str | None:
    """The encoding that a byte order mark tells; None: UTF-8, or there is no mark."""
    for mark, encoding in BOMS.items():
        if block.startswith(mark):
            return encoding
    return None


def lines_of(
    path: Path, position: ReadSoFar | None = None, encoding: str | None = None
) -> Iterator[bytes]:
    """Lines without their end; only "\\n" ends one.

    Of a line longer than any should be, only the beginning comes.
    """
    with recoded(path, position, encoding) as file:
        while line := file.readline(MAX_LINE):
            rest = line
            while rest and not rest.endswith(b"\n"):
                rest = file.readline(MAX_LINE)
            yield line.rstrip(b"\n")


def count_lines(path: Path, encoding: str | None = None) -> int:
    """How many lines a file has, counted again only if its size or its time of change differs."""
    facts = path.stat()
    return _count_lines(path, encoding, facts.st_size, facts.st_mtime_ns)


@lru_cache(64)
def _count_lines(path: Path, encoding: str | None, size: int, changed: int) -> int:
    lines = 0
    block = b""
    with recoded(path, None, encoding) as file:
        while more := file.read(_BLOCK):
            lines += more.count(b"\n")
            block = more
    if block and not block.endswith(b"\n"):
        lines += 1
    return lines


class _Recoded:
    """A file in another encoding, that reads as UTF-8.

    What cannot be decoded becomes a byte that is never UTF-8, so its line is counted as such.
    """

    def __init__(self, file: Any, encoding: str) -> None:
        self._text = io.TextIOWrapper(file, encoding, errors="replace", newline="\n")

    def read(self, size: int = -1) -> bytes:
        return self._bytes(self._text.read(size))

    def readline(self, size: int = -1) -> bytes:
        return self._bytes(self._text.readline(size))

    def _bytes(self, text: str) -> bytes:
        encoded = text.encode("utf-8", "replace")
        if "\ufffd" in text:
            encoded = encoded.replace("\ufffd".encode(), b"\xff")
        return encoded


@contextmanager
def recoded(
    path: Path, position: ReadSoFar | None, encoding: str | None
) -> Iterator[BinaryIO | _Recoded]:
    """The file's bytes, unpacked, as UTF-8."""
    with opened(path, position) as file:
        yield file if encoding is None else _Recoded(file, encoding)


@contextmanager
def opened(path: Path, position: ReadSoFar | None = None) -> Iterator[BinaryIO]:
    """The file's bytes, unpacked if it is gzip, whatever its name.

    That the file changes meanwhile is an error: what was read may be half of one version and half
    of another.
    """
    with _raw(path) as raw:
        before = _version(raw)
        try:
            packed = raw.read(2) == b"\x1f\x8b"
            raw.seek(0)
            if position is not None:
                position.file = raw
            if packed:
                yield gzip.GzipFile(fileobj=raw)  # type: ignore[misc]  # reads like a BinaryIO
            else:
                yield raw
        except (gzip.BadGzipFile, EOFError, zlib.error) as error:
            raise UserError(f"{path}: damaged gzip ({error})") from None
        except OSError as error:
            raise UserError(f"{path}: {reason_of(path, error)}") from None
        if _version(raw) != before:
            raise changed(path)


def _raw(path: Path) -> BinaryIO:
    """The bytes as they lie on disk, or as a pipe gave them."""
    if is_open_pipe(path):
        return copy_of_pipe(path)
    try:
        return path.open("rb")
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: {reason_of(path, error)}") from None


def _version(raw: BinaryIO) -> tuple[int, int]:
    """What differs after somebody has written to an open file."""
    facts = os.fstat(raw.fileno())
    return facts.st_size, facts.st_mtime_ns


def changed(path: Path) -> UserError:
    """The error that a file changed while it was being read."""
    return UserError(
        f"{path}: changed while it was being read; start again when nothing writes to it any more"
    )
