"""What is read once and kept is what was read; and preparing reads the user's files once."""

import gzip
import io
import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import regard
from regard.data import kept as kept_module
from regard.data import readers
from regard.data.kept import Kept
from regard.data.pairs import Pair, Skipped, stable_hash, stable_hashes
from regard.data.readers import files
from regard.data.splits import Leaks, Splits, _plain, from_iterable, leaks
from regard.errors import UserError
from regard.recipes.preparing import learn_tokenizers
from regard.recipes.reporter import Reporter

laws = settings(max_examples=80, deadline=None)
text = st.one_of(
    st.text(st.sampled_from("ab\\tn\t\n\r\0\u2028é"), min_size=1), st.text(min_size=1)
).map(lambda chars: chars.encode("utf-8", "replace").decode())
pairs = st.lists(
    st.builds(Pair, text, st.lists(text, min_size=1, max_size=3).map(tuple), st.integers(1, 10**6))
)
word = st.sampled_from("abcdefgh")
items = st.lists(
    st.tuples(word, st.one_of(word, st.lists(word, min_size=1, max_size=3))),
    min_size=1,
    max_size=60,
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("kept")


class Counted:
    """Pairs, and how often they were asked for."""

    def __init__(self, pairs: list[Pair]) -> None:
        self.pairs = pairs
        self.readings = 0

    def __call__(self) -> Iterator[Pair]:
        self.readings += 1
        return iter(self.pairs)


@laws
@given(pairs=pairs, data=st.data())
def test_kept_is_what_was_read(folder: Path, pairs: list[Pair], data: st.DataObject) -> None:
    read = Counted(pairs * 3)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kept_module, "_CHUNK", 4)
        kept = Kept(read, folder)
        assert list(kept()) == list(kept()) == list(kept.select(None)) == pairs * 3
    assert read.readings == 1
    assert len(kept) == len(pairs) * 3
    wanted = np.array(
        data.draw(st.lists(st.booleans(), min_size=len(kept), max_size=len(kept))), np.bool_
    )
    assert list(kept.select(wanted)) == [pair for pair, ours in zip(pairs * 3, wanted) if ours]
    assert not list(folder.iterdir())  # nobody sees the file


def test_a_reading_that_is_left_keeps_nothing(folder: Path) -> None:
    read = Counted([Pair(str(i), ("x",), i) for i in range(2_500)])
    kept = Kept(read, folder)
    assert next(kept()) == read.pairs[0]
    assert not kept.complete
    with pytest.raises(ValueError, match="not known"):
        len(kept)
    kept.fill()
    kept.fill()
    assert list(kept()) == read.pairs
    assert read.readings == 2


def test_a_full_disk_is_told(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: Kept, pairs: list[Pair]) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Kept, "_append", full)
    with pytest.raises(
        UserError, match=r"cannot write a temporary copy of the text .*No space left"
    ):
        Kept(Counted([Pair("a", ("b",), 1)]), folder).fill()


def test_what_goes_wrong_in_the_users_own_pairs_is_not_the_disks_fault(folder: Path) -> None:
    def own() -> Iterator[tuple[str, str]]:
        yield "a", "b"
        raise OSError("my own")

    with pytest.raises(OSError, match="my own"):
        from_iterable(own(), keep=partial(Kept, folder=folder))


# splits: the law that old runs rely on, by a plain implementation


