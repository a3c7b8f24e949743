"""JSON lines, JSON arrays and Parquet: rows whose texts have keys."""

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from regard.data.readers import files
from regard.data.readers.files import ReadSoFar, Start
from regard.data.readers.reader import Layout, Reader, Rows, Skip, text_of
from regard.errors import UserError

LARGEST_ARRAY = 100_000_000  # bytes


def json_reader(path: Path, start: Start, layout: Layout) -> Reader:
    """Read JSON lines, or an array that fills the whole file."""
    if is_document(start):
        return _document_reader(path, start, layout)

    parse = _Keys(layout)
    notes: list[str] = []
    try:
        first = json.loads(start.block.removeprefix(b"\xef\xbb\xbf").split(b"\n")[0])
    except (ValueError, RecursionError):
        first = None  # a first line that is no JSON is only a bad line
    if isinstance(first, dict):
        parse.check(f"{path} line 1", first)
        notes += parse.unused(path.name, first)

    def rows(position: ReadSoFar | None) -> Rows:
        return enumerate(files.lines_of(path, position, start.encoding), 1)

    return Reader((path,), rows, parse.of_line, notes)


def is_json(block: bytes) -> bool:
    """Whether a file of another name begins like JSON lines, or like an array of objects."""
    text = block.removeprefix(b"\xef\xbb\xbf").lstrip()
    if text.startswith(b"["):
        return text[1:].lstrip().startswith(b"{")
    try:
        return isinstance(json.loads(text.split(b"\n")[0]), dict)
    except (ValueError, RecursionError):
        return False


def is_document(start: Start) -> bool:
    """Whether the file is one JSON value, not one a line."""
    text = start.block.removeprefix(b"\xef\xbb\xbf").strip()
    if not text.startswith((b"[", b"{")):
        return False
    first, _, rest = text.partition(b"\n")
    try:
        value = json.loads(first)
    except (ValueError, RecursionError):
        # One line of the array, or of an object that is set over several lines.
        return not rest or first.strip() in (b"[", b"{") or first.startswith((b"[{", b"[ {"))
    if isinstance(value, dict):
        return not rest and start.complete and _only_list(value) is not None
    return not rest


def _document_reader(path: Path, start: Start, layout: Layout) -> Reader:
    """Read an array of objects, or an object with one such array in it."""
    parse = _Keys(layout)
    notes: list[str] = []
    items = _load(path, start.encoding)
    first = items[0] if items else None
    if isinstance(first, dict):
        parse.check(f"{path} item 1", first)
        notes += parse.unused(path.name, first)

    def rows(position: ReadSoFar | None) -> Rows:
        return enumerate(_load(path, start.encoding), 1)

    return Reader((path,), rows, parse.of_item, notes)


def _load(path: Path, encoding: str | None) -> list[Any]:
    """The items of a file that is one JSON value; the whole of it is in memory."""
    lines = f"JSON lines: jq -c '.[]' {path.name} > {Path(files.plain_name(path)).stem}.jsonl"
    with files.recoded(path, None, encoding) as file:
        content = file.read(LARGEST_ARRAY + 1)
    if len(content) > LARGEST_ARRAY:
        raise UserError(f"{path}: a JSON array of more than 100 MB; convert it to {lines}")
    try:
        value = json.loads(content.removeprefix(b"\xef\xbb\xbf"))
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}: neither a JSON array nor one object per line ({error})") from None

    items = value if isinstance(value, list) else _only_list(value)
    if items is None:
        raise UserError(
            f"{path}: one JSON object; give an array of objects, or one object per line, such as "
            f'{{"source": "…", "target": "…"}}'
        )
    return items


def _only_list(value: Any) -> list[Any] | None:
    """The list of objects in an object, if there is just one: {"data": [{…}, …]}."""
    if not isinstance(value, dict):
        return None
    lists = [
        inside
        for inside in value.values()
        if isinstance(inside, list) and inside and isinstance(inside[0], dict)
    ]
    return lists[0] if len(lists) == 1 else None


def parquet_reader(path: Path, layout: Layout) -> Reader:
    """Read the rows of a Parquet file."""
    parse = _Keys(layout)

    def rows(position: ReadSoFar | None) -> Rows:
        return enumerate(_parquet_rows(path, parse), 1)

    return Reader((path,), rows, parse.of_item)


