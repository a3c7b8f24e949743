"""My file comes in: the kinds of file that people have, read as a person would read them."""

import csv
import gzip
import io
import json
import re
import subprocess
import sys
import tracemalloc
import zipfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from regard.data.pairs import Pair, Skipped
from regard.data.readers import find_reader
from regard.data.readers.quotes import is_quoted
from regard.data.readers.reader import Layout
from regard.data.splits import Splits, open_data
from regard.errors import UserError

PAIRS = [
    ("Hello, world", "Hola, mundo"),
    ('She said "hi", then left.', 'Dijo "hola"; se fue.'),
    ("Two\nlines", "Dos\nlíneas"),
    ("Where are you?", "¿Dónde estás?"),
    ("It is late; go home.", "Es tarde; vete a casa."),
    ("I see a cat.", "Veo un gato."),
]
SIMPLE = [pair for pair in PAIRS if "\n" not in pair[0]]


def table(rows: Any, **form: Any) -> str:
    text = io.StringIO()
    csv.writer(text, **form).writerows(rows)
    return text.getvalue()


def opened(path: Path, content: str | bytes = b"", **options: Any) -> Splits:
    """The splits of a file with nothing split off."""
    if content:
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    return open_data(str(path), **{"dev": 0, "test": 0, **options})


def texts(splits: Splits) -> list[tuple[str, str]]:
    return [(pair.source, *pair.targets) for pair in splits.train]


def refused(path: Path, content: str | bytes = b"", **options: Any) -> str:
    """What is said about a file that cannot be read: one line, which names it."""
    with pytest.raises(UserError) as error:
        list(opened(path, content, **options).train)
    said = str(error.value)
    assert path.name in said
    assert "\n" not in said
    return said


# CSV


@pytest.mark.parametrize("separator", [",", ";", "|"])
@pytest.mark.parametrize("quoting", [csv.QUOTE_MINIMAL, csv.QUOTE_ALL])
@pytest.mark.parametrize("packed", [False, True])
def test_csv_with_quotes(tmp_path: Path, separator: str, quoting: Any, packed: bool) -> None:
    content = table(PAIRS, delimiter=separator, quoting=quoting).encode()
    name = "pairs.csv.gz" if packed else "pairs.csv"
    splits = opened(tmp_path / name, gzip.compress(content) if packed else content)
    assert texts(splits) == PAIRS
    assert splits.reading == []
    assert [pair.line for pair in splits.train] == [1, 2, 3, 6, 7, 8]  # where a row begins


def test_a_header_is_noticed_and_its_names_choose_columns(tmp_path: Path) -> None:
    content = table([("english", "spanish"), *SIMPLE])
    splits = opened(tmp_path / "pairs.csv", content)
    assert texts(splits) == SIMPLE
    assert splits.reading == [
        "pairs.csv: line 1 is a header, english → spanish (to read it as a pair, set "
        "data.header=no)"
    ]
    backwards = [(target, source) for source, target in SIMPLE]
    assert texts(opened(tmp_path / "pairs.csv", source="Spanish", target="english")) == backwards
    assert texts(opened(tmp_path / "pairs.csv", source="2", target="1")) == backwards
    assert texts(opened(tmp_path / "pairs.csv", source="spanish")) == backwards
    assert len(texts(opened(tmp_path / "pairs.csv", header="no"))) == len(SIMPLE) + 1
    assert "no column 'german'; it has 'english', 'spanish'" in refused(
        tmp_path / "pairs.csv", source="german", target="english"
    )


HEADERS = {
    "source\ttarget": (".tsv", True),
    "Source\tTarget": (".tsv", True),
    "English\tGerman": (".tsv", True),
    "en\tde": (".tsv", True),
    "Wo bist du?\tDa": (".tsv", False),
    "source\tsource": (".tsv", False),
    "Go.\tVa !": (".tsv", False),
    "frage;antwort": (".csv", True),  # the only line with words instead of sentences
    "id;Cree": (".csv", True),
    "Hello there.;Guten Tag.": (".csv", False),
}


@pytest.mark.parametrize("first", HEADERS)
def test_what_is_a_header(tmp_path: Path, first: str) -> None:
    suffix, is_header = HEADERS[first]
    separator = "\t" if "\t" in first else ";"
    rows = [f"this is line {n}{separator}das ist Zeile {n}\n" for n in range(9)]
    splits = opened(tmp_path / f"pairs{suffix}", f"{first}\n{''.join(rows)}")
    assert len(texts(splits)) == (9 if is_header else 10)
    assert len(splits.reading) == is_header


