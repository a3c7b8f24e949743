"""Files to pairs, one line at a time: TSV, CSV, JSON, Parquet, TMX or two aligned files; or texts.

Any text may be packed by gzip. A line that gives no pair is skipped and counted; a file that
cannot be what it should be is a UserError.
"""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from regard.data.pairs import Pair, Skipped
from regard.data.readers.aligned import aligned_files, aligned_reader
from regard.data.readers.files import ReadSoFar, Start, plain_name, start_of
from regard.data.readers.json_items import is_json, json_reader
from regard.data.readers.parquet import parquet_reader
from regard.data.readers.reader import Layout, Reader
from regard.data.readers.table import table_reader
from regard.data.readers.texts import folder_reader, is_text_file, text_files, text_reader
from regard.data.readers.tmx import is_tmx, tmx_reader
from regard.errors import UserError

_JSON = (".jsonl", ".ndjson", ".json")
_PARQUET = (".parquet", ".pq")
_TABLES = (".tsv", ".csv")
PAIRED_SUFFIXES = (*_TABLES, ".tmx", *_JSON, *_PARQUET)
"""How files of pairs are called; other files may have one text a line."""
SUFFIXES = (".txt", *PAIRED_SUFFIXES)


def read(
    path: Path,
    *,
    source: str | None = None,
    target: str | None = None,
    skipped: Skipped,
    position: ReadSoFar | None = None,
) -> Iterator[Pair]:
    """The pairs of a file, in order and in constant memory."""
    return find_reader(path, Layout(source, target)).pairs(skipped, position)


def find_reader(path: Path, layout: Layout, target_file: Path | None = None) -> Reader:
    """Recognise a file, and say how to read it.

    The texts are NFC, without outer white space, otherwise as they stand. `layout.source` and
    `layout.target` name columns (or number them), keys, languages of TMX, or the endings of two
    aligned files, for which `path` is either file or what their names have in common: "train" for
    train.en and train.de. `target_file`: another file, with the target of each line of `path`.
    """
    reader = _recognised(path, layout, target_file)
    if layout.documents != "no":
        reader = replace(reader, needs_target=False)
    if layout.positions is not None and reader.positions is None:
        raise UserError(
            f"{path}: data.positions={layout.positions} is a column of a TSV or CSV file, or a key "
            f"of JSON; this file has neither"
        )
    if layout.features is not None and reader.features is None:
        raise UserError(
            f"{path}: data.features={layout.features} is a column of a TSV or CSV file, or a key "
            f"of JSON; this file has neither: leave it out, or write source, target and tags as TSV"
        )
    return reader


def _recognised(path: Path, layout: Layout, target_file: Path | None) -> Reader:
    """The reader of a file, by what it holds."""
    if target_file is not None:
        return aligned_reader(path, target_file, layout)
    if layout.documents != "no":
        reader = _texts(path, layout)
        if reader is not None:
            return reader
    if layout.source and layout.target:
        both = aligned_files(path, layout.source, layout.target)
        if both is not None:
            return aligned_reader(*both, layout)

    start = start_of(path, layout.encoding)
    suffix = Path(plain_name(path)).suffix.lower()
    if suffix in _PARQUET or start.block.startswith(b"PAR1"):
        return parquet_reader(path, layout)
    if suffix == ".tmx" or is_tmx(start.block):
        return tmx_reader(path, layout)
    if suffix in _JSON or (suffix not in _TABLES and is_json(start)):
        return json_reader(path, start, layout)
    return table_reader(path, start, layout)


def _texts(path: Path, layout: Layout) -> Reader | None:
    """The reader of a file or folder of texts; None: it has pairs, of which the sources are read.

    data.documents=line or paragraph reads any file as texts.
    """
    if path.is_dir():
        return folder_reader(path, text_files(path), layout)
    if layout.documents in ("line", "paragraph"):
        return text_reader(path, layout)
    if layout.documents == "source" or not is_text_file(path):
        return None
    if _is_table(start_of(path, layout.encoding)):
        return None
    return text_reader(path, layout)


def _is_table(start: Start) -> bool:
    """Whether a file without a telling name has JSON, or two columns, separated by tabs."""
    lines = [line for line in start.lines() if line.strip()]
    return is_json(start) or (bool(lines) and all(b"\t" in line for line in lines))


def is_table(path: Path, encoding: str | None = None) -> bool:
    """Whether a file has columns or keys, by its name or what it holds; of a folder, any file."""
    try:
        names = path.iterdir() if path.is_dir() else [path]
        if any(plain_name(file).lower().endswith(PAIRED_SUFFIXES) for file in names):
            return True
        if path.is_dir():
            return False
        start = start_of(path, encoding)
    except (OSError, UserError):  # which is told when it is read
        return False
    return _is_table(start) or start.block.startswith(b"PAR1") or is_tmx(start.block)


def fitting_layout(path: Path, layout: Layout) -> Layout:
    """The layout of a file beside the one that `layout` was made for.

    Where a table has no columns of these names, its first two are read: a TSV can judge what was
    trained on two files.
    """
    suffix = Path(plain_name(path)).suffix.lower()
    if suffix not in _TABLES or (layout.source is None and layout.target is None):
        return layout
    try:
        find_reader(path, layout)
    except UserError:
        return replace(layout, source=None, target=None)
    return layout
