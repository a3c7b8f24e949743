"""TSV and CSV: separator, quotes, header and columns."""

import csv
import os
import re
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import Any

from regard.data.items import TEXT
from regard.data.pairs import EMPTY_LINE, ONE_COLUMN, TEXTS_WANTED
from regard.data.readers import files
from regard.data.readers.aligned import siblings
from regard.data.readers.extra import extra_column
from regard.data.readers.files import ReadSoFar, Start, plain_name
from regard.data.readers.header import has_roles, is_header, may_be_header, plain, text_columns
from regard.data.readers.lookalikes import list_of_pairs, lookalike
from regard.data.readers.quotes import is_quoted
from regard.data.readers.reader import Layout, Reader, Rows, Skip, text_of
from regard.errors import UserError, counted

SEPARATORS = {"\t": "tabs", ";": "semicolons", ",": "commas", "|": "bars"}
_EXCEL_LINE = re.compile(r'"?sep=(.)"?\r?\n')  # how Excel is told the separator
_SAMPLE = 200  # rows that are looked at
_MOST_LINES = 50  # of one row, whose quotes hold line breaks


@dataclass(frozen=True)
class _Form:
    """How the lines of a table become cells."""

    separator: str
    quoted: bool
    escape: str | None = None  # before a quote inside quotes, where it is not doubled
    preface: int = 0  # lines before the table

    def rows(self, lines: Iterable[str]) -> Iterator[list[str]]:
        """The cells of each row of text."""
        if not self.quoted:
            return (line.strip("\r\n").split(self.separator) for line in lines)
        return csv.reader(
            lines,
            delimiter=self.separator,
            skipinitialspace=True,
            escapechar=self.escape,
            doublequote=self.escape is None,
        )


@dataclass(frozen=True)
class _Columns:
    """Which columns are read."""

    source: int  # counted from 0
    target: int | None  # None: of texts for a language model
    names: tuple[str, ...] | None = None  # of the header, if there is one
    positions: int | None = None  # None: there is no such column
    features: int | None = None

    @property
    def used(self) -> tuple[int, ...]:
        """All that are read, source and target first."""
        more = (self.target, self.positions, self.features)
        return (self.source, *(column for column in more if column is not None))


def table_reader(path: Path, start: Start, layout: Layout) -> Reader:
    """Read TSV or CSV."""
    form = _form(path, start)
    sample = _some_rows(form, start.text())[form.preface :]
    columns = _columns(path, sample, layout)
    width = _width(sample, columns)
    is_chosen = layout.source is not None and layout.target is not None
    if layout.documents != "no" and columns.target is None:
        _refuse_lookalike(path, start)
    notes = _notes(path, form, columns, sample, is_chosen=is_chosen)
    if plain_name(path).lower().endswith(".csv"):
        notes += _separator_notes(path, form, start)
    if columns.names is None and layout.header == "auto" and sample:
        notes += _header_notes(path, form, columns, sample)
    before = form.preface + (columns.names is not None)  # rows before the first pair

    if form.separator == "\t" and not form.quoted and columns.used == (0, 1):
        if not any(b"\t" in line for line in start.lines()):
            _offer_another_reading(path, start)
        noted = columns.names is not None and width > 2
        needs_target = layout.documents == "no"
        plain_tsv = _PlainTsv(
            path, notes, noted=noted, is_chosen=is_chosen, needs_target=needs_target
        )
        plain_tsv.look_at(start.lines())

        def lines(position: ReadSoFar | None) -> Rows:
            numbered = enumerate(files.lines_of(path, position, start.encoding), 1)
            return _without_first(numbered, before)

        return Reader((path,), lines, plain_tsv.parse, notes)

    def rows(position: ReadSoFar | None) -> Rows:
        decoded = map(_decoded, files.lines_of(path, position, start.encoding))
        records = _records(decoded, form)
        return _without_first(records, before)

    def parse(cells: list[str] | None) -> list[str]:
        return _pick(cells, columns, width, form)

    positions = columns.positions
    features = columns.features
    return Reader(
        (path,),
        rows,
        parse,
        notes,
        positions=None if positions is None else itemgetter(positions),
        features=None if features is None else itemgetter(features),
        holds="text" if columns.target is None else "pair",
    )