SENTENCES = [f"this is line {n}.\tdas ist Zeile {n}." for n in range(9)]
WORDS = ["cat\tkæt", "dog\tdɒɡ", "sun\tsʌn", "map\tmæp", "hen\thɛn", "pig\tpɪɡ"]
DATES = [f"{n} may 200{n}\t200{n}-05-0{n}" for n in range(1, 9)]
UNKNOWN_HEADERS = {
    "words before sentences": ("frage\tantwort", SENTENCES, True),
    "phrases before sentences": ("English text\tGerman text", SENTENCES, True),
    "capitals before small letters": ("Wort\tLaute", WORDS, True),
    "a name before numbers": ("wort\tzahl", [f"w{n}\t{n}" for n in range(9)], True),
    "a name before dates": ("written\tiso", DATES, True),
    "a date among dates": ("9 may 2009\t2009-05-09", DATES, False),
    "a word among words": ("bat\tbæt", WORDS, False),
    "a word among some sentences": ("Go.\tGeh.", SENTENCES, False),
    "few lines": ("frage\tantwort", SENTENCES[:3], False),
    "not a name": ("1+1\t2", SENTENCES, False),
}


@pytest.mark.parametrize("name", UNKNOWN_HEADERS)
def test_a_first_line_that_may_be_a_header_is_told(tmp_path: Path, name: str) -> None:
    first, others, told = UNKNOWN_HEADERS[name]
    splits = opened(tmp_path / "pairs.tsv", "\n".join([first, *others]))
    pair = first.replace("\t", " → ")
    note = f"pairs.tsv: line 1 ({pair}) is read as a pair; if it is a header, set data.header=yes"
    assert splits.reading == ([note] if told else [])
    assert len(texts(splits)) == 1 + len(others)
    for header in ("yes", "no"):
        given = opened(tmp_path / "pairs.tsv", header=header)
        assert not any("is read as a pair" in line for line in given.reading)


def test_a_dictionary_of_words_keeps_its_first_line(tmp_path: Path) -> None:
    words = "la\tit\nle\tthe\nun\ta\net\tand\nde\tof\nen\tin\n"  # la, it: languages too
    assert texts(opened(tmp_path / "words.tsv", words))[0] == ("la", "it")


def test_columns_by_number(tmp_path: Path) -> None:
    content = "1\tone\tuno\n2\ttwo\tdos\n"
    splits = opened(tmp_path / "pairs.tsv", content, source="3", target="2")
    assert texts(splits) == [("uno", "one"), ("dos", "two")]
    assert splits.reading == ["pairs.tsv: column 1 ('1') is not used"]
    assert "no column 4; it has 3" in refused(tmp_path / "pairs.tsv", source="4", target="1")
    assert "no column 0; it has 3" in refused(tmp_path / "pairs.tsv", source="0", target="1")
    assert "the same column" in refused(tmp_path / "pairs.tsv", source="1", target="1")


def test_a_broken_csv_loses_the_broken_lines_only(tmp_path: Path) -> None:
    rows = [f"dog {n},perro {n}" for n in range(80)]
    lines = ["english,spanish", '"open,abierto', *rows, '5" disk,disco', "a,b,c", "", "alone"]
    splits = opened(tmp_path / "pairs.csv", "\n".join(lines))
    assert [source for source, _ in texts(splits)] == [f"dog {n}" for n in range(80)] + ['5" disk']
    assert {reason: first for (_, reason), first in splits.skipped.first.items()} == {
        "unclosed quote, or too long": [2],
        "too many columns: a separator inside a text needs quotes": [84],
        "empty line": [85],
        "one column": [86],
    }


def test_csv_as_programs_write_it(tmp_path: Path) -> None:
    path = tmp_path / "pairs.csv"
    assert texts(opened(path, "\ufeffsep=;\r\nenglish;german\r\na, b;c\r\n")) == [("a, b", "c")]
    index = opened(path, ",english,german\n0,a,b\n1,c,d\n")  # pandas
    assert texts(index) == [("a", "b"), ("c", "d")]
    assert "pairs.csv: column 1 (unnamed) is not used" in index.reading[1]
    assert texts(opened(path, '"He said \\"hi\\", ok","x"\n"y","z"\n'))[0][0] == 'He said "hi", ok'
    assert texts(opened(path, '"a, b", "c, d"\n')) == [("a, b", "c, d")]


