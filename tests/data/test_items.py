"""Pairs given from Python. pandas and datasets are not installed: small stand-ins play them."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.data.held_out import read_held_out, write_held_out
from regard.data.kept import Kept
from regard.data.pairs import Pair, Skipped
from regard.data.splits import from_iterable
from regard.errors import UserError

PAIRS = [(f"text {i}", f"texte {i}") for i in range(30)]


class Frame:
    """Looks like a pandas frame; looping over it gives the names of its columns."""

    def __init__(self, columns: list[Any], rows: list[tuple[Any, ...]]) -> None:
        self.columns = columns
        self._rows = rows

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.columns)

    def itertuples(self, index: bool = True, name: str | None = "Pandas") -> Iterator[Any]:
        for i, row in enumerate(self._rows):
            yield (i, *row) if index else tuple(row)


class PolarsFrame:
    """Looks like a Polars frame."""

    columns = ("source", "target")

    def __iter__(self) -> Iterator[Any]:
        raise AssertionError("gives columns, not rows")

    def iter_rows(self, *, named: bool) -> Iterator[Any]:
        assert named
        return ({"source": source, "target": target} for source, target in PAIRS)


class ArrowTable:
    """Looks like an Arrow table: no __iter__, and its length is that of `num_rows`."""

    column_names = ("source", "target")
    num_rows = len(PAIRS)

    def __getitem__(self, column: int) -> Any:
        return [pair[column] for pair in PAIRS]

    def to_pylist(self) -> list[dict[str, str]]:
        return [{"source": source, "target": target} for source, target in PAIRS]


class Dataset:
    """Looks like a Hugging Face Dataset of translations."""

    column_names = ("id", "translation")

    def __len__(self) -> int:
        return len(PAIRS)

    def __iter__(self) -> Iterator[Any]:
        for i, (source, target) in enumerate(PAIRS):
            yield {"id": i, "translation": {"en": source, "fr": target}}


class TorchDataset:
    """Looks like a torch Dataset: items by number, and no __iter__."""

    def __getitem__(self, i: int) -> Any:
        return PAIRS[i]


def dicts(source: str, target: str) -> list[dict[str, str]]:
    return [{source: first, target: second} for first, second in PAIRS]


def read(data: Any, **names: str) -> list[tuple[str, str]]:
    """The pairs as they are trained on."""
    splits = from_iterable(data, dev=0, test=0, **names)
    return [(pair.source, *pair.targets) for pair in splits.train]  # type: ignore[misc]


@pytest.mark.parametrize(
    "data",
    [
        PAIRS,
        tuple(PAIRS),
        [list(pair) for pair in PAIRS],
        [Pair(source, (target,), 9) for source, target in PAIRS],
        dict(PAIRS).items(),
        TorchDataset(),
        dicts("source", "target"),
        dicts("en", "fr"),
        Frame(["source", "target"], PAIRS),
        Frame(["english", "french"], PAIRS),
        Frame([0, 1], PAIRS),
        Frame(["id", "target", "source"], [(7, target, source) for source, target in PAIRS]),
        PolarsFrame(),
        ArrowTable(),
        Dataset(),
        {"source": [source for source, _ in PAIRS], "target": [target for _, target in PAIRS]},
    ],
    ids=lambda data: type(data).__name__,
)
def test_every_form_gives_the_same_pairs(data: Any) -> None:
    assert read(data) == PAIRS


def test_columns_go_by_name() -> None:
    swapped = [(target, source) for source, target in PAIRS]
    rows = [(source, 1, target) for source, target in PAIRS]
    assert read(dicts("en", "fr"), source="fr", target="en") == swapped
    assert read(Frame(["en", "n", "fr"], rows), source="fr", target="en") == swapped
    assert read(Frame([5, 6, 7], rows), source="7", target="5") == swapped
    assert read(Dataset(), source="translation.fr", target="translation.en") == swapped


def test_generators_are_read_once_and_kept(tmp_path: Path) -> None:
    assert read(pair for pair in PAIRS) == PAIRS
    assert read(item for item in dicts("source", "target")) == PAIRS
    keep = partial(Kept, folder=tmp_path)
    splits = from_iterable(iter(dicts("en", "fr")), dev=3, test=3, keep=keep)
    lines = [pair.line for part in (splits.train, splits.dev, splits.test) for pair in part or ()]
    assert sorted(lines) == list(range(1, 31))


def test_a_dict_of_several_targets() -> None:
    (pair,) = from_iterable([{"source": "hi", "target": ["salut", "", "bonjour "]}]).train
    assert pair.targets == ("salut", "bonjour")


def test_a_dict_of_splits_has_its_own_dev_and_test() -> None:
    data = {"train": dicts("source", "target"), "validation": PAIRS[:3], "test": PAIRS[3:9]}
    splits = from_iterable(data)
    counts = [stream.count() for stream in (splits.train, splits.dev, splits.test) if stream]
    assert counts == [30, 3, 6]
    assert from_iterable({**data, "unlabelled": []}).notes == ["pairs: ignoring 'unlabelled'"]
    with pytest.raises(UserError, match="without 'train': test"):
        from_iterable({"test": PAIRS})
    columns = {"source": list("abcdefghi"), "target": ["x"] * 9, "test": [1] * 9}
    assert from_iterable(columns).notes[0] == "pairs: ignoring 'test'"


def test_what_was_guessed_or_left_out_is_told() -> None:
    assert from_iterable(dicts("source", "target")).notes == []
    assert from_iterable(PAIRS).notes == []
    (note,) = from_iterable(dicts("en", "fr")).notes
    assert note.startswith("pairs: using 'en' as source and 'fr' as target")
    assert from_iterable(dicts("en", "fr")).columns == ("en", "fr")
    assert from_iterable(Dataset()).notes[1] == "pairs: ignoring 'id'"


def test_empty_cells_are_skipped_and_counted() -> None:
    NAType = type("NAType", (), {})
    rows = [("a", float("nan")), (None, "b"), (NAType(), "c"), ("d", "  "), *PAIRS]
    splits = from_iterable(Frame(["source", "target"], rows), dev=0, test=0)
    assert splits.train.count() == 30
    assert splits.skipped.lines() == [
        "pairs: skipped 2 items: empty target (items 1, 4)",
        "pairs: skipped 2 items: empty source (items 2, 3)",
    ]


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ([{"en": "a", "fr": "b", "de": "c"}], "no 'source' or 'target', only 'en', 'fr', 'de'"),
        ([{"source": "a", "fr": "b", "de": "c"}], "no 'target', only 'source', 'fr', 'de'"),
        ([*dicts("source", "target"), ("a", "b")], "item 31 of the pairs is not a dict"),
        ([*PAIRS, {"source": "a", "target": "b"}], "item 31 of the pairs is {'source'"),
        (["ab", "cd"], "item 1 of the pairs is 'ab': a pair is"),
        (("hello", "bonjour"), "item 1 of the pairs is 'hello'"),
        ([{"a", "b"}], "item 1 of the pairs is {"),
        ([("a", "b", "c")], "item 1 of the pairs has 3 values"),
        (tuple(zip(*PAIRS)), r"has 30 values.*zip\(sources, targets\)"),
        ([("a", 3)], r"the target is 3 \(int\), not text"),
        ([(["a"], "b")], r"the source is \['a'\] \(list\), not text"),
        ({"cat": "chat"}, r"list\(data.items\(\)\)"),
        ({"source": ["a"], "target": []}, "'source' has 1, 'target' has 0"),
        ([], "there are no items"),
        ([("", "")], r"skipped 1 item: empty source \(item 1\)"),
        (3, r"data is 3 \(int\)"),
        (b"ab", "data is b'ab'"),
        (len, "data is <built-in function len>"),
    ],
)
def test_mistakes_are_told_in_one_line(data: Any, said: str) -> None:
    with pytest.raises(UserError, match=said) as error:
        from_iterable(data)
    assert "\n" not in str(error.value)


def test_a_name_that_is_missing_is_told() -> None:
    with pytest.raises(UserError, match=r"no 'eng', only 'en', 'fr'; choose two"):
        from_iterable(dicts("en", "fr"), source="eng", target="fr")


texts = st.text(min_size=1)


several = st.lists(texts, min_size=1).map(tuple)
positions = st.lists(st.integers(0, 10**6)).map(tuple)


@given(st.lists(st.builds(Pair, texts, several, st.just(1), positions)))
def test_held_out_pairs_come_back(
    tmp_path_factory: pytest.TempPathFactory, pairs: list[Pair]
) -> None:
    folder = tmp_path_factory.mktemp("held") / "data"
    write_held_out(folder, "dev", pairs)
    again = read_held_out(folder, "dev") or []
    assert [pair[:2] for pair in again] == [pair[:2] for pair in pairs]
    assert read_held_out(folder, "test") is None


def test_damaged_held_out_pairs_are_told(tmp_path: Path) -> None:
    (tmp_path / "dev.jsonl").write_text('{"source": "a", "target": ["b"]}\n{"sour')
    with pytest.raises(UserError, match=r"dev\.jsonl line 2: damaged"):
        read_held_out(tmp_path, "dev")


def test_skipped_lines_have_right_plurals() -> None:
    skipped = Skipped()
    skipped.add("a.tsv", 3, "one column")
    assert skipped.lines() == ["a.tsv: skipped 1 line: one column (line 3)"]
