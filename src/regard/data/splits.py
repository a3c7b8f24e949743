"""Find the data that a user names, and deal it out to training, dev and test without leaks."""

import os
import re
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import compress, islice, zip_longest
from pathlib import Path
from typing import Any, Protocol
from unicodedata import category

import numpy as np
import numpy.typing as npt

from regard.data.drawn import Drawn
from regard.data.items import SPLITS, Items, Table, named_splits, open_items
from regard.data.kept import Kept
from regard.data.pairs import ONE_COLUMN, TEXTS_WANTED, Pair, Skipped, stable_hash, stable_hashes
from regard.data.readers import SUFFIXES, find_reader, fitting_layout
from regard.data.readers.aligned import aligned_files, language_of
from regard.data.readers.files import ReadSoFar, plain_name, reason_of
from regard.data.readers.pipes import is_open_pipe
from regard.data.readers.reader import Layout, Reader
from regard.data.readers.texts import MOST_NAMED, text_files
from regard.data.remote import remote_corpora
from regard.data.tasks import SEED, TASKS, Options, Task, whole_number, yes_or_no
from regard.data.tasks.toys import Pairs
from regard.errors import UserError, counted, nearest
from regard.text.vocabulary import normalise

Codes = npt.NDArray[np.uint8]
"""The split of each pair: one of the four numbers below."""

_TRAIN, _DEV, _TEST, _UNUSED = range(4)
_PARTS = {"training": _TRAIN, "dev": _DEV, "test": _TEST}
_FEW = 10  # pairs
_CHUNK = 1_000  # pairs

# How the files of each split begin in a folder, or else a word anywhere in their names.
_NAMES = {"train": ("train",), "dev": ("dev", "val"), "test": ("test",)}
_WORDS = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("dev", "devel", "development", "newsdev"), "dev"),
    **dict.fromkeys(("val", "valid", "validation"), "dev"),
    **dict.fromkeys(("test", "testing", "newstest"), "test"),
}
_LETTERS_IN_NAMES = re.compile("[A-Z]?[a-z]+|[A-Z]+")


class Keep(Protocol):
    """A function that makes a Kept of a way to read pairs."""

    def __call__(
        self, read: Callable[[], Iterable[Pair]], *, share: Callable[[int], float | None]
    ) -> Kept: ...


@dataclass(frozen=True)
class Stream:
    """Pairs that are read anew by every loop over them, so that no corpus need fit in memory."""

    read: Callable[[], Iterable[Pair]]
    codes: Codes | None = None  # the split of each pair that is read; None: all are ours
    code: int = _TRAIN

    def __iter__(self) -> Iterator[Pair]:
        if self.codes is None:
            yield from self.read()
        elif isinstance(self.read, Kept) and self.read.complete:
            yield from self.read.select(self.codes == self.code)
        else:
            yield from self._matched(self.codes)

    def _matched(self, codes: Codes) -> Iterator[Pair]:
        for pair, code in zip_longest(self.read(), codes.data):
            if pair is None or code is None:
                raise UserError(
                    "the data changed while it was being read: start again, and do not change "
                    "the files meanwhile"
                )
            if code == self.code:
                yield pair

    def count(self) -> int:
        """How many pairs there are; without reading them, where that is known."""
        if self.codes is not None:
            return int(np.count_nonzero(self.codes == self.code))
        if isinstance(self.read, Kept):
            self.read.fill()
            return len(self.read)
        return sum(1 for _ in self)

    def sample(self, count: int, seed: int, *, total: int | None = None) -> Iterable[Pair]:
        """At most `count` pairs, drawn evenly over the stream, in their order.

        The same seed draws the same pairs. total: how many there are, if the caller has counted
        them.
        """
        if total is None:
            total = self.count()
        if total <= count:
            return self
        chosen = np.zeros(total, np.bool_)
        chosen[_evenly(total, count, seed)] = True
        if not isinstance(self.read, Kept):
            return compress(self, chosen.tolist())
        self.read.fill()
        if self.codes is None:
            return self.read.select(chosen)
        wanted = self.codes == self.code
        wanted[wanted] = chosen
        return self.read.select(wanted)


def _evenly(total: int, count: int, seed: int) -> npt.NDArray[np.int64]:
    """Draw `count` of `total` places: one from each of as many equal stretches."""
    edges = np.arange(count + 1) * total // count
    lots = np.random.default_rng(seed).random(count)
    return edges[:-1] + (lots * np.diff(edges)).astype(np.int64)


