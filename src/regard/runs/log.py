"""The entries of log.jsonl, which anything may have happened to: a crash, a full disk, a hand."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from regard.errors import UserError
from regard.files.reading import open_regular, parse_json

ENTRIES = 100_000
"""Of a longer log, at least so many entries are kept, evenly taken: some 1,500 bytes each."""
LINE = 1 << 16  # bytes of a line; training writes some 300
VALUES = 10_000  # of a line
SCORED = ("train", "dev", "average")
"""Kinds of entries that have a step, a loss and nothing but numbers."""

Entry = dict[str, Any]


def read_lines(path: Path) -> Iterator[tuple[bytes, Entry | None]]:
    """Every line of a log with its entry; None: it is no entry. A file that is not there has none.

    One line is held at a time, and of a line that is too long only a part.
    """
    try:
        with open_regular(path) as file:
            while line := file.readline(LINE):
                is_whole = line.endswith(b"\n")
                yield line, _entry(line)
                while not is_whole and (line := file.readline(LINE)):
                    is_whole = line.endswith(b"\n")
    except FileNotFoundError:
        return
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}; move it away to go on without it") from error


def read_entries(path: Path) -> Iterator[Entry]:
    """Every entry of a log."""
    for _, entry in read_lines(path):
        if entry is not None:
            yield entry


def some_entries(path: Path) -> list[Entry]:
    """The entries of a log; of a very long one, every second, every fourth …"""
    entries: list[Entry] = []
    distance = 1
    for number, entry in enumerate(read_entries(path)):
        if number % distance == 0:
            entries.append(entry)
        if len(entries) == 2 * ENTRIES:
            entries = entries[::2]
            distance *= 2
    return entries


def _entry(line: bytes) -> Entry | None:
    """The entry that a line holds; None: it was cut short, changed, or is not ours."""
    try:
        entry = parse_json(line, VALUES)
    except ValueError:
        return None
    if not isinstance(entry, dict) or not isinstance(entry.get("kind"), str):
        return None

    step = entry.get("step", 0)
    if type(step) is not int or not 0 <= step < 1 << 53:
        return None
    if entry["kind"] not in SCORED:
        return entry
    numbers = [value for name, value in entry.items() if name != "kind"]
    are_numbers = all(type(value) in (int, float) for value in numbers)
    return entry if are_numbers and "step" in entry and "loss" in entry else None