def reference_split(
    data: list[tuple[str, list[str]]], group: str, seed: int, dev: int, test: int
) -> list[str]:
    """For each pair the name of its split: groups in the order of their hashes, the first to dev,
    the next to test.
    """
    parent: dict[int, int] = {}

    def root(text: int) -> int:
        return text if parent.get(text, text) == text else root(parent[text])

    hashes = []
    for source, targets in data:
        hashes.append(stable_hash(source, seed))
        for target in targets if group == "pair" else ():
            parent[root(stable_hash(target, seed + 1))] = root(hashes[-1])
    keys = [root(text) >> 32 for text in hashes]
    ordered = sorted(keys)
    names = ["train"] * len(keys)
    first = 0
    for name, count in (("dev", dev), ("test", test)):
        last = ordered.index(ordered[min(first + count, len(keys) - 1)])
        whole = len(keys) - ordered[::-1].index(ordered[first])
        if (
            count
            and last == first
            and whole < len(keys)
            and whole - first <= max(1, len(keys) // 4)
        ):
            last = whole
        names = [
            name if ordered[first] <= key < ordered[last] else old for key, old in zip(keys, names)
        ]
        first = last
    return names


@laws
@given(
    data=items,
    seed=st.integers(0, 5),
    group=st.sampled_from(["source", "pair"]),
    counts=st.tuples(*[st.integers(0, 9)] * 2),
)
def test_splits_are_what_they_always_were(
    folder: Path, data, seed: int, group: str, counts: tuple[int, int]
) -> None:
    """Read once and kept, read many times, or dealt out by the plain rules: the same pairs in the
    same split.
    """
    dev, test = counts
    if dev + test >= len(data):
        return
    deal = {"seed": seed, "group": group, "dev": dev, "test": test}
    again = from_iterable(data, **deal)
    once = from_iterable(iter(data), keep=partial(Kept, folder=folder), **deal)
    expected = reference_split(
        [(source, [*target]) for source, target in data], group, seed, dev, test
    )
    for splits in (again, once):
        for name in ("train", "dev", "test"):
            stream = getattr(splits, name)
            lines = [pair.line for pair in stream or ()]
            if name == "dev" and splits.dev is splits.train:
                continue
            assert lines == [line for line, split in enumerate(expected, 1) if split == name]
            assert stream is None or stream.count() == len(lines)


def test_the_hash_that_deals_pairs_out() -> None:
    """Pinned: a run must find its dev and test pairs again years later."""
    assert [stable_hash("a"), stable_hash("é", 123456)] == [
        4681665781835383343,
        16083629719215101965,
    ]
    texts = ["", "a", "é", "a longer text", "日本語"]
    for seed in (0, 1, 123456, -3):
        assert stable_hashes(texts, seed).tolist() == [stable_hash(text, seed) for text in texts]


@laws
@given(
    n=st.integers(1, 200), count=st.integers(1, 200), seed=st.integers(0, 9), dealt=st.booleans()
)
def test_a_sample_is_even_and_the_same_however_it_is_read(
    folder: Path, n: int, count: int, seed: int, dealt: bool
) -> None:
    data = [(str(i), "x") for i in range(n)]
    deal = {"dev": n // 5, "test": n // 7} if dealt else {"dev": 0, "test": 0}
    streams = [
        from_iterable(data, **deal).train,
        from_iterable(data, keep=partial(Kept, folder=folder), **deal).train,
    ]
    one, other = ([pair.line for pair in stream.sample(count, seed)] for stream in streams)
    everything = [pair.line for pair in streams[0]]
    assert one == other
    assert len(one) == min(count, len(everything))
    ranks = [everything.index(line) for line in one]
    stretch = len(everything) / len(ranks)
    assert all(int(i * stretch) <= rank <= (i + 1) * stretch for i, rank in enumerate(ranks))


# leaks


texts = st.lists(
    st.sampled_from(["Go", "go", "on", ".", "!", "Straße", "STRASSE", "1", "+", " ", "\u00a0", "é"])
).map(" ".join)


@laws
@given(train=st.lists(texts), dev=st.lists(texts))
def test_near_duplicates_by_brute_force(train: list[str], dev: list[str]) -> None:
    splits = Splits(
        "x",
        [Pair(source, ("t",), 1) for source in train],
        [Pair(source, ("t",), 1) for source in dev],
    )
    plain = {_plain(source) for source in train} - {""}
    expected = {source for source in dev if source not in train and _plain(source) in plain}
    assert leaks(splits) == Leaks(
        len(train) - len({*train}), len({*train} & {*dev}), 0, len(expected), 0
    )


# preparing


@pytest.fixture
def read_bytes(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """Bytes that came out of each file (unpacked), however often it was opened."""
    counts: dict[str, int] = {}
    opened = files.opened

    class Meter:
        def __init__(self, file, name: str) -> None:
            self.file = file
            self.name = name

        def counted(self, block: bytes) -> bytes:
            counts[self.name] = counts.get(self.name, 0) + len(block)
            return block

        def read(self, size: int) -> bytes:
            return self.counted(self.file.read(size))

        def readline(self, size: int) -> bytes:
            return self.counted(self.file.readline(size))

    @contextmanager
    def metered(path: Path, *more):
        with opened(path, *more) as file:
            yield Meter(file, path.name)

    monkeypatch.setattr(files, "opened", metered)
    return counts


@pytest.mark.parametrize("form", ["file", "gzip", "folder", "aligned"])
def test_training_reads_the_text_once(
    tiny, tmp_path: Path, read_bytes: dict[str, int], form: str
) -> None:
    """Beside a look at its first 64 KB; aligned files are counted first, so twice."""
    rows = [(f"source {i} {'x' * 40}", f"target {i} {'y' * 40}") for i in range(3_000)]
    lines = "".join(f"{source}\t{target}\n" for source, target in rows)
    names: dict[str, str] = {}
    data = tmp_path / "pairs.tsv"
    if form == "gzip":
        data = tmp_path / "pairs.tsv.gz"
        data.write_bytes(gzip.compress(lines.encode()))
    elif form == "aligned":
        (tmp_path / "pairs.en").write_text("".join(f"{source}\n" for source, _ in rows))
        (tmp_path / "pairs.de").write_text("".join(f"{target}\n" for _, target in rows))
        data = tmp_path / "pairs.en"
        names = {"source": "en", "target": "de"}
    elif form == "folder":
        data = tmp_path / "folder"
        data.mkdir()
        for part in ("train", "dev", "test"):
            (data / f"{part}.tsv").write_text(lines)
    else:
        data.write_text(lines)

    regard.train(data, out=tmp_path / "run", reporter=Reporter(quiet=True), **tiny, data=names)
    most = 2 if form == "aligned" else 1
    assert read_bytes
    for name, count in read_bytes.items():
        size = len(lines) / (2 if form == "aligned" else 1)
        assert count <= most * size + 2 * (1 << 16), name


def test_aligned_files_are_counted_once(tmp_path: Path, read_bytes: dict[str, int]) -> None:
    for language in ("en", "de"):
        (tmp_path / f"a.{language}").write_text("line\n" * 30_000)
    size = 5 * 30_000
    for _ in range(4):
        list(readers.read(tmp_path / "a.en", source="en", target="de", skipped=Skipped()))
    assert read_bytes["a.en"] <= 5 * size + 4 * (1 << 16)
    (tmp_path / "a.en").write_text("line\n" * 29_999)  # it is counted again when it has changed
    with pytest.raises(UserError, match="aligned files need the same number"):
        readers.read(tmp_path / "a.en", source="en", target="de", skipped=Skipped())


def test_subwords_are_learned_from_a_sample_and_words_from_everything(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Below the sample's size nothing changes; above it, the same seed gives the same tokenizer."""
    data = [(f"word{i % 50} number {i}", "x") for i in range(400)] + [("rare", "x")]
    splits = from_iterable(data, dev=0, test=0, keep=partial(Kept, folder=folder))
    configs = {
        kind: regard.Config(text=regard.config.TextConfig(tokenizer=kind, size=600))
        for kind in ("bpe", "words")
    }
    everything = {kind: learn_tokenizers(c, splits)[0].to_json() for kind, c in configs.items()}
    monkeypatch.setattr("regard.recipes.preparing.TOKENIZER_SAMPLE", 401)
    assert learn_tokenizers(configs["bpe"], splits)[0].to_json() == everything["bpe"]
    monkeypatch.setattr("regard.recipes.preparing.TOKENIZER_SAMPLE", 40)
    sampled = learn_tokenizers(configs["bpe"], splits)[0].to_json()
    assert sampled != everything["bpe"]
    assert learn_tokenizers(configs["bpe"], splits)[0].to_json() == sampled
    assert learn_tokenizers(configs["words"], splits)[0].to_json() == everything["words"]


def test_progress_is_told_of_what_takes_long_only() -> None:
    said = io.StringIO()
    reporter = Reporter(said)
    with reporter.progress("% of the data read") as tell:
        for i in range(101):
            tell(i / 100)
    assert said.getvalue() == ""
    with reporter.progress("% of the data read", after=0) as tell:
        for i in range(1_001):
            tell(i / 1_000)
        tell(0.5)  # a second, small file
        tell(1.0)
    assert re.fullmatch(r"100/100  % of the data read  0:00 left\n", said.getvalue())
