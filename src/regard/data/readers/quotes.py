"""Whether the quotes in a TSV are a program's, to be taken off, or belong to the text."""

import csv
import re
from collections.abc import Callable

_NUMBER = re.compile(r"[-+]?\d+([.,]\d+)*|")


def is_quoted(text: str, *, complete: bool) -> bool:
    """Whether a program wrote these lines with quotes around cells.

    Only if they come out the same, letter for letter, when they are read as such a program's and
    written again by its rule. So a sentence in quotes stays as it is.
    """
    if '"' not in text:
        return False
    lines = [line.removesuffix("\r") for line in text.rstrip("\r\n").split("\n")]
    try:
        rows = list(csv.reader([f"{line}\n" for line in lines], delimiter="\t"))
    except csv.Error:
        return False
    if not complete:
        rows.pop()  # it may be cut
    if not _as_wide(rows):
        return False
    return any(_written_by(rule, rows, lines) for rule in (_all, _texts, _needed, _excel))


def _as_wide(rows: list[list[str]]) -> bool:
    """Whether rows with tabs or line breaks inside quotes are as wide as the others.

    Two lines with a lone quote each would be taken for one row.
    """
    broken = []
    widths = set()
    for row in rows:
        inside = [cell for cell in row if "\t" in cell or "\n" in cell]
        if any(cell != cell.strip() for cell in inside):
            return False
        if inside:
            broken.append(row)
        elif row:
            widths.add(len(row))
    return not broken or (min(widths, default=0) >= 2 and {*map(len, broken)} <= widths)


def _written_by(rule: Callable[[str], bool], rows: list[list[str]], lines: list[str]) -> bool:
    """Whether a rule, which tells what cells are quoted, makes these lines of the rows."""
    quoted = [cell for row in rows for cell in row if rule(cell)]
    special = [cell for cell in quoted if _needed(cell)]
    few = 1 if special else 3
    if len(quoted) < few:
        return False
    written = "\n".join(
        "\t".join(_quoted(cell) if rule(cell) else cell for cell in row) for row in rows
    )
    expected = written.split("\n")
    return expected == lines[: len(expected)]


def _quoted(cell: str) -> str:
    return '"' + cell.replace('"', '""') + '"'


def _all(cell: str) -> bool:
    """Every cell is quoted."""
    return True


def _texts(cell: str) -> bool:
    """Every cell is quoted that is not a number."""
    return _NUMBER.fullmatch(cell) is None


def _needed(cell: str) -> bool:
    """Cells are quoted that would be read wrong without: pandas."""
    return '"' in cell or "\t" in cell or "\n" in cell


def _excel(cell: str) -> bool:
    """Cells with a comma are quoted too, though a tab separates them: Excel."""
    return _needed(cell) or "," in cell