def test_an_open_quote_at_the_end(tmp_path: Path) -> None:
    splits = opened(tmp_path / "pairs.csv", 'a,b\n"c,d\ne,f\n')
    assert texts(splits) == [("a", "b"), ("e", "f")]


# TSV


@pytest.mark.parametrize("quoting", [csv.QUOTE_MINIMAL, csv.QUOTE_ALL, csv.QUOTE_NONNUMERIC])
def test_quoted_tsv(tmp_path: Path, quoting: Any) -> None:
    content = table(PAIRS, delimiter="\t", quoting=quoting)
    splits = opened(tmp_path / "pairs.tsv", content)
    assert texts(splits) == PAIRS
    assert splits.reading == ["pairs.tsv: cells are quoted; the quotes are removed"]


def test_excels_tsv_quotes_what_has_a_comma(tmp_path: Path) -> None:
    lines = [f'"Yes, number {n}"\t"Sí, {n}"\nno {n}\tno {n}\n' for n in range(3)]
    splits = opened(tmp_path / "pairs.txt", "".join(lines).encode("utf-16"))
    assert texts(splits)[:2] == [("Yes, number 0", "Sí, 0"), ("no 0", "no 0")]


RAW = [
    '"Hello," she said.\t"Hola", dijo.\nYes, sir.\tSí, señor.\n',
    '"Go."\t"Ve."\nShe said "go".\tDijo "ve".\n',
    '"Go, now."\t"Ve, ya."\nI go.\tVoy.\n',
    '5" disk\tdisco de 5"\n"\tcomillas\n""\tvacío\n',
    "a, b; c | d\te, f; g | h\n",
    'one\ttwo\n"three"\t"four"\n',
]


@pytest.mark.parametrize("content", RAW)
def test_sentences_with_quotes_and_commas_are_read_as_they_stand(
    tmp_path: Path, content: str
) -> None:
    splits = opened(tmp_path / "pairs.tsv", content)
    assert texts(splits) == [tuple(line.split("\t")) for line in content.splitlines()]
    assert splits.reading == []


@settings(max_examples=300, deadline=None)
@given(
    rows=st.lists(
        st.lists(st.text("ab\", '", max_size=6), min_size=2, max_size=2), min_size=1, max_size=6
    )
)
def test_quotes_are_taken_off_only_where_a_program_put_them(rows: list[list[str]]) -> None:
    """Every quote in such a file is around a whole cell, or doubled inside one."""
    text = "\n".join("\t".join(row) for row in rows)
    if is_quoted(text, complete=True):
        quoted = [cell for row in rows for cell in row if '"' in cell]
        assert all(re.fullmatch('"([^"]|"")*"', cell) for cell in quoted)
        assert len(quoted) >= 3 or any('""' in cell[1:-1] for cell in quoted)


def test_a_third_column_is_named(tmp_path: Path) -> None:
    splits = opened(tmp_path / "pairs.tsv", "a\tb\tCC-BY 2.0\tme\nc\td\te\tf\n")
    told = (
        "columns 3 ('CC-BY 2.0'), 4 ('me') are not used (to choose columns, set data.source "
        "and data.target)"
    )
    assert splits.reading == [f"pairs.tsv: {told}"]
    chosen = opened(tmp_path / "pairs.tsv", source="1", target="2")
    assert chosen.reading == ["pairs.tsv: columns 3 ('CC-BY 2.0'), 4 ('me') are not used"]
    assert texts(splits) == [("a", "b"), ("c", "d")]

    late = "a\tb\n" * 30_000 + "a\tb\tlate\n"  # beyond what is looked at first
    splits = opened(tmp_path / "pairs.tsv", late)
    assert splits.reading == []
    list(splits.train)
    assert len(splits.reading) == 1
    assert "column 3 ('late') is not used" in splits.reading[0]

    splits = opened(tmp_path / "pairs.csv", "english,spanish,license\nhello,hola,CC0\n")
    assert "pairs.csv: column license is not used" in splits.reading[1]


def test_lines_of_aligners(tmp_path: Path) -> None:
    assert texts(opened(tmp_path / "pairs.txt", "a b ||| c d\ne ||| f\n")) == [
        ("a b", "c d"),
        ("e", "f"),
    ]