def _without_first(rows: Rows, count: int) -> Rows:
    for _ in range(count):
        next(rows, None)
    return rows


# how lines become cells


def _form(path: Path, start: Start) -> _Form:
    """The separator of a table, and whether its cells are quoted.

    What is called .tsv is separated by tabs; quotes in it are text, unless they can be nothing else
    than those of a program.
    """
    text = start.text()
    separator = "\t"
    lines = [line for line in text.split("\n") if line.strip()]
    if lines and "\t" not in text and all(" ||| " in line for line in lines):
        return _Form("|||", quoted=False)  # as aligners write it
    told = _EXCEL_LINE.match(text)
    if plain_name(path).lower().endswith(".csv"):
        separator = told[1] if told else _separator(text) or ","
    if separator != "\t":
        escape = "\\" if '\\"' in text and '""' not in text else None
        return _Form(separator, quoted=True, escape=escape, preface=int(told is not None))
    return _Form(separator, is_quoted(text, complete=start.complete))


def _separator(text: str) -> str | None:
    """The separator by which most lines have equally many columns; None: by none two."""
    shares = _shares(text)
    return max(shares, key=shares.__getitem__, default=None)


def _shares(text: str) -> dict[str, float]:
    """For each separator, how many of the lines have equally many columns by it, two or more."""
    shares = {}
    for separator in SEPARATORS:
        rows = _some_rows(_Form(separator, quoted=separator != "\t"), text)
        widths = Counter(len(row) for row in rows if row)
        width, count = max(widths.items(), key=lambda item: item[1], default=(0, 0))
        if width >= 2:
            shares[separator] = count / widths.total()
    return shares


def _separator_notes(path: Path, form: _Form, start: Start) -> list[str]:
    """Say which separator was chosen, where another would do nearly as well."""
    if form.separator not in SEPARATORS or form.preface or not form.quoted:
        return []
    shares = _shares(start.text())
    others = [
        other
        for other, share in shares.items()
        if other != form.separator and share > shares.get(form.separator, 1.0) - 0.1
    ]
    if not others:
        return []
    return [
        f"{path.name}: columns are split at {SEPARATORS[form.separator]}, though "
        f"{SEPARATORS[others[0]]} would fit nearly as well (to choose, make sep={others[0]} the "
        f"first line)"
    ]


def _some_rows(form: _Form, text: str) -> list[list[str]]:
    rows = []
    try:
        for row in form.rows(f"{line}\n" for line in text.split("\n")):
            rows.append(row)
            if len(rows) == _SAMPLE:
                break
    except csv.Error:
        pass
    return rows


def _offer_another_reading(path: Path, start: Start) -> None:
    """Refuse a file without tabs if it is easy to tell what it is instead."""
    _refuse_lookalike(path, start)
    near = siblings(path)
    if near:
        names = " and ".join(file.name for file in near[:3])
        has = "has" if len(near) == 1 else "have"
        raise UserError(
            f"{path}: one text per line, and {names} in the same folder {has} as many lines; give "
            f"two files: regard train {_from_here(path)} {_from_here(near[0])}; {TEXTS_WANTED}"
        )
    kind = list_of_pairs(path, start)
    if kind is not None:
        raise UserError(f"{path}: {kind}")
    lines = [line for line in start.text().split("\n") if line.strip()]
    separator = _separator("\n".join(lines))
    if separator is None or len(lines) < 2:
        return
    widths = {len(row) for row in _some_rows(_Form(separator, quoted=True), "\n".join(lines))}
    if len(widths) == 1:
        raise UserError(
            f"{path}: no tabs found; if its columns are separated by {SEPARATORS[separator]}, "
            f"rename it to {Path(plain_name(path)).stem}.csv"
        )


def _refuse_lookalike(path: Path, start: Start) -> None:
    """Refuse what is easy to recognise as no table and no list of texts."""
    kind = lookalike(path, start)
    if kind is not None:
        raise UserError(f"{path}: {kind}")


