"""Files and folders of texts: what is a text, and which files are read."""

import gzip
import os
import sys

import pytest

from regard.data.pairs import Pair, Skipped
from regard.data.readers import find_reader, is_table
from regard.data.readers.reader import Layout
from regard.data.readers.texts import TextFolder, TextReader
from regard.data.splits import open_data
from regard.errors import UserError

WRAPPED = b"One text\nof two lines.\n\n\nAnother text\nof three\nlines.\n"


def read(path, documents="auto", **layout):
    reader = find_reader(path, Layout(documents=documents, **layout))
    skipped = Skipped()
    pairs = list(reader.pairs(skipped))
    assert all(pair.targets == ("",) for pair in pairs)
    return [pair.source for pair in pairs], skipped, reader


def texts_of(path, documents="auto", **layout):
    return read(path, documents, **layout)[0]


@pytest.fixture
def file(tmp_path):
    def write(content, name="notes.txt"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content)
        return path

    return write


def test_a_text_in_each_line(file):
    path = file(b"first\n\n  second \nthird")
    texts, skipped, reader = read(path)
    assert texts == ["first", "second", "third"]
    assert isinstance(reader, TextReader)
    assert not skipped.lines()  # an empty line is no mistake
    assert list(reader.pairs(Skipped())) == list(reader.pairs(Skipped()))
    assert next(iter(reader.pairs(Skipped()))) == Pair("first", ("",), 1)


def test_paragraphs_are_seen_and_told(file):
    path = file(WRAPPED)
    texts, _, reader = read(path)
    assert texts == ["One text\nof two lines.", "Another text\nof three\nlines."]
    assert any("data.documents=line" in note for note in reader.notes)
    assert [pair.line for pair in reader.pairs(Skipped())] == [1, 5]


def test_lines_or_paragraphs_as_asked(file):
    path = file(WRAPPED)
    assert len(texts_of(path, "line")) == 5
    assert len(texts_of(path, "paragraph")) == 2
    lines = file(b"first\nsecond\n", "lines.txt")
    assert texts_of(lines, "paragraph") == ["first\nsecond"]


def test_gzip_is_the_same(file):
    plain, packed = file(WRAPPED), file(gzip.compress(WRAPPED), "packed.txt.gz")
    assert texts_of(packed) == texts_of(plain)


@pytest.mark.parametrize("documents", ["line", "paragraph"])
def test_line_ends_of_windows_are_none_of_the_text(file, documents):
    unix, windows = file(WRAPPED), file(WRAPPED.replace(b"\n", b"\r\n"), "windows.txt")
    assert texts_of(windows, documents) == texts_of(unix, documents)
    assert texts_of(windows) == texts_of(unix)


def test_a_byte_order_mark_is_no_text(file):
    assert texts_of(file(b"\xef\xbb\xbffirst\nsecond\n")) == ["first", "second"]
    assert texts_of(file("first\nsecond\n".encode("utf-16"), "u.txt")) == ["first", "second"]


def test_an_encoding_that_is_said(file):
    path = file("été\nhiver\n".encode("latin-1"))
    assert texts_of(path, encoding="latin-1") == ["été", "hiver"]


def test_a_line_that_is_not_utf8_is_counted(file):
    path = file(b"good\n" * 50 + b"bad \xff\n" + b"good\n" * 50)
    texts, skipped, _ = read(path)
    assert len(texts) == 100
    assert any("not UTF-8 (line 51)" in line for line in skipped.lines())


def test_a_file_in_another_encoding_is_refused(file):
    path = file("é à ç ü\n".encode("latin-1") * 200)
    with pytest.raises(UserError, match=r"data\.encoding="):
        texts_of(path)


def test_an_empty_file_is_refused(file):
    with pytest.raises(UserError, match="empty"):
        texts_of(file(b""))


def test_a_long_text_is_cut_at_white_space(file):
    words = " ".join(f"word{number}" for number in range(5000))
    texts = texts_of(file(words.encode() + b"\n"))
    assert len(texts) > 3
    assert max(map(len, texts)) <= 10_000
    assert " ".join(texts) == words


def test_a_long_word_is_cut_anywhere(file):
    texts = texts_of(file(b"x" * 25_000 + b"\n"))
    assert list(map(len, texts)) == [10_000, 10_000, 5_000]


def test_a_tab_does_not_make_pairs_of_texts(file):
    assert texts_of(file(b"a\tb\nno tab\n")) == ["a\tb", "no tab"]
    assert texts_of(file(b"a\tb\nc\td\n", "x.txt"), "line") == ["a\tb", "c\td"]


def test_a_folder_is_its_files_in_order(tmp_path, file):
    file(b"of b\n", "b.txt")
    file(b"of a\nagain\n", "a.txt")
    file(gzip.compress(b"of c\n"), "c.md.gz")
    file(b"hidden\n", ".d.txt")
    file(b"\x89PNG", "picture.png")
    texts, _, reader = read(tmp_path)
    assert texts == ["of a", "again", "of b", "of c"]
    assert isinstance(reader, TextFolder)
    assert "3 files" in reader.name


def test_file_names_in_capitals_are_read_too(tmp_path, file):
    file(b"shout\n", "README.TXT")
    assert texts_of(tmp_path) == ["shout"]