@dataclass
class Splits:
    """The parts of a data set, None where there is none.

    `skipped` is complete once every stream has been read.
    """

    name: str
    train: Stream
    dev: Stream | None = None
    test: Stream | None = None
    long: Stream | None = None  # tasks only: longer than anything in training
    skipped: Skipped = field(default_factory=Skipped)
    notes: list[str] = field(default_factory=list)  # what may surprise
    readers: list[Reader] = field(default_factory=list)  # of the files, if there are any
    drawn: Drawn | None = None  # tasks only: what training drew, where dev and test leave it out
    columns: tuple[str, str] = ("", "")  # the names of source and target in pairs from Python
    holds: str = "pair"  # what the streams are of, for a person

    @property
    def documents(self) -> str:
        """What the texts of a language model are: data.documents, once it was looked at.

        Where files differ, each is looked at again: auto.
        """
        found = {reader.documents for reader in self.readers} or {"source"}
        return found.pop() if len(found) == 1 else "auto"

    @property
    def reading(self) -> list[str]:
        """How the files are read, where that is not obvious: header, columns, quotes."""
        return [note for reader in self.readers for note in reader.notes]

    def seen_in_training(self, sources: Iterable[str]) -> int:
        """How many of these sources, each counted once, stand in training just as they are."""
        wanted = set(sources)
        if self.drawn is not None:
            return self.drawn.count(wanted)
        return len({pair.source for pair in self.train if pair.source in wanted})

    def split(self, name: str) -> Stream:
        """The split of that name; that it is missing is an error."""
        streams = {"train": self.train, "dev": self.dev, "test": self.test, "long": self.long}
        stream = streams.get(name)
        if stream is None:
            names = ", ".join(key for key in streams if streams[key])
            raise UserError(f"{self.name} has no split {name!r}; it has {names}")
        return stream


@dataclass(frozen=True)
class Deal:
    """How pairs are dealt out."""

    limit: int | None = None  # at most so many training pairs, drawn evenly over the file
    order: str = "random"  # or "file": the first pairs train, the next are dev, the next test
    # What never spans two splits: equal sources, or ("pair") whatever shares a source or a target.
    group: str = "source"
    dev: int | None = None  # so many pairs; None: a twentieth, at most 2,000
    test: int | None = None
    seed: int | None = None

    def check(self) -> None:
        """Refuse impossible wishes."""
        limit_fits = self.limit is None or self.limit > 0
        counts_fit = (self.dev or 0) >= 0 and (self.test or 0) >= 0
        if self.group in ("source", "pair") and limit_fits and counts_fit:
            return
        raise UserError(
            f"data.group={self.group} data.limit={self.limit} data.dev={self.dev} "
            f"data.test={self.test}: group must be source or pair, limit at least 1, dev and test "
            f"at least 0"
        )


def named_data(spec: str | Path) -> str:
    """What every command understands by `spec`.

    It is the name of a task, an absolute path, or a corpus below $REGARD_DATA. A bare name that is
    a task means the task, also where a file of that name lies; `./NAME` or a Path means the file.
    """
    if isinstance(spec, str) and spec in TASKS:
        return spec
    if os.path.exists(spec) and not is_open_pipe(Path(spec)):
        return str(Path(spec).resolve())
    return str(spec)


def open_data(
    spec: str,
    *,
    source: str | None = None,
    target: str | None = None,
    header: str = "auto",
    encoding: str | None = None,
    positions: str | None = None,
    features: str | None = None,
    documents: str = "no",
    target_file: str | None = None,
    dev_file: str | None = None,
    test_file: str | None = None,
    options: Options | None = None,
    keep: Keep | None = None,
    **deal: Any,
) -> Splits:
    """Find the data that `spec` names: a task, a file, a folder, or a corpus below $REGARD_DATA.

    `source` and `target` choose columns, keys or languages, `positions` the column with the
    positions of the words, and `features` that with the tags of the source. `documents`: read texts
    for a language model instead, as pairs without targets. `target_file` is read
    beside the file `spec`, and `dev_file` and `test_file` take the place of what would be split
    off. For `deal` see Deal. With `keep` everything is read once, and later from a copy that is
    cleaned already: for callers that read it several times.
    """
    layout = Layout(
        source or None,
        target or None,
        header,
        encoding or None,
        positions or None,
        features or None,
        documents,
    )
    if spec in TASKS:
        if positions:
            raise UserError(f"data.positions={positions}: {spec} is a task, which has no columns")
        if features:
            raise UserError(f"data.features={features}: {spec} is a task, which has no columns")
        splits = _open_task(spec, dict(options or {}), Deal(**deal), keep)
        if target_file:
            raise UserError(f"data.target_file={target_file}: {spec} is a task, not a file")
        _open_held_out(splits, layout, dev_file, test_file, keep)
        return splits
    if options:
        raise UserError(f"{spec} is not a task and takes no options: {', '.join(options)}")
    splits = _open_files(spec, layout, target_file, keep)
    _open_held_out(splits, layout, dev_file, test_file, keep)
    _offer_held_out(splits, layout)
    return _dealt(splits, Deal(**deal))


