"""The entries of log.jsonl, which anything may have happened to: a crash, a full disk, a hand."""

from collections.abc import Collection, Iterator
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


def read_lines(path: Path, kinds: Collection[str] = ()) -> Iterator[tuple[bytes, Entry | None]]:
    """Every line of a log with its entry; None: it is no entry. A file that is not there has none.

    One line is held at a time, and of a line that is too long only a part. kinds: only lines in
    which one of these words occurs, which is much faster; none: all lines.
    """
    words = [kind.encode() for kind in kinds] or [b""]
    try:
        with open_regular(path) as file:
            while line := file.readline(LINE):
                is_whole = line.endswith(b"\n")
                if any(word in line for word in words):
                    yield line, _entry(line)
                while not is_whole and (line := file.readline(LINE)):
                    is_whole = line.endswith(b"\n")
    except FileNotFoundError:
        return
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}; move it away to go on without it") from error


def read_entries(path: Path, kinds: Collection[str] = ()) -> Iterator[Entry]:
    """Every entry of a log, or every one of these kinds."""
    for _, entry in read_lines(path, kinds):
        if entry is not None and (not kinds or entry["kind"] in kinds):
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
    is_complete = "step" in entry and "loss" in entry and all(map(_is_number, numbers))
    return entry if is_complete else None


def _is_number(value: Any) -> bool:
    return type(value) is float or (type(value) is int and abs(value) < 1 << 53)
