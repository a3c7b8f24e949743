"""Files that are clumsy or hostile: bounded in memory, exact in what is skipped, told in a line."""

import decimal
import gzip
import json
import os
import socket
import subprocess
import sys
import tempfile
import tracemalloc
import unicodedata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import regard
from regard.data.kept import Kept
from regard.data.pairs import Skipped
from regard.data.readers import find_reader, reader
from regard.data.readers.reader import Layout
from regard.data.splits import Splits, open_data
from regard.errors import UserError
from regard.text import vocabulary
from regard.text.vocabulary import normalise

GOOD = [{"source": f"one {n}", "target": f"eins {n}"} for n in range(12)]


def opened(path: Path, content: str | bytes = b"", **options: Any) -> Splits:
    if content:
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    return open_data(str(path), **{"dev": 0, "test": 0, **options})


def outcome(splits: Splits) -> tuple[list[tuple[str, ...]], dict[str, list[int]]]:
    """The pairs after the good ones, and the first rows that were skipped, by reason."""
    pairs = [(pair.source, *pair.targets) for pair in splits.train]
    assert pairs[: len(GOOD)] == [(item["source"], item["target"]) for item in GOOD]
    return pairs[len(GOOD) :], {why: rows for (_, why), rows in splits.skipped.first.items()}


def refused(path: Path | str, **options: Any) -> str:
    """What is said of data that cannot be read: one short line."""
    with pytest.raises(UserError) as error:
        list(open_data(str(path), **options).train)
    said = str(error.value)
    assert "\n" not in said
    assert len(said.replace(str(Path(path).parent), "")) <= 320
    return said


# JSON

LAST = {  # the last item, and what comes of it
    "a number": ('{"source": "2+1", "target": 3}', [("2+1", "3")], {}),
    "zero": ('{"source": 0, "target": 1.50}', [("0", "1.50")], {}),
    "5,000 digits": (f'{{"source": "a", "target": {"9" * 5000}}}', [("a", "9" * 5000)], {}),
    "NaN": ('{"source": "a", "target": NaN}', [], {"empty target": [13]}),
    "infinity": ('{"source": "a", "target": -Infinity}', [], {"not two texts": [13]}),
    "truth": ('{"source": "a", "target": true}', [], {"not two texts": [13]}),
    "a key twice": (
        '{"source": "a", "source": "b", "target": "c"}',
        [],
        {"a key occurs twice": [13]},
    ),
    "half a character": (
        '{"source": "\\ud800", "target": "x"}',
        [],
        {"half a character (a lone surrogate)": [13]},
    ),
    "a whole character": ('{"source": "\\ud83d\\ude00", "target": "x"}', [("😀", "x")], {}),
}


@pytest.mark.parametrize("name", LAST)
@pytest.mark.parametrize("file", ["pairs.jsonl", "pairs.json", "pairs.json.gz"])
def test_odd_json(tmp_path: Path, name: str, file: str) -> None:
    last, pairs, skipped = LAST[name]
    items = [*map(json.dumps, GOOD), last]
    text = "\n".join(items) if file == "pairs.jsonl" else f"[{', '.join(items)}]"
    content = gzip.compress(text.encode()) if file.endswith(".gz") else text
    splits = opened(tmp_path / file, content)
    assert outcome(splits) == (pairs, skipped)
    if skipped:
        unit = "line" if file == "pairs.jsonl" else "item"
        assert f"skipped 1 {unit}: " in splits.skipped.lines()[0]


def test_an_item_that_is_not_utf_8_is_one_item(tmp_path: Path) -> None:
    items = [*(json.dumps(item).encode() for item in GOOD), b'{"source": "\xff", "target": "x"}']
    splits = opened(tmp_path / "pairs.json", b"[" + b",".join(items) + b"]")
    assert outcome(splits) == ([], {"not UTF-8": [13]})


DEEP = '{"a": ' * 900 + "1" + "}" * 900


