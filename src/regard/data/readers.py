"""Files to pairs, one line at a time: TSV, JSON lines, Parquet or two aligned files.

Any text may be packed by gzip. A line that gives no pair is skipped and counted; a file that
cannot be what it should be is a UserError.
"""

import gzip
import json
import os
import zlib
from codecs import BOM_UTF8
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, BinaryIO

from regard.data.pairs import Pair, Skipped
from regard.errors import UserError
from regard.text.vocabulary import normalise

MAX_CHARACTERS = 10_000
_MAX_LINE = 1_000_000  # bytes
_BLOCK = 1 << 20
# How UTF-16, pictures, PDF, programs and archives begin.
_BINARY = (
    *(b"\xff\xfe", b"\xfe\xff", b"\x89PNG", b"\xff\xd8", b"GIF8", b"%PDF"),
    *(b"\x7fELF", b"PK\x03\x04", b"\xfd7zXZ", b"BZh", b"\x1f\x8b"),
)
_JSON = (".jsonl", ".ndjson", ".json")
_PARQUET = (".parquet", ".pq")
SUFFIXES = (".tsv", ".txt", *_JSON, *_PARQUET)


class ReadSoFar:
    """How far a file has been read, for a progress bar; not known for Parquet."""

    def __init__(self) -> None:
        self.file: BinaryIO | None = None  # as it lies on disk: not yet unpacked

    def share(self) -> float | None:
        """The share of the file that has been read, if it is open."""
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
    position: ReadSoFar | None = None,
) -> Iterator[Pair]:
    """The pairs of a file, in order and in constant memory.

    The texts are NFC, without outer white space, otherwise as they stand. `source` and `target`
    name the keys of JSON lines, the columns of Parquet, or the endings of two aligned files, for
    which `path` is either file or what their names have in common: "train" for train.en and
    train.de.
    """
    if source and target:
        both = aligned(path, source, target)
        if both is not None:
            return _read_aligned(*both, skipped, position)

    block = _check(path)
    suffix = Path(plain_name(path)).suffix.lower()
    if suffix == ".tsv" and (source or target):
        raise UserError(
            f"{path}: the columns of a TSV have no names, so leave out data.source and data.target"
        )

    source = source or "source"
    target = target or "target"
    if suffix in _PARQUET or block.startswith(b"PAR1"):
        parse = partial(_from_item, source=source, target=target)
        return _pairs(path.name, _parquet(path, source, target), parse, skipped)
    if suffix in _JSON:
        _check_keys(path, block, source, target)
        parse = partial(_from_json, source=source, target=target)
        return _pairs(path.name, _lines(path, position), parse, skipped)
    return _pairs(path.name, _lines(path, position), _from_tsv, skipped)


def _read_aligned(
    source: Path, target: Path, skipped: Skipped, position: ReadSoFar | None
) -> Iterator[Pair]:
    """The pairs of two files whose lines belong together.

    The lines are counted before the first pair is read, since every pair after a missing line would
    be wrong.
    """
    _check(source)
    _check(target)
    source_lines = _count_lines_once(source)
    target_lines = _count_lines_once(target)
    if source_lines != target_lines:
        raise UserError(
            f"{source} has {source_lines:,} lines and {target} has {target_lines:,}; aligned "
            f"files need as many"
        )
    rows = zip(_lines(source, position), _lines(target))
    return _pairs(f"{source.name} + {target.name}", rows, _from_aligned, skipped)


def plain_name(path: Path) -> str:
    """The name without its .gz."""
    return path.name.removesuffix(".gz")


def aligned(path: Path, source: str, target: str) -> tuple[Path, Path] | None:
    """The two files that `path` means, or None if it means something else."""
    stem = plain_name(path).removesuffix(f".{source}").removesuffix(f".{target}")
    source_file = _with_or_without_gz(path.with_name(f"{stem}.{source}"))
    target_file = _with_or_without_gz(path.with_name(f"{stem}.{target}"))
    if source_file and target_file:
        return source_file, target_file
    if source_file:
        raise UserError(f"{source_file}: there is no {stem}.{target} beside it")
    if target_file:
        raise UserError(f"{target_file}: there is no {stem}.{source} beside it")
    return None


def _with_or_without_gz(path: Path) -> Path | None:
    """The file, or else its packed form; None if there is neither."""
    for file in (path, path.with_name(f"{path.name}.gz")):
        if os.path.isfile(file):
            return file
    return None