def _open_task(name: str, options: dict[str, str | int], deal: Deal, keep: Keep | None) -> Splits:
    streams, drawn = _generated(TASKS[name], options, deal, keep)
    splits = Splits(
        name,
        train=streams["train"],
        dev=streams.get("dev"),
        test=streams.get("test"),
        long=streams.get("long"),
        drawn=drawn,
    )
    if os.path.exists(name):
        splits.notes.append(
            f"using the built-in task {name}; for the file or folder of that name, write ./{name}"
        )
    return splits


def _open_files(spec: str, layout: Layout, target_file: str | None, keep: Keep | None) -> Splits:
    """The splits that have files of their own."""
    skipped = Skipped()
    notes: list[str] = []
    readers: list[Reader] = []
    streams: dict[str, Stream] = {}
    for part, file in _files(spec, layout, target_file, notes).items():
        if part == "train":
            reader = find_reader(file, layout, Path(target_file) if target_file else None)
        else:
            reader = _reader_beside(file, layout)
        readers.append(reader)
        streams[part] = _file_stream(spec, part, reader, skipped, keep)
    return Splits(
        spec,
        train=streams["train"],
        dev=streams.get("dev"),
        test=streams.get("test"),
        skipped=skipped,
        notes=notes,
        readers=readers,
        holds=readers[0].holds,
    )


def _open_held_out(
    splits: Splits,
    layout: Layout,
    dev_file: str | None,
    test_file: str | None,
    keep: Keep | None,
) -> None:
    """Take dev and test from files of their own, where there are any."""
    for part, file in (("dev", dev_file), ("test", test_file)):
        if not file:
            continue
        try:
            reader = _reader_beside(Path(file), layout)
        except UserError as error:
            raise UserError(f"data.{part}_file: {error}") from None
        splits.readers.append(reader)
        setattr(splits, part, _file_stream(file, part, reader, splits.skipped, keep))


def _offer_held_out(splits: Splits, layout: Layout) -> None:
    """Note that my-dev.tsv and my-test.tsv lie beside my-train.tsv, where they are not used."""
    path = _place(splits.name, layout)
    if path is None or path.is_dir() or _part_in(path.name) != "train":
        return
    beside: dict[str, Path] = {}
    try:
        neighbours = sorted(path.parent.iterdir())
    except OSError:  # a folder that may not be listed: nothing to offer
        return
    for file in neighbours:
        part = _part_in(file.name)
        if part in ("dev", "test") and _without_part(file.name) == _without_part(path.name):
            beside.setdefault(part, file)

    missing = [part for part in beside if getattr(splits, part) is None]
    if missing and splits.dev is None:
        names = " and ".join(beside[part].name for part in missing)
        words = " ".join(f"data.{part}_file={beside[part]}" for part in missing)
        is_there = "is" if len(missing) == 1 else "are"
        it = "it" if len(missing) == 1 else "them"
        splits.notes.append(
            f"{names} next to {path.name} {is_there} not used; to use {it}, add {words}"
        )


def _reader_beside(file: Path, layout: Layout) -> Reader:
    """The reader of a dev or test file, which may be laid out otherwise than the training file."""
    fitting = fitting_layout(file, layout)
    reader = find_reader(file, fitting)
    if fitting != layout:
        asked = " and ".join(name for name in (layout.source, layout.target) if name)
        reader.notes.append(
            f"{file.name}: no columns {asked}; using column 1 as source and column 2 as target"
        )
    return reader


def _file_stream(
    spec: str, part: str, reader: Reader, skipped: Skipped, keep: Keep | None
) -> Stream:
    """The pairs of a file; that there is none, or that it cannot be read, is an error."""
    position = ReadSoFar()
    read_pairs = partial(reader.pairs, skipped, position)
    read_some = partial(_some, spec, part, read_pairs, skipped, reader.holds)
    # A file that cannot be read is told at once; one that is kept is soon read to its end.
    if keep is None or part == "test":
        next(read_some())
    stream = _stream(read_some, partial(_share_of_file, position), keep)
    if isinstance(stream.read, Kept):
        position.moved = stream.read.tell_share
    return stream


def _stream(
    read: Callable[[], Iterable[Pair]],
    share: Callable[[int], float | None],
    keep: Keep | None,
) -> Stream:
    """A stream that is kept if there is a way to keep it."""
    if keep is None:
        return Stream(read)
    return Stream(keep(read, share=share))


