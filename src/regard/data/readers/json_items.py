"""JSON lines and JSON arrays, both an item at a time."""

import codecs
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from regard.data.readers import files
from regard.data.readers.files import MAX_LINE, ReadSoFar, Start
from regard.data.readers.keys import Keys, Number, Repeated
from regard.data.readers.reader import Layout, Reader, Rows, Skip, text_of
from regard.errors import UserError

_BLOCK = 1 << 20  # bytes
_SPACE = " \t\r\n"
_LOOKED_AT = 50  # lines, to see whether each is a value


def _object(members: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object of its members."""
    values = dict(members)
    return values if len(values) == len(members) else Repeated(values)


def _constant(name: str) -> float | None:
    """NaN, which is how some programs write an empty cell, or an infinity."""
    return None if name == "NaN" else math.inf


_DECODER = json.JSONDecoder(
    object_pairs_hook=_object, parse_int=Number, parse_float=Number, parse_constant=_constant
)


def json_reader(path: Path, start: Start, layout: Layout) -> Reader:
    """Read JSON lines, or an array that fills the whole file."""
    if is_document(start):
        return _document_reader(path, start, layout)

    keys = Keys(layout)
    notes: list[str] = []
    first = _decoded(_text(start).split("\n")[0])
    if isinstance(first, dict):  # a first line that is no JSON is only a bad line
        keys.check(f"{path} line 1", first)
        notes += keys.unused(path.name, first)

    def rows(position: ReadSoFar | None) -> Rows:
        return enumerate(files.lines_of(path, position, start.encoding), 1)

    def item_of(line: bytes) -> Any:
        text = text_of(line).strip()
        try:
            return _DECODER.decode(text or "{}")
        except (ValueError, RecursionError):
            raise Skip("bad JSON") from None

    def parse(line: bytes) -> list[str]:
        return keys.texts(item_of(line))

    def positions(line: bytes) -> Any:
        return keys.positions_of(item_of(line))

    def features(line: bytes) -> Any:
        return keys.features_of(item_of(line))

    return Reader(
        (path,),
        rows,
        parse,
        notes,
        holds="pair" if keys.has_target else "text",
        positions=None if layout.positions is None else positions,
        features=None if layout.features is None else features,
    )


def _text(start: Start) -> str:
    return start.block.removeprefix(b"\xef\xbb\xbf").decode("utf-8", "replace").strip()


def _decoded(text: str) -> Any:
    """The value that a text spells; None if it spells none."""
    try:
        return _DECODER.decode(text.strip())
    except (ValueError, RecursionError):
        return None


def is_json(start: Start) -> bool:
    """Whether a file of another name begins like JSON lines, or like an array of objects."""
    text = _text(start)
    if text.startswith("["):
        return text[1:].lstrip().startswith("{")
    return isinstance(_decoded(text.split("\n")[0]), dict)


def is_document(start: Start) -> bool:
    """Whether the file is one JSON value, not one a line."""
    text = _text(start)
    if not text.startswith(("[", "{")):
        return False
    first, _, rest = text.partition("\n")
    value = _decoded(first)
    if value is None:  # a value set over several lines, or a bad line before good ones
        lines = rest.split("\n")[:_LOOKED_AT]
        items = [line for line in lines if isinstance(_decoded(line), dict | list)]
        return not rest or 2 * len(items) < len(lines)
    if isinstance(value, dict):
        return not rest and start.complete and _has_list(value)
    return not rest


def _has_list(value: dict[str, Any]) -> bool:
    """Whether an object holds a list of objects: {"data": [{…}, …]}."""
    lists = [inside for inside in value.values() if isinstance(inside, list) and inside]
    return any(isinstance(inside[0], dict) for inside in lists)


def _document_reader(path: Path, start: Start, layout: Layout) -> Reader:
    """Read an array of objects, or an object with one such array in it."""
    keys = Keys(layout)
    notes: list[str] = []
    first = next(_Document(path, start.encoding).items(None), None)
    if isinstance(first, dict):
        keys.check(f"{path} item 1", first)
        notes += keys.unused(path.name, first)

    def rows(position: ReadSoFar | None) -> Rows:
        return enumerate(_Document(path, start.encoding).items(position), 1)

    return Reader(
        (path,),
        rows,
        keys.texts,
        notes,
        unit="item",
        holds="pair" if keys.has_target else "text",
        positions=None if layout.positions is None else keys.positions_of,
        features=None if layout.features is None else keys.features_of,
    )


class _Document:
    """A file that is one JSON value; no more of it is in memory than an item and a block."""

    def __init__(self, path: Path, encoding: str | None) -> None:
        self._path = path
        self._encoding = encoding
        self._file: Any = None
        self._decoder = codecs.getincrementaldecoder("utf-8-sig")("surrogateescape")
        self._text = ""
        self._place = 0  # in the text
        self._ended = False  # there is no more text than this
        self._count = 0  # items

    def items(self, position: ReadSoFar | None) -> Iterator[Any]:
        """The items of the array, or of the only list of objects that an object has."""
        with files.recoded(self._path, position, self._encoding) as file:
            self._file = file
            if self._next() == "{":
                yield from self._members()
            elif self._next() == "[":
                yield from self._array()
            else:
                raise self._damaged("it begins with neither [ nor {")
            if self._next():
                raise self._damaged("there is more after its end")

    def _members(self) -> Iterator[Any]:
        """The items of the only list of objects among the members of an object."""
        found = False
        self._take("{")
        while self._next() != "}":
            if not isinstance(self._value(), str):
                raise self._damaged("a key is missing")
            self._take(":")
            if not (self._next() == "[" and self._begins_with_object()):
                self._value()
            elif found:
                raise self._no_list()
            else:
                found = True
                yield from self._array()
            self._more("}")
        self._take("}")
        if not found:
            raise self._no_list()

    def _no_list(self) -> UserError:
        return UserError(
            f"{self._path}: one JSON object; give an array of objects, or one object per line; if "
            f"it maps texts to texts, write TSV: jq -r 'to_entries[] | [.key, .value] | @tsv' "
            f"{self._path.name} > {Path(files.plain_name(self._path)).stem}.tsv"
        )

    def _begins_with_object(self) -> bool:
        """Whether the array that comes next begins with an object."""
        self._fill()
        return self._text[self._place + 1 : self._place + 100].lstrip().startswith("{")

    def _array(self) -> Iterator[Any]:
        self._take("[")
        while self._next() != "]":
            self._count += 1
            yield self._value()
            self._more("]")
        self._take("]")

    def _more(self, end: str) -> None:
        """Go past the comma after a value; after the last there is none."""
        if self._next() == end:
            return
        self._take(",")
        if self._next() == end:
            raise self._damaged(f"{end!r} after a comma")

    def _take(self, character: str) -> None:
        if self._next() != character:
            raise self._damaged(f"{character!r} is missing")
        self._place += 1

    def _next(self) -> str:
        """The next character that is not white space; empty at the end."""
        while True:
            while self._place < len(self._text):
                if self._text[self._place] not in _SPACE:
                    return self._text[self._place]
                self._place += 1
            if self._ended:
                return ""
            self._fill()

    def _value(self) -> Any:
        """The value that comes next."""
        self._next()
        if not self._ended and len(self._text) - self._place < MAX_LINE:
            self._fill()
        try:
            value, end = _DECODER.raw_decode(self._text, self._place)
        except RecursionError:
            raise self._damaged("nested too deeply") from None
        except ValueError as error:
            if not self._ended:
                raise self._damaged("damaged, or more than 1 MB") from None
            why = error.msg if isinstance(error, json.JSONDecodeError) else str(error)
            raise self._damaged(why) from None
        self._place = end
        return value

    def _fill(self) -> None:
        """Read on, until there is more text than an item may have."""
        self._text = self._text[self._place :]
        self._place = 0
        while not self._ended and len(self._text) < MAX_LINE:
            block = self._file.read(_BLOCK)
            self._ended = not block
            self._text += self._decoder.decode(block, final=self._ended)

    def _damaged(self, why: str) -> UserError:
        where = f"item {self._count:,}" if self._count else "its beginning"
        return UserError(
            f"{self._path}: neither a JSON array nor one object per line ({where}: {why})"
        )
