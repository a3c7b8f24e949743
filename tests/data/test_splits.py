"""Finding data and dealing it out: nothing leaks, nothing is lost, mistakes are named."""

import gzip
import io
import json
import os
import tracemalloc
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import regard
from regard.cli.data import data_inspect
from regard.data.pairs import Pair
from regard.data.splits import (
    Leaks,
    Splits,
    Stream,
    from_iterable,
    group_references,
    leaks,
    open_data,
    open_split,
)
from regard.errors import UserError
from regard.recipes.preparing import seen_in_training
from regard.recipes.reporter import Reporter

word = st.sampled_from("abcdefgh")
items = st.lists(
    st.tuples(word, st.one_of(word, st.lists(word, min_size=1, max_size=3))),
    min_size=1,
    max_size=60,
)
laws = settings(max_examples=80, deadline=None)


def sizes(splits: Splits) -> tuple[int, ...]:
    return tuple(len(part) for part in parts(splits))


def parts(splits: Splits) -> list[list[Pair]]:
    return [list(stream or ()) for stream in (splits.train, splits.dev, splits.test)]


@laws
@given(data=items, seed=st.integers(0, 5), group=st.sampled_from(["source", "pair"]))
def test_every_pair_goes_to_one_split_and_no_group_to_two(data, seed: int, group: str) -> None:
    splits = from_iterable(data, seed=seed, group=group)
    train, dev, test = parts(splits)
    assert train
    if any("dev uses the training pairs" in note for note in splits.notes):
        assert splits.dev is splits.train
        dev = []
    assert sorted(pair.line for pair in train + dev + test) == list(range(1, len(data) + 1))
    for one, other in ((train, dev), (train, test), (dev, test)):
        assert not {pair.source for pair in one} & {pair.source for pair in other}
        if group == "pair":
            assert not {text for pair in one for text in pair.targets} & {
                text for pair in other for text in pair.targets
            }
    assert parts(from_iterable(iter(data), seed=seed, group=group)) == parts(splits)


def test_texts_have_no_target_to_share() -> None:
    texts = [f"text {number}" for number in range(60)]
    splits = from_iterable(texts, documents="auto", group="pair", dev=10, test=10)
    assert sizes(splits) == (40, 10, 10)


@laws
@given(n=st.integers(1, 300), limit=st.integers(1, 300), seed=st.integers(0, 9))
def test_limit_is_exact_even_and_in_order(n: int, limit: int, seed: int) -> None:
    data = [(str(i), "x") for i in range(n)]
    whole = from_iterable(data, seed=seed)
    some = from_iterable(data, seed=seed, limit=limit)
    everything, lines = [pair.line for pair in whole.train], [pair.line for pair in some.train]
    assert len(lines) == min(limit, len(everything))
    assert lines == sorted(lines)
    assert set(lines) <= set(everything)
    ranks = [everything.index(line) for line in lines]
    assert all(
        abs(rank - (i + 0.5) * len(everything) / len(ranks)) <= len(everything) / len(ranks) + 1
        for i, rank in enumerate(ranks)
    )


def test_sizes() -> None:
    data = [(f"s{i}", "t") for i in range(50_000)]
    splits = from_iterable(data)
    assert sizes(splits) == (46_000, 2_000, 2_000)
    splits = from_iterable(data[:1000])
    assert sizes(splits) == (900, 50, 50)
    splits = from_iterable(data[:100], dev=7, test=0)
    assert sizes(splits) == (93, 7, 0)
    assert splits.test is None
    with pytest.raises(UserError, match="leave none of the 10 pairs for training"):
        from_iterable(data[:10], dev=5, test=5)


@pytest.mark.parametrize("text", ["a\tb\n", "a\tb\nc\td", "a\tb\n" * 500])
def test_too_little_to_hold_out(tmp_path: Path, text: str) -> None:
    (tmp_path / "pairs.tsv").write_text(text)
    splits = open_data(str(tmp_path / "pairs.tsv"))
    assert list(splits.train) == list(splits.dev) != []
    assert splits.test is None
    assert "dev uses the training pairs" in splits.notes[0]


def test_a_large_group_is_held_out_whole_or_not_at_all() -> None:
    data = [("a", str(i)) for i in range(20)] + [(f"s{i}", "t") for i in range(80)]
    for seed in range(20):
        splits = from_iterable(data, seed=seed)
        train, dev, test = parts(splits)
        assert len(train) >= 50
        assert dev
        assert sum("a" in {pair.source for pair in part} for part in (train, dev, test)) == 1


