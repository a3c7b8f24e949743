"""What a user calls data, found and dealt out to training, dev and test so that nothing leaks."""

import os
import re
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from glob import escape as glob_escape
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ..errors import UserError
from ..text import normalise
from .pairs import Pair, Skipped, stable_hash
from .readers import SUFFIXES, aligned, plain_name, read
from .tasks import TASKS, Task, nearest, whole_number

Codes = npt.NDArray[np.uint8]
_TRAIN, _DEV, _TEST, _UNUSED = range(4)
_NAMES = {"train": ("train",), "dev": ("dev", "val", "valid", "validation"), "test": ("test",)}


class Stream:
    """Pairs that are read anew by every loop over them, so that no corpus need fit in memory."""

    def __init__(self, read: Callable[[], Iterator[Pair]], codes: Codes | None = None, code: int = _TRAIN) -> None:
        self._read = read
        self._codes = codes
        self._code = code
        self._count: int | None = None if codes is None else int((codes == code).sum())

    def __iter__(self) -> Iterator[Pair]:
        if self._codes is None:
            return self._read()
        return (pair for pair, code in zip(self._read(), self._codes, strict=True) if code == self._code)

    def count(self) -> int:
        """How many pairs; the first time this may read them all."""
        if self._count is None:
            self._count = sum(1 for _ in self)
        return self._count


@dataclass
class Splits:
    """The parts of a data set, None where there is none, and what should be said about it.

    `skipped` fills while the streams are read: it is complete once each of them has been.
    """

    name: str
    kind: str  # task, file, folder, corpus or iterable
    train: Stream
    dev: Stream | None = None
    test: Stream | None = None
    long: Stream | None = None  # tasks only: longer than anything in training
    skipped: Skipped = field(default_factory=Skipped)
    notes: list[str] = field(default_factory=list)

    def split(self, name: str) -> Stream:
        found = {"train": self.train, "dev": self.dev, "test": self.test, "long": self.long}
        stream = found.get(name)
        if stream is None:
            there = ", ".join(key for key, value in found.items() if value is not None)
            raise UserError(f"{self.name} has no split {name!r}; it has {there}")
        return stream


@dataclass(frozen=True)
class _Wish:
    """How pairs are to be dealt out."""

    limit: int | None
    group: str
    dev: int | None
    test: int | None
    seed: int

    def __post_init__(self) -> None:
        if self.group not in ("source", "pair"):
            raise UserError(f"data.group={self.group}: say source or pair")
        for name in ("limit", "dev", "test"):
            if (value := getattr(self, name)) is not None and value < (name == "limit"):
                raise UserError(f"data.{name}={value}: too few")


def open_data(
    spec: str,
    *,
    source: str | None = None,
    target: str | None = None,
    limit: int | None = None,
    group: str = "source",
    dev: int | None = None,
    test: int | None = None,
    seed: int | None = None,
    options: Mapping[str, str | int] | None = None,
) -> Splits:
    """Find the data that `spec` names: a task, a file, a folder, or a corpus below $REGARD_DATA.

    limit: at most so many training pairs, drawn evenly over the file. group: what never spans two splits, equal sources
    ("source") or whatever shares a source or a target ("pair"). options: a task's own, and its counts train, dev, test.
    """
    wish = _Wish(limit, group, dev, test, seed or 0)
    if spec in TASKS:
        return _task(TASKS[spec], wish, seed, dict(options or {}))
    if options:
        raise UserError(f"{spec} is not a task and takes no options: {', '.join(options)}")
    home = os.environ.get("REGARD_DATA")
    places = {Path(spec): ""} | ({Path(home) / spec: "corpus"} if home else {})
    try:
        for path, kind in places.items():
            if path.is_dir():
                return _folder(path, "", spec, kind or "folder", source, target, wish)
            if path.exists() or (source and target and aligned(path, source, target)):
                return _file(path, spec, kind or "file", source, target, wish)
            if path.parent.is_dir() and any(path.parent.glob(f"{glob_escape(path.name)}-train*")):
                return _folder(path.parent, f"{path.name}-", spec, kind or "folder", source, target, wish)
    except OSError as error:  # a name too long, a folder that may not be read
        raise UserError(f"{spec}: cannot be read ({error.strerror})") from error
    raise UserError(_unknown(spec, home))