def _share_of_file(position: ReadSoFar, pairs: int) -> float | None:
    return position.share()


def _share_of(total: int, pairs: int) -> float:
    return pairs / total


def _unknown_share(pairs: int) -> float | None:
    return None


def open_split(
    spec: str,
    split: str,
    *,
    source: str | None = None,
    target: str | None = None,
    options: Options | None = None,
    **more: Any,
) -> Stream:
    """One split, to judge a run by.

    A folder need hold no more than that one file. Names of languages or columns that a TSV has no
    use for are left out: a TSV can judge what was trained on two files. For `more` see open_data.
    """
    layout = Layout(
        source or None,
        target or None,
        more.get("header", "auto"),
        more.get("encoding") or None,
        more.get("positions") or None,
        more.get("features") or None,
        more.get("documents", "no"),
    )
    folder = _place(spec, layout)
    if spec in TASKS or folder is None or not folder.is_dir() or more.get(f"{split}_file"):
        return open_data(spec, source=source, target=target, options=options, **more).split(split)

    files = _parts(folder, layout, [])
    if not files and layout.documents != "no":
        return open_data(spec, source=source, target=target, **more).split(split)
    file = files.get(split) or files.get("train")
    if file is None:
        raise UserError(
            f"{folder} contains {_listed(folder)}: no {split} file, and no train file to split it "
            f"from"
        )
    layout = fitting_layout(file, layout)
    if split in ("dev", "test") and split in files:
        return _file_stream(spec, split, find_reader(file, layout), Skipped(), None)
    return open_data(
        spec, source=layout.source, target=layout.target, options=options, **more
    ).split(split)


def _some(
    spec: str,
    part: str,
    read_pairs: Callable[[], Iterable[Pair]],
    skipped: Skipped,
    holds: str,
) -> Iterator[Pair]:
    """The pairs; that there is none is an error. holds: what they are, for a person."""
    pair = None
    for pair in read_pairs():
        yield pair
    if pair is None and part == "train" and skipped.reasons() == {ONE_COLUMN}:
        raise UserError(
            f"{spec}: every line has one column, and a pair has two (source TAB target); "
            f"{TEXTS_WANTED}"
        )
    if pair is None:
        nothing = "all lines are empty" if holds == "text" else "there is nothing after the header"
        why = "; ".join(skipped.lines()[:2]) or nothing
        purpose = "" if part == "train" else f" for {part}"
        meaning = " (a pair has a source and a target)" if holds == "pair" else ""
        raise UserError(f"{spec}: no usable {holds}s{purpose}{meaning}: {why}")


def from_iterable(
    data: Items,
    *,
    source: str | None = None,
    target: str | None = None,
    positions: str | None = None,
    features: str | None = None,
    documents: str = "no",
    keep: Keep | None = None,
    **deal: Any,
) -> Splits:
    """Splits of pairs given from Python; for what they may be see `Items`. documents: or of texts.

    A dict such as {"train": pairs, "dev": pairs} has its own splits. `source` and `target` name
    columns. An iterator, which can be read only once, is kept: in memory, or by `keep`.
    """
    parts = named_splits(data) or {"train": data}
    if "train" not in parts:
        raise UserError(f"data is a dict of splits without 'train': {', '.join(parts)}")

    notes = []
    if isinstance(data, Mapping) and "train" in data:
        notes = [f"pairs: ignoring {name!r}" for name in data if name not in SPLITS]
    skipped = Skipped("item")
    tables: dict[str, Table] = {}
    streams: dict[str, Stream] = {}
    for part, items in parts.items():
        if keep is None and isinstance(items, Iterator):
            items = list(items)
        name = "pairs" if len(parts) == 1 else f"{part} pairs"
        table = open_items(
            items,
            source or "",
            target or "",
            positions or "",
            features or "",
            name=name,
            has_texts=documents != "no",
        )
        share = partial(_share_of, table.size) if table.size else _unknown_share
        tables[part] = table
        streams[part] = _stream(partial(table.pairs, skipped), share, keep)

    splits = Splits(
        "pairs",
        train=streams["train"],
        dev=streams.get("dev"),
        test=streams.get("test"),
        skipped=skipped,
        notes=notes + tables["train"].notes,
        columns=(tables["train"].source, tables["train"].target),
        holds="text" if tables["train"].text else "pair",
    )
    return _dealt(splits, Deal(**deal))


def _numbered(items: Callable[[], Pairs]) -> Iterator[Pair]:
    """The pairs of a task, normalised and numbered from 1."""
    for line, (source, target) in enumerate(items(), 1):
        yield Pair(normalise(source), (normalise(target),), line)


