"""Any bytes as a TSV file: a pair is read as it stands, or its line is counted, or the file is
refused in one sentence.
"""

import gzip
import os
import re
import threading
import unicodedata
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from regard.data.pairs import Skipped
from regard.data.readers import find_reader
from regard.data.readers.reader import Layout
from regard.data.splits import open_data
from regard.errors import UserError

BOM = b"\xef\xbb\xbf"
CELLS = [
    *(
        b"",
        b" ",
        b"hello",
        b"source",
        b"target",
        b"nul\0",
        b"\0",
        BOM,
        b"a\rb",
        b"\r",
        b"q" * 10_000,
        b"q" * 10_001,
    ),
    *(
        b"\xed\xa0\x80",
        b"\xff\xfe",
        b"caf\xe9",
        b"\xc3",
        b"\xe2\x80",
        b"\xf4\x90\x80\x80",
        b"\xc0\xaf",
    ),  # not UTF-8
    *(
        "one\u2028line\x85still",
        "\u202eabc\u202c",
        "שלום",
        "العربية",
        "e\u0301",
        "a" + "\u0301" * 40,
        "😀",
        "\u00a0",
    ),
]
cell = st.one_of(
    st.sampled_from([text.encode() if isinstance(text, str) else text for text in CELLS]),
    st.text(max_size=6).map(lambda text: text.encode("utf-8", "surrogatepass")),
    st.binary(max_size=6),
)
line = st.one_of(
    *[st.tuples(cell, cell).map(b"\t".join), st.lists(cell, max_size=5).map(b"\t".join)] * 8,
    st.just(b"source\ttarget"),
    st.sampled_from([b"z" * 999_999 + b"\t", b"z" * 1_000_000, b"a\tb\t" + b"c\t" * 600_000]),
)
end = st.sampled_from([b"\n", b"\n", b"\n", b"\r\n", b"\r\n", b"\r", b"\n\r", b"\r\r\n"])
files = st.builds(
    lambda mark, lines, last: mark + b"".join(text + end for text, end in lines) + last,
    st.sampled_from([b"", b"", BOM]),
    st.lists(st.tuples(line, end), max_size=10),
    line,
)
PACKED = {
    "pairs.tsv": lambda data: data,
    "pairs.tsv.gz": gzip.compress,
    "packed.tsv": gzip.compress,
    "plain.gz": lambda data: data,
    "twice.tsv.gz": lambda data: gzip.compress(gzip.compress(data)),
    "cut.tsv.gz": lambda data: gzip.compress(data)[:-9],
    "more.tsv.gz": lambda data: gzip.compress(data) + b"more",
}
DAMAGED = ("twice.tsv.gz", "cut.tsv.gz", "more.tsv.gz")
MAGIC = (
    b"\x1f\x8b",
    b"PAR1",
    b"\x89PNG",
    b"\xff\xd8",
    b"GIF8",
    b"%PDF",
    b"\x7fELF",
    b"PK",
    b"BZh",
)


def wanted(data: bytes) -> tuple[list[tuple[int, str, str]], dict[int, str]]:
    """What a person would read: (line, source, target), and why the other lines give nothing."""
    pairs, without = [], {}
    lines = data.split(b"\n")
    for number, raw in enumerate(lines if lines[-1] else lines[:-1], 1):
        if len(raw) >= 1_000_000:
            without[number] = "a line of 1 MB or more"
            continue
        try:
            text = unicodedata.normalize("NFC", raw.decode("utf-8"))
        except UnicodeDecodeError:
            without[number] = "not UTF-8"
            continue
        text = re.sub(r"^\r+|\r+$", "", text.removeprefix("\ufeff"))
        found = [re.sub(r"^ +| +$", "", column) for column in text.split("\t")] + [""]
        if "\r" in text:
            without[number] = "CR inside a text"
        elif not found[0] + found[1]:
            without[number] = "empty line"
        elif "\t" not in text:
            without[number] = "one column"
        elif not found[0] or not found[1]:
            without[number] = "empty target" if found[0] else "empty source"
        elif max(map(len, found[:2])) > 10_000:
            without[number] = "a text of more than 10,000 characters"
        else:
            pairs.append((number, found[0], found[1]))
    return pairs, without


def may_be_refused(name: str, data: bytes) -> bool:
    """No text, or not text."""
    block = data[: 1 << 16]
    text = block.decode("utf-8", "replace")
    strange = sum(letter in "\0\ufffd" for letter in text)
    mac = b"\r" in block.rstrip(b"\r") and b"\n" not in block
    return (
        not data
        or data.startswith(MAGIC)
        or (len(block) >= 64 and strange > 0.3 * len(text))
        or mac
        or name in DAMAGED
    )


def check(folder: Path, name: str, data: bytes) -> None:
    path, skipped, refusal = folder / name, Skipped(), ""
    path.write_bytes(PACKED[name](data))
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        return  # UTF-16, which test_kinds.py reads
    try:
        pairs = list(find_reader(path, Layout(header="no")).pairs(skipped))
    except UserError as error:
        refusal = str(error)
    if refusal:
        assert name in refusal
        assert "\n" not in refusal
        assert may_be_refused(name, data)
        return
    assert name not in DAMAGED
    expected, without = wanted(data)
    assert [(pair.line, pair.source, *pair.targets) for pair in pairs] == expected
    counts = {reason: list(without.values()).count(reason) for reason in without.values()}
    assert {reason: count for (_, reason), count in skipped.counts.items()} == counts
    assert all(
        without[number] == reason
        for (_, reason), first in skipped.first.items()
        for number in first
    )
    rows = [row.removeprefix(BOM) for row in re.split(rb"\r\n|\r|\n", data.removeprefix(BOM))]
    visible = {
        tuple(column.strip(b" ").decode("utf-8", "replace") for column in row.split(b"\t")[:2])
        for row in rows
    }
    visible = {tuple(unicodedata.normalize("NFC", column) for column in row) for row in visible}
    for pair in pairs:  # on one line, whatever an editor takes for the end of one
        assert (pair.source.removeprefix("\ufeff"), *pair.targets) in visible


fuzz = {"deadline": None, "suppress_health_check": list(HealthCheck)}


@settings(max_examples=200, **fuzz)
@given(name=st.sampled_from(list(PACKED)), data=files)
def test_any_file_is_read_right_or_refused(tmp_path: Path, name: str, data: bytes) -> None:
    check(tmp_path, name, data)


@pytest.mark.slow
@settings(max_examples=20_000, **fuzz)
@given(name=st.sampled_from(list(PACKED)), data=files)
def test_twenty_thousand_files_are_read_right_or_refused(
    tmp_path: Path, name: str, data: bytes
) -> None:
    check(tmp_path, name, data)


@pytest.mark.parametrize("place", ["pipe.tsv", "folder/train.tsv", "aligned"])
@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_neither_a_pipe_nor_a_folder_hangs(tmp_path: Path, place: str, make) -> None:
    (tmp_path / "folder").mkdir()
    path = tmp_path / place.replace("aligned", "train.en")
    make(path)
    (tmp_path / "train.de").write_text("a\n")
    said = []

    def opened() -> None:
        try:
            open_data(str(path.parent if "folder" in place else path), source="en", target="de")
        except UserError as error:
            said.append(str(error))

    thread = threading.Thread(target=opened, daemon=True)
    thread.start()
    thread.join(10)
    assert not thread.is_alive()
    assert len(said) == 1
    assert "\n" not in said[0]