def _unknown(spec: str, home: str | None) -> str:
    if os.sep in spec or plain_name(Path(spec)).endswith(SUFFIXES):
        return f"{spec}: no such file or folder"
    names = [*TASKS, *(path.name for path in sorted(Path(home).glob("*/")))] if home and Path(home).is_dir() else [*TASKS]
    where = "" if home else " (named corpora are looked for below $REGARD_DATA, which is not set)"
    return f"no data {spec!r}: a task, a file, a folder with train files, or a named corpus{where}{nearest(spec, names)}"


def from_iterable(
    data: Iterable[tuple[str, str | Sequence[str]]],
    *,
    limit: int | None = None,
    group: str = "source",
    dev: int | None = None,
    test: int | None = None,
    seed: int = 0,
    name: str = "pairs",
) -> Splits:
    """Splits of any (source, target or targets); an iterator, which can be read but once, is kept in memory."""
    again: Iterable[tuple[str, str | Sequence[str]]] = list(data) if iter(data) is data else data

    def pairs() -> Iterator[Pair]:
        for line, item in enumerate(again, 1):
            try:
                source, target = item
                first, second, *more = map(normalise, (source, target) if isinstance(target, str) else (source, *target))
            except (TypeError, ValueError, AttributeError):
                raise UserError(f"{name} item {line}: a pair is (source, target) or (source, [targets])") from None
            yield Pair(first, (second, *more), line)

    return _dealt(Splits(name, "iterable", Stream(pairs)), _Wish(limit, group, dev, test, seed))


def _task(task: Task, wish: _Wish, seed: int | None, options: dict[str, str | int]) -> Splits:
    counts = {name: whole_number(name, options.pop(name, getattr(task, name))) for name in ("train", "dev", "test")}
    counts |= {name: value for name in ("dev", "test") if (value := getattr(wish, name)) is not None}
    counts["train"] = min(counts["train"], wish.limit or counts["train"])
    counts["long"] = counts["test"]

    def stream(split: str) -> Stream | None:
        def pairs() -> Iterator[Pair]:
            made = task.pairs(counts[split], seed, split=split, options=options)
            return (Pair(source, (target,), line) for line, (source, target) in enumerate(made, 1))

        if split not in task.splits or not counts[split]:
            return None
        next(pairs(), None)  # a wrong option speaks up now, not in the middle of something
        return Stream(pairs)

    train = stream("train")
    if train is None:
        raise UserError(f"{task.name} train={counts['train']}: nothing to train on")
    return Splits(task.name, "task", train, stream("dev"), stream("test"), stream("long"))


def _file(path: Path, name: str, kind: str, source: str | None, target: str | None, wish: _Wish) -> Splits:
    splits = Splits(name, kind, Stream(lambda: iter(())))
    splits.train = _stream(path, source, target, splits)
    return _dealt(splits, wish)


def _stream(path: Path, source: str | None, target: str | None, splits: Splits) -> Stream:
    """A file's pairs, once it is sure that there is one."""
    stream = Stream(lambda: read(path, source=source, target=target, skipped=splits.skipped))
    if next(iter(stream), None) is None:
        why = "; ".join(splits.skipped.lines()) or "it is empty"
        raise UserError(f"{path}: no usable pair (a line is source TAB target): {why}")
    return stream


def _folder(folder: Path, prefix: str, name: str, kind: str, source: str | None, target: str | None, wish: _Wish) -> Splits:
    splits = Splits(name, kind, Stream(lambda: iter(())))
    paths = {part: _part(folder, prefix, part, source, target, splits.notes) for part in _NAMES}
    if paths["train"] is None:
        there = ", ".join(sorted(path.name for path in folder.iterdir())[:8]) or "nothing"
        raise UserError(f"{folder}: no train file such as train.tsv, or train.en and train.de; it holds {there}")
    found = {part: _stream(path, source, target, splits) for part, path in paths.items() if path}
    splits.train, splits.dev, splits.test = found["train"], found.get("dev"), found.get("test")
    if splits.dev and wish.limit is None:
        return splits
    return _dealt(splits, wish)


