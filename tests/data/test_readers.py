"""Strangers' files: every line is read right or reported by number, every impossible file refused
in one line.
"""

import gzip
import json
import os
import sys
import unicodedata
import zipfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from regard.data.pairs import Pair, Skipped
from regard.data.readers import read
from regard.errors import UserError


def both(path: Path, **options) -> tuple[list[Pair], Skipped]:
    skipped = Skipped()
    return list(read(path, skipped=skipped, **options)), skipped


def write(path: Path, data: bytes | str) -> Path:
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    return path


def test_a_dirty_file(tmp_path: Path) -> None:
    lines = [
        b"\xef\xbb\xbfhello\tbonjour\r",  # 1: BOM and CRLF
        b"",  # 2
        b"one column",  # 3
        b"x" * 50_000 + b"\ty",  # 4
        "😀 joy\tjoie 😀".encode(),  # 5
        "العربية\tarabe\r".encode(),  # 6
        b"\tempty source",  # 7
        b"empty target\t ",  # 8
        b"bad \xff\xfe utf\tx",  # 9
        "one\u2028line\x85still\tune".encode(),  # 10
        b"a\0b\tnul",  # 11
        b"a\tb\tCC-BY attribution\tmore",  # 12
        b"z" * 2_000_000 + b"\tz",  # 13
        "e\u0301te\u0301 \tsummer".encode(),  # 14
        b"   \r",  # 15
        b"last\tdernier",  # 16: no final newline
    ]
    pairs, skipped = both(write(tmp_path / "pairs.tsv", b"\n".join(lines)))
    assert pairs == [
        Pair("hello", ("bonjour",), 1),
        Pair("😀 joy", ("joie 😀",), 5),
        Pair("العربية", ("arabe",), 6),
        Pair("one\u2028line\x85still", ("une",), 10),
        Pair("a\0b", ("nul",), 11),
        Pair("a", ("b",), 12),
        Pair("été", ("summer",), 14),
        Pair("last", ("dernier",), 16),
    ]
    assert {reason: lines for (_, reason), lines in skipped.first.items()} == {
        "empty line": [2, 15],
        "one column": [3],
        "a text of more than 10,000 characters": [4],
        "a line of 1 MB or more": [13],
        "empty source": [7],
        "empty target": [8],
        "not UTF-8": [9],
    }
    assert "pairs.tsv: skipped 1 line: one column (line 3)" in skipped.lines()
    assert "pairs.tsv: skipped 1 line: a line of 1 MB or more (line 13)" in skipped.lines()


def test_skipped_counts_all_names_ten_and_reads_twice(tmp_path: Path) -> None:
    path = write(tmp_path / "pairs.tsv", "a\tb\n" + "one\n" * 12)
    skipped = Skipped()
    next(read(path, skipped=skipped))
    for _ in range(2):
        list(read(path, skipped=skipped))
    assert len(skipped) == 12
    expected = "pairs.tsv: skipped 12 lines: one column (lines 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, …)"
    assert skipped.lines() == [expected]


@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    lines=st.lists(
        st.one_of(
            st.binary(max_size=12),
            st.lists(st.text(max_size=5), max_size=4).map(
                lambda columns: "\t".join(columns).encode("utf-8", "replace")
            ),
        ),
        max_size=12,
    ),
    packed=st.booleans(),
)
def test_any_bytes_are_read_right_or_refused(
    tmp_path: Path, lines: list[bytes], packed: bool
) -> None:
    data = b"\n".join(lines)
    path = write(tmp_path / "pairs.tsv", gzip.compress(data) if packed else data)
    try:
        pairs, skipped = both(path)
    except UserError:
        return
    raw = data.removeprefix(b"\xef\xbb\xbf").split(b"\n")
    raw = raw[:-1] if raw[-1] == b"" else raw
    assert len(pairs) + len(skipped) == len(raw)
    for pair in pairs:
        columns = raw[pair.line - 1].decode().split("\t")
        assert pair.source == unicodedata.normalize("NFC", columns[0].strip(" \t\r"))
        assert pair.targets == (unicodedata.normalize("NFC", columns[1].strip(" \t\r")),)


@pytest.mark.parametrize("name", ["pairs.jsonl", "pairs.jsonl.gz"])
def test_json_lines(tmp_path: Path, name: str) -> None:
    items = [
        {"en": "a", "fr": "b"},
        {"en": "a", "fr": ["b", "", "c"]},
        {"en": "a"},
        {"en": 3, "fr": "x"},
        {"en": "a", "fr": []},
        {"en": "", "fr": "x"},
        {"en": "\ud800", "fr": "x"},
        [1],
    ]
    text = "\n".join([*map(json.dumps, items), "{broken", "", "[" * 100_000]).encode()
    pairs, skipped = both(
        write(tmp_path / name, gzip.compress(text) if "gz" in name else text),
        source="en",
        target="fr",
    )
    assert pairs == [Pair("a", ("b",), 1), Pair("a", ("b", "c"), 2), Pair("3", ("x",), 4)]
    assert {reason: lines for (_, reason), lines in skipped.first.items()} == {
        "empty target": [3, 5],
        "empty source": [6],
        "half a character (a lone surrogate)": [7],
        "bad JSON": [8, 9, 11],
        "empty line": [10],
    }