@pytest.mark.parametrize("first", [json.dumps({f"k{n}": 1 for n in range(5_000)}), DEEP])
def test_keys_are_listed_in_a_short_line(tmp_path: Path, first: str) -> None:
    (tmp_path / "pairs.jsonl").write_text(first + "\n" + "\n".join(map(json.dumps, GOOD)))
    assert "no 'source' and 'target'; it has " in refused(tmp_path / "pairs.jsonl")


DOCUMENTS = {
    "nested too deeply": "[" * 100_000,
    "damaged, or more than 1 MB": '[{"source": "' + "x" * 3_000_000 + '"}]',
    "']' after a comma": '[{"source": "a", "target": "b"},]',
    "there is more after its end": '[{"source": "a", "target": "b"}] x',
    "',' is missing": '[{"source": "a", "target": "b"} {"source": "a", "target": "b"}]',
    "jq -r 'to_entries[] | [.key, .value] | @tsv'": '{\n"a": "b",\n"c": "d"\n}',
}


@pytest.mark.parametrize("said", DOCUMENTS)
def test_json_documents_that_are_no_pairs(tmp_path: Path, said: str) -> None:
    (tmp_path / "pairs.json").write_text(DOCUMENTS[said])
    assert said in refused(tmp_path / "pairs.json")


# Parquet


def write_parquet(path: Path, **columns: Any) -> Path:
    pa = pytest.importorskip("pyarrow")
    pq = pytest.importorskip("pyarrow.parquet")
    pq.write_table(pa.table(columns), path)
    return path


def bad_texts() -> Any:
    """The good targets and one that is not UTF-8, as an array of strings."""
    pa = pytest.importorskip("pyarrow")
    raw = pa.array([*(item["target"].encode() for item in GOOD), b"\xff\xfe"], pa.binary())
    return pa.Array.from_buffers(pa.string(), len(raw), raw.buffers())


SOURCES = [*(item["source"] for item in GOOD), "bad"]


@pytest.mark.parametrize("kind", ["plain", "dictionary", "list", "struct", "binary"])
def test_one_bad_row_of_parquet_is_one_skipped_row(tmp_path: Path, kind: str) -> None:
    pa = pytest.importorskip("pyarrow")
    texts = bad_texts()
    options = {}
    columns: dict[str, Any] = {"source": SOURCES, "target": texts}
    if kind == "dictionary":
        columns["target"] = texts.dictionary_encode()
    if kind == "binary":
        columns["target"] = texts.cast(pa.binary())
    if kind == "list":
        columns["target"] = pa.ListArray.from_arrays(pa.array(range(14), pa.int32()), texts)
    if kind == "struct":
        late = pa.array([9 * 10**18] * 13, pa.timestamp("us"))  # no date that Python knows
        fields = [pa.array(SOURCES), texts, late]
        columns = {"text": pa.StructArray.from_arrays(fields, ["en", "de", "when"])}
        options = {"source": "text.en", "target": "text.de"}
    splits = opened(write_parquet(tmp_path / "pairs.parquet", **columns), **options)
    assert outcome(splits) == ([], {"bytes that are not UTF-8": [13]})
    assert "skipped 1 row: " in splits.skipped.lines()[0]