def _part(folder: Path, prefix: str, part: str, source: str | None, target: str | None, notes: list[str]) -> Path | None:
    """The file of one part, for aligned files the name they share; train, train.lc.tok and test_2016 will all do."""
    names = "|".join(_NAMES[part])
    ours = re.compile(rf"{re.escape(prefix)}(?:{names})(?:[._-].*)?")
    files = sorted(path for path in folder.iterdir() if path.is_file() and ours.fullmatch(path.name))
    stems = {plain_name(path).removesuffix(f".{source}") for path in files if plain_name(path).endswith(f".{source}")}
    both = [folder / stem for stem in sorted(stems) if source and target and aligned(folder / stem, source, target)]
    found = both or [path for path in files if plain_name(path).endswith(SUFFIXES)]
    if len(found) > 1 and part == "train":
        raise UserError(f"{folder}: several train files ({', '.join(path.name for path in found)}); give one of them")
    if len(found) > 1:
        notes.append(f"{folder}: {found[0].name} is used for {part}, not {', '.join(path.name for path in found[1:])}")
    if not found and files and not (source and target):
        endings = ", ".join(sorted({plain_name(path).rsplit(".", 1)[-1] for path in files}))
        raise UserError(f"{folder}: say which of {endings} to use, such as data.source=en data.target=de")
    return found[0] if found else None


def _dealt(splits: Splits, wish: _Wish) -> Splits:
    """Split off from the training pairs what is missing, and keep `limit` of them."""
    whole = splits.train
    dev, test = 0 if splits.dev else wish.dev, 0 if splits.dev or splits.test else wish.test
    keys = np.zeros(whole.count(), np.uint64) if dev == test == 0 else _keys(whole, wish)
    if not len(keys):
        raise UserError(f"{splits.name}: no pairs")
    codes = _deal(keys, dev, test, splits.name)
    if wish.limit is not None:
        _thin(codes, wish.limit, wish.seed)
    splits.train = Stream(whole.__iter__, codes, _TRAIN)
    if dev != 0:
        splits.dev = Stream(whole.__iter__, codes, _DEV)
        if not splits.dev.count():
            splits.dev = splits.train
            splits.notes.append(f"{splits.name}: too few pairs to hold any out, dev is the training pairs themselves")
    if test != 0 and (codes == _TEST).any():
        splits.test = Stream(whole.__iter__, codes, _TEST)
    return splits


def _keys(pairs: Iterable[Pair], wish: _Wish) -> npt.NDArray[np.uint64]:
    """A number for each pair, equal for pairs that must stay together."""
    sources, targets, owners = array("Q"), array("Q"), array("Q")
    for i, pair in enumerate(pairs):
        sources.append(stable_hash(pair.source, wish.seed))
        if wish.group == "pair":
            targets.extend(stable_hash(target) for target in pair.targets)
            owners.extend([i] * len(pair.targets))
    keys = np.frombuffer(sources, np.uint64) if sources else np.empty(0, np.uint64)
    return keys if wish.group == "source" else _connected(keys, targets, owners)


def _connected(sources: npt.NDArray[np.uint64], targets: "array[int]", owners: "array[int]") -> npt.NDArray[np.uint64]:
    """For each pair the source key of one member of its connected group (union-find over pairs)."""
    parent = array("Q", range(len(sources)))

    def root(i: int) -> int:
        while parent[i] != i:
            parent[i] = i = parent[parent[i]]
        return i

    def unite(keys: npt.NDArray[np.uint64], pairs: npt.NDArray[np.uint64]) -> None:
        order = np.argsort(keys, kind="stable")
        equal = np.flatnonzero(keys[order][1:] == keys[order][:-1])
        for i, j in zip(pairs[order[equal]], pairs[order[equal + 1]]):
            a, b = root(int(i)), root(int(j))
            parent[max(a, b)] = min(a, b)

    unite(sources, np.arange(len(sources), dtype=np.uint64))
    unite(np.frombuffer(targets, np.uint64), np.frombuffer(owners, np.uint64))
    return sources[np.fromiter(map(root, range(len(sources))), np.int64, len(sources))]