def test_json_keys_that_are_not_there_are_named(tmp_path: Path) -> None:
    path = write(tmp_path / "pairs.jsonl", '{"en": "a", "fr": "b"}')
    with pytest.raises(UserError, match=r"line 1: no 'source' and 'target'; it has 'en', 'fr'"):
        both(path)
    with pytest.raises(UserError, match=r"no 'de'; it has 'en', 'fr' \(try data.target=fr\)"):
        both(path, source="en", target="de")
    with pytest.raises(UserError, match=r"no 'de'; it has 'en', 'fr' \(try data.source=en\)"):
        both(path, source="de", target="fr")


def test_json_keys_that_may_be_meant_are_offered(tmp_path: Path) -> None:
    """Also a list of targets, but no list of numbers."""
    path = write(tmp_path / "pairs.jsonl", '{"en": "a", "fr": ["b", "c"], "counts": [1, 2]}')
    with pytest.raises(UserError, match=r"\(try data.source=en data.target=fr\)"):
        both(path)


def test_parquet(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    pq = pytest.importorskip("pyarrow.parquet")
    table = pa.table({"en": ["a", None, "c"], "fr": [["x", "y"], ["z"], ["w"]], "other": [1, 2, 3]})
    path = tmp_path / "pairs.parquet"
    pq.write_table(table, path)
    pairs, skipped = both(path, source="en", target="fr")
    assert pairs == [Pair("a", ("x", "y"), 1), Pair("c", ("w",), 3)]
    assert skipped.first == {("pairs.parquet", "empty source"): [2]}
    with pytest.raises(UserError, match="no 'source' and 'target'; it has 'en', 'fr', 'other'"):
        both(path)
    with pytest.raises(UserError, match="damaged"):
        both(write(tmp_path / "bad.parquet", b"PAR1 and so on"), source="en", target="fr")


@pytest.mark.parametrize("asked", ["train", "train.en", "train.de.gz"])
def test_aligned_files(tmp_path: Path, asked: str) -> None:
    write(tmp_path / "train.en", "a\nb\tc\n\n \nf\n")
    write(tmp_path / "train.de.gz", gzip.compress(b"A\r\nB\n\nD\nF"))
    pairs, skipped = both(tmp_path / asked, source="en", target="de")
    assert pairs == [Pair("a", ("A",), 1), Pair("b\tc", ("B",), 2), Pair("f", ("F",), 5)]
    name = "train.en + train.de.gz"
    assert skipped.first == {(name, "empty line"): [3], (name, "empty source"): [4]}


def test_aligned_files_of_different_length(tmp_path: Path) -> None:
    write(tmp_path / "train.en", "a\nb\n")
    write(tmp_path / "train.de", "A\nB\nC\n")
    with pytest.raises(UserError, match=r"train\.en has 2 lines and .*train\.de has 3"):
        both(tmp_path / "train", source="en", target="de")
    with pytest.raises(UserError, match=r"train\.fr is missing from the same folder"):
        both(tmp_path / "train", source="en", target="fr")


PNG = b"\x89PNG\r\n\x1a\n" + bytes(100)
BAD = {
    "nothing": (b"", "empty"),
    "nothing.gz": (gzip.compress(b""), "empty"),
    "picture.tsv": (PNG, "binary"),
    "picture.tsv.gz": (gzip.compress(PNG), "binary"),
    "xz.tsv": (b"\xfd7zXZ\0" + bytes(40), "binary"),
    "nul.tsv": (b"a\0\0\0" * 100, "binary"),
    "noise.tsv": (b"\xc3\x28\xa0\xa1" * 100, "binary"),
    "mac.tsv": (b"a\tb\rc\td\r", "CR only"),
    "cut.tsv.gz": (
        gzip.compress(os.urandom(5_000).hex().encode() + b"\ta\n")[:-3000],
        "damaged gzip",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_impossible_files(tmp_path: Path, name: str) -> None:
    data, said = BAD[name]
    with pytest.raises(UserError, match=said) as error:
        both(write(tmp_path / name, data))
    assert name in str(error.value)
    assert "\n" not in str(error.value)


def test_what_is_not_a_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with zipfile.ZipFile(tmp_path / "pairs.zip", "w") as archive:
        archive.writestr("pairs.tsv", "a\tb")
    for name, said in {
        "absent.tsv": "no such file",
        "": "a folder",
        "pipe": "a named pipe",
        "pairs.zip": "binary",
    }.items():
        with pytest.raises(UserError, match=said):
            read(tmp_path / name, skipped=Skipped())


def test_parquet_without_pyarrow_is_told(tmp_path, monkeypatch):
    pa = pytest.importorskip("pyarrow")
    pq = pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "pairs.parquet"
    pq.write_table(pa.table({"source": ["a"], "target": ["b"]}), path)
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(UserError, match=r"needs pyarrow: pip install 'regard\[parquet\]'"):
        both(path)
