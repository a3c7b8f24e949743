"""Files to pairs, one line at a time: TSV, JSON lines, Parquet, two aligned files; gzip in front of any of them.

A line that gives no pair is skipped and counted; a file that cannot be what it should be is a UserError.
"""

import gzip
import json
import shutil
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from ..errors import UserError
from ..text import normalise
from .pairs import Pair, Skipped

MAX_CHARACTERS = 10_000
_MAX_LINE = 1_000_000  # bytes
_BLOCK = 1 << 16
_MAGIC = {
    b"\x89PNG": "a PNG picture",
    b"\xff\xd8\xff": "a JPEG picture",
    b"GIF8": "a GIF picture",
    b"%PDF": "a PDF",
    b"\x7fELF": "a program",
    b"PK\x03\x04": "a zip archive; unpack it first",
    b"\xfd7zXZ": "an xz archive; unpack it first",
    b"BZh": "a bzip2 archive; unpack it first",
    b"7z\xbc\xaf": "a 7z archive; unpack it first",
    b"\x28\xb5\x2f\xfd": "a zstd archive; unpack it first",
    b"\xff\xfe": "UTF-16; save it as UTF-8",
    b"\xfe\xff": "UTF-16; save it as UTF-8",
}
_JSON = (".jsonl", ".ndjson", ".json")
_PARQUET = (".parquet", ".pq")
SUFFIXES = (".tsv", ".txt", *_JSON, *_PARQUET)


def read(
    path: str | Path,
    *,
    source: str | None = None,
    target: str | None = None,
    skipped: Skipped | None = None,
    max_characters: int = MAX_CHARACTERS,
) -> Iterator[Pair]:
    """The pairs of a file, in order, in constant memory; NFC, without outer white space, otherwise as they stand.

    `source` and `target` name the keys of JSON lines, the columns of Parquet, or the endings of two aligned files, for
    which `path` is either file or what their names have in common: "train" for train.en and train.de.
    """
    path = Path(path)
    note = _Note(path.name, Skipped() if skipped is None else skipped, max_characters)
    if source and target and (both := aligned(path, source, target)):
        for one in both:
            _check(one)
        return _aligned(*both, note)
    block = _check(path)
    ending = Path(plain_name(path)).suffix.lower()
    if ending in _PARQUET or block.startswith(b"PAR1"):
        return _parquet(path, source or "source", target or "target", note)
    if ending in _JSON:
        return _json_lines(path, source or "source", target or "target", note)
    return _tsv(path, note)


def plain_name(path: Path) -> str:
    """The name without its .gz."""
    return path.name.removesuffix(".gz")


def aligned(path: Path, source: str, target: str) -> tuple[Path, Path] | None:
    """The two files that `path` means, or None if it means something else."""
    stem = path.name
    if plain_name(path).endswith((f".{source}", f".{target}")):
        stem = Path(plain_name(path)).stem
    elif path.is_file():
        return None
    found = []
    for ending in (source, target):
        both = [path.with_name(f"{stem}.{ending}{gz}") for gz in ("", ".gz")]
        found.append(next((candidate for candidate in both if candidate.is_file()), None))
    if found[0] and found[1]:
        return found[0], found[1]
    if found[0] or found[1]:
        missing = target if found[0] else source
        raise UserError(f"{found[0] or found[1]}: there is no {stem}.{missing} beside it")
    return None


class _Note:
    """Makes a Pair of raw texts, or notes why not."""

    def __init__(self, name: str, skipped: Skipped, max_characters: int) -> None:
        self.name = name
        self.skipped = skipped
        self.max_characters = max_characters

    def skip(self, line: int, reason: str) -> None:
        self.skipped.add(self.name, line, reason)

    def text(self, data: bytes | None, line: int) -> str | None:
        """The text of a line; None stands for one that was too long to read."""
        if data is None:
            self.skip(line, "too long")
            return None
        try:
            return data.decode()
        except UnicodeDecodeError:
            self.skip(line, "not UTF-8")
            return None

    def pair(self, line: int, source: str, targets: list[str]) -> Iterator[Pair]:
        """One pair or none."""
        source, targets = _clean(source), [text for target in targets if (text := _clean(target))]
        if max(map(len, (source, *targets))) > self.max_characters:
            self.skip(line, "too long")
        elif not source:
            self.skip(line, "empty source")
        elif not targets:
            self.skip(line, "empty target")
        else:
            yield Pair(source, tuple(targets), line)


def _clean(text: str) -> str:
    return normalise(text.strip(" \t\r\n"))


def _tsv(path: Path, note: _Note) -> Iterator[Pair]:
    for line, data in _lines(path):
        text = note.text(data, line)
        if text is None:
            continue
        columns = text.split("\t", 2)
        if not text.strip(" \r"):
            note.skip(line, "empty line")
        elif len(columns) == 1:
            note.skip(line, "one column")
        else:
            yield from note.pair(line, columns[0], [columns[1]])