def test_each_file_of_a_folder_has_its_unit(tmp_path, file):
    """A README beside files of lines must not make one text of each of them."""
    file(WRAPPED, "README.md")
    file(b"one\ntwo\n", "b.txt")
    texts, _, reader = read(tmp_path)
    assert texts == ["One text\nof two lines.", "Another text\nof three\nlines.", "one", "two"]
    assert reader.documents == "auto"  # so that it is read like this again
    [note] = [note for note in reader.notes if "empty lines" in note]
    assert "the texts of README.md; 1 file with a text in each line" in note
    assert len(texts_of(tmp_path, "line")) == 7
    assert len(texts_of(tmp_path, "paragraph")) == 3


@pytest.mark.parametrize(("content", "unit"), [(WRAPPED, "paragraph"), (b"a\nb\n", "line")])
def test_a_folder_of_equal_files_has_their_unit(tmp_path, file, content, unit):
    file(content, "a.txt")
    file(content, "b.txt")
    assert read(tmp_path)[2].documents == unit


def test_an_empty_file_of_a_folder_is_left_out_and_told(tmp_path, file):
    file(b"one\ntwo\n", "a.txt")
    file(b"", "b.txt")
    file(gzip.compress(b""), "c.txt.gz")
    texts, _, reader = read(tmp_path)
    assert texts == ["one", "two"]
    assert any("leaving out 2 empty files: b.txt, c.txt.gz" in note for note in reader.notes)


@pytest.mark.skipif(sys.platform == "win32", reason="Unix has these files")
def test_what_is_no_file_in_a_folder_is_told(tmp_path, file):
    """To leave it out in silence would be to train on less than there seems to be."""
    file(b"one\ntwo\n", "a.txt")
    strange = tmp_path / "b.txt"
    strange.symlink_to("gone")
    with pytest.raises(UserError, match=r"b\.txt: a link to gone, which does not exist"):
        texts_of(tmp_path)
    strange.unlink()
    os.mkfifo(strange)
    with pytest.raises(UserError, match=r"b\.txt: a named pipe"):
        texts_of(tmp_path)
    strange.unlink()
    strange.mkdir()
    assert texts_of(tmp_path) == ["one", "two"]


def test_a_file_that_is_called_training_hides_no_others_in_silence(tmp_path, file):
    file(b"one\ntwo\n", "training.txt")
    file(b"three\n", "cats.txt")
    file(b"four\n", "dogs.txt")
    splits = open_data(str(tmp_path), documents="auto", dev=0, test=0)
    assert [pair.source for pair in splits.train] == ["one", "two"]
    [note] = splits.notes
    assert "training.txt is the training set, by its name; not used: cats.txt, dogs.txt" in note


def test_a_folder_of_empty_files_is_refused(tmp_path, file):
    file(b"", "a.txt")
    with pytest.raises(UserError, match=r"all files of texts are empty \(a\.txt\)"):
        texts_of(tmp_path)


def test_a_folder_without_texts_is_refused(tmp_path, file):
    file(b"x", "picture.png")
    with pytest.raises(UserError, match="no texts"):
        texts_of(tmp_path)


# texts in a column


TABLES = {
    "a.jsonl": b'{"text": "one", "id": 1}\n{"text": "two, too", "id": 2}\n{"id": 3}\n',
    "alone.jsonl": b'{"caption": "one"}\n{"caption": "two, too"}\n',
    "a.json": b'[{"text": "one"}, {"text": "two, too"}]',
    "a.csv": b'text,number\none,1\n"two, too",2\n',
    "alone.csv": b'text\none\n"two, too"\n',
    "a.tsv": b"id\ttext\n1\tone\n2\ttwo, too\n",
    "alone.tsv": b"one\ntwo, too\n",
    "json.txt": b'{"text": "one"}\n{"text": "two, too"}\n',
}


@pytest.mark.parametrize("documents", ["auto", "source"])
@pytest.mark.parametrize("name", TABLES)
def test_a_column_of_texts_needs_no_target(file, name, documents):
    texts, _, reader = read(file(TABLES[name], name), documents)
    assert texts == ["one", "two, too"]
    assert (reader.holds, reader.documents) == ("text", "source")


@pytest.mark.parametrize("name", ["a.jsonl", "a.json", "a.csv", "a.tsv"])
def test_the_column_of_texts_can_be_named(file, name):
    content = TABLES[name].replace(b"text", b"caption")
    assert texts_of(file(content, name), source="caption")[0] == "one"


def test_parquet_needs_no_target_either(tmp_path):
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    pq.write_table(pa.table({"text": ["one", "two"], "id": [1, 2]}), tmp_path / "a.parquet")
    assert texts_of(tmp_path / "a.parquet") == ["one", "two"]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.jsonl", b'{"source": "one", "target": "un"}\n{"source": "two"}\n'),
        ("a.tsv", b"one\tun\ntwo\n"),
        ("a.csv", b"source,target\none,un\ntwo,\n"),
    ],
)
def test_pairs_keep_their_targets_and_need_none(file, name, content):
    reader = find_reader(file(content, name), Layout(documents="auto"))
    pairs = list(reader.pairs(Skipped()))
    assert [(pair.source, pair.targets) for pair in pairs] == [("one", ("un",)), ("two", ("",))]


def test_pairs_for_a_translator_still_need_a_target(file):
    with pytest.raises(UserError, match="no 'source' and 'target'"):
        find_reader(file(TABLES["a.jsonl"], "a.jsonl"), Layout())


def test_what_is_a_table(tmp_path, file):
    for name, content in TABLES.items():
        assert is_table(file(content, name)), name
    assert is_table(tmp_path)
    assert is_table(file(b"a\tb\nc\td\n", "tabs"))
    assert not is_table(file(b"a\tb\nno tab\n", "notes.txt"))
    assert not is_table(file(b"one\n", "captions.en"))
    assert not is_table(tmp_path / "missing.txt")