def test_a_folder(tmp_path: Path) -> None:
    (tmp_path / "train.tsv.gz").write_bytes(
        gzip.compress(b"".join(b"a%d\tb\n" % i for i in range(100)))
    )
    (tmp_path / "README.md").write_text("about")
    splits = open_data(str(tmp_path))
    assert sizes(splits) == (90, 5, 5)
    (tmp_path / "test_2016.tsv").write_text("x\ty\nbroken\n")
    splits = open_data(str(tmp_path))
    assert sizes(splits) == (95, 5, 1)
    assert splits.skipped.lines() == ["test_2016.tsv: skipped 1 line: one column (line 2)"]
    (tmp_path / "valid.jsonl").write_text('{"source": "q", "target": ["r", "s"]}')
    splits = open_data(str(tmp_path), limit=10)
    assert (len(list(splits.train)), list(splits.dev)) == (10, [Pair("q", ("r", "s"), 1)])
    (tmp_path / "train.jsonl").write_text("{}")
    with pytest.raises(UserError, match="several train files"):
        open_data(str(tmp_path))


def test_a_folder_of_aligned_files(tmp_path: Path) -> None:
    for part, letter in (
        ("train.lc", "a"),
        ("val.lc", "b"),
        ("test_1.lc", "c"),
        ("test_2.lc", "d"),
    ):
        for language in ("en", "de", "fr"):
            (tmp_path / f"{part}.{language}").write_text(f"{letter} {language}\n")
    splits = open_data(str(tmp_path), source="de", target="en")
    train, dev, test = parts(splits)
    assert (train, dev, test) == (
        [Pair("a de", ("a en",), 1)],
        [Pair("b de", ("b en",), 1)],
        [Pair("c de", ("c en",), 1)],
    )
    assert "test_1.lc.de is used for test, not test_2.lc.de" in splits.notes[0]
    with pytest.raises(
        UserError, match=r"contains test_1.lc.de, .*: to read two aligned files, add data.source=de"
    ):
        open_data(str(tmp_path))


def test_a_file_that_changes_while_it_is_used(tmp_path: Path) -> None:
    path = tmp_path / "pairs.tsv"
    for before, after in ((40, 41), (41, 40)):
        path.write_text("".join(f"{i}\tb\n" for i in range(before)))
        splits = open_data(str(path))
        path.write_text("".join(f"{i}\tb\n" for i in range(after)))
        with pytest.raises(UserError, match="changed while it was being read"):
            list(splits.train)


def test_mistakes_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "toys-en").mkdir()
    monkeypatch.setenv("REGARD_DATA", str(tmp_path))
    (tmp_path / "one.tsv").write_text("no tab\nnone here\n")
    os.mkfifo(tmp_path / "pipe")
    for spec, said in {
        "arithmetc": "did you mean arithmetic",
        "toys-em": "did you mean toys-en",
        "some/where.tsv": "^some/where.tsv: no such file or folder",
        "x" * 400: "^x{120}…x{60}: file name too long",
        "a\0b": "no such file",
        "toys-en": "contains nothing: expected a file such as train.tsv",
        str(tmp_path / "one.tsv"): "every line has one column.*add train.objective=causal",
        "pipe": "a named pipe",
    }.items():
        with pytest.raises(UserError, match=said) as error:
            open_data(spec)
        assert "\n" not in str(error.value)
    monkeypatch.delenv("REGARD_DATA")
    with pytest.raises(UserError, match="REGARD_DATA, which is not set"):
        open_data("wmt14")
    with pytest.raises(UserError, match="multi30k is not here; fetch it first: regard data fetch"):
        open_data("multi30k")
    for options in ({"group": "line"}, {"limit": 0}, {"dev": -1}, {"options": {"complexity": 3}}):
        with pytest.raises(UserError):
            open_data(str(tmp_path / "one.tsv"), **options)
    with pytest.raises(TypeError):
        from_iterable([("a", "b")], limmit=3)
    for broken in ([("a", 3)], [("a", [])], [(1, "a")], ["abc"], [None], []):
        with pytest.raises(UserError):
            from_iterable(broken)