# encodings


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-be", "utf-32"])
@pytest.mark.parametrize("name", ["pairs.tsv", "pairs.csv", "pairs.jsonl", "pairs.json"])
def test_a_byte_order_mark_is_enough(tmp_path: Path, encoding: str, name: str) -> None:
    text = "".join(f"{source}\t{target}\r\n" for source, target in SIMPLE)
    if "json" in name:
        rows = [{"source": source, "target": target} for source, target in SIMPLE]
        text = json.dumps(rows) if name.endswith(".json") else "\n".join(map(json.dumps, rows))
    mark = "\ufeff" if encoding == "utf-16-be" else ""
    assert texts(opened(tmp_path / name, (mark + text).encode(encoding))) == SIMPLE


def test_aligned_files_in_utf_16(tmp_path: Path) -> None:
    (tmp_path / "text.de").write_text("Ä\nਊ\n", encoding="utf-8")
    path = tmp_path / "text.en"
    splits = opened(path, "A\nਊ\n".encode("utf-16"), source="en", target="de")  # ਊ is U+0A0A
    assert texts(splits) == [("A", "Ä"), ("ਊ", "ਊ")]


def some_latin(lines: int, latin: int) -> bytes:
    rows = [
        f"café {n}\tété {n}\n".encode("latin-1" if n < latin else "utf-8") for n in range(lines)
    ]
    return b"".join(rows)


def test_more_than_a_tenth_of_the_lines_in_another_encoding(tmp_path: Path) -> None:
    path = tmp_path / "pairs.tsv"
    said = refused(path, some_latin(200, 21))
    assert "21 of 200 lines are not UTF-8; it looks like Latin-1" in said
    assert said.endswith("data.encoding=latin-1")
    assert len(texts(opened(path, some_latin(200, 20)))) == 180  # a tenth: counted and skipped
    assert len(texts(opened(path, some_latin(99, 98)))) == 1
    assert texts(opened(path, some_latin(200, 200), encoding="latin-1"))[0] == ("café 0", "été 0")
    with pytest.raises(UserError, match=r"data\.encoding=klingon: unknown encoding"):
        opened(path, encoding="klingon")


GUESSES = {
    "cp1252": "C’est l’été – déjà vu…",
    "cp1250": "Zażółć gęślą jaźń, łódź",
    "cp1251": "Привет, мир! Как дела?",
    "koi8-r": "Привет, мир! Как дела?",
    "cp1253": "Καλημέρα κόσμε, τι κάνεις",
    "cp1255": "שלום עולם",
    "cp1256": "صباح الخير يا عالم",
    "shift_jis": "私は学生です。これは本です",
    "euc-kr": "안녕하세요 세계",
    "gb18030": "我是学生，这是一本书。",
    "big5": "我是學生，這是一本書。",
}


@pytest.mark.parametrize("encoding", GUESSES)
@pytest.mark.parametrize("name", ["pairs.tsv", "pairs.csv"])
def test_what_an_encoding_looks_like(tmp_path: Path, encoding: str, name: str) -> None:
    separator = "\t" if name.endswith(".tsv") else ";"
    text = "".join(f"{GUESSES[encoding]} {n}{separator}x {n}\n" for n in range(120))
    assert refused(tmp_path / name, text.encode(encoding)).endswith(f"data.encoding={encoding}")
    splits = opened(tmp_path / name, encoding=encoding)
    assert texts(splits)[0] == (f"{GUESSES[encoding]} 0", "x 0")


# JSON and Parquet


@pytest.mark.parametrize("indent", [None, 2])
@pytest.mark.parametrize("name", ["pairs.json", "pairs.json.gz", "pairs.txt"])
def test_json_arrays(tmp_path: Path, indent: int | None, name: str) -> None:
    rows = [{"source": source, "target": target} for source, target in PAIRS]
    content = json.dumps(rows, indent=indent, ensure_ascii=False).encode()
    splits = opened(tmp_path / name, gzip.compress(content) if "gz" in name else content)
    assert texts(splits) == PAIRS


