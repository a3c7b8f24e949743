"""Files of contrastive pairs: TSV with source, right target, wrong target and perhaps a kind."""

from collections.abc import Iterator
from pathlib import Path

from regard.data.readers.files import lines_of, start_of
from regard.data.readers.reader import Skip, text_of
from regard.errors import UserError, counted
from regard.records.contrast import ContrastItem
from regard.text.vocabulary import normalise

COLUMNS = "source TAB right target TAB wrong target, and if you like TAB kind"


def read_contrasts(path: Path, encoding: str | None = None) -> Iterator[ContrastItem]:
    """The contrastive pairs of a TSV file, in order; a bad line is an error.

    Blank lines are skipped, and so is a first line with the names of the columns. encoding: None
    is UTF-8, or what a byte order mark says.
    """
    start = start_of(path, encoding)
    for number, line in enumerate(lines_of(path, encoding=start.encoding), 1):
        if not line.strip():
            continue
        where = f"{path} line {number}"
        cells = _cells(line, where)
        if number == 1 and _is_header(cells):
            continue
        yield _item(cells, where)


def _cells(line: bytes, where: str) -> list[str]:
    """The texts of a line."""
    try:
        text = text_of(line)
    except UnicodeDecodeError:
        raise UserError(f"{where}: not UTF-8; data.encoding=latin-1 may read it") from None
    except Skip as reason:
        raise UserError(f"{where}: {reason}") from None
    return [normalise(cell.strip(" \r")) for cell in text.split("\t")]


def _is_header(cells: list[str]) -> bool:
    """Whether a line names the columns, as `ContrastItem` does."""
    names = [cell.lower() for cell in cells]
    return len(names) >= 3 and names == list(ContrastItem._fields[: len(names)])


def _item(cells: list[str], where: str) -> ContrastItem:
    """The contrastive pair of a line."""
    if not 3 <= len(cells) <= 4:
        raise UserError(f"{where}: {counted(len(cells), 'column')}, expected {COLUMNS}")
    item = ContrastItem(*cells)
    for name in ("source", "right", "wrong"):
        if not getattr(item, name):
            raise UserError(f"{where}: column {name!r} is empty, expected {COLUMNS}")
    if item.right == item.wrong:
        raise UserError(f"{where}: the right and the wrong target are the same")
    return item