def _generated(
    task: Task, options: dict[str, str | int], deal: Deal, keep: Keep | None
) -> tuple[dict[str, Stream], Drawn | None]:
    """A task's streams, and what keeps dev and test from repeating training.

    The second is None where independent draws do not repeat it, or may. Dev and test may share a
    formula with each other: neither is learned from.
    """
    overlap = True
    if task.apart == "drawn":
        overlap = yes_or_no(f"{task.name} overlap", options.pop("overlap", False))
    counts = _counts(task, options, deal)
    seed = SEED if deal.seed is None else deal.seed
    draw = partial(task.pairs, seed=seed, options=options)

    def stream(part: str, items: Callable[[], Pairs]) -> Stream:
        return _stream(partial(_numbered, items), partial(_share_of, counts[part]), keep)

    parts = [part for part in task.splits if counts[part]]
    streams = {part: stream(part, partial(draw, counts[part], split=part)) for part in parts}
    for part in parts:
        next(draw(1, split=part), None)  # wrong options are told at once
    if overlap or task.space is None:
        return streams, None

    drawn = Drawn(task.name, streams["train"], task.space(**task.chosen(options)))
    for part in streams.keys() - {"train", "long"}:  # what is longer cannot be in training
        streams[part] = stream(part, partial(_held_out, drawn, draw, counts[part], part))
    return streams, drawn


def _counts(task: Task, options: dict[str, str | int], deal: Deal) -> dict[str, int]:
    """How many pairs each split of a task has; takes them out of the options."""
    train = whole_number("train", options.pop("train", task.train))
    dev = whole_number("dev", options.pop("dev", task.dev))
    test = whole_number("test", options.pop("test", task.test))
    if deal.limit:
        train = min(train, deal.limit)
    if deal.dev is not None:
        dev = deal.dev
    if deal.test is not None:
        test = deal.test

    if train < 1 or dev < 0 or test < 0:
        raise UserError(f"{task.name} train={train} dev={dev} test={test}: nothing to train on")
    return {"train": train, "dev": dev, "test": test, "long": test}


def _held_out(drawn: Drawn, draw: Callable[..., Pairs], count: int, split: str) -> Pairs:
    return drawn.held_out(draw(None, split=split), count, split)


def _place(spec: str, layout: Layout) -> Path | None:
    """The file or folder that `spec` names, here or below $REGARD_DATA.

    Aligned files go by what their names share.
    """
    home = os.environ.get("REGARD_DATA")
    for path in (Path(spec), Path(home or "", spec)):
        if os.path.exists(path):
            return path
        if layout.source and layout.target and aligned_files(path, layout.source, layout.target):
            return path
    return None


def _files(spec: str, layout: Layout, target_file: str | None, notes: list[str]) -> dict[str, Path]:
    """The file of each split, or of training alone. Aligned files go by the one of the source."""
    path = _place(spec, layout)
    if path is None:
        raise _not_there(spec)
    if not path.is_dir():
        return {"train": path}
    if target_file:
        raise UserError(f"{path} is a folder; give two files, or only the folder")

    files = _parts(path, layout, notes)
    if "train" not in files and layout.documents != "no" and text_files(path):
        return {"train": path}
    if "train" not in files:
        raise UserError(f"{path} contains {_listed(path)}: {_train_file_wanted(path)}")
    if layout.documents != "no":
        _note_unused_texts(path, files, notes)
    return files


def _note_unused_texts(folder: Path, files: Mapping[str, Path], notes: list[str]) -> None:
    """Say which files of texts are left alone, since others are called train, dev or test."""
    unused = [file.name for file in text_files(folder) if file not in files.values()]
    if unused:
        names = ", ".join(unused[:MOST_NAMED]) + (", …" if len(unused) > MOST_NAMED else "")
        notes.append(
            f"{folder}: {files['train'].name} is the training set, by its name; not used: {names}; "
            f"to train on all files, give it another name"
        )


def _train_file_wanted(folder: Path) -> str:
    """What to do about a folder without a train file, by what is there."""
    named = [file for files in _called(folder, "train") for file in files]
    languages = [language_of(file) for file in dict.fromkeys(named)]
    known = [language for language in languages if language is not None]
    if len(known) >= 2:
        return f"to read two aligned files, add data.source={known[0]} data.target={known[1]}"
    if known:
        return f"{named[0].name} needs a file with the same lines in another language beside it"
    usable = [file for file in _entries(folder) if plain_name(file).lower().endswith(SUFFIXES)]
    if usable and usable == text_files(folder):
        return (
            f"none is called train; {TEXTS_WANTED}; if they have pairs, give one file: regard "
            f"train {usable[0]}"
        )
    if usable:
        return f"none is called train; give one file: regard train {usable[0]}"
    return "expected a file such as train.tsv"