def _from_here(path: Path) -> str:
    """The path as one would type it."""
    relative = os.path.relpath(path)
    return str(path) if relative.startswith(os.pardir) else relative


# header and columns


def _columns(path: Path, sample: list[list[str]], layout: Layout) -> _Columns:
    """Which columns to read: those that were asked for, or those that look like a pair."""
    first = sample[0] if sample else []
    names = None
    if _has_header(path, first, sample[1:], layout):
        names = tuple(cell.strip().strip("\ufeff") for cell in first)

    usual = text_columns(names) if names is not None else [0, 1]
    where = f"{path} line 1"
    source = _column(where, layout.source, first, names, "data.source")
    target = _column(where, layout.target, first, names, "data.target")
    positions = _column(where, layout.positions, first, names, "data.positions")
    features = _column(where, layout.features, first, names, "data.features")
    if layout.documents != "no" and target is None:
        text = _text_column(names, sample, source)
        if text is not None:
            return _Columns(text, None, names)
    others = (positions, features)
    usual = [column for column in [*usual, 0, 1, 2, 3] if column not in others]
    if source is None:
        source = next(column for column in usual if column != target)
    if target is None:
        target = next(column for column in usual if column != source)
    if source == target:
        raise UserError(f"{path}: data.source and data.target are the same column")
    if positions in (source, target):
        raise UserError(f"{path}: data.positions is the column of the source or of the target")
    if features in (source, target, positions) and features is not None:
        raise UserError(f"{path}: data.features is a column that is read as something else already")
    return _Columns(source, target, names, positions, features)


def _text_column(
    names: tuple[str, ...] | None, sample: list[list[str]], source: int | None
) -> int | None:
    """The column of the texts for a language model; None: the table has pairs."""
    if max(map(len, sample), default=1) == 1:
        return 0
    plain_names = [plain(name) for name in names or ()]
    if has_roles(plain_names):
        return None
    if names is not None and source is not None:
        return source
    return plain_names.index(TEXT) if TEXT in plain_names else None


def _has_header(path: Path, first: Sequence[str], others: list[list[str]], layout: Layout) -> bool:
    if layout.header != "auto":
        return layout.header == "yes"
    wanted = (layout.source, layout.target, layout.positions, layout.features)
    asked = {plain(name) for name in wanted if name}
    names = {name for name in asked if not name.isdecimal()}
    found = {plain(cell) for cell in first}
    if (names and names <= found) or (layout.documents != "no" and TEXT in found):
        return True
    return is_header(first, others, strict=not plain_name(path).lower().endswith(".csv"))


def _column(
    where: str,
    wanted: str | None,
    first: Sequence[str],
    names: tuple[str, ...] | None,
    setting: str,
) -> int | None:
    """The column that a setting asks for, by a name of the header or by its number."""
    if wanted is None:
        return None
    plain_names = [plain(name) for name in names or ()]
    if plain(wanted) in plain_names:
        return plain_names.index(plain(wanted))
    if wanted.isdecimal() and 1 <= int(wanted) <= max(len(first), 2):
        return int(wanted) - 1

    if wanted.isdecimal():
        raise UserError(
            f"{where}: no column {wanted}; it has {counted(len(first), 'column')} "
            f"({setting}={wanted})"
        )
    listed = ", ".join(repr(_short(cell.strip())) for cell in first) or "one column"
    raise UserError(
        f"{where}: no column {wanted!r}; it has {listed} ({setting} is a name in the header, or "
        f"a number from 1)"
    )


def _width(sample: list[list[str]], columns: _Columns) -> int:
    """How many columns a row may have."""
    if columns.names is not None:
        return len(columns.names)
    widths = Counter(len(row) for row in sample if len(row) > 1)
    return max(widths, key=widths.__getitem__, default=1 if columns.target is None else 2)