def test_numbers_in_parquet_are_texts(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    for values, said in (
        (pa.array([0, None]), "0"),
        (pa.array([1.5, float("nan")]), "1.5"),
        (pa.array([decimal.Decimal("1.50"), None]), "1.50"),
    ):
        splits = opened(write_parquet(tmp_path / "p.parquet", source=["a", "b"], target=values))
        assert [pair.targets for pair in splits.train] == [(said,)]
        assert [why for _, why in splits.skipped.counts] == ["empty target"]


def test_columns_of_parquet_that_are_no_texts(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    for values, said in (
        (pa.array([9 * 10**18], pa.timestamp("us")), "holds timestamp[us], not text"),
        (pa.array([2**30], pa.date32()), "holds date32[day], not text"),
        (pa.array([[{"a": "b"}]]), "not text; choose another with data.target"),
        (pa.array([True]), "holds bool, not text"),
    ):
        path = write_parquet(tmp_path / "pairs.parquet", source=["a"], target=values)
        assert said in refused(path)
    (tmp_path / "pairs.parquet.gz").write_bytes(gzip.compress(path.read_bytes()))
    assert "gunzip pairs.parquet.gz" in refused(tmp_path / "pairs.parquet.gz")
    empty = write_parquet(tmp_path / "empty.parquet", source=[], target=[])
    assert "there is nothing after the header" in refused(empty)


def test_a_parquet_bomb_is_read_a_few_rows_at_a_time(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    repeated = pa.DictionaryArray.from_arrays(pa.array([0] * 300, pa.int32()), ["x" * 1_000_000])
    path = write_parquet(tmp_path / "pairs.parquet", source=repeated, target=["y"] * 300)
    assert path.stat().st_size < 200_000
    pool = pa.default_memory_pool()
    before = pool.max_memory()
    tracemalloc.start()
    try:
        assert "skipped 300 rows: a text of more than" in refused(path)
        assert tracemalloc.get_traced_memory()[1] < 100_000_000
    finally:
        tracemalloc.stop()
    assert pool.max_memory() < before + 100_000_000


def test_a_huge_value_of_parquet_is_refused_before_it_is_read(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    pq = pytest.importorskip("pyarrow.parquet")
    table = pa.table({"source": ["x" * 80_000_000], "target": ["y"]})
    pq.write_table(table, tmp_path / "pairs.parquet", use_dictionary=False)
    assert "source unpacks to 80,0" in refused(tmp_path / "pairs.parquet")


# TMX

UNIT = '<tu><tuv lang="en"><seg>one</seg></tuv><tuv lang="de"><seg>eins</seg></tuv></tu>'
BAD_TMX = {
    "a tag of more than 1 MB": f'<tu a="{"x" * 3_000_000}"></tu>',
    "nested too deeply": "<a>" * 1_000,
    "a unit of 10,000 texts": f"<tu>{'<tuv><seg>a</seg></tuv>' * 10_001}</tu>",
}


@pytest.mark.parametrize("said", BAD_TMX)
def test_xml_that_is_no_tmx(tmp_path: Path, said: str) -> None:
    path = tmp_path / "memory.tmx"
    path.write_text(f"<tmx><body>{UNIT}{BAD_TMX[said]}</body></tmx>")
    assert said in refused(path)


def test_long_and_misplaced_texts_of_tmx(tmp_path: Path) -> None:
    path = tmp_path / "memory.tmx"
    long = f'<tu><tuv lang="en"><seg>{"x " * 10_000_000}</seg></tuv></tu>'
    outside = '<tuv lang="de"><seg>zwei</seg></tuv>'
    content = f"<tmx><body>{outside}{UNIT}{outside}{long}{UNIT}</body></tmx>"
    path.write_text(content)
    tracemalloc.start()
    try:
        splits = opened(path)
        assert [(pair.line, pair.targets) for pair in splits.train] == [
            (1, ("eins",)),
            (3, ("eins",)),
        ]
        assert tracemalloc.get_traced_memory()[1] < 8_000_000
    finally:
        tracemalloc.stop()
    expected = "memory.tmx: skipped 1 unit: more than 1 MB of text (unit 2)"
    assert splits.skipped.lines() == [expected]


def test_tmx_in_an_encoding_that_nobody_knows(tmp_path: Path) -> None:
    path = tmp_path / "memory.tmx"
    path.write_text(f'<?xml version="1.0" encoding="klingon"?><tmx><body>{UNIT}</body></tmx>')
    assert "XML in the encoding 'klingon', which is not supported" in refused(path)


def test_billion_laughs(tmp_path: Path) -> None:
    entities = "".join(f'<!ENTITY a{n + 1} "&a{n};&a{n};">' for n in range(40))
    doctype = f'<!DOCTYPE tmx [<!ENTITY a0 "ha">{entities}]>'
    unit = UNIT.replace("one", "&a40;")
    (tmp_path / "memory.tmx").write_text(f"{doctype}<tmx><body>{unit}</body></tmx>")
    assert "XML entities are not supported" in refused(tmp_path / "memory.tmx")


# Long files and lines


def test_a_gzip_bomb_of_one_line(tmp_path: Path) -> None:
    path = tmp_path / "pairs.tsv.gz"
    with gzip.open(path, "wb", 1) as file:
        file.write(b"a b\tc\n" * 20_000)
        for _ in range(100):
            file.write(b"x" * (1 << 20))
        file.write(b"\nd e\tf\n")
    tracemalloc.start()
    try:
        splits = opened(path)
        assert sum(1 for _ in splits.train) == 20_001
        assert tracemalloc.get_traced_memory()[1] < 10_000_000
    finally:
        tracemalloc.stop()
    expected = "pairs.tsv.gz: skipped 1 line: a line of 1 MB or more (line 20001)"
    assert splits.skipped.lines() == [expected]


def test_empty_lines_go_on_with_progress(tmp_path: Path) -> None:
    (tmp_path / "pairs.tsv").write_bytes(b"a\tb\n" + b"\n" * 1_000_000)
    shares: list[float] = []

    def keep(read: Any, *, share: Any) -> Kept:
        return Kept(read, tmp_path, share=share, tell=shares.append)

    splits = open_data(str(tmp_path / "pairs.tsv"), dev=0, test=0, keep=keep)
    assert splits.train.count() == 1
    assert len(splits.skipped) == 1_000_000
    assert len(shares) > 5
    assert shares[:-1] == sorted(shares[:-1])


def test_a_file_without_a_pair_is_not_read_to_its_end(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(reader, "_OFTEN", 10)
    monkeypatch.setattr(reader, "_HOPELESS", 100)
    (tmp_path / "pairs.tsv").write_text("one\n" * 1_000)
    assert "no pair in the first 100 lines: pairs.tsv: skipped 99" in refused(
        tmp_path / "pairs.tsv"
    )


def test_storms_of_marks_are_normalised_as_unicode_says() -> None:
    marks = [chr(code) for code in range(0x300, 0x370)]
    storm = "".join(marks[(7 * n) % len(marks)] for n in range(3_000))
    text = f"e{storm} a\u0301 가{storm[:70]}x"
    assert normalise(text) == unicodedata.normalize("NFC", text)


def test_storms_of_marks_are_put_in_order_first(monkeypatch: Any) -> None:
    """Python's own way takes the square of their number: minutes for a long line."""
    seen = []

    def spy(form: str, text: str) -> str:
        seen.append([unicodedata.combining(letter) for letter in text])
        return text

    combining = unicodedata.combining
    monkeypatch.setattr(
        vocabulary, "unicodedata", SimpleNamespace(normalize=spy, combining=combining)
    )
    normalise("a" + "\u0301\u0316" * 5_000)
    assert seen == [sorted(seen[0])]


# What changes while it is read


def test_a_file_that_grows_while_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "pairs.tsv"
    path.write_text("a\tb\n" * 50_000)
    pairs = find_reader(path, Layout()).pairs(Skipped())
    next(pairs)
    with path.open("a") as file:
        file.write("c\thalf a te")
    with pytest.raises(UserError, match=r"pairs\.tsv: changed while it was being read"):
        list(pairs)


@pytest.mark.parametrize("name", ["text.en", "text.de"])
def test_an_aligned_file_that_is_cut_while_it_is_read(tmp_path: Path, name: str) -> None:
    for file in ("text.en", "text.de"):
        (tmp_path / file).write_text("".join(f"line {n}\n" for n in range(300_000)))
    pairs = find_reader(tmp_path / "text.en", Layout("en", "de")).pairs(Skipped())
    next(pairs)
    os.truncate(tmp_path / name, 2_000_000)
    with pytest.raises(UserError, match="changed while it was being read"):
        list(pairs)


# What is no file


def test_special_files_are_told_in_a_line(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo.tsv")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "socket.tsv"))
    (tmp_path / "loop.tsv").symlink_to(tmp_path / "loop.tsv")
    (tmp_path / "nowhere.tsv").symlink_to("gone.tsv")
    for path, said in {
        tmp_path / "fifo.tsv": "a named pipe, not a file; write its contents to a file, or pass",
        tmp_path / "socket.tsv": "a socket, not a file",
        Path("/dev/zero"): "a device, not a file",
        tmp_path / "loop.tsv": "loop.tsv: too many levels of symbolic links",
        tmp_path / "nowhere.tsv": "nowhere.tsv: a link to gone.tsv, which does not exist",
        tmp_path / ("x" * 300): "file name too long",
    }.items():
        assert said in refused(path)


UNREADABLE = """
import os, sys
from regard.data.splits import open_data
from regard.errors import UserError
if os.getuid() == 0:
    os.setgid(65534)
    os.setuid(65534)
for path in sys.argv[1:]:
    try:
        print(len(list(open_data(path, dev=0, test=0).train)))
    except UserError as error:
        print(error)
"""


@pytest.mark.skipif(not hasattr(os, "getuid"), reason="needs the rights of POSIX")
def test_files_and_folders_without_rights() -> None:
    with tempfile.TemporaryDirectory() as folder:  # others may enter its parent
        _check_files_without_rights(Path(folder))


def _check_files_without_rights(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    (tmp_path / "closed").mkdir()
    (tmp_path / "unlisted").mkdir()
    for file in ("secret.tsv", "closed/pairs.tsv", "unlisted/pairs-train.tsv"):
        (tmp_path / file).write_text("a\tb\n")
    (tmp_path / "secret.tsv").chmod(0o000)
    (tmp_path / "closed").chmod(0o000)
    (tmp_path / "unlisted").chmod(0o711)
    files = ["secret.tsv", "closed/pairs.tsv", "closed", "unlisted/pairs-train.tsv"]
    command = [sys.executable, "-c", UNREADABLE, *(str(tmp_path / file) for file in files)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    (tmp_path / "closed").chmod(0o755)
    assert done.stderr == ""
    assert done.stdout.splitlines() == [
        f"{tmp_path}/secret.tsv: permission denied",
        f"{tmp_path}/closed/pairs.tsv: permission denied",
        f"{tmp_path}/closed: permission denied",
        "1",
    ]


# Pipes that a shell has opened


def piped(content: bytes) -> int:
    """The end of a pipe to read from, through which this comes; no more than it can hold."""
    reading, writing = os.pipe()
    os.write(writing, content)
    os.close(writing)
    return reading


def test_a_pipe_is_read_as_often_as_needed() -> None:
    lines = "".join(f"{item['source']}\t{item['target']}\n" for item in GOOD)
    descriptor = piped(gzip.compress(lines.encode()))
    try:
        splits = open_data(f"/dev/fd/{descriptor}", dev=0, test=0)
        for _ in range(2):
            assert outcome(splits) == ([], {})
    finally:
        os.close(descriptor)


def test_the_copy_of_a_pipe_is_closed_at_exit() -> None:
    """An unclosed file is a ResourceWarning, told by whoever runs Python with -X dev."""
    script = "from regard.data.splits import open_data; open_data('/dev/stdin', dev=0, test=0)"
    ended = subprocess.run(
        [sys.executable, "-W", "always::ResourceWarning", "-c", script],
        input="a\tb\nc\td\n",
        capture_output=True,
        text=True,
        check=True,
    )
    assert ended.stderr == ""


def test_a_run_trained_on_a_pipe_keeps_its_test_pairs(tmp_path: Path, tiny: Any) -> None:
    lines = "".join(f"a {n}\tb {n}\n" for n in range(60))
    descriptor = piped(lines.encode())
    try:
        run = regard.train(f"/dev/fd/{descriptor}", out=tmp_path / "run", **tiny)
    finally:
        os.close(descriptor)
    assert run.config.data.path == ""
    assert regard.evaluate(run).pairs


def test_a_name_that_is_not_utf_8(tmp_path: Path) -> None:
    path = os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9.tsv")
    Path(path).write_text("a\tb\n" * 3)
    assert len(list(open_data(path, dev=0, test=0).train)) == 3
    with pytest.raises(UserError, match=r"caf\\udce9\.tsv: this name is not UTF-8") as error:
        regard.train(path, out=tmp_path / "run")
    assert str(error.value).isascii()
    assert not (tmp_path / "run").exists()
