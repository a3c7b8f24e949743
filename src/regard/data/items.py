"""Pairs given from Python: tuples, dicts, a data frame, a Hugging Face dataset, or named splits.

None of these libraries is imported: a frame is told by its `columns` and its way to give rows.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, islice
from typing import Any

from regard.data.pairs import Pair, Skipped, read_features, read_positions
from regard.errors import UserError, counted
from regard.text.tags import tagged
from regard.text.vocabulary import normalise

Items = Iterable[Any]
"""Pairs in any of these forms:

- (source, target) or (source, [targets]), from a list or a generator
- dicts, their texts found by name: {"source": …, "target": …}
- a pandas or Polars frame, an Arrow table, a Hugging Face Dataset, or a dict of columns
"""

TEXT = "text"
"""The column of the texts for a language model, unless another one is named."""
A_PAIR = "a pair is (source, target), (source, [targets]) or a dict"
SPLITS = {"train": "train", "dev": "dev", "val": "dev", "validation": "dev", "test": "test"}
"""What the splits of a dict such as a DatasetDict may be called, and what we call them."""


def named_splits(data: Items) -> dict[str, Items] | None:
    """The splits of a dict such as {"train": pairs, "test": pairs}; None: `data` is no such dict.

    Such is Hugging Face's DatasetDict. Beside "train", splits of other names are left out.
    """
    if not isinstance(data, Mapping) or not data:
        return None
    if "train" not in data and not set(data) <= set(SPLITS):
        return None
    return {SPLITS[name]: items for name, items in data.items() if name in SPLITS}


@dataclass
class Table:
    """Pairs from Python, ready to read; `source` and `target` name the columns, if they have any.

    `rows` gives pairs as the caller wrote them, or dicts.
    """

    rows: Callable[[], Iterable[Any]]
    size: int | None = None  # rows; None: not known before they are read
    source: str = ""
    target: str = ""
    positions: str = ""
    features: str = ""
    notes: list[str] = field(default_factory=list)
    name: str = "pairs"
    text: Callable[[Any], Any] | None = None
    """For a language model: the text of a row. None: rows are pairs."""

    def pairs(self, skipped: Skipped) -> Iterator[Pair]:
        """The pairs, cleaned like those of a file and numbered from 1.

        A pair with an empty side is skipped and counted. That no pair is left is an error.
        """
        pair = None
        for line, row in enumerate(self.rows(), 1):
            if self.text is not None and not isinstance(row, Pair):
                text = _text(self.text(row), f"item {line} of the {self.name}")
                if not text:
                    skipped.add(self.name, line, "empty text")
                    continue
                pair = Pair(text, ("",), line)
                yield pair
                continue
            source, targets = self._texts(row, line)
            if not source or not targets:
                skipped.add(self.name, line, "empty target" if source else "empty source")
                continue
            if self.features and not isinstance(row, Pair):
                cell = _value(row, self.features)
                source = tagged(source, read_features(cell, f"item {line} of the {self.name}"))
            pair = Pair(source, targets, line, self._positions(row, line))
            yield pair
        if pair is None:
            why = "; ".join(skipped.lines()) or "there are no items"
            raise UserError(f"{self.name}: no usable pairs: {why}")

    def _positions(self, row: Any, line: int) -> tuple[int, ...]:
        """Where the words of a row's source stand, if they do not stand one after the other."""
        if isinstance(row, Pair):
            return row.positions
        if not self.positions:
            return ()
        return read_positions(_value(row, self.positions), f"item {line} of the {self.name}")

    def _texts(self, row: Any, line: int) -> tuple[str, tuple[str, ...]]:
        """The source of a row, and the targets that are not empty."""
        where = f"item {line} of the {self.name}"
        if self.source:
            source, target = self._by_name(row, where)
        else:
            source, target = _two_values(row, where)

        several = isinstance(target, list | tuple)
        answers = target if several else [target]
        texts = [_text(answer, f"{where}: the target") for answer in answers]
        return _text(source, f"{where}: the source"), tuple(text for text in texts if text)

    def _by_name(self, row: Any, where: str) -> tuple[Any, Any]:
        if not isinstance(row, Mapping):
            raise UserError(f"{where} is not a dict, unlike the first one: {row!r:.40}")
        return _value(row, self.source), _value(row, self.target)