def _notes(
    path: Path, form: _Form, columns: _Columns, sample: list[list[str]], *, is_chosen: bool
) -> list[str]:
    """What a person should know about how a table is read."""
    notes = []
    if form.separator == "\t" and form.quoted:
        notes.append(f"{path.name}: cells are quoted; the quotes are removed")
    used = columns.used
    if columns.names is not None:
        names = columns.names
        pair = names[columns.source]
        if columns.target is not None:
            pair += f" → {names[columns.target]}"
        if columns.positions is not None:
            pair += f", positions in {names[columns.positions]}"
        if columns.features is not None:
            pair += f", tags in {names[columns.features]}"
        kind = "text" if columns.target is None else "pair"
        notes.append(
            f"{path.name}: line {form.preface + 1} is a header, {pair} (to read it as a {kind}, "
            f"set data.header=no)"
        )
        unused = {
            column: name or f"{column + 1} (unnamed)"
            for column, name in enumerate(names)
            if column not in used
        }
        notes += _unused_notes(path, unused, sample[1:], is_named=True, is_chosen=is_chosen)
    elif sample and (form.quoted or used != (0, 1)):
        width = _width(sample, columns)
        row = next((row for row in sample if len(row) == width), [])
        unused = {
            column: f"{column + 1} ({_short(cell)!r})"
            for column, cell in enumerate(row)
            if column not in used
        }
        notes += _unused_notes(path, unused, sample, is_named=False, is_chosen=is_chosen)
    return notes


def _header_notes(path: Path, form: _Form, columns: _Columns, sample: list[list[str]]) -> list[str]:
    """Say that the first line is read as a pair, where it may well be a header."""
    if columns.target is None:
        return []
    used = (columns.source, columns.target)
    rows = [[row[column] for column in used] for row in sample if len(row) > max(used)]
    if not rows or sample[0] == [] or len(sample[0]) <= max(used):
        return []
    if not may_be_header(rows[0], rows[1:]):
        return []
    pair = " → ".join(_short(cell.strip("\ufeff")) for cell in rows[0])
    return [
        f"{path.name}: line {form.preface + 1} ({pair}) is read as a pair; if it is a header, set "
        f"data.header=yes"
    ]


def _unused_notes(
    path: Path,
    unused: dict[int, str],
    rows: list[list[str]],
    *,
    is_named: bool,
    is_chosen: bool,
) -> list[str]:
    """Say which columns are not read, or what the only one of them is for.

    unused: what each is called, by its number, which counts from 0. is_named: whether by a header.
    is_chosen: whether the user has chosen the columns that are read.
    """
    if not unused:
        return []
    if len(unused) == 1:
        [column] = unused
        cells = [row[column] for row in rows if len(row) > column]
        purpose = extra_column(column + 1, cells, is_named=is_named)
        if purpose is not None:
            return [f"{path.name}: {purpose}"]
    return [f"{path.name}: {_columns_text(list(unused.values()), is_chosen=is_chosen)}"]


def _columns_text(unused: list[str], *, is_chosen: bool) -> str:
    s = "s" if len(unused) > 1 else ""
    are = "are" if len(unused) > 1 else "is"
    more = ", …" if len(unused) > 5 else ""
    advice = "" if is_chosen else " (to choose columns, set data.source and data.target)"
    return f"column{s} {', '.join(unused[:5])}{more} {are} not used{advice}"


