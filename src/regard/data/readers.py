"""Files to pairs, one line at a time: TSV, JSON lines, Parquet, two aligned files; gzip in front of
any text.

A line that gives no pair is skipped and counted; a file that cannot be what it should be is a
UserError.
"""

import gzip
import json
import os
import zlib
from codecs import BOM_UTF8
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, BinaryIO

from regard.data.pairs import Pair, Skipped
from regard.errors import UserError
from regard.text.vocabulary import normalise

MAX_CHARACTERS = 10_000
_MAX_LINE = 1_000_000  # bytes
_BLOCK = 1 << 20
_BINARY = (
    *b"\xff\xfe \xfe\xff \x89PNG \xff\xd8 GIF8 %PDF \x7fELF PK\x03\x04".split(),
    *b"\xfd7zXZ BZh \x1f\x8b".split(),
)
_JSON = (".jsonl", ".ndjson", ".json")
_PARQUET = (".parquet", ".pq")
SUFFIXES = (".tsv", ".txt", *_JSON, *_PARQUET)


class Position:
    """How far the file that is being read has been read, for a progress bar. Not known for
    Parquet.
    """

    def __init__(self) -> None:
        self.file: BinaryIO | None = None  # as it lies on disk: not yet unpacked

    def share(self) -> float | None:
        if self.file is None or self.file.closed:
            return None
        return self.file.tell() / max(1, os.fstat(self.file.fileno()).st_size)


class _Skip(Exception):
    """Why a line gives no pair."""


def read(
    path: Path,
    *,
    source: str | None = None,
    target: str | None = None,
    skipped: Skipped,
    position: Position | None = None,
) -> Iterator[Pair]:
    """The pairs of a file, in order, in constant memory; NFC, without outer white space, otherwise
    as they stand.

    `source` and `target` name the keys of JSON lines, the columns of Parquet, or the endings of two
    aligned files, for which `path` is either file or what their names have in common: "train" for
    train.en and train.de.
    """
    if source and target and (both := aligned(path, source, target)):
        _check(both[0])
        _check(both[1])
        counts = [_count_lines(file, file.stat().st_size, file.stat().st_mtime_ns) for file in both]
        if (
            counts[0] != counts[1]
        ):  # asked before the first pair, since every pair after the missing line would be wrong
            raise UserError(
                f"{both[0]} has {counts[0]:,} lines and {both[1]} has {counts[1]:,}; aligned "
                f"files need as many"
            )
        rows = zip(_lines(both[0], position), _lines(both[1]))
        return _pairs(
            f"{both[0].name} + {both[1].name}", rows, lambda lines: [*map(_text, lines)], skipped
        )
    block, ending = _check(path), Path(plain_name(path)).suffix.lower()
    if ending == ".tsv" and (source or target):
        raise UserError(
            f"{path}: the columns of a TSV have no names, so leave out data.source and data.target"
        )
    source, target = source or "source", target or "target"
    if ending in _PARQUET or block.startswith(b"PAR1"):
        return _pairs(
            path.name,
            _parquet(path, source, target),
            partial(_from_item, source=source, target=target),
            skipped,
        )
    if ending not in _JSON:
        return _pairs(path.name, _lines(path, position), _from_tsv, skipped)
    with suppress(
        ValueError, RecursionError
    ):  # keys that the first line lacks are the caller's mistake, not the line's
        if isinstance(first := json.loads(block.split(b"\n")[0]), dict):
            _need(f"{path} line 1", first, source, target)
    return _pairs(
        path.name,
        _lines(path, position),
        partial(_from_json, source=source, target=target),
        skipped,
    )


def plain_name(path: Path) -> str:
    """The name without its .gz."""
    return path.name.removesuffix(".gz")


def aligned(path: Path, source: str, target: str) -> tuple[Path, Path] | None:
    """The two files that `path` means, or None if it means something else."""
    stem = plain_name(path).removesuffix(f".{source}").removesuffix(f".{target}")
    names = [(f"{stem}.{ending}", f"{stem}.{ending}.gz") for ending in (source, target)]
    one, other = (
        next(filter(os.path.isfile, map(path.with_name, either)), None) for either in names
    )
    if one and other:
        return one, other
    if one or other:
        raise UserError(f"{one or other}: there is no {stem}.{target if one else source} beside it")
    return None


def _pairs(
    name: str, rows: Iterable[Any], parse: Callable[[Any], list[str]], skipped: Skipped
) -> Iterator[Pair]:
    """The pair that `parse` finds in each row, source first; a row without one is noted by its
    number.
    """
    for line, row in enumerate(rows, 1):
        try:
            source, *targets = [normalise(text.strip(" \t\r\n")) for text in parse(row)]
            if not all(targets):
                targets = [target for target in targets if target]
            if not source or not targets:
                raise _Skip(
                    "empty target" if source else "empty source" if targets else "empty line"
                )
            if len(source) > MAX_CHARACTERS or len(max(targets, key=len)) > MAX_CHARACTERS:
                raise _Skip("too long")
            yield Pair(source, tuple(targets), line)
        except _Skip as why:
            skipped.add(name, line, str(why))
        except UnicodeError:
            skipped.add(name, line, "not UTF-8")