def test_other_json_documents(tmp_path: Path) -> None:
    rows = [{"en": source, "es": target} for source, target in PAIRS]
    names = {"source": "en", "target": "es"}
    path = tmp_path / "pairs.json"
    assert texts(opened(path, json.dumps({"version": 1, "data": rows}), **names)) == PAIRS
    assert texts(opened(path, json.dumps(PAIRS))) == PAIRS
    assert texts(opened(path, "\n".join(map(json.dumps, PAIRS)))) == PAIRS
    assert "try data.source=en data.target=es" in refused(path, json.dumps(rows))
    assert "one JSON object" in refused(path, json.dumps({"a": "b"}, indent=1))
    assert "neither a JSON array nor one object per line" in refused(path, "[{]")


def test_json_arrays_are_read_in_constant_memory(tmp_path: Path) -> None:
    path = tmp_path / "pairs.json"
    with path.open("w") as file:
        file.write('{"version": [1, 2], "data": [{"source": "a", "target": "b"}')
        file.writelines(',\n {"source": "a", "target": "b"}' for _ in range(60_000))
        file.write('], "more": {}}')
    reader = find_reader(path, Layout())
    tracemalloc.start()
    try:
        assert sum(1 for _ in reader.pairs(Skipped())) == 60_001
        assert tracemalloc.get_traced_memory()[1] < 8_000_000
    finally:
        tracemalloc.stop()


def test_nested_keys(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    pq = pytest.importorskip("pyarrow.parquet")
    rows = [{"id": 1, "translation": {"en": source, "es": target}} for source, target in PAIRS]
    names = {"source": "translation.en", "target": "translation.es"}
    splits = opened(tmp_path / "pairs.jsonl", "\n".join(map(json.dumps, rows)), **names)
    assert texts(splits) == PAIRS
    assert splits.reading == ["pairs.jsonl: not used: id"]
    assert texts(opened(tmp_path / "pairs.json", json.dumps(rows), **names)) == PAIRS
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "pairs.parquet")
    assert texts(opened(tmp_path / "pairs.parquet", **names)) == PAIRS
    said = refused(tmp_path / "pairs.jsonl")
    assert "it has 'id', 'translation.en', 'translation.es'" in said


# TMX

UNITS = """<?xml version="1.0" encoding="{0}"?>
<!DOCTYPE tmx SYSTEM "tmx14.dtd">
<tmx version="1.4"><header srclang="en-US"/><body>
<tu><tuv xml:lang="en-US"><seg>Bold <bpt i="1">&lt;b&gt;</bpt>word<ept i="1">&lt;/b&gt;</ept>
 &amp; more</seg></tuv><tuv xml:lang="DE"><seg>Fett</seg></tuv></tu>
<tu><tuv xml:lang="en-US"><seg>one</seg></tuv></tu>
<tu><tuv xml:lang="de"><seg>eins</seg></tuv><tuv xml:lang="en-US"><seg>one</seg></tuv>
<tuv xml:lang="de"><seg>ein</seg></tuv></tu>
</body></tmx>"""


@pytest.mark.parametrize("encoding", ["UTF-8", "UTF-16", "ISO-8859-1"])
def test_tmx(tmp_path: Path, encoding: str) -> None:
    path = tmp_path / "memory.tmx"
    splits = opened(path, UNITS.format(encoding).encode(encoding))
    assert list(splits.train) == [
        Pair("Bold word & more", ("Fett",), 1),
        Pair("one", ("eins", "ein"), 3),
    ]
    assert splits.skipped.first == {("memory.tmx", "empty target"): [2]}
    assert "en-us → de; for the other direction add data.source=de" in splits.reading[0]
    assert texts(opened(path, source="de", target="en")) == [
        ("Fett", "Bold word & more"),
        ("eins", "one"),
    ]
    assert "its languages are en-us, de" in refused(path, source="fr", target="en")


ENTITIES = {
    "declared": '<!DOCTYPE tmx [<!ENTITY a "aaaa">]>',
    "external": '<!DOCTYPE tmx [<!ENTITY a SYSTEM "file:///etc/passwd">]>',
    "parameter": '<!DOCTYPE tmx [<!ENTITY % a SYSTEM "http://localhost/a.dtd"> %a;]>',
    "of the DTD": '<!DOCTYPE tmx SYSTEM "tmx14.dtd">',
}