@laws
@given(data=items)
def test_grouped_has_each_source_once_with_all_its_answers(data) -> None:
    pairs = [Pair(source, tuple(target), line) for line, (source, target) in enumerate(data)]
    judged = group_references(pairs)
    assert len({pair.source for pair in judged}) == len(judged)
    assert {(p.source, t) for p in judged for t in p.targets} == {
        (p.source, t) for p in pairs for t in p.targets
    }
    assert all(len(set(pair.targets)) == len(pair.targets) for pair in judged)


def test_leaks_are_counted(tmp_path: Path) -> None:
    (tmp_path / "train.tsv").write_text("a\tb\na\tb\na\tc\nGo on .\tx\n")
    (tmp_path / "dev.tsv").write_text("a\tz\na\ty\ngo  on!\tx\nnew\tx\n")
    (tmp_path / "test.tsv").write_text("other\tb\nGo on .\tb\n")
    splits = open_data(str(tmp_path))
    read, readings = splits.train.read, []

    def counted() -> Iterator[Pair]:
        readings.append(1)
        return read()

    splits.train = Stream(counted)
    assert leaks(splits) == Leaks(duplicates=1, dev=1, test=1, near_dev=1, near_test=0)
    assert len(readings) == 1


@pytest.mark.parametrize(
    ("train", "dev", "near"),
    [
        ("Go on .", "go on", 1),
        ("go  on!", " GO ON ", 1),
        ("Straße 3", "STRASSE, 3?", 1),
        ("don't", "dont", 1),
        ("go on", "goon", 0),
        ("1+2", "1-2", 0),
        ("room 1+2", "room 12", 1),
        ("?!", "…", 0),
        ("मैं", "में", 0),
    ],
)
def test_near_duplicates(train: str, dev: str, near: int) -> None:
    splits = from_iterable([(train, "x")] * 2, dev=0, test=0)
    splits.dev = splits.test = from_iterable([(dev, "y")] * 2, dev=0, test=0).train
    assert leaks(splits) == Leaks(1, 0, 0, near, near)


class Sums:
    """Many pairs that are nowhere in memory."""

    def __iter__(self) -> Iterator[tuple[str, str]]:
        return ((f"{i % 30_000}+1", str(i)) for i in range(50_000))


def test_memory_stays_below_sixteen_bytes_a_pair() -> None:
    leaks(from_iterable(Sums(), dev=100, test=100))  # what is made once is made now
    tracemalloc.start()
    try:
        splits = from_iterable(Sums(), dev=100, test=100)
        dealt = tracemalloc.get_traced_memory()[1]
        tracemalloc.reset_peak()
        assert leaks(splits).duplicates == 0
        counted = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert dealt < 16 * 50_000
    assert counted < 12 * 50_000


@pytest.fixture
def corpora(monkeypatch: pytest.MonkeyPatch) -> Path:
    beside = Path(__file__).parents[2].parent / "shared" / "data"
    home = Path(os.environ.get("REGARD_DATA", beside))
    if not home.is_dir():
        pytest.skip("no real corpora: set REGARD_DATA to the folder that holds them")
    monkeypatch.setenv("REGARD_DATA", str(home))
    return home


@pytest.mark.parametrize(
    ("name", "languages", "expected"),
    [
        ("tatoeba-fra-eng", {}, (161_473, 2_816, 2_841)),
        ("multi30k", {"source": "en", "target": "de"}, (29_000, 1_014, 1_000)),
        ("multi30k/tok", {"source": "en", "target": "fr"}, (29_000, 1_014, 1_000)),
        ("cmudict-g2p", {}, (108_952, 5_447, 12_855)),
    ],
)
def test_real_corpora(
    corpora: Path, name: str, languages: dict[str, str], expected: tuple[int, int, int]
) -> None:
    if not (corpora / name.split("/")[0]).is_dir():
        pytest.skip(f"{name} is not in REGARD_DATA")
    splits = open_data(name, **languages)
    assert sizes(splits) == expected
    assert not splits.skipped
    if name == "cmudict-g2p":
        assert len(group_references(splits.test)) == 11_994