def _not_there(spec: str) -> UserError:
    shown = spec if len(spec) <= 200 else f"{spec[:120]}…{spec[-60:]}"
    try:
        Path(spec).stat()
    except FileNotFoundError as error:
        if Path(spec).is_symlink():
            return UserError(f"{shown}: {reason_of(Path(spec), error)}")
    except NotADirectoryError:
        pass
    except (OSError, ValueError) as error:
        return UserError(f"{shown}: {reason_of(Path(spec), error)}")
    if os.sep in spec or Path(spec).suffix:
        return UserError(f"{shown}: no such file or folder")
    home = os.environ.get("REGARD_DATA")
    names = [*TASKS]
    below = "in $REGARD_DATA, which is not set"
    if home:
        names += [path.name for path in sorted(Path(home).glob("*/"))]
        below = "in $REGARD_DATA"
    if spec in remote_corpora():
        return UserError(f"{spec} is not here; fetch it first: regard data fetch {spec}")
    return UserError(
        f"unknown data {spec!r}: no such task, file or folder, and no corpus "
        f"{below}{nearest(spec, names)}"
    )


def _parts(folder: Path, layout: Layout, notes: list[str]) -> dict[str, Path]:
    """The file of each split that a folder holds."""
    files: dict[str, Path] = {}
    for part in _NAMES:
        usable = _usable(_called(folder, part), layout)
        others = ", ".join(file.name for file in usable[1:])
        if others and part == "train":
            raise UserError(
                f"{folder}: several train files ({usable[0].name}, {others}); give one of them"
            )
        if others:
            notes.append(f"{folder}: {usable[0].name} is used for {part}, not {others}")
        if usable:
            files[part] = usable[0]
    return files


def _called(folder: Path, part: str) -> list[list[Path]]:
    """The files whose names begin like a split's, and those with its name anywhere in theirs."""
    files = [file for file in _entries(folder) if not file.name.startswith(".")]
    begin = [file for file in files if file.name.startswith(_NAMES[part])]
    inside = [file for file in files if _part_in(file.name) == part]
    return [begin, inside]


def _part_in(name: str) -> str | None:
    """The split that a name tells: dev for europarl-v7.dev.en or MyDevSet.tsv."""
    return next(filter(None, map(_part_of, _LETTERS_IN_NAMES.findall(name))), None)


def _part_of(word: str) -> str | None:
    return _WORDS.get(word.lower().removesuffix("set"))


def _without_part(name: str) -> str:
    """A name without the words that tell its split: two files with the same go together."""
    return _LETTERS_IN_NAMES.sub(lambda word: "" if _part_of(word[0]) else word[0], name)


def _usable(candidates: Iterable[list[Path]], layout: Layout) -> list[Path]:
    """The files that can be read, of the first list that has any."""
    for files in candidates:
        usable: list[Path] = []
        if layout.source and layout.target:
            usable = [file for file in files if plain_name(file).endswith(f".{layout.source}")]
        if not usable:
            usable = [file for file in files if plain_name(file).lower().endswith(SUFFIXES)]
        if usable:
            return usable
    return []


def _listed(folder: Path) -> str:
    names = [
        file.name if len(file.name) <= 30 else f"{file.name[:29]}…" for file in _entries(folder)
    ]
    return ", ".join(names[:8]) + (", …" if len(names) > 8 else "") or "nothing"


def _entries(folder: Path) -> list[Path]:
    """What lies in a folder, sorted by name."""
    try:
        return sorted(folder.iterdir())
    except OSError as error:
        raise UserError(f"{folder}: {reason_of(folder, error)}") from None


def _dealt(splits: Splits, deal: Deal) -> Splits:
    """Split off from the training pairs what is missing, and keep `limit` of them."""
    deal.check()
    dev = 0 if splits.dev else deal.dev
    test = 0 if splits.dev or splits.test else deal.test
    if dev == test == 0 and deal.limit is None:
        return splits

    if deal.order == "file":
        pairs = splits.train.count()
        _check_counts(splits.name, pairs, dev, test)
        codes = _deal_in_order(pairs, deal.limit, dev, test)
    else:
        seed = deal.seed or 0
        keys = _groups(splits.train, deal.group, seed)
        _check_counts(splits.name, len(keys), dev, test)
        codes = _deal(keys, dev, test)
        if deal.limit is not None:
            _thin(codes, deal.limit, seed)

    read_all = splits.train.read
    present = np.unique(codes)
    splits.train = Stream(read_all, codes, _TRAIN)
    if _DEV in present:
        splits.dev = Stream(read_all, codes, _DEV)
    if _TEST in present:
        splits.test = Stream(read_all, codes, _TEST)
    if splits.dev is None and dev != 0:
        splits.dev = splits.train
        splits.notes.append(
            f"{splits.name}: too few {splits.holds}s to hold any out; dev uses the training "
            f"{splits.holds}s"
        )
    elif len(codes) < _FEW:
        splits.notes.append(_few(codes, splits))
    return splits


