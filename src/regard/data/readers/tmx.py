"""TMX, the exchange format of translation memories: one unit at a time, no DTD, no entities."""

from collections import defaultdict
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any
from xml.parsers import expat

from regard.data.readers import files
from regard.data.readers.files import MAX_LINE, ReadSoFar
from regard.data.readers.keys import MOST_NAMES, shortened
from regard.data.readers.reader import Layout, Reader, Rows, Skip
from regard.errors import UserError

_BLOCK = 1 << 16
_LONGEST_TAG = 1 << 20  # bytes
_DEEPEST = 100  # elements inside each other
_MOST_SEGMENTS = 10_000  # of a unit
_NATIVE = ("utf-8", "utf-16", "utf-16-le", "utf-16-be", "iso-8859-1", "us-ascii")  # to expat
_FIRST_UNITS = 1_000  # that are looked at to find two languages
_CODES = ("bpt", "ept", "it", "ph", "ut")  # formatting of the program that wrote it: no text
Unit = dict[str, list[str]]
"""The texts of a translation unit by language."""
ENDLESS: Unit = {}
"""Stands for a unit whose texts are longer than any should be."""


def is_tmx(block: bytes) -> bool:
    """Whether a file begins like TMX."""
    head = block[:2_000].removeprefix(b"\xef\xbb\xbf").lstrip().lower()
    return head.startswith((b"<?xml", b"<!doctype tmx", b"<tmx")) and b"<tmx" in block.lower()


def tmx_reader(path: Path, layout: Layout) -> Reader:
    """Read the units of a TMX file; `source` and `target` are languages.

    "en" is also what a file calls EN or en-GB.
    """
    first: Unit = {}
    for _, first in islice(_units(path, layout.encoding, None), _FIRST_UNITS):
        if len(first) > 1:
            break
    languages = [*first]
    source = _language(path, languages, layout.source, "data.source")
    target = _language(path, languages, layout.target, "data.target")

    notes = []
    if source is None or target is None:
        left = [language for language in languages if language not in (source, target)]
        if len(languages) != 2:
            has = _listed(languages) or "no texts"
            raise UserError(
                f"{path}: the first unit has {has}; choose two languages with data.source and "
                f"data.target"
            )
        source = source or left.pop(0)
        target = target or left.pop(0)
        notes.append(
            f"{path.name}: {source} → {target}; for the other direction add data.source={target} "
            f"data.target={source}"
        )

    def rows(position: ReadSoFar | None) -> Rows:
        return _units(path, layout.encoding, position)

    def parse(unit: Unit) -> list[str]:
        if unit is ENDLESS:
            raise Skip("more than 1 MB of text")
        if not unit.get(source):
            raise Skip(f"no {source}")
        return [unit[source][0], *unit.get(target, [])]

    return Reader((path,), rows, parse, notes, unit="unit")


def _language(path: Path, languages: list[str], wanted: str | None, setting: str) -> str | None:
    """What the file calls a language."""
    if wanted is None:
        return None
    short = wanted.lower().replace("_", "-")
    for language in languages:
        if language == short:
            return language
    for language in languages:
        if language.startswith(f"{short}-") or short.startswith(f"{language}-"):
            return language
    has = _listed(languages) or "none"
    raise UserError(f"{path}: {setting}={shortened(wanted)}, but its languages are {has}")


def _listed(languages: list[str]) -> str:
    """Languages for a message."""
    shown = [shortened(language) for language in languages[:MOST_NAMES]]
    return ", ".join(name if name.isprintable() else ascii(name) for name in shown)


def _units(path: Path, encoding: str | None, position: ReadSoFar | None) -> Rows:
    """The units of a file with their numbers."""
    parser = _Parser(path, encoding)
    number = 0
    with files.opened(path, position) as file:
        while block := file.read(_BLOCK):
            for unit in parser.feed(block):
                number += 1
                yield number, unit
        parser.feed(b"", last=True)