@pytest.mark.parametrize("name", ENTITIES)
def test_tmx_with_entities_is_refused(tmp_path: Path, name: str) -> None:
    units = '<tu><tuv lang="en"><seg>&a;</seg></tuv><tuv lang="de"><seg>b</seg></tuv></tu>'
    content = f"{ENTITIES[name]}<tmx><body>{units}</body></tmx>"
    assert "XML entities are not supported" in refused(tmp_path / "memory.tmx", content)


def test_tmx_of_three_languages_and_damaged_tmx(tmp_path: Path) -> None:
    tuvs = "".join(f'<tuv xml:lang="{x}"><seg>{x}</seg></tuv>' for x in ("en", "de", "fr"))
    path = tmp_path / "memory.tmx"
    content = f"<tmx><body><tu>{tuvs}</tu></body></tmx>"
    assert "has en, de, fr; choose two languages" in refused(path, content)
    assert texts(opened(path, source="fr", target="en")) == [("fr", "en")]
    assert "not XML, or damaged" in refused(path, content[:-30], source="fr", target="en")


def test_tmx_is_read_in_constant_memory(tmp_path: Path) -> None:
    unit = '<tu><tuv lang="en"><seg>one</seg></tuv><tuv lang="de"><seg>eins</seg></tuv></tu>\n'
    path = tmp_path / "memory.tmx"
    path.write_text(f"<tmx><body>{unit * 20_000}</body></tmx>")
    reader = find_reader(path, Layout())
    tracemalloc.start()
    try:
        assert sum(1 for _ in reader.pairs(Skipped())) == 20_000
        assert tracemalloc.get_traced_memory()[1] < 2_000_000
    finally:
        tracemalloc.stop()


# two files, and files for dev and test