def _check_counts(name: str, pairs: int, dev: int | None, test: int | None) -> None:
    """Refuse to hold out everything."""
    if (dev or 0) + (test or 0) >= pairs:
        raise UserError(
            f"{name}: dev={dev or 0} and test={test or 0} leave none of the {pairs:,} pairs for "
            f"training; lower data.dev or data.test"
        )


def _deal_in_order(pairs: int, limit: int | None, dev: int | None, test: int | None) -> Codes:
    """The split of each pair: the first ones train, the next are dev, the next test."""
    usual = _usual(pairs)
    dev_count = usual if dev is None else dev
    test_count = usual if test is None else test
    train_count = pairs - dev_count - test_count
    if limit is not None:
        train_count = min(limit, train_count)

    counts = {_TRAIN: train_count, _DEV: dev_count, _TEST: test_count}
    codes = np.full(pairs, _UNUSED, np.uint8)
    start = 0
    for code, count in counts.items():
        codes[start : start + count] = code
        start += count
    return codes


def _usual(pairs: int) -> int:
    """How many pairs are held out for dev, and for test, if nothing is said."""
    return min(2_000, max(1, pairs // 20)) if pairs > 2 else 0


def _few(codes: Codes, splits: Splits) -> str:
    """The note that there is next to nothing to learn from, and where it went."""
    counts = [(part, np.count_nonzero(codes == code)) for part, code in _PARTS.items()]
    shares = ", ".join(f"{count} for {part}" for part, count in counts if count)
    return (
        f"{splits.name}: only {counted(len(codes), splits.holds)} ({shares}), too few to learn "
        f"from; a useful model needs thousands"
    )


def _groups(pairs: Iterable[Pair], group: str, seed: int) -> npt.NDArray[np.uint32]:
    """A random number for each pair, equal for pairs that must stay together.

    By chance it is equal for a few others too.
    """
    if group == "pair":
        return _connected(pairs, seed)
    keys = array("I")
    stream = iter(pairs)
    while chunk := [pair.source for pair in islice(stream, _CHUNK)]:
        hashes = stable_hashes(chunk, seed) >> np.uint64(32)
        keys.frombytes(hashes.astype(np.uint32).tobytes())
    return np.frombuffer(keys, np.uint32)


def _connected(pairs: Iterable[Pair], seed: int) -> npt.NDArray[np.uint32]:
    """The same, for pairs that share a source or a target, or are linked by other pairs."""
    sources = array("Q")
    parent: dict[int, int] = {}  # trees of hashed texts: one tree for all that must stay together

    def root(text: int) -> int:
        """The root of the tree; halves the way to it for the next time."""
        above = parent.get(text, text)
        while above != text:
            grandparent = parent.get(above, above)
            parent[text] = grandparent
            text = grandparent
            above = parent.get(text, text)
        return text

    for pair in pairs:
        sources.append(stable_hash(pair.source, seed))
        for target in filter(None, pair.targets):  # a text has an empty one
            parent[root(stable_hash(target, seed + 1))] = root(sources[-1])
    return np.fromiter((root(text) >> 32 for text in sources), np.uint32, len(sources))


def _deal(keys: npt.NDArray[np.uint32], dev: int | None, test: int | None) -> Codes:
    """The split of each pair: the groups with the smallest keys are dev, the next test.

    Training is never empty.
    """
    pairs = len(keys)
    usual = _usual(pairs)
    dev_count = usual if dev is None else dev
    test_count = usual if test is None else test

    ordered = np.sort(keys)
    codes = np.full(pairs, _TRAIN, np.uint8)
    test_start = _end_of_split(ordered, 0, dev_count)
    test_end = _end_of_split(ordered, test_start, test_count)
    codes[keys < ordered[test_end]] = _TEST
    codes[keys < ordered[test_start]] = _DEV
    return codes


def _end_of_split(ordered: npt.NDArray[np.uint32], start: int, count: int) -> int:
    """Where a split of about `count` pairs ends that starts at `start` of the sorted keys.

    It has whole groups only, never the last group, and no more than `count` pairs. But a first
    group that is larger than that is taken alone, unless it has more than a quarter of all pairs.
    """
    total = len(ordered)
    end = int(np.searchsorted(ordered, ordered[min(start + count, total - 1)]))
    if count and end == start:
        first_group_end = int(np.searchsorted(ordered, ordered[start], "right"))
        if first_group_end < total and first_group_end - start <= max(1, total // 4):
            return first_group_end
    return end


def _thin(codes: Codes, limit: int, seed: int) -> None:
    """Keep `limit` training pairs: one, drawn at random, from each of as many equal stretches."""
    places = np.flatnonzero(codes == _TRAIN)
    if limit < len(places):
        codes[places] = _UNUSED
        codes[places[_evenly(len(places), limit, seed)]] = _TRAIN


def group_references(pairs: Iterable[Pair]) -> list[Pair]:
    """Each distinct source once, with all its different targets: what a model is judged by."""
    first: dict[tuple[str, tuple[int, ...]], Pair] = {}
    targets: dict[tuple[str, tuple[int, ...]], dict[str, None]] = {}
    for pair in pairs:
        key = (pair.source, pair.positions)
        first.setdefault(key, pair)
        targets.setdefault(key, {}).update(dict.fromkeys(pair.targets))
    return [pair._replace(targets=tuple(targets[key])) for key, pair in first.items()]


@dataclass(frozen=True)
class Leaks:
    """How far the splits are apart."""

    duplicates: int  # training pairs that repeat an earlier one
    dev: int  # distinct dev sources that training has too
    test: int
    near_dev: int  # and those that it has but for case, punctuation and spaces
    near_test: int


class _Letters(dict[int, int | None]):
    """A table for str.translate: letters, their marks, digits and spaces stay, the rest goes."""

    def __missing__(self, code: int) -> int | None:
        character = chr(code)
        stays = category(character)[0] in "LMN" or character.isspace()
        self[code] = code if stays else None
        return self[code]


_LETTERS = _Letters()
_LETTER = re.compile(r"[^\W\d_]")
_PUNCTUATION = " .,;:!?…\"'"  # the most frequent, and spaces: what _plain takes away at both ends


def _plain(text: str) -> str:
    """What near-duplicates have in common; nothing without a letter, for 1+2 is not nearly 12."""
    if not _LETTER.search(text):
        return ""
    return " ".join(text.casefold().translate(_LETTERS).split())


class Overlap:
    """Counts what dev and test share with the training pairs it is shown, and what those repeat.

    Memory: 8 bytes a training pair.
    """

    def __init__(self, dev: Iterable[Pair], test: Iterable[Pair]) -> None:
        self._dev = {pair.source for pair in dev}
        self._test = {pair.source for pair in test}
        self._held = self._dev | self._test
        self._plain = {*map(_plain, self._held)} - {""}
        self._ends = {(text.split(" ", 1)[0], text.rsplit(" ", 1)[-1]) for text in self._plain}
        self._exact: set[str] = set()
        self._near: set[str] = set()
        self._pairs = array("q")

    def add(self, pairs: Iterable[Pair]) -> None:
        """Look at some training pairs."""
        held = self._held
        for source, targets, *_ in pairs:
            if source in held:
                self._exact.add(source)
            if self._may_be_near(source):
                plain = _plain(source)
                if plain in self._plain:
                    self._near.add(plain)
            for target in targets:
                self._pairs.append(hash((source, target)))

    def _may_be_near(self, text: str) -> bool:
        """Whether _plain may find it among the held-out texts, quickly told by first and last word.

        Where these cannot be told easily, the answer is yes.
        """
        words = text.strip(_PUNCTUATION).split(None, 1)
        if not words or not self._plain:
            return False
        first = words[0].casefold().translate(_LETTERS)
        last = words[-1].rsplit(None, 1)[-1].casefold().translate(_LETTERS)
        return not first or not last or (first, last) in self._ends

    def leaks(self) -> Leaks:
        """What has been counted so far."""
        hashes = np.asarray(self._pairs)
        hashes.sort()
        return Leaks(
            duplicates=int(np.count_nonzero(hashes[1:] == hashes[:-1])),
            dev=len(self._dev & self._exact),
            test=len(self._test & self._exact),
            near_dev=sum(_plain(source) in self._near for source in self._dev - self._exact),
            near_test=sum(_plain(source) in self._near for source in self._test - self._exact),
        )


def leaks(splits: Splits) -> Leaks:
    """Count what dev and test share with training, and what training repeats."""
    overlap = Overlap(splits.dev or (), splits.test or ())
    overlap.add(splits.train)
    return overlap.leaks()