def _aligned(source: Path, target: Path, note: _Note) -> Iterator[Pair]:
    counts = [sum(1 for _ in _lines(path)) for path in (source, target)]
    if counts[0] != counts[1]:  # asked before the first pair, since every pair after the missing line would be wrong
        raise UserError(f"{source} has {counts[0]:,} lines and {target} has {counts[1]:,}; aligned files need as many")
    note.name = f"{source.name} + {target.name}"
    for (line, first), (_, second) in zip(_lines(source), _lines(target)):
        text = note.text(first, line)
        answer = None if text is None else note.text(second, line)
        if text is None or answer is None:
            continue
        if not text.strip(" \t\r") and not answer.strip(" \t\r"):
            note.skip(line, "empty line")
        else:
            yield from note.pair(line, text, [answer])


def _json_lines(path: Path, source: str, target: str, note: _Note) -> Iterator[Pair]:
    usable = False  # keys that no line before had are the caller's mistake, not the line's
    for line, data in _lines(path):
        text = note.text(data, line)
        if text is None:
            continue
        if not text.strip(" \t\r"):
            note.skip(line, "empty line")
            continue
        try:
            item = json.loads(text)
        except (ValueError, RecursionError):
            item = None
        if isinstance(item, dict) and not usable and not {source, target} <= item.keys():
            raise UserError(
                f"{path} line {line}: no keys {source!r} and {target!r}; it has {', '.join(map(repr, item)) or 'none'}"
                " (set data.source and data.target)"
            )
        usable = True
        texts = _texts(item, source, target) if isinstance(item, dict) else None
        if texts is None:
            note.skip(line, "bad JSON")
        elif any("\ud800" <= letter <= "\udfff" for value in (texts[0], *texts[1]) for letter in value):
            note.skip(line, "not UTF-8")
        else:
            yield from note.pair(line, *texts)


def _texts(item: dict[str, Any], source: str, target: str) -> tuple[str, list[str]] | None:
    text, answers = item.get(source), item.get(target)
    answers = answers if isinstance(answers, list) else [answers]
    return (text, answers) if isinstance(text, str) and all(isinstance(answer, str) for answer in answers) else None


def _parquet(path: Path, source: str, target: str, note: _Note) -> Iterator[Pair]:
    import pyarrow.parquet as pq  # a slow import that few need
    from pyarrow.lib import ArrowException

    with tempfile.TemporaryFile() as unpacked, _opened(path) as file:
        if isinstance(file, gzip.GzipFile):  # Parquet is read from its end, which gzip can reach only by unpacking
            shutil.copyfileobj(file, unpacked)
        try:
            table: Any = pq.ParquetFile(unpacked if isinstance(file, gzip.GzipFile) else file)  # type: ignore[no-untyped-call]
            names = table.schema_arrow.names
            if not {source, target} <= set(names):
                raise UserError(
                    f"{path}: no columns {source!r} and {target!r}; it has {', '.join(map(repr, names))}"
                    " (set data.source and data.target)"
                )
            line = 0
            for batch in table.iter_batches(4_096, columns=[source, target], use_threads=False):
                for item in batch.to_pylist():
                    line += 1
                    texts = _texts({key: "" if value is None else value for key, value in item.items()}, source, target)
                    if texts is None:
                        note.skip(line, "values that are not text")
                    else:
                        yield from note.pair(line, *texts)
        except (ArrowException, OSError) as error:
            raise UserError(f"{path}: not Parquet, or damaged ({str(error).splitlines()[0]})") from error


def _lines(path: Path) -> Iterator[tuple[int, bytes | None]]:
    """Numbered lines without their end; only "\\n" ends one. None: longer than any line should be."""
    with _opened(path) as file:
        line = 0
        while data := file.readline(_MAX_LINE):
            line += 1
            long = False
            while not data.endswith(b"\n") and (more := file.readline(_MAX_LINE)):
                data, long = more, True
            if line == 1 and not long:
                data = data.removeprefix(b"\xef\xbb\xbf")
            yield line, None if long else data.rstrip(b"\n")


@contextmanager
def _opened(path: Path) -> Iterator[BinaryIO]:
    """The file's bytes, unpacked if it is gzip, whatever its name."""
    try:
        with path.open("rb") as raw:
            if raw.read(2) != b"\x1f\x8b":
                raw.seek(0)
                yield raw
            else:
                raw.seek(0)
                with gzip.GzipFile(fileobj=raw) as file:
                    yield file  # type: ignore[misc]  # reads like a BinaryIO
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise UserError(f"{path}: damaged gzip ({error}); fetch it again") from error
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror or error})") from error


def _check(path: Path) -> bytes:
    """The first bytes of a file; refuses what cannot be read as pairs."""
    if not path.exists():
        raise UserError(f"{path}: no such file")
    if not path.is_file():
        raise UserError(f"{path}: {'a folder' if path.is_dir() else 'a pipe or a device'}, not a file")
    with _opened(path) as file:
        block = file.read(_BLOCK)
    if not block:
        raise UserError(f"{path}: the file is empty")
    for magic, what in _MAGIC.items():
        if block.startswith(magic):
            raise UserError(f"{path}: not text but {what}")
    if plain_name(path).lower().endswith(_PARQUET) or block.startswith(b"PAR1"):
        return block
    if b"\n" not in block and b"\r" in block.rstrip(b"\r"):
        raise UserError(f"{path}: its lines end with CR alone; save it with LF")
    text = block.decode("utf-8", "replace")
    strange = text.count("\0") + text.count("\ufffd")
    if len(block) >= 64 and strange > 0.3 * len(text):
        raise UserError(f"{path}: not text (a binary file?); give TSV, JSON lines or Parquet")
    return block