def _deal(keys: npt.NDArray[np.uint64], dev: int | None, test: int | None, name: str) -> Codes:
    """The split of each pair: the groups with the smallest keys are dev, the next test. Training is never empty."""
    n = len(keys)
    usual = min(2_000, max(1, n // 20)) if n > 2 else 0
    if (dev or 0) + (test or 0) >= n:
        raise UserError(f"{name}: has {n:,} pairs; dev={dev} and test={test} leave none for training")
    ranked = np.sort(keys)
    codes = np.full(n, _TRAIN, np.uint8)
    start = 0
    for code, count in ((_DEV, usual if dev is None else dev), (_TEST, usual if test is None else test)):
        end = min(start + count, n - 1)
        cut = int(np.searchsorted(ranked, ranked[end], "left"))
        if cut <= start < end:  # the first group alone is larger than what was asked for: take it, if most is left
            cut = int(np.searchsorted(ranked, ranked[start], "right"))
            cut = cut if cut <= start + max(1, n // 4) else start
        if count and cut > start:
            codes[(keys >= ranked[start]) & (keys <= ranked[cut - 1])] = code
            start = cut
    return codes


def _thin(codes: Codes, limit: int, seed: int) -> None:
    """Keep `limit` training pairs: one, by lot, from each of as many equal stretches of the file."""
    places = np.flatnonzero(codes == _TRAIN)
    if limit >= len(places):
        return
    edges = np.arange(limit + 1) * len(places) // limit
    lots = np.random.default_rng(seed).random(limit)
    codes[places] = _UNUSED
    codes[places[edges[:-1] + (lots * np.diff(edges)).astype(np.int64)]] = _TRAIN


def grouped(pairs: Iterable[Pair]) -> list[Pair]:
    """Each distinct source once, with all its different targets: what a model is judged by."""
    found: dict[str, tuple[int, dict[str, None]]] = {}
    for pair in pairs:
        found.setdefault(pair.source, (pair.line, {}))[1].update(dict.fromkeys(pair.targets))
    return [Pair(source, tuple(targets), line) for source, (line, targets) in found.items()]


@dataclass(frozen=True)
class Leaks:
    """How far the splits are apart. Near: the same but for case, spaces and final punctuation."""

    duplicates: int  # training pairs that repeat an earlier one
    dev: int  # distinct dev sources that training has too
    test: int
    near_dev: int
    near_test: int

    def lines(self) -> list[str]:
        said = [f"{self.duplicates:,} training pairs repeat an earlier one"] if self.duplicates else []
        for part, exact, near in (("dev", self.dev, self.near_dev), ("test", self.test, self.near_test)):
            if near:
                said.append(f"{near:,} {part} sources are in training too ({exact:,} of them to the letter)")
        return said


def leaks(splits: Splits) -> Leaks:
    """Count what dev and test share with training, through hashes: 24 bytes a training pair."""
    exact, near, whole = _hashes(splits.train)
    counts = {}
    for part, stream in (("dev", splits.dev), ("test", splits.test)):
        found = _hashes(stream or ())
        counts[part] = int(np.isin(np.unique(found[0]), exact).sum())
        counts[f"near_{part}"] = int(np.isin(np.unique(found[1]), near).sum())
    return Leaks(duplicates=len(whole) - len(np.unique(whole)), **counts)


def _hashes(pairs: Iterable[Pair]) -> list[npt.NDArray[np.uint64]]:
    """For every pair the hash of its source, of its source roughly, and of its source with each target."""
    hashes = array("Q"), array("Q"), array("Q")
    for pair in pairs:
        hashes[0].append(stable_hash(pair.source))
        hashes[1].append(stable_hash(" ".join(pair.source.casefold().split()).rstrip(" .!?…")))
        hashes[2].extend(stable_hash(f"{pair.source}\t{target}") for target in pair.targets)
    return [np.array(column, np.uint64) for column in hashes]