def open_items(
    data: Items,
    source: str = "",
    target: str = "",
    positions: str = "",
    features: str = "",
    *,
    name: str = "pairs",
    strict: bool = True,
    has_texts: bool = False,
) -> Table:
    """Find out what `data` is, and which of its columns are source and target.

    `source` and `target` name columns, or keys of dicts; `translation.en` is a key inside another.
    `positions` names one with the positions of the words of the source, `features` one with its
    tags. Not strict: names of texts that the data lacks are as good as none. Of an iterator, which
    can be read only once, the caller may read the rows only once. has_texts: for a language model;
    then rows may be texts, or dicts with a text.
    """
    table = Table(*_rows(data), name=name)
    first, table.rows = _first(table.rows, data)
    if has_texts:
        table.text = _text_of_row(first, source)
        if table.text is not None:
            return table
    if not isinstance(first, Mapping):
        if positions:
            raise UserError(
                f"data.positions={positions}: the {name} have no columns; pass dicts, such as "
                f"{{'source': 'a b', 'target': 'c', {positions!r}: [0, 1]}}"
            )
        if features:
            raise UserError(
                f"data.features={features}: the {name} have no columns; pass dicts, such as "
                f"{{'source': 'kedi', 'target': 'kediye', {features!r}: 'N;DAT;SG'}}"
            )
        return table

    names = _names(first)
    if features and features not in names:
        listed = ", ".join(map(repr, names))
        raise UserError(f"{name}: no {features!r} (data.features), only {listed}")
    if features and features in (source, target, positions):
        raise UserError(f"{name}: data.features is a column that is read as something else already")
    table.features = features
    names = [one for one in names if one != features]
    if positions and positions not in names:
        listed = ", ".join(map(repr, names))
        raise UserError(f"{name}: no {positions!r} (data.positions), only {listed}")
    table.positions = positions
    names = [one for one in names if one != positions]
    if not strict and not {source, target} <= {*names}:
        source = target = ""
    if source or target:
        table.source = source or "source"
        table.target = target or "target"
        _need(name, names, table.source, table.target)
    else:
        table.source, table.target = _guess(name, names)
        table.notes = _guess_notes(name, names, table.source, table.target)
    return table


def _text_of_row(first: Any, column: str) -> Callable[[Any], Any] | None:
    """How to find the text in rows like the first one; None: they are pairs."""
    if isinstance(first, str):
        return lambda row: row
    if not isinstance(first, Mapping):
        return None
    names = _names(first)
    alone = names[0] if len(names) == 1 else TEXT
    name = column if column in names else alone
    if name not in names or {"source", "target"} <= set(names):
        return None
    return partial(_value, name=name)


def _rows(data: Any) -> tuple[Callable[[], Iterable[Any]], int | None]:
    """A way to read the rows of any data, and how many there are, if that is known."""
    size = len(data) if isinstance(data, Sized) else None
    if hasattr(data, "columns") and hasattr(data, "itertuples"):  # pandas
        names = [str(column) for column in data.columns]
        tuples = data.itertuples
        return lambda: (dict(zip(names, row)) for row in tuples(index=False, name=None)), size
    if hasattr(data, "columns") and hasattr(data, "iter_rows"):  # Polars
        return lambda: data.iter_rows(named=True), size
    if hasattr(data, "column_names") and hasattr(data, "to_pylist"):  # Arrow
        return data.to_pylist, data.num_rows
    if isinstance(data, Mapping):
        return _columns(data)
    if isinstance(data, bytes) or not _is_iterable(data):
        raise UserError(
            f"data is {data!r:.40} ({type(data).__name__}): pass the name of a task, file or "
            f"folder, or pairs; {A_PAIR}"
        )
    return lambda: data, size


def _columns(data: Mapping[str, Any]) -> tuple[Callable[[], Iterable[Any]], int]:
    """The rows of a dict of columns."""
    if not data or not all(map(_is_list, data.values())):
        raise UserError(
            "data is a dict: pass a list of dicts, a dict of columns such as "
            "{'source': […], 'target': […]}, or, for texts and their answers, list(data.items())"
        )
    sizes = {name: len(column) for name, column in data.items()}
    if len(set(sizes.values())) > 1:
        listed = ", ".join(f"{name!r} has {size:,}" for name, size in sizes.items())
        raise UserError(f"data is a dict of columns of different lengths: {listed}")
    return lambda: (dict(zip(data, row)) for row in zip(*data.values())), min(sizes.values())


