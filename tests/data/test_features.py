"""Tags from a column: read from every kind of file that has columns, offered, or refused."""

import json
from pathlib import Path
from typing import Any

import pytest

from regard.data.held_out import read_held_out, write_held_out
from regard.data.items import open_items
from regard.data.kept import Kept
from regard.data.pairs import Pair, Skipped, read_features
from regard.data.readers.extra import extra_column
from regard.data.splits import from_iterable, leaks, open_data
from regard.errors import UserError

ROWS = [
    ("kedi", "kediye", "N;DAT;SG"),
    ("kedi", "kediler", "N;NOM;PL"),
    ("ev", "ev", ""),
    ("zor iş", "zor işi", "N;ACC;SG"),
]
SOURCES = ["kedi\tN;DAT;SG", "kedi\tN;NOM;PL", "ev", "zor iş\tN;ACC;SG"]
DICTS = [dict(zip(("source", "target", "tags"), row, strict=True)) for row in ROWS]
HEADER = "source\ttarget\ttags"


def tsv(rows: Any) -> str:
    return "".join("\t".join(row) + "\n" for row in rows)


def opened(path: Path, content: str | bytes, **options: Any) -> Any:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return open_data(str(path), **{"dev": 0, "test": 0, **options})


def sources(splits: Any) -> list[str]:
    return [pair.source for pair in splits.train]


@pytest.mark.parametrize(
    ("name", "content", "features"),
    [
        ("a.tsv", tsv(ROWS), "3"),
        ("a.tsv", f"{HEADER}\n{tsv(ROWS)}", "tags"),
        ("a.tsv", f"{HEADER}\n{tsv(ROWS)}", "3"),
        ("a.csv", "".join(",".join(row) + "\n" for row in ROWS), "3"),
        ("a.jsonl", "\n".join(map(json.dumps, DICTS)), "tags"),
        ("a.json", json.dumps(DICTS, indent=1), "tags"),
    ],
)
def test_every_kind_of_file_gives_the_same(
    tmp_path: Path, name: str, content: str, features: str
) -> None:
    splits = opened(tmp_path / name, content, features=features)
    assert sources(splits) == SOURCES
    assert [pair.targets for pair in splits.train] == [(row[1],) for row in ROWS]
    assert not any("not used" in note or "looks like" in note for note in splits.reading)


def test_lists_of_tags_in_json(tmp_path: Path) -> None:
    item = {"source": "a b", "target": "b", "tags": ["N", "past tense", 3]}
    splits = opened(tmp_path / "a.jsonl", json.dumps(item), features="tags")
    assert sources(splits) == ["a b\tN;past tense;3"]


def test_columns_in_any_order(tmp_path: Path) -> None:
    rows = [(tags, form, lemma) for lemma, form, tags in ROWS]
    path = tmp_path / "a.tsv"
    splits = opened(path, tsv(rows), source="3", target="2", features="1")
    assert sources(splits) == SOURCES
    rows = [(tags, lemma, form) for lemma, form, tags in ROWS]
    assert sources(opened(path, tsv(rows), features="1")) == SOURCES


@pytest.mark.parametrize("keep", [False, True])
def test_pairs_from_python(tmp_path: Path, keep: bool) -> None:
    def kept(read: Any, *, share: Any) -> Kept:
        return Kept(read, tmp_path)

    options: Any = {"features": "tags", "dev": 0, "test": 0, "keep": kept if keep else None}
    lists = [{**row, "tags": row["tags"].split(";")} for row in DICTS]
    columns = {name: [row[name] for row in DICTS] for name in DICTS[0]}
    missing = [{**row, "tags": row["tags"] or None} for row in DICTS]
    for data in (DICTS, lists, columns, missing, iter(DICTS)):
        splits = from_iterable(data, **options)
        assert sources(splits) == SOURCES
        assert sources(splits) == SOURCES  # and once more


def test_what_is_no_tag() -> None:
    assert read_features(float("nan"), "") == ()
    assert read_features("a\ud800;b", "") == ("a?", "b")
    for cell in ({"N": 1}, [["N"]], 1.5):
        with pytest.raises(UserError, match=r"^item 3: tags .*such as N;DAT;SG"):
            read_features(cell, "item 3")