def _short(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= 30 else f"{text[:29]}…"


# rows


class _PlainTsv:
    """The first two columns of a TSV without quotes: the usual file, and the fastest to read."""

    def __init__(
        self,
        path: Path,
        notes: list[str],
        *,
        noted: bool,
        is_chosen: bool,
        needs_target: bool,
    ) -> None:
        self._path = path
        self._notes = notes
        self._noted = noted  # that there are more columns has been told
        self._is_chosen = is_chosen  # the user has named the two columns
        self._needs_target = needs_target

    def look_at(self, lines: Iterable[bytes]) -> None:
        """Note what is to be told of the first lines."""
        rests = []  # what stands after the second column
        for line in lines:
            columns = line.split(b"\t", 2)
            if len(columns) == 3:
                rests.append(columns[2].decode("utf-8", "replace"))
        if self._noted:
            return

        is_one_column = not any("\t" in rest for rest in rests)
        purpose = extra_column(3, rests) if is_one_column else None
        if purpose is not None:
            self._noted = True
            self._notes.append(f"{self._path.name}: {purpose}")
        for rest in rests:
            if not self._noted:
                self._note(rest)

    def parse(self, line: bytes) -> list[str]:
        """The two texts of a line."""
        text = text_of(line).strip("\r")
        if "\r" in text:  # the end of a line, to some programs
            raise Skip("CR inside a text")
        columns = text.split("\t", 2)
        if len(columns) == 2:
            return columns
        if len(columns) == 1 and columns[0].strip(" ") and self._needs_target:
            raise Skip(ONE_COLUMN)
        if len(columns) == 3 and not self._noted:
            self._note(columns[2])
        return columns[:2]

    def _note(self, rest: str) -> None:
        """Name what stands after the second column, once."""
        cells = rest.split("\t")
        if not any(cell.strip() for cell in cells):
            return
        self._noted = True
        unused = [f"{number} ({_short(cell)!r})" for number, cell in enumerate(cells, 3)]
        self._notes.append(f"{self._path.name}: {_columns_text(unused, is_chosen=self._is_chosen)}")


def _decoded(line: bytes) -> str:
    """A line for the csv module, which wants to see its end."""
    return line.removeprefix(b"\xef\xbb\xbf").decode("utf-8", "surrogateescape") + "\n"


class _Feed:
    """Lines for the csv module, some of which can be taken back."""

    def __init__(self, lines: Iterator[str]) -> None:
        self._lines = lines
        self._waiting: deque[str] = deque()
        self.taken: list[str] = []  # for the row that is being read
        self.number = 0  # of the last line that was taken
        self.unfinished = False  # the row needs more lines than there are, or than it may have

    def __iter__(self) -> "_Feed":
        return self

    def __next__(self) -> str:
        line = None
        if len(self.taken) < _MOST_LINES:
            line = self._waiting.popleft() if self._waiting else next(self._lines, None)
        if line is None:
            self.unfinished = True
            raise StopIteration
        self.taken.append(line)
        self.number += 1
        return line

    def keep_first(self) -> None:
        """Take back all lines of the row but its first."""
        self._waiting.extendleft(reversed(self.taken[1:]))
        self.number -= len(self.taken) - 1


def _records(lines: Iterator[str], form: _Form) -> Iterator[tuple[int, list[str] | None]]:
    """The cells of each row with the number of its first line; None: a quote stays open."""
    if not form.quoted:
        for number, line in enumerate(lines, 1):
            yield number, line.rstrip("\n").strip("\r").split(form.separator)
        return

    feed = _Feed(lines)
    rows: Any = form.rows(feed)
    while True:
        feed.taken = []
        feed.unfinished = False
        number = feed.number + 1
        cells: list[str] | None
        try:
            cells = next(rows)
        except StopIteration:
            cells = None
        except csv.Error:  # a cell too long, or a CR inside
            cells = None
        if not feed.taken:
            return
        if feed.unfinished:
            feed.keep_first()
            rows = form.rows(feed)
            cells = None
        yield number, cells


def _pick(cells: list[str] | None, columns: _Columns, width: int, form: _Form) -> list[str]:
    """The two texts of a row."""
    if cells is None:
        raise Skip("unclosed quote, or too long")
    if not any(cells):
        raise Skip(EMPTY_LINE)
    if len(cells) == 1 and len(columns.used) > 1:
        raise Skip(ONE_COLUMN)
    if len(cells) > width and form.separator != "\t":
        raise Skip("too many columns: a separator inside a text needs quotes")
    if len(cells) <= max(columns.used):
        raise Skip("too few columns")

    texts = [cells[column] for column in (columns.source, columns.target) if column is not None]
    tags = [] if columns.features is None else [cells[columns.features]]
    for text in (*texts, *tags):
        if not text.isascii():
            text.encode("utf-8", "surrogateescape").decode()  # tells bytes that were not UTF-8
    if not form.quoted and "\r" in "".join(texts):
        raise Skip("CR inside a text")
    return [text.replace("\r\n", "\n") for text in texts]