class _Parser:
    """Takes bytes, gives the units that have ended in them."""

    def __init__(self, path: Path, encoding: str | None) -> None:
        self._path = path
        self._units: list[Unit] = []
        self._unit: Unit | None = None  # that is open
        self._language = ""
        self._text: list[str] | None = None  # of the segment that is open
        self._size = 0  # characters of the unit that is open
        self._segments = 0  # of the same
        self._codes = 0  # formatting codes that are open
        self._depth = 0  # elements that are open
        self._fed = 0  # bytes

        self._check_encoding(encoding)
        expat_parser = expat.ParserCreate(encoding)
        expat_parser.XmlDeclHandler = self._declaration
        expat_parser.buffer_text = True
        expat_parser.StartElementHandler = self._start
        expat_parser.EndElementHandler = self._end
        expat_parser.CharacterDataHandler = self._characters
        expat_parser.StartDoctypeDeclHandler = self._doctype
        expat_parser.EntityDeclHandler = self._entity
        expat_parser.SkippedEntityHandler = self._entity
        self._expat = expat_parser

    def feed(self, block: bytes, last: bool = False) -> Iterator[Unit]:
        """The units that end in this block."""
        try:
            self._expat.Parse(block, last)
        except expat.ExpatError as error:
            raise UserError(f"{self._path}: not XML, or damaged ({error})") from None
        self._fed += len(block)
        if self._fed - self._expat.CurrentByteIndex > _LONGEST_TAG:
            raise UserError(f"{self._path}: a tag of more than 1 MB; this is no TMX")
        units = self._units
        self._units = []
        return iter(units)

    def _declaration(self, version: str, encoding: str | None, standalone: int) -> None:
        self._check_encoding(encoding)

    def _check_encoding(self, encoding: str | None) -> None:
        """Refuse an encoding that expat would have to ask Python for, and Python cannot tell."""
        if encoding is None or encoding.lower() in _NATIVE:
            return
        try:
            letters = bytes(range(256)).decode(encoding, "replace")
        except (LookupError, ValueError):
            letters = ""
        if len(letters) != 256:
            raise UserError(
                f"{self._path}: XML in the encoding {shortened(encoding)!a}, which is not "
                f"supported; save it as UTF-8"
            )

    def _doctype(self, name: str, system: str | None, public: str | None, inside: bool) -> None:
        """A DTD that is only named is never loaded; one that is in the file is refused."""
        if inside:
            raise self._refusal()

    def _entity(self, *_: Any) -> None:
        raise self._refusal()

    def _refusal(self) -> UserError:
        return UserError(f"{self._path}: XML entities are not supported; export it without a DTD")

    def _start(self, name: str, attributes: dict[str, str]) -> None:
        self._depth += 1
        if self._depth > _DEEPEST:
            raise UserError(f"{self._path}: XML that is nested too deeply; this is no TMX")
        if name == "tu":
            self._unit = defaultdict(list)
            self._size = 0
            self._segments = 0
        elif name == "tuv":
            language = attributes.get("xml:lang") or attributes.get("lang") or ""
            self._language = language.lower().replace("_", "-")
        elif name == "seg":
            self._text = []
            self._codes = 0
        elif name in _CODES:
            self._codes += 1

    def _end(self, name: str) -> None:
        self._depth -= 1
        if name == "seg" and self._text is not None:
            if self._unit is not None and self._size <= MAX_LINE:
                self._unit[self._language].append(" ".join("".join(self._text).split()))
            self._segments += 1
            if self._segments > _MOST_SEGMENTS:
                raise UserError(f"{self._path}: a unit of {_MOST_SEGMENTS:,} texts; this is no TMX")
            self._text = None
        elif name == "tu":
            unit = dict(self._unit or {})  # nothing, if another unit began and ended inside it
            self._units.append(unit if self._size <= MAX_LINE else ENDLESS)
            self._unit = None
        elif name in _CODES:
            self._codes -= 1

    def _characters(self, text: str) -> None:
        if self._text is not None and not self._codes:
            self._size += len(text)
            if self._size <= MAX_LINE:
                self._text.append(text)
