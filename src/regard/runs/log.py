"""The entries of log.jsonl, which anything may have happened to: a crash, a full disk, a hand."""

import re
from collections.abc import Collection, Iterator
from contextlib import suppress
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO

from regard.errors import UserError
from regard.files.reading import open_regular, parse_json

ENTRIES = 100_000
"""Of a longer log, at least so many entries are kept, evenly taken: some 1,500 bytes each."""
LINE = 1 << 16  # bytes of a line; training writes some 300
BLOCK = 1 << 16  # bytes of the lines that are parsed together
VALUES = 10_000  # of a line
SCORED = ("train", "dev", "average")
"""Kinds of entries that have a step, a loss and nothing but numbers."""

Entry = dict[str, Any]


def read_lines(path: Path, kinds: Collection[str] = ()) -> Iterator[tuple[bytes, Entry | None]]:
    """Every line of a log with its entry; None: it is no entry. A file that is not there has none.

    A few hundred lines are held at a time, and of a line that is too long only a part. kinds: only
    lines in which one of these words occurs, which is much faster; none: all lines.
    """
    words = re.compile("|".join(map(re.escape, kinds)).encode())  # without kinds: any line
    try:
        with open_regular(path) as file:
            for block in _blocks(file):
                if words.search(block):
                    lines = [line for line in BytesIO(block) if words.search(line)]
                    yield from zip(lines, _entries(lines), strict=True)
    except FileNotFoundError:
        return
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}; move it away to go on without it") from error


def _blocks(file: BinaryIO) -> Iterator[bytes]:
    """Some whole lines at a time; of a line that is too long, its beginning."""
    while block := file.read(BLOCK):
        rest = file.readline(LINE)
        yield block + rest
        while rest and not rest.endswith(b"\n"):
            rest = file.readline(LINE)


def read_entries(path: Path, kinds: Collection[str] = ()) -> Iterator[Entry]:
    """Every entry of a log, or every one of these kinds."""
    for _, entry in read_lines(path, kinds):
        if entry is not None and (not kinds or entry["kind"] in kinds):
            yield entry


def some_entries(path: Path, kinds: Collection[str] = ()) -> list[Entry]:
    """The entries of a log, or those of these kinds; of very many, every second, every fourth …"""
    entries: list[Entry] = []
    distance = 1
    for number, entry in enumerate(read_entries(path, kinds)):
        if number % distance == 0:
            entries.append(entry)
        if len(entries) == 2 * ENTRIES:
            entries = entries[::2]
            distance *= 2
    return entries


def _entries(lines: list[bytes]) -> list[Entry | None]:
    """The entry that each line holds; None: it was cut short, changed, or is not ours.

    Lines that are flat objects, as all that training writes, are parsed together, which takes a
    third of the time. With one brace a line, no object can begin in one line and end in another.
    """
    together = b",".join(lines)
    are_flat = (
        all(line.startswith(b"{") for line in lines)
        and together.count(b"{") == len(lines)
        and max(map(len, lines), default=0) <= VALUES
    )
    if are_flat:
        with suppress(ValueError):
            parsed = parse_json(b"[%b]" % together, len(together))
            if len(parsed) == len(lines) and all(isinstance(entry, dict) for entry in parsed):
                return [_checked(entry) for entry in parsed]
    return [_entry(line) for line in lines]


def _entry(line: bytes) -> Entry | None:
    """The entry that one line holds; None: it was cut short, changed, or is not ours."""
    try:
        return _checked(parse_json(line, VALUES))
    except ValueError:
        return None


def _checked(entry: Any) -> Entry | None:
    """This entry if it is one of ours, else None."""
    if not isinstance(entry, dict) or not isinstance(entry.get("kind"), str):
        return None

    step = entry.get("step", 0)
    if type(step) is not int or not 0 <= step < 1 << 53:
        return None
    if entry["kind"] not in SCORED:
        return entry
    numbers = [value for name, value in entry.items() if name != "kind"]
    is_complete = "step" in entry and "loss" in entry and all(map(_is_number, numbers))
    return entry if is_complete else None


def _is_number(value: Any) -> bool:
    return type(value) is float or (type(value) is int and abs(value) < 1 << 53)