def _is_list(column: Any) -> bool:
    return isinstance(column, Sized) and _is_iterable(column) and not isinstance(column, str)


def _is_iterable(data: Any) -> bool:
    try:
        iter(data)
    except TypeError:
        return False
    return True


def _first(rows: Callable[[], Iterable[Any]], data: Any) -> tuple[Any, Callable[[], Iterable[Any]]]:
    """The first row, and a way to read all of them, it included; None: there is no row."""
    stream = iter(rows())
    head = list(islice(stream, 1))
    if stream is data:  # an iterator: what was taken from it is put before the rest
        everything = chain(head, stream)
        rows = partial(iter, everything)
    return (head[0] if head else None), rows


def _names(row: Mapping[str, Any]) -> list[str]:
    """The names of a dict's values; those of a dict inside it follow its own name and a dot."""
    names: list[str] = []
    for name, value in row.items():
        if isinstance(value, Mapping):
            names += [f"{name}.{inner}" for inner in _names(value)]
        else:
            names.append(str(name))
    return names


def _guess(name: str, names: list[str]) -> tuple[str, str]:
    """Source and target where nobody named them: by these names, or the only two there are.

    Of {"id": …, "translation": {"en": …, "fr": …}}, as Hugging Face has it, the two inner ones.
    """
    if {"source", "target"} <= {*names}:
        return "source", "target"
    inner = [one for one in names if "." in one]
    for candidates in (names, inner):
        if len(candidates) == 2:
            return candidates[0], candidates[1]
    _need(name, names, "source", "target")
    raise AssertionError("two names that are missing were just refused")


def _guess_notes(name: str, names: list[str], source: str, target: str) -> list[str]:
    """What the caller should know of a guess: which columns are used, and which are not."""
    notes = []
    if (source, target) != ("source", "target"):
        notes.append(
            f"{name}: using {source!r} as source and {target!r} as target (to choose others: "
            f"data={{'source': …, 'target': …}})"
        )
    unused = [repr(one) for one in names if one not in (source, target)]
    if unused:
        notes.append(f"{name}: ignoring {', '.join(unused)}")
    return notes


def _need(name: str, names: list[str], source: str, target: str) -> None:
    """Refuse data that lacks one of the two names."""
    missing = [repr(one) for one in (source, target) if one not in names]
    if missing:
        listed = ", ".join(map(repr, names)) or "nothing"
        example = dict(zip(("source", "target"), names)) or "…"
        raise UserError(
            f"{name}: no {' or '.join(missing)}, only {listed}; choose two, such as data={example}"
        )


def _value(row: Mapping[str, Any], name: str) -> Any:
    """The value of that name; None if it is missing."""
    if name in row:
        return row[name]
    outer, dot, inner = name.partition(".")
    below = row.get(outer)
    if dot and isinstance(below, Mapping):
        return _value(below, inner)
    # A column of a frame may be called 0 or 1, without quotes.
    return next((value for key, value in row.items() if str(key) == name), None)


def _two_values(row: Any, where: str) -> tuple[Any, Any]:
    """The source and target of a row that is no dict."""
    if isinstance(row, Pair):
        return row.source, row.targets
    if isinstance(row, str):
        raise UserError(
            f"{where} is {row!r:.40}: {A_PAIR}; to train a language model on texts, add "
            f"train={{'objective': 'causal'}}"
        )
    if isinstance(row, bytes | set | frozenset | Mapping) or not hasattr(row, "__iter__"):
        raise UserError(f"{where} is {row!r:.40}: {A_PAIR}")
    values = list(row)
    if len(values) != 2:
        two_lists = "; pass two lists as zip(sources, targets)" if len(values) > 3 else ""
        raise UserError(f"{where} has {counted(len(values), 'value')}: {A_PAIR}{two_lists}")
    return values[0], values[1]


def _text(value: Any, where: str) -> str:
    """A text as training sees it; empty for what is missing."""
    if isinstance(value, str):
        return normalise(value.strip(" \t\r\n"))
    if _is_missing(value):
        return ""
    kind = type(value).__name__
    raise UserError(f"{where} is {value!r:.40} ({kind}), not text: convert it with str()")


def _is_missing(value: Any) -> bool:
    """Whether it is None, or not a number, which is how pandas writes an empty cell."""
    if value is None or type(value).__name__ in ("NAType", "NaTType"):
        return True
    return isinstance(value, float) and value != value
