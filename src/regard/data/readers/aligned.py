"""Two files whose lines belong together: train.en and train.de."""

import os
import re
from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path

from regard.data.readers import files
from regard.data.readers.files import ReadSoFar, plain_name
from regard.data.readers.reader import Layout, Reader, Rows, text_of
from regard.errors import UserError

_LANGUAGE = re.compile(r"[a-z]{2,3}([_-]\w{2,8})?", re.IGNORECASE)  # en, deu, pt-BR, zh_Hant
_NOT_LANGUAGES = (".py", ".md", ".gz", ".sh", ".csv", ".tsv", ".tmx", ".pq", ".log", ".bak", ".zip")
_MOST_SIBLINGS = 50  # files that are looked at
_LARGEST_SIBLING = 1 << 28  # bytes


def aligned_files(path: Path, source: str, target: str) -> tuple[Path, Path] | None:
    """The two files that `path` means, or None if it means something else."""
    if os.sep in source + target or "/" in source + target or "\0" in source + target:
        return None
    stem = plain_name(path).removesuffix(f".{source}").removesuffix(f".{target}")
    if not stem:
        return None
    source_file = _with_or_without_gz(path.with_name(f"{stem}.{source}"))
    target_file = _with_or_without_gz(path.with_name(f"{stem}.{target}"))
    if source_file and target_file:
        return source_file, target_file
    if source_file:
        raise UserError(f"{source_file}: {stem}.{target} is missing from the same folder")
    if target_file:
        raise UserError(f"{target_file}: {stem}.{source} is missing from the same folder")
    return None


def _with_or_without_gz(path: Path) -> Path | None:
    """The file, or else its packed form; None if there is neither."""
    for file in (path, path.with_name(f"{path.name}.gz")):
        if os.path.isfile(file):
            return file
    return None


def aligned_reader(source: Path, target: Path, layout: Layout) -> Reader:
    """Read two files side by side.

    The lines are counted before the first pair is read, since every pair after a missing line would
    be wrong.
    """
    source_encoding = files.start_of(source, layout.encoding).encoding
    target_encoding = files.start_of(target, layout.encoding).encoding
    source_lines = files.count_lines(source, source_encoding)
    target_lines = files.count_lines(target, target_encoding)
    if source_lines != target_lines:
        raise UserError(
            f"{source} has {source_lines:,} lines and {target} has {target_lines:,}; aligned "
            f"files need the same number of lines"
        )

    def rows(position: ReadSoFar | None) -> Rows:
        sources = files.lines_of(source, position, source_encoding)
        targets = files.lines_of(target, None, target_encoding)
        return enumerate(_together(sources, targets, source), 1)

    return Reader((source, target), rows, _parse)


def _together(
    sources: Iterator[bytes], targets: Iterator[bytes], path: Path
) -> Iterator[tuple[bytes, bytes]]:
    """The lines of both files, which were counted: as many of each."""
    for source, target in zip_longest(sources, targets):
        if source is None or target is None:
            raise files.changed(path)
        yield source, target


def _parse(lines: tuple[bytes, bytes]) -> list[str]:
    source, target = lines
    return [text_of(source), text_of(target)]


def language_of(path: Path) -> str | None:
    """The language that the ending of a name tells: "de" for train.de.gz."""
    suffix = Path(plain_name(path)).suffix
    if suffix in _NOT_LANGUAGES or not _LANGUAGE.fullmatch(suffix[1:]):
        return None
    return suffix[1:]


def siblings(path: Path) -> list[Path]:
    """Files beside `path` that may hold the same lines in another language.

    They have the same name but for its ending, or the same ending, and as many lines.
    """
    stem = Path(plain_name(path)).stem
    suffix = Path(plain_name(path)).suffix
    near = []
    try:
        neighbours = sorted(path.parent.iterdir())[: 20 * _MOST_SIBLINGS]
    except OSError:  # a folder that may not be listed
        return []
    for file in neighbours:
        same_stem = Path(plain_name(file)).stem == stem and language_of(file) is not None
        same_suffix = suffix == ".txt" and Path(plain_name(file)).suffix == suffix
        if file.name != path.name and (same_stem or same_suffix) and file.is_file():
            near.append(file)
    return [file for file in near[:_MOST_SIBLINGS] if _as_long(file, path)]


def _as_long(file: Path, other: Path) -> bool:
    """Whether a file has one text a line, as many as another; False if that takes long to tell."""
    if max(file.stat().st_size, other.stat().st_size) > _LARGEST_SIBLING:
        return False
    try:
        start = files.start_of(file)
        other_encoding = files.start_of(other).encoding
    except UserError:
        return False
    if b"\t" in start.block:  # a table of its own
        return False
    return files.count_lines(file, start.encoding) == files.count_lines(other, other_encoding)