def _parquet_rows(path: Path, keys: "_Keys") -> Iterator[dict[str, Any]]:
    try:
        import pyarrow.parquet as pq  # a slow import that few need
        from pyarrow.lib import ArrowException
    except ModuleNotFoundError:
        advice = "pip install 'regard[parquet]'"
        raise UserError(f"{path}: reading Parquet needs pyarrow: {advice}") from None

    try:
        with pq.ParquetFile(path) as table:  # type: ignore[no-untyped-call]
            names = table.schema_arrow.names
            keys.check(str(path), _parquet_keys(table.schema_arrow))
            columns = [_column(key, names) for key in (keys.source, keys.target)]
            for batch in table.iter_batches(4_096, columns=columns, use_threads=False):
                yield from batch.to_pylist()
    except (ArrowException, OSError) as error:
        raise UserError(
            f"{path}: not Parquet, or damaged ({str(error).splitlines()[0]})"
        ) from error


def _parquet_keys(schema: Any) -> dict[str, Any]:
    """The columns of a schema, with the fields of those that are structs."""
    keys: dict[str, Any] = {}
    for column in schema:
        inside = range(getattr(column.type, "num_fields", 0))
        keys[column.name] = None
        if str(column.type).startswith("struct"):
            keys[column.name] = {column.type.field(i).name: None for i in inside}
    return keys


def _column(key: str, names: Iterable[str]) -> str:
    """The column that holds a key, which may be nested."""
    return key if key in names else key.split(".")[0]


class _Keys:
    """Finds the two texts of an item by their keys; "translation.en" is a key inside another."""

    def __init__(self, layout: Layout) -> None:
        self.source = layout.source or "source"
        self.target = layout.target or "target"
        self._named = layout.source is not None or layout.target is not None

    def check(self, where: str, item: Mapping[str, Any]) -> None:
        """Refuse keys that the first item lacks: they are the caller's mistake."""
        names = [*_names(item)]
        if all(_has(item, key) for key in (self.source, self.target)):
            return
        listed = ", ".join(map(repr, names)) or "nothing"
        texts = [name for name in names if isinstance(_get(item, name), str | None)]
        advice = "set data.source and data.target"
        if len(texts) == 2:
            advice = f"try data.source={texts[0]} data.target={texts[1]}"
        raise UserError(
            f"{where}: no {self.source!r} and {self.target!r}; it has {listed} ({advice})"
        )

    def unused(self, file: str, item: Mapping[str, Any]) -> list[str]:
        """A line that names the keys which are not read, if there are any."""
        names = [name for name in _names(item) if name not in (self.source, self.target)]
        if not names:
            return []
        more = ", …" if len(names) > 5 else ""
        return [f"{file}: not used: {', '.join(names[:5])}{more}"]

    def of_line(self, line: bytes) -> list[str]:
        """The texts of a line of JSON."""
        try:
            item = json.loads(text_of(line).strip() or "{}")
        except (json.JSONDecodeError, RecursionError):
            raise Skip("bad JSON") from None
        return self.of_item(item)

    def of_item(self, item: Any) -> list[str]:
        """The texts of an object: source first, then one target or several."""
        if isinstance(item, list) and len(item) >= 2 and not self._named:
            item = {self.source: item[0], self.target: item[1]}  # ["a source", "its target"]
        if not isinstance(item, dict):
            raise Skip("bad JSON")
        targets = _get(item, self.target)
        if not isinstance(targets, list):
            targets = [targets]
        texts = [text or "" for text in (_get(item, self.source), *targets)]
        if not all(isinstance(text, str) for text in texts):
            raise Skip("not two texts")
        "".join(texts).encode()  # a lone surrogate, which JSON can spell, is no UTF-8
        return texts


def _get(item: Mapping[str, Any], key: str) -> Any:
    """The value of a key; of "a.b" that of b in a, if there is no such key itself."""
    if key in item or "." not in key:
        return item.get(key)
    value: Any = item
    for step in key.split("."):
        if not isinstance(value, Mapping):
            return None
        value = value.get(step)
    return value


def _has(item: Mapping[str, Any], key: str) -> bool:
    if key in item:
        return True
    value: Any = item
    for step in key.split("."):
        if not isinstance(value, Mapping) or step not in value:
            return False
        value = value[step]
    return True


def _names(item: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """The keys of an item, those of objects inside it too."""
    for name, value in item.items():
        if isinstance(value, Mapping) and value:
            yield from _names(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}"