def test_lines_without_tags_are_told(tmp_path: Path) -> None:
    content = tsv(ROWS).encode() + b"two\tcolumns\nbad\ttags\tN;\xff\n"
    splits = opened(tmp_path / "a.tsv", content, features="3")
    assert sources(splits) == SOURCES
    assert splits.skipped.lines() == [
        "a.tsv: skipped 1 line: too few columns (line 5)",
        "a.tsv: skipped 1 line: not UTF-8 (line 6); data.encoding=latin-1 or cp1252 may read them",
    ]


def test_splits_and_leaks_look_at_text_and_tags(tmp_path: Path) -> None:
    rows = [(f"word{n % 10}", "form", f"N;{'ABCDEFGHIJ'[n // 10]}") for n in range(100)]
    splits = opened(tmp_path / "a.tsv", tsv([*rows, *rows]), features="3", dev=20, test=20)
    parts = [{pair.source for pair in part} for part in (splits.train, splits.dev, splits.test)]
    assert len(set.union(*parts)) == 100
    assert sum(map(len, parts)) == 100
    found = leaks(splits)
    assert found.duplicates == len(parts[0])
    assert (found.dev, found.test, found.near_dev, found.near_test) == (0, 0, 0, 0)


def test_held_out_pairs_keep_their_tags(tmp_path: Path) -> None:
    pairs = [Pair(source, ("x",), line) for line, source in enumerate(SOURCES, 1)]
    write_held_out(tmp_path, "dev", pairs, "tags")
    assert read_held_out(tmp_path, "dev", "tags") == pairs
    splits = open_data(str(tmp_path / "dev.jsonl"), features="tags", dev=0, test=0)
    assert sources(splits) == SOURCES
    (tmp_path / "test.jsonl").write_text('{"source": "a", "target": ["b"]}\n')
    with pytest.raises(UserError, match=r"test\.jsonl line 1: damaged"):
        read_held_out(tmp_path, "test", "tags")


# refusals


TMX = (
    '<tmx version="1.4"><header/><body><tu><tuv xml:lang="en"><seg>a</seg></tuv>'
    '<tuv xml:lang="de"><seg>b</seg></tuv></tu></body></tmx>'
)


@pytest.mark.parametrize(
    ("name", "content", "options", "said"),
    [
        ("a.tsv", "a\tb\n", {"features": "3"}, r"no column 3; it has 2 columns \(data\.features=3"),
        ("a.tsv", tsv(ROWS), {"features": "tags"}, r"no column 'tags'.*\(data\.features is a name"),
        ("a.tsv", tsv(ROWS), {"features": "2", "target": "2"}, "read as something else"),
        ("a.jsonl", json.dumps(DICTS[0]), {"features": "pos"}, r"no 'pos' \(data\.features\)"),
        ("a.jsonl", json.dumps(DICTS[0]), {"features": "source"}, "the key of the source"),
        ("a.tmx", TMX, {"features": "3"}, r"data\.features=3 is a column of a TSV or CSV"),
    ],
)
def test_refused_in_one_line(
    tmp_path: Path, name: str, content: str, options: dict[str, str], said: str
) -> None:
    with pytest.raises(UserError, match=said) as error:
        opened(tmp_path / name, content, **options)
    assert name in str(error.value)
    assert "\n" not in str(error.value)


def test_two_files_and_tasks_have_no_column(tmp_path: Path) -> None:
    (tmp_path / "a.en").write_text("a\n")
    (tmp_path / "a.de").write_text("b\n")
    with pytest.raises(UserError, match=r"data\.features=3 is a column of a TSV"):
        open_data(str(tmp_path / "a.en"), target_file=str(tmp_path / "a.de"), features="3")
    with pytest.raises(UserError, match=r"data\.features=3: arithmetic is a task"):
        open_data("arithmetic", features="3")


