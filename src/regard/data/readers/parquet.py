"""Parquet: a few rows at a time, however much a small file unpacks to."""

import gzip
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

from regard.data.readers import files
from regard.data.readers.files import MAX_LINE, ReadSoFar
from regard.data.readers.keys import Keys, Number, shortened
from regard.data.readers.reader import Layout, Reader, Rows, Skip
from regard.errors import UserError, counted

_BUFFER = 1 << 20  # bytes of a column that are read at a time
_MOST_ROWS = 1_024  # at a time
_MOST_BYTES = 1 << 24  # at a time, by what the file says of itself
_LARGE = 1 << 26  # bytes of a column that are looked at twice
_MOST_UNPACKED = 200  # times what a column takes on disk
_LONGEST_LIST = 1_000  # texts of a row, on average


class _Unreadable:
    """Stands for a value that is no text."""

    def __init__(self, why: str) -> None:
        self.why = why


def parquet_reader(path: Path, layout: Layout) -> Reader:
    """Read the rows of a Parquet file."""
    keys = Keys(layout)
    file = _File(path, keys)

    def rows(position: ReadSoFar | None) -> Rows:
        return enumerate(file.rows(position), 1)

    def parse(values: tuple[Any, Any]) -> list[str]:
        source, target = values
        if isinstance(source, str) and isinstance(target, str):
            return [source, target]
        return keys.texts({keys.source: _text(source), keys.target: _text(target)})

    notes = keys.unused(path.name, file.names)
    holds = "pair" if keys.has_target else "text"
    return Reader((path,), rows, parse, notes, unit="row", holds=holds)


def _text(value: Any) -> Any:
    """What a value says: a text, a list of texts, or something that is none."""
    if isinstance(value, list):
        return [_text(inside) for inside in value]
    if isinstance(value, _Unreadable):
        raise Skip(value.why)
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            raise Skip("bytes that are not UTF-8") from None
    if isinstance(value, float) and value != value:  # how pandas writes an empty cell
        return None
    if isinstance(value, int | float | Decimal) and not isinstance(value, bool):
        return Number(value)
    return value