def _text(line: bytes) -> str:
    if len(line) >= _MAX_LINE:
        raise _Skip("too long")
    return line.removeprefix(BOM_UTF8).decode()


def _from_tsv(line: bytes) -> list[str]:
    text = _text(line).strip("\r")
    if "\r" in text:  # the end of a line, to some programs
        raise _Skip("a CR inside")
    columns = text.split("\t", 2)[:2]  # what comes after is somebody's note
    if len(columns) == 1 and columns[0].strip(" "):
        raise _Skip("one column")
    return columns


def _from_json(line: bytes, source: str, target: str) -> list[str]:
    try:
        return _from_item(json.loads(_text(line).strip() or "{}"), source, target)
    except (json.JSONDecodeError, RecursionError):
        raise _Skip("bad JSON") from None


def _from_item(item: Any, source: str, target: str) -> list[str]:
    if not isinstance(item, dict):
        raise _Skip("bad JSON")
    others = item.get(target)
    texts = [
        text or ""
        for text in (item.get(source), *(others if isinstance(others, list) else [others]))
    ]
    if not all(isinstance(text, str) for text in texts):
        raise _Skip("not two texts")
    "".join(texts).encode()  # a lone surrogate, which JSON can spell, is no UTF-8
    return texts


def _parquet(path: Path, source: str, target: str) -> Iterator[dict[str, Any]]:
    try:
        import pyarrow.parquet as pq  # a slow import that few need
        from pyarrow.lib import ArrowException
    except ModuleNotFoundError:
        advice = "pip install 'regard[parquet]'"
        raise UserError(f"{path}: reading Parquet needs pyarrow: {advice}") from None

    try:
        with pq.ParquetFile(path) as table:  # type: ignore[no-untyped-call]
            _need(str(path), table.schema_arrow.names, source, target)
            for batch in table.iter_batches(4_096, columns=[source, target], use_threads=False):
                yield from batch.to_pylist()
    except (ArrowException, OSError) as error:
        raise UserError(
            f"{path}: not Parquet, or damaged ({str(error).splitlines()[0]})"
        ) from error


def _need(where: str, names: Iterable[str], source: str, target: str) -> None:
    if not {source, target} <= {*names}:
        there = ", ".join(map(repr, names)) or "nothing"
        raise UserError(
            f"{where}: no {source!r} and {target!r}; it has {there} (set data.source and "
            f"data.target)"
        )


def _lines(path: Path, position: Position | None = None) -> Iterator[bytes]:
    """Lines without their end; only "\\n" ends one. Of a line longer than any should be, the
    beginning.
    """
    with _opened(path, position) as file:
        while line := file.readline(_MAX_LINE):
            rest = line
            while rest and not rest.endswith(b"\n"):
                rest = file.readline(_MAX_LINE)
            yield line.rstrip(b"\n")


@lru_cache(64)
def _count_lines(path: Path, size: int, changed: int) -> int:
    """How many lines a file has, counted once for as long as its size and its time of change
    stay.
    """
    lines = 0
    block = b""
    with _opened(path) as file:
        while more := file.read(_BLOCK):
            lines += more.count(b"\n")
            block = more
    return lines + (block != b"" and not block.endswith(b"\n"))


@contextmanager
def _opened(path: Path, position: Position | None = None) -> Iterator[BinaryIO]:
    """The file's bytes, unpacked if it is gzip, whatever its name."""
    try:
        with path.open("rb") as raw:
            packed = raw.read(2) == b"\x1f\x8b"
            raw.seek(0)
            if position is not None:
                position.file = raw
            yield gzip.GzipFile(fileobj=raw) if packed else raw  # type: ignore[misc]  # reads like a BinaryIO
    except (OSError, EOFError, zlib.error) as error:
        raise UserError(f"{path}: cannot be read, or damaged gzip ({error})") from error


def _check(path: Path) -> bytes:
    """The first bytes of a file; refuses what cannot be read as pairs."""
    if not path.is_file():
        what = (
            "a folder, not a file"
            if path.is_dir()
            else "a pipe or a device, not a file"
            if path.exists()
            else "no such file"
        )
        raise UserError(f"{path}: {what}")
    with _opened(path) as file:
        block = file.read(1 << 16)
    text = block.decode("utf-8", "replace")
    if not block:
        raise UserError(f"{path}: the file is empty")
    if block.startswith(b"PAR1"):
        return block
    if block.startswith(_BINARY) or (
        len(block) >= 64 and text.count("\0") + text.count("\ufffd") > 0.3 * len(text)
    ):
        raise UserError(
            f"{path}: UTF-16 or a binary file; give TSV, JSON lines or Parquet, UTF-8, unpacked "
            f"but for gzip"
        )
    if b"\n" not in block and b"\r" in block.rstrip(b"\r"):
        raise UserError(f"{path}: its lines end with CR alone; save it with LF")
    return block