def test_pairs_without_columns_are_refused() -> None:
    with pytest.raises(UserError, match=r"data\.features=tags: the pairs have no columns; pass di"):
        open_items([("a", "b")], features="tags")
    with pytest.raises(UserError, match=r"pairs: no 'pos' \(data\.features\), only 'source'"):
        open_items(DICTS, features="pos")
    with pytest.raises(UserError, match=r"data\.features is a column that is read as"):
        open_items(DICTS, source="tags", target="target", features="tags")


# offers

TAGS = "a.tsv: column 3 looks like tags (N;DAT;SG): add data.features=3 to use them as part of the "
MANY = [(f"w{n}", f"f{n}", f"N;{'DAT' if n % 2 == 0 else 'ACC'};SG") for n in range(30)]
COUNTS = [(lemma, form, str(n)) for n, (lemma, form, _) in enumerate(MANY)]


def test_tags_are_offered(tmp_path: Path) -> None:
    path = tmp_path / "a.tsv"
    assert opened(path, tsv(MANY)).reading == [f"{TAGS}source"]
    with_header = opened(path, f"{HEADER}\n{tsv(MANY)}").reading
    assert len(with_header) == 2
    assert with_header[1] == f"{TAGS}source"
    quoted = "sep=,\n" + "".join(",".join(row) + "\n" for row in MANY)
    assert opened(tmp_path / "b.csv", quoted).reading == [f"{TAGS}source".replace("a.tsv", "b.csv")]
    assert opened(path, tsv(MANY), features="3").reading == []


def test_counts_are_told(tmp_path: Path) -> None:
    splits = opened(tmp_path / "a.tsv", tsv(COUNTS))
    assert splits.reading == ["a.tsv: column 3 looks like counts: ignored"]
    assert sources(splits) == [row[0] for row in COUNTS]
    assert splits.reading == ["a.tsv: column 3 looks like counts: ignored"]  # and once only


def test_numbers_of_lines_are_no_counts(tmp_path: Path) -> None:
    numbered = [(number, lemma, form) for lemma, form, number in COUNTS]
    content = "id\tsource\ttarget\n" + tsv(numbered)
    splits = opened(tmp_path / "a.tsv", content)
    assert "a.tsv: column id is not used" in splits.reading[1]
    splits = opened(tmp_path / "a.tsv", tsv(numbered), source="2", target="3")
    assert "a.tsv: column 1 ('0') is not used" in splits.reading[0]
    content = "source\ttarget\tid\n" + tsv(COUNTS)
    assert "a.tsv: column id is not used" in opened(tmp_path / "a.tsv", content).reading[1]


def test_other_columns_are_named_as_ever(tmp_path: Path) -> None:
    path = tmp_path / "a.tsv"
    for more in (["me;you"], ["N;DAT;SG", "4th"], ["a sentence; and more of it"]):
        rows = [(lemma, form, *more) for lemma, form, _ in MANY[:4]]
        assert "not used (to choose columns" in opened(path, tsv(rows)).reading[0]
    rows = [(lemma, form, tags, "more") for lemma, form, tags in MANY]
    assert "columns 3 ('N;DAT;SG'), 4 ('more') are not used" in opened(path, tsv(rows)).reading[0]


@pytest.mark.parametrize(
    "cells",
    [
        ["N;DAT"] * 4,  # too few to tell
        [f"T{n};S{n}" for n in range(30)],  # none occurs twice
        ["0;1;2"] * 30,  # no letters
        ["he came; he saw"] * 30,
        ["CC-BY 2.0 (France) Attribution: tatoeba.org #1 (CM)"] * 30,
        ["word"] * 30,
        [""] * 30,
    ],
)
def test_what_is_not_offered(cells: list[str]) -> None:
    assert extra_column(3, cells) is None


def test_a_tab_is_text_without_features(tmp_path: Path) -> None:
    item = {"source": "a\tb", "target": "c\td"}
    splits = opened(tmp_path / "a.jsonl", json.dumps(item))
    assert list(splits.train) == [Pair("a\tb", ("c\td",), 1)]
    table = open_items([item])
    assert list(table.pairs(Skipped())) == [Pair("a\tb", ("c\td",), 1)]
