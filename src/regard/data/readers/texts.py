"""Texts without targets, for language models: a line or a paragraph each, of one file or many."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Literal

from regard.data.pairs import Pair, Skipped
from regard.data.readers import files
from regard.data.readers.files import ReadSoFar, Start, plain_name
from regard.data.readers.reader import MAX_CHARACTERS, Layout, Reader, Rows, text_of
from regard.errors import UserError, counted
from regard.text.vocabulary import normalise

SUFFIXES = (".txt", ".text", ".md")
"""How files of texts are called; a single one may also have no ending."""
WRAPPED = 2
"""Lines of a paragraph on average from which on a file has paragraphs that were broken into lines.
"""
MOST_NAMED = 5
"""Files that a note names."""

BY_PARAGRAPH = (
    "{name}: empty lines separate the texts; for a text in each line set data.documents=line"
)

Unit = Literal["line", "paragraph"]


def is_text_file(path: Path) -> bool:
    """Whether a file is one of texts, by its name."""
    return Path(plain_name(path)).suffix.lower() in ("", *SUFFIXES)


def text_files(folder: Path) -> list[Path]:
    """The files of texts in a folder, sorted by name; hidden ones are left alone.

    Links into nothing and pipes are among them, so that they are told and not left out in silence.
    """
    names = (path for path in sorted(folder.iterdir()) if not path.name.startswith("."))
    return [
        path for path in names if plain_name(path).lower().endswith(SUFFIXES) and not path.is_dir()
    ]


def text_reader(path: Path, layout: Layout) -> "TextReader":
    """Read the texts of a file: its lines, or paragraphs that empty lines separate."""
    start = files.start_of(path, layout.encoding)
    unit: Unit = "paragraph" if layout.documents == "paragraph" else "line"
    notes = []
    if layout.documents == "auto" and _is_wrapped(start):
        unit = "paragraph"
        notes.append(BY_PARAGRAPH.format(name=path.name))

    def rows(position: ReadSoFar | None) -> Rows:
        lines = files.lines_of(path, position, start.encoding)
        return _paragraphs(lines) if unit == "paragraph" else enumerate(lines, 1)

    return TextReader((path,), rows, _parse, notes, unit=unit)


def _is_wrapped(start: Start) -> bool:
    """Whether the paragraphs of a file were broken into several lines each."""
    blocks = [0]  # lines of each
    for line in start.lines():
        if line.strip():
            blocks[-1] += 1
        elif blocks[-1]:
            blocks.append(0)
    paragraphs = [lines for lines in blocks if lines]
    return len(paragraphs) > 1 and sum(paragraphs) >= WRAPPED * len(paragraphs)


def _paragraphs(lines: Iterable[bytes]) -> Rows:
    """Lines up to an empty one, with the number of the first; of very long ones, pieces."""
    paragraph: list[bytes] = []
    size = 0
    first = 1
    for number, line in enumerate(lines, 1):
        line = line.rstrip(b"\r")
        if line.strip() and size + len(line) < files.MAX_LINE:
            if not paragraph:
                first = number
            paragraph.append(line)
            size += len(line)
            continue
        if paragraph:
            yield first, b"\n".join(paragraph)
        paragraph = [line] if line.strip() else []
        size = len(line)
        first = number
    if paragraph:
        yield first, b"\n".join(paragraph)


def _parse(row: bytes) -> list[str]:
    return [text_of(row)]


@dataclass(frozen=True)
class TextReader(Reader):
    """Reads texts, as pairs with an empty target."""

    misses_lines = False
    holds: str = "text"

    @property
    def documents(self) -> str:
        return self.unit

    def parsed(self, row: bytes, line: int) -> tuple[Pair, ...]:
        [text] = self.parse(row)
        text = normalise(text.strip(" \t\r\n"))
        return tuple(Pair(piece, ("",), line) for piece in _pieces(text))


def _pieces(text: str) -> Iterator[str]:
    """The text, or where it is too long, parts of it, cut at white space if there is some."""
    while len(text) > MAX_CHARACTERS:
        end = max(text.rfind(space, 1, MAX_CHARACTERS) for space in " \n")
        if end < MAX_CHARACTERS // 2:
            end = MAX_CHARACTERS
        yield text[:end].strip()
        text = text[end:].strip()
    if text:
        yield text


@dataclass(frozen=True)
class TextFolder(Reader):
    """Reads the texts of several files, one file after the other."""

    holds: str = "text"
    readers: tuple[TextReader, ...] = ()

    @property
    def documents(self) -> str:
        units = {reader.unit for reader in self.readers}
        return units.pop() if len(units) == 1 else "auto"

    @property
    def name(self) -> str:
        return counted(len(self.paths), "file")

    def pairs(self, skipped: Skipped, position: ReadSoFar | None = None) -> Iterator[Pair]:
        return chain.from_iterable(reader.pairs(skipped) for reader in self.readers)


def folder_reader(folder: Path, paths: list[Path], layout: Layout) -> TextFolder:
    """Read the texts of these files of a folder, each by lines or by paragraphs; no empty file."""
    if not paths:
        raise UserError(f"{folder}: there are no texts in this folder ({', '.join(SUFFIXES)})")
    full = [path for path in paths if not _is_empty(path)]
    if not full:
        raise UserError(f"{folder}: all files of texts are empty ({_named(paths)})")
    readers = [text_reader(path, layout) for path in full]
    notes = [f"{folder}: reading {counted(len(full), 'file')} of texts"]
    if len(full) < len(paths):
        empty = [path for path in paths if path not in full]
        notes.append(f"{folder}: leaving out {counted(len(empty), 'empty file')}: {_named(empty)}")
    if layout.documents == "auto":
        notes += _unit_notes(folder, readers)
    first = readers[0]
    return TextFolder(
        tuple(full), first.rows, first.parse, notes, unit=first.unit, readers=tuple(readers)
    )


def _is_empty(path: Path) -> bool:
    files.check_file(path)
    with files.opened(path) as file:
        return not file.read(1)


def _unit_notes(folder: Path, readers: list[TextReader]) -> list[str]:
    """Say which files are read by paragraphs, if any are."""
    wrapped = [reader.paths[0] for reader in readers if reader.unit == "paragraph"]
    if not wrapped:
        return []
    if len(wrapped) == len(readers):
        return [BY_PARAGRAPH.format(name=folder)]
    lines = counted(len(readers) - len(wrapped), "file")
    return [
        f"{folder}: empty lines separate the texts of {_named(wrapped)}; {lines} with a text in "
        f"each line; for one of both set data.documents=line or paragraph"
    ]


def _named(paths: list[Path]) -> str:
    """The names of some files, not too many."""
    names = [path.name for path in paths[:MOST_NAMED]]
    return ", ".join(names) + (", …" if len(paths) > MOST_NAMED else "")