class _File:
    """A Parquet file, of which two columns are read, or that of the source alone."""

    def __init__(self, path: Path, keys: Keys) -> None:
        self._path = path
        with self._opened() as table:
            schema = table.schema_arrow
            self.names = _names(schema)
            keys.check(str(path), self.names)
            self._source = self._column(schema, keys.source, "data.source")
            self._target: _Column | None = None
            if keys.has_target:
                self._target = self._column(schema, keys.target, "data.target")
            self._columns = [self._source, *filter(None, [self._target])]

    def _column(self, schema: Any, key: str, setting: str) -> "_Column":
        """The column of a key; it must be one that can hold texts."""
        column = _Column(tuple([key] if key in schema.names else key.split(".")))
        if schema.names.count(column.steps[0]) > 1:
            raise UserError(f"{self._path}: two columns are called {shortened(column.steps[0])}")
        kind = schema.field(column.steps[0]).type
        for step in column.steps[1:]:
            kind = kind.field(step).type
        if not _may_be_text(kind):
            raise UserError(
                f"{self._path}: column {shortened(key)} holds {kind!s:.40}, not text; choose "
                f"another with {setting}"
            )
        return column

    def rows(self, position: ReadSoFar | None) -> Iterator[tuple[Any, Any]]:
        """The values of both columns, row by row."""
        done = 0
        paths = [column.path for column in self._columns]
        with self._opened() as table:
            for group in range(table.num_row_groups):
                size = self._rows_at_a_time(table.metadata, group)
                for batch in table.iter_batches(
                    size, row_groups=[group], columns=paths, use_threads=False
                ):
                    if position is not None:
                        position.rows = (done, table.metadata.num_rows)
                    done += batch.num_rows
                    sources = self._source.values(batch)
                    if self._target is None:
                        yield from ((source, None) for source in sources)
                        continue
                    yield from zip(sources, self._target.values(batch), strict=True)

    def _rows_at_a_time(self, metadata: Any, group: int) -> int:
        """How many rows of a row group are read together, so that they fit in memory."""
        rows = max(1, metadata.row_group(group).num_rows)
        largest = 1
        for index in range(metadata.num_columns):
            chunk = metadata.row_group(group).column(index)
            if not any(one.holds(chunk) for one in self._columns):
                continue
            self._check_size(chunk, rows)
            mean = chunk.total_uncompressed_size // rows
            largest = max(largest, mean, self._largest_repeated(chunk, group))
        return max(1, min(_MOST_ROWS, _MOST_BYTES // largest))

    def _check_size(self, chunk: Any, rows: int) -> None:
        """Refuse a column that would fill the memory with what is no text anyway."""
        unpacked = chunk.total_uncompressed_size
        bomb = unpacked > _MOST_UNPACKED * max(1, chunk.total_compressed_size)
        huge = unpacked // rows > MAX_LINE // 10
        if (unpacked > _LARGE and (bomb or huge)) or chunk.num_values // rows > _LONGEST_LIST:
            raise UserError(
                f"{self._path}: {shortened(chunk.path_in_schema)} unpacks to {unpacked:,} bytes "
                f"and {counted(chunk.num_values, 'value')} in {counted(rows, 'row')}; these are no "
                f"sentences"
            )

    def _largest_repeated(self, chunk: Any, group: int) -> int:
        """The bytes of the largest text that is stored once, and may be repeated in every row."""
        if not chunk.has_dictionary_page or chunk.physical_type != "BYTE_ARRAY":
            return 1
        if chunk.total_uncompressed_size * _MOST_ROWS <= _MOST_BYTES:
            return 1
        path = chunk.path_in_schema
        with self._opened(read_dictionary=[path]) as table:
            batch = next(table.iter_batches(1, row_groups=[group], columns=[path]), None)
        array: Any = batch.column(0) if batch is not None else None
        while hasattr(array, "flatten"):  # a struct, which gives a list of arrays, or a list
            inside = array.flatten()
            array = inside[0] if isinstance(inside, list) else inside
        if not hasattr(array, "dictionary"):
            return 1
        return int(_compute().max(_compute().binary_length(array.dictionary)).as_py() or 1)

    @contextmanager
    def _opened(self, **options: Any) -> Iterator[Any]:
        """The file, open; what pyarrow cannot read is an error in one line."""
        try:
            import pyarrow.parquet as pq  # a slow import that few need
            from pyarrow.lib import ArrowException
        except ModuleNotFoundError:
            advice = "pip install 'regard[parquet]'"
            raise UserError(f"{self._path}: reading Parquet needs pyarrow: {advice}") from None

        with files.opened(self._path) as file:
            if isinstance(file, gzip.GzipFile):
                raise UserError(
                    f"{self._path}: Parquet inside gzip; decompress it first: gunzip "
                    f"{self._path.name}"
                )
            try:
                open_table: Any = pq.ParquetFile  # which has no types
                with open_table(file, buffer_size=_BUFFER, **options) as table:
                    yield table
            except (ArrowException, OSError) as error:
                why = ascii(str(error).partition("\n")[0][:120])[1:-1]
                raise UserError(f"{self._path}: not Parquet, or damaged ({why})") from None


@dataclass(frozen=True)
class _Column:
    """A column, or a field of one that is a struct."""

    steps: tuple[str, ...]  # its name, or the names on the way to the field

    @property
    def path(self) -> str:
        """What pyarrow calls it."""
        return ".".join(self.steps)

    def holds(self, chunk: Any) -> bool:
        """Whether a chunk of a file belongs to this column."""
        return f"{chunk.path_in_schema}.".startswith(f"{self.path}.")

    def values(self, batch: Any) -> list[Any]:
        """The value of each row; one that is no text is marked, and the others stay."""
        array = batch.column(self.steps[0])
        for step in self.steps[1:]:
            array = _compute().struct_field(array, [step])
        try:
            return list(array.to_pylist())
        except UnicodeDecodeError:
            return [_python_value(scalar) for scalar in array]


def _compute() -> Any:
    """The functions of Arrow on arrays, which it makes when it is imported."""
    import pyarrow.compute

    return pyarrow.compute


def _python_value(scalar: Any) -> Any:
    try:
        return scalar.as_py()
    except UnicodeDecodeError:
        return _Unreadable("bytes that are not UTF-8")


def _names(schema: Any) -> dict[str, Any]:
    """The columns of a schema, with the fields of those that are structs."""
    names: dict[str, Any] = {}
    for column in schema:
        names[column.name] = None
        if str(column.type).startswith("struct"):
            inside = range(column.type.num_fields)
            names[column.name] = {column.type.field(i).name: None for i in inside}
    return names


def _may_be_text(kind: Any, inside_list: bool = False) -> bool:
    """Whether values of a type are texts, numbers, or lists of such."""
    from pyarrow import types  # type: ignore[attr-defined]

    if types.is_dictionary(kind):
        return _may_be_text(kind.value_type, inside_list)
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return not inside_list and _may_be_text(kind.value_type, inside_list=True)
    texts = (types.is_string, types.is_large_string, types.is_binary, types.is_large_binary)
    numbers = (types.is_integer, types.is_floating, types.is_decimal, types.is_null)
    others = (types.is_fixed_size_binary,)
    return any(is_kind(kind) for is_kind in (*texts, *numbers, *others))