def _pairs(
    name: str, rows: Iterable[Any], parse: Callable[[Any], list[str]], skipped: Skipped
) -> Iterator[Pair]:
    """The pair that `parse` finds in each row, source first.

    A row without a pair is noted by its number.
    """
    for line, row in enumerate(rows, 1):
        try:
            source, *targets = [normalise(text.strip(" \t\r\n")) for text in parse(row)]
            if not all(targets):
                targets = [target for target in targets if target]
            if not source and not targets:
                raise _Skip("empty line")
            if not source:
                raise _Skip("empty source")
            if not targets:
                raise _Skip("empty target")
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


def _from_aligned(lines: tuple[bytes, bytes]) -> list[str]:
    source, target = lines
    return [_text(source), _text(target)]


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
    targets = item.get(target)
    if not isinstance(targets, list):
        targets = [targets]
    texts = [text or "" for text in (item.get(source), *targets)]
    if not all(isinstance(text, str) for text in texts):
        raise _Skip("not two texts")
    "".join(texts).encode()  # a lone surrogate, which JSON can spell, is no UTF-8
    return texts


def _parquet(path: Path, source: str, target: str) -> Iterator[dict[str, Any]]:
    """The rows of a Parquet file."""
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


def _check_keys(path: Path, block: bytes, source: str, target: str) -> None:
    """Refuse keys that the first line of a JSON file lacks.

    They are the caller's mistake; a first line that is no JSON is only a bad line.
    """
    try:
        first = json.loads(block.split(b"\n")[0])
    except (ValueError, RecursionError):
        return
    if isinstance(first, dict):
        _need(f"{path} line 1", first, source, target)


def _need(where: str, names: Iterable[str], source: str, target: str) -> None:
    """Refuse data without the keys or columns `source` and `target`."""
    if not {source, target} <= {*names}:
        listed = ", ".join(map(repr, names)) or "nothing"
        raise UserError(
            f"{where}: no {source!r} and {target!r}; it has {listed} (set data.source and "
            f"data.target)"
        )


def _lines(path: Path, position: ReadSoFar | None = None) -> Iterator[bytes]:
    """Lines without their end; only "\\n" ends one.

    Of a line longer than any should be, only the beginning comes.
    """
    with _opened(path, position) as file:
        while line := file.readline(_MAX_LINE):
            rest = line
            while rest and not rest.endswith(b"\n"):
                rest = file.readline(_MAX_LINE)
            yield line.rstrip(b"\n")


def _count_lines_once(path: Path) -> int:
    """How many lines a file has, counted again only if its size or its time of change differs."""
    stat = path.stat()
    return _count_lines(path, stat.st_size, stat.st_mtime_ns)


@lru_cache(64)
def _count_lines(path: Path, size: int, changed: int) -> int:
    lines = 0
    block = b""
    with _opened(path) as file:
        while more := file.read(_BLOCK):
            lines += more.count(b"\n")
            block = more
    if block and not block.endswith(b"\n"):
        lines += 1
    return lines


@contextmanager
def _opened(path: Path, position: ReadSoFar | None = None) -> Iterator[BinaryIO]:
    """The file's bytes, unpacked if it is gzip, whatever its name."""
    try:
        with path.open("rb") as raw:
            packed = raw.read(2) == b"\x1f\x8b"
            raw.seek(0)
            if position is not None:
                position.file = raw
            if packed:
                yield gzip.GzipFile(fileobj=raw)  # type: ignore[misc]  # reads like a BinaryIO
            else:
                yield raw
    except (OSError, EOFError, zlib.error) as error:
        raise UserError(f"{path}: cannot be read, or damaged gzip ({error})") from error


def _check(path: Path) -> bytes:
    """The first bytes of a file, unless it cannot be read as pairs."""
    if path.is_dir():
        raise UserError(f"{path}: a folder, not a file")
    if not path.exists():
        raise UserError(f"{path}: no such file")
    if not path.is_file():
        raise UserError(f"{path}: a pipe or a device, not a file")

    with _opened(path) as file:
        block = file.read(1 << 16)
    if not block:
        raise UserError(f"{path}: the file is empty")
    if block.startswith(b"PAR1"):
        return block
    if _is_binary(block):
        raise UserError(
            f"{path}: UTF-16 or a binary file; give TSV, JSON lines or Parquet, UTF-8, unpacked "
            f"but for gzip"
        )
    if b"\n" not in block and b"\r" in block.rstrip(b"\r"):
        raise UserError(f"{path}: its lines end with CR alone; save it with LF")
    return block


def _is_binary(block: bytes) -> bool:
    if block.startswith(_BINARY):
        return True
    text = block.decode("utf-8", "replace")
    return len(block) >= 64 and text.count("\0") + text.count("\ufffd") > 0.3 * len(text)