def test_a_lone_file_whose_sibling_lies_beside_it(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    Path("text.de").write_text("A\nB\n")
    Path("text.fr").write_text("A\nB\nC\n")  # one line more: not this one
    said = refused(Path("text.en"), "a\nb\n")
    assert "give two files: regard train text.en text.de" in said
    assert "add train.objective=causal" in said  # they may be texts of one language
    Path("text.en").write_text("a\tx\nb\ty\n")  # a TSV, whatever its name
    assert texts(opened(Path("text.en"))) == [("a", "x"), ("b", "y")]

    Path("german.txt").write_text("A\nB\n")
    assert "regard train english.txt german.txt; " in refused(Path("english.txt"), "a\nb\n")


def test_a_file_without_tabs_is_told_to_be_csv(tmp_path: Path) -> None:
    said = refused(tmp_path / "pairs.txt", "one;eins\ntwo;zwei\n")
    assert "if its columns are separated by semicolons, rename it to pairs.csv" in said


def test_target_file(tmp_path: Path) -> None:
    (tmp_path / "german").write_text("A\nB\n")
    path = tmp_path / "english.txt"
    splits = opened(path, "a\nb\n", target_file=str(tmp_path / "german"))
    assert texts(splits) == [("a", "A"), ("b", "B")]
    (tmp_path / "german").write_text("A\n")
    said = refused(path, target_file=str(tmp_path / "german"))
    assert "has 2 lines and" in said


def test_train_dev_and_test_anywhere_in_a_name(tmp_path: Path) -> None:
    row = "source,target\na,b\n"
    for name in ("big-train-2.csv", "latest.csv", "restrain.csv", "notes-on-train.md"):
        (tmp_path / name).write_text(row)
    splits = open_data(str(tmp_path))
    assert splits.dev == splits.train  # too few pairs to hold any out
    for name in ("my.dev.csv", "newstest2014.tsv"):
        (tmp_path / name).write_text(row.replace("a,b", f"{name},b").replace(",", "\t"))
    (tmp_path / "my.dev.csv").write_text("source,target\nd,b\n")
    splits = open_data(str(tmp_path))
    assert texts(splits) == [("a", "b")]
    assert [pair.source for pair in splits.dev or ()] == ["d"]
    assert [pair.source for pair in splits.test or ()] == ["newstest2014.tsv"]


def test_aligned_files_with_train_anywhere_in_their_names(tmp_path: Path) -> None:
    for part in ("train", "dev"):
        for language in ("en", "de"):
            (tmp_path / f"europarl.{part}.{language}").write_text(f"{part} {language}\n")
    splits = open_data(str(tmp_path), source="en", target="de")
    assert texts(splits) == [("train en", "train de")]
    assert [pair.source for pair in splits.dev or ()] == ["dev en"]


def test_files_for_dev_and_test(tmp_path: Path) -> None:
    (tmp_path / "d.csv").write_text("english,spanish\nd,D\n")
    (tmp_path / "t.tsv").write_text("t\tT\n")
    files = {"dev_file": str(tmp_path / "d.csv"), "test_file": str(tmp_path / "t.tsv")}
    content = "english;spanish\n" + "".join(f"a b c {n};A B C {n}\n" for n in range(40))
    (tmp_path / "p.csv").write_text(content)
    names = {"source": "english", "target": "spanish"}
    splits = open_data(str(tmp_path / "p.csv"), **files, **names)
    assert len(texts(splits)) == 40
    assert [pair.source for pair in splits.dev or ()] == ["d"]
    assert [pair.source for pair in splits.test or ()] == ["t"]
    assert splits.reading[-1] == (
        "t.tsv: no columns english and spanish; using column 1 as source and column 2 as target"
    )
    with pytest.raises(UserError, match=r"^data\.dev_file: .*nope\.tsv: no such file"):
        open_data(str(tmp_path / "p.csv"), dev_file=str(tmp_path / "nope.tsv"))


def test_files_for_dev_and_test_are_offered(tmp_path: Path) -> None:
    for part in ("train", "dev", "test"):
        (tmp_path / f"fre_{part}.tsv").write_text(f"a {part}\tb\n" * 9)
    (tmp_path / "hun_dev.tsv").write_text("a\tb\n")
    path = tmp_path / "fre_train.tsv"
    files = {part: tmp_path / f"fre_{part}.tsv" for part in ("dev", "test")}
    (told,) = opened(path).notes
    assert told == (
        f"fre_dev.tsv and fre_test.tsv next to fre_train.tsv are not used; to use them, add "
        f"data.dev_file={files['dev']} data.test_file={files['test']}"
    )
    assert opened(path, dev_file=str(files["dev"])).notes == []
    (tmp_path / "fre_train.tsv").rename(tmp_path / "fre.tsv")
    assert opened(tmp_path / "fre.tsv").notes == []


# what cannot be read


def archive(*names: str) -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as file:
        for name in names:
            file.writestr(name, "x")
    return content.getvalue()


REFUSED = {
    "book.xlsx": (archive("[Content_Types].xml", "xl/workbook.xml"), "save the sheet as CSV"),
    "renamed.csv": (archive("[Content_Types].xml", "xl/workbook.xml"), "an Excel file"),
    "book.xls": (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(500), "save the sheet as CSV"),
    "letter.docx": (archive("word/document.xml"), "save that as CSV"),
    "pairs.zip": (archive("pairs.tsv"), "unpack it"),
    "pairs.tsv.xz": (b"\xfd7zXZ\0" + bytes(40), "xz -d pairs.tsv.xz"),
    "pairs.tsv.bz2": (b"BZh91AY" + bytes(40), "bunzip2 pairs.tsv.bz2"),
    "pairs.tsv.zst": (b"\x28\xb5\x2f\xfd" + bytes(40), "zstd -d pairs.tsv.zst"),
    "pairs.tar": (b"pairs.tsv".ljust(257, b"\0") + b"ustar\0" + bytes(300), "tar -xf pairs.tar"),
    "pairs.pkl": (b"\x80\x04\x95" + bytes(40), "pickle"),
    "pairs.db": (b"SQLite format 3\0" + bytes(80), "export the table as CSV"),
    "pairs.tsv": (b"<!DOCTYPE html>\n<html></html>", "a web page"),
    "lfs.tsv": (b"version https://git-lfs.github.com/spec/v1\noid sha256:1\n", "git lfs pull"),
    "pairs.xlf": (b'<?xml version="1.0"?>\n<xliff version="1.2"></xliff>', "XML, but not TMX"),
    "pairs.pdf": (b"%PDF-1.7\n" + bytes(80), "PDF"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_read_is_told_with_the_way_out(tmp_path: Path, name: str) -> None:
    content, said = REFUSED[name]
    assert said in refused(tmp_path / name, content)


LOOKALIKES = {  # content, what is said, and the pairs that the command in it makes
    "de.po": ('msgid "yes"\nmsgstr "ja"\n\nmsgid "no"\nmsgstr "nein"\n', "po2tmx -l LANGUAGE", 0),
    "film.srt": ("1\n00:00:01,000 --> 00:00:02,000\nHello\n\n", "subtitles", 0),
    "film.vtt": ("WEBVTT\n\n00:01.000 --> 00:02.000\nHello\n", "subtitles", 0),
    "table.md": ("| en | de |\n|----|:--:|\n| yes | ja |\n| no | nein |\n", "a Markdown table", 3),
    "text.md": ("# Title\n\nSome text.\n", "a document, not data", 0),
    "colon.txt": ("yes : ja\nno : nein\n", "lines such as “a : b”", 2),
    "equals.txt": ("yes = ja\nno = nein\n", "lines such as “a = b”", 2),
    "arrow.txt": ("yes -> ja\nno -> nein\n", "lines such as “a -> b”", 2),
    "words.ini": ("; words\n[main]\nyes=ja\nno=nein\n", "an INI file", 2),
    "words.yaml": ("# words\nyes: ja\nno: nein\n", "a YAML file", 2),
    "list.yaml": ("- source: yes\n  target: ja\n- source: no\n  target: x\n", "yq -o=json", 0),
    "chat.txt": (
        "12/03/24, 10:11 - Ann: hello\n12/03/24, 10:12 - Bob: hi\n",
        "a chat export",
        0,
    ),
    "iphone.txt": (
        "[12.03.24, 10:11:12] Ann: hello\n[12.03.24, 10:12:00] Bob: hi\n",
        "a chat export",
        0,
    ),
    "page.html": ("<html><table><tr><td>a</td></tr></table></html>", "pandas.read_html", 0),
    "letter.odt": (archive("mimetype", "content.xml"), "a document", 0),
    "renamed": (archive("word/document.xml"), "a document", 0),
}


@pytest.mark.parametrize("name", LOOKALIKES)
def test_what_it_looks_like_and_the_way_out(tmp_path: Path, name: str) -> None:
    content, said, pairs = LOOKALIKES[name]
    message = refused(tmp_path / name, content)
    assert said in message
    if pairs and sys.platform == "linux":
        command = message[message.index("sed ") :]
        subprocess.run(command, shell=True, cwd=tmp_path, check=True)
        made = tmp_path / Path(name).with_suffix(".tsv").name
        assert texts(opened(made))[-2:] == [("yes", "ja"), ("no", "nein")]
        assert len(texts(opened(made, header="no"))) == pairs


def test_a_csv_that_could_be_split_otherwise(tmp_path: Path) -> None:
    rows = "a;b, c\nd;e, f\ng;h, i\n"
    splits = opened(tmp_path / "pairs.csv", rows)
    assert texts(splits)[0] == ("a", "b, c")
    assert splits.reading == [
        "pairs.csv: columns are split at semicolons, though commas would fit nearly as well (to "
        "choose, make sep=, the first line)"
    ]
    assert texts(opened(tmp_path / "pairs.csv", f"sep=,\n{rows}"))[0] == ("a;b", "c")


def test_a_folder_without_a_train_file_is_told_what_is_there(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()

    def said() -> str:
        with pytest.raises(UserError) as error:
            open_data(str(folder))
        return str(error.value)

    assert said().endswith("contains nothing: expected a file such as train.tsv")
    (folder / "train.fr").write_text("un\n")
    assert said().endswith(
        "train.fr needs a file with the same lines in another language beside it"
    )
    (folder / "train.en").write_text("one\n")
    assert said().endswith("add data.source=en data.target=fr")
    for file in ("train.fr", "train.en"):
        (folder / file).unlink()
    (folder / "words.tsv").write_text("a\tb\n")
    assert said().endswith(f"none is called train; give one file: regard train {folder}/words.tsv")


def test_how_a_few_pairs_were_split_is_told(tmp_path: Path) -> None:
    (tmp_path / "pairs.tsv").write_text("a\tb\nc\td\ne\tf\n")
    splits = open_data(str(tmp_path / "pairs.tsv"))
    assert splits.notes == [
        f"{tmp_path}/pairs.tsv: only 3 pairs (1 for training, 1 for dev, 1 for test), too few to "
        f"learn from; a useful model needs thousands"
    ]


def test_a_header_of_a_csv_is_told_by_the_digits_below_it(tmp_path: Path) -> None:
    lines = ["written,iso", *(date.replace("\t", ",") for date in DATES)]
    splits = opened(tmp_path / "pairs.csv", "\n".join(lines))
    assert len(texts(splits)) == len(DATES)