def test_a_tasks_name_means_the_task_for_every_command(
    here: Path, tiny, capsys: pytest.CaptureFixture[str]
) -> None:
    """And a file of that name is meant by ./NAME; both are told."""
    (here / "sort").write_text("".join(f"x{i}\ty\n" for i in range(60)))
    said = io.StringIO()
    few = {"options": {"train": 60, "dev": 5, "test": 5}, "batch_sentences": 20}
    run = regard.train(
        "sort", out=here / "task", reporter=Reporter(said, quiet=True), **tiny, data=few
    )
    assert run.config.data.path == "sort"
    assert "for the file or folder of that name, write ./sort" in said.getvalue()

    data_inspect("sort", ["data.options.train=60", "data.options.dev=5", "data.options.test=5"])
    assert "for the file or folder of that name, write ./sort" in capsys.readouterr().out
    assert [pair.source for pair in regard.evaluate(run, "sort").pairs] == [
        pair.source for pair in regard.evaluate(run).pairs
    ]

    read = regard.train("./sort", out=here / "file", reporter=Reporter(quiet=True), **tiny)
    assert read.config.data.path == str(here / "sort")
    assert [pair.source[0] for pair in regard.evaluate(run, "./sort").pairs] == ["x"] * 60
    data_inspect("./sort")
    assert "write ./sort" not in capsys.readouterr().out


@pytest.mark.parametrize(
    "files", [("test.tsv",), ("train.tsv", "dev.tsv", "test.tsv"), ("train.tsv",)], ids=str
)
def test_a_folder_judges_a_run_that_was_trained_on_a_task(
    run, tmp_path: Path, files: tuple[str, ...]
) -> None:
    for name in files:
        (tmp_path / name).write_text(
            "".join(f"{i}+{len(name)}\t{i + len(name)}\n" for i in range(40))
        )
    judged = regard.evaluate(run, tmp_path).pairs
    assert len(judged) == (
        2 if files == ("train.tsv",) else 40
    )  # a twentieth is split off where no test file lies
    assert all(pair.source.endswith("+9" if files == ("train.tsv",) else "+8") for pair in judged)


def test_a_folder_of_tsv_judges_a_run_that_was_trained_on_aligned_files(tmp_path: Path) -> None:
    (tmp_path / "test.tsv").write_text("a\tb\n")
    assert list(open_split(str(tmp_path), "test", source="en", target="de")) == [
        Pair("a", ("b",), 1)
    ]
    (tmp_path / "test.tsv").rename(tmp_path / "train.tsv")
    assert list(open_split(str(tmp_path), "train", source="en", target="de")) == [
        Pair("a", ("b",), 1)
    ]


def test_a_folder_with_a_test_file_only(tmp_path: Path) -> None:
    (tmp_path / "test.tsv").write_text("a\tb\nc\td\n")
    assert len(list(open_split(str(tmp_path), "test"))) == 2
    with pytest.raises(UserError, match=r"contains test\.tsv: none is called train"):
        open_data(str(tmp_path))
    with pytest.raises(
        UserError, match=r"contains test\.tsv: no dev file, and no train file to split it from"
    ):
        open_split(str(tmp_path), "dev")
    (tmp_path / "test.tsv").write_text("a b\n")
    with pytest.raises(UserError, match=r"no usable pairs for test .*one column"):
        list(open_split(str(tmp_path), "test"))


def test_evaluate_tells_what_stands_in_training(run, tmp_path: Path, command) -> None:
    """Of its own test nothing, of a file what is there, of training all; unknown where training had
    no file.
    """
    train = [
        pair.source
        for pair in open_data(
            "arithmetic", options=run.config.data.options, seed=run.config.data.seed
        ).train
    ]
    (tmp_path / "mixed.tsv").write_text(
        "".join(f"{source}\t1\n" for source in (*train[:4], *train[:4], "x+y"))
    )
    assert regard.evaluate(run).seen_in_training == 0
    assert regard.evaluate(run, tmp_path / "mixed.tsv").seen_in_training == len({*train[:4]})
    everything = regard.evaluate(run, split="train")
    assert everything.seen_in_training == len(everything.pairs) == len({*train})
    told = command("evaluate", run.path, tmp_path / "mixed.tsv").stdout
    seen = len({*train[:4]})
    assert f"{seen} of {seen + 1} sources also occur in the training data" in told
    figures = json.loads(command("evaluate", run.path, "--json").stdout)
    assert figures["seen_in_training"] == 0
    assert seen_in_training(replace(run.config.data, path=""), [Pair("a", ("b",), 1)]) is None
    assert (
        seen_in_training(
            replace(run.config.data, path="moved.tsv", options={}), [Pair("a", ("b",), 1)]
        )
        is None
    )
