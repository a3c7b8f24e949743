"""What a user calls data, found and dealt out to training, dev and test so that nothing leaks."""

import os
import re
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from dataclasses import dataclass, field
from functools import partial
from itertools import compress, islice, zip_longest
from pathlib import Path
from typing import Any, Protocol
from unicodedata import category

import numpy as np
import numpy.typing as npt

from regard.data.drawn import Drawn
from regard.data.kept import Kept
from regard.data.pairs import Pair, Skipped, stable_hash, stable_hashes
from regard.data.readers import SUFFIXES, Position, aligned, plain_name, read
from regard.data.tasks import TASKS, Options, Task, whole_number, yes_or_no
from regard.data.tasks.toys import Pairs
from regard.errors import UserError, nearest
from regard.text.vocabulary import normalise

Items = Iterable[tuple[str, str | Sequence[str]]]
Codes = npt.NDArray[np.uint8]
_TRAIN, _DEV, _TEST, _UNUSED = range(4)
_CHUNK = 1_000
_NAMES = {
    "train": ("train*",),
    "dev": ("dev*", "val*"),
    "test": ("test*",),
}  # the files of a folder


class Keep(Protocol):
    """Makes a Kept of a way to read pairs."""

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
                    "the data changed between two readings: begin again, and leave the files "
                    "alone meanwhile"
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

    def sample(self, count: int, seed: int) -> Iterable[Pair]:
        """At most `count` pairs, drawn evenly over the stream, in their order. The same for the
        same seed.
        """
        total = self.count()
        if total <= count:
            return self
        chosen = np.zeros(total, np.bool_)
        chosen[_evenly(total, count, seed)] = True
        if not isinstance(self.read, Kept):
            return compress(self, chosen.tolist())
        if self.codes is not None:
            ours = self.codes == self.code
            ours[ours] = chosen
            chosen = ours
        return self.read.select(chosen)


def _evenly(total: int, count: int, seed: int) -> npt.NDArray[np.int64]:
    """`count` of `total` places: one, by lot, from each of as many equal stretches."""
    edges = np.arange(count + 1) * total // count
    lots = np.random.default_rng(seed).random(count)
    return edges[:-1] + (lots * np.diff(edges)).astype(np.int64)


@dataclass
class Splits:
    """The parts of a data set, None where there is none. `skipped` is complete once every stream
    has been read.
    """

    name: str
    train: Stream
    dev: Stream | None = None
    test: Stream | None = None
    long: Stream | None = None  # tasks only: longer than anything in training
    skipped: Skipped = field(default_factory=Skipped)
    notes: list[str] = field(default_factory=list)
    drawn: Drawn | None = None  # tasks only: what training drew, where dev and test leave it out

    def seen_in_training(self, sources: Iterable[str]) -> int:
        """How many of these sources, each counted once, stand in the training pairs as they are
        written.
        """
        wanted = set(sources)
        if self.drawn is not None:
            return self.drawn.count(wanted)
        return len({pair.source for pair in self.train if pair.source in wanted})

    def split(self, name: str) -> Stream:
        found = {"train": self.train, "dev": self.dev, "test": self.test, "long": self.long}
        if (stream := found.get(name)) is None:
            raise UserError(
                f"{self.name} has no split {name!r}; it has "
                f"{', '.join(key for key in found if found[key])}"
            )
        return stream


@dataclass(frozen=True)
class Deal:
    """How pairs are dealt out."""

    limit: int | None = None  # at most so many training pairs, drawn evenly over the file
    # what never spans two splits: equal sources, or ("pair") whatever shares a source or a target
    group: str = "source"
    dev: int | None = None  # so many pairs; None: a twentieth, at most 2,000
    test: int | None = None
    seed: int | None = None


def named_data(spec: str | Path) -> str:
    """`spec` as every command understands it: the name of a task, an absolute path, or a corpus
    below $REGARD_DATA.

    A bare name that is a task means the task, also where a file of that name lies; `./NAME` or a
    Path means the file.
    """
    if isinstance(spec, str) and spec in TASKS:
        return spec
    return str(Path(spec).resolve()) if os.path.exists(spec) else str(spec)


def open_data(
    spec: str,
    *,
    source: str | None = None,
    target: str | None = None,
    options: Options | None = None,
    keep: Keep | None = None,
    **deal: Any,
) -> Splits:
    """Find the data that `spec` names: a task, a file, a folder, or a corpus below $REGARD_DATA.
    For `deal` see Deal.

    With `keep` everything is read once, and later from a copy that is cleaned already: for who
    reads it several times.
    """
    skipped = Skipped()
    notes: list[str] = []
    drawn = None
    streams: dict[str, Stream] = {}

    if spec in TASKS:
        streams, drawn = _generated(TASKS[spec], dict(options or {}), Deal(**deal), keep)
        if os.path.exists(spec):
            notes.append(
                f"{spec} is the task of that name; write ./{spec} for what lies in this folder"
            )
    elif options:
        raise UserError(f"{spec} is not a task and takes no options: {', '.join(options)}")
    else:
        for part, file in _files(spec, source, target, notes).items():
            position = Position()
            reading = partial(
                read, file, source=source, target=target, skipped=skipped, position=position
            )
            some = partial(_some, spec, part, reading, skipped)
            share = partial(_share_of_file, position)
            streams[part] = Stream(keep(some, share=share) if keep is not None else some)
            if (
                keep is None or part == "test"
            ):  # what cannot be read is told at once; what is kept is read to its end soon
                next(some())

    splits = Splits(
        spec,
        streams["train"],
        streams.get("dev"),
        streams.get("test"),
        streams.get("long"),
        skipped,
        notes,
        drawn,
    )
    return splits if spec in TASKS else _dealt(splits, Deal(**deal))


def _share_of_file(position: Position, pairs: int) -> float | None:
    return position.share()


def _share_of(total: int, pairs: int) -> float:
    return pairs / total


def open_split(
    spec: str,
    split: str,
    *,
    source: str | None = None,
    target: str | None = None,
    options: Options | None = None,
    **deal: Any,
) -> Stream:
    """One split, to judge a run by. A folder need hold no more than that one file.

    Names of languages or columns that a TSV has no use for are left out: a TSV can judge what was
    trained on two files.
    """
    folder = _place(spec, source, target)
    if spec in TASKS or folder is None or not folder.is_dir():
        return open_data(spec, source=source, target=target, options=options, **deal).split(split)

    files = _parts(folder, source, target, [])
    file = files.get(split) or files.get("train")
    if file is None:
        raise UserError(
            f"{folder} holds {_listed(folder)}: no file for {split}, nor one for train to split "
            f"it off"
        )
    names: dict[str, Any] = (
        {} if plain_name(file).endswith(".tsv") else {"source": source, "target": target}
    )

    if split in ("dev", "test") and split in files:
        skipped = Skipped()
        reading = partial(read, file, **names, skipped=skipped)
        return Stream(partial(_some, spec, split, reading, skipped))
    return open_data(spec, **names, options=options, **deal).split(split)


def _some(
    spec: str, part: str, reading: Callable[[], Iterable[Pair]], skipped: Skipped
) -> Iterator[Pair]:
    """The pairs; that there is none is an error."""
    pair = None
    for pair in reading():
        yield pair
    if pair is None:
        why = "; ".join(skipped.lines())
        raise UserError(f"{spec}: no usable pair for {part} (a line is source TAB target): {why}")


def from_iterable(data: Items, *, keep: Keep | None = None, **deal: Any) -> Splits:
    """Splits of any (source, target or targets); an iterator, which can be read but once, is kept:
    in memory, or by `keep`.
    """
    once = iter(data) is data
    again: Items = list(data) if once and keep is None else data
    reading = partial(_numbered, lambda: again)
    total = len(again) if isinstance(again, Sized) else None
    share = partial(_share_of, total) if total else lambda pairs: None
    return _dealt(
        Splits("pairs", Stream(keep(reading, share=share) if keep is not None else reading)),
        Deal(**deal),
    )


def _numbered(items: Callable[[], Items]) -> Iterator[Pair]:
    for line, item in enumerate(items(), 1):
        try:
            source, target = item
            first, second, *more = map(
                normalise, (source, target) if isinstance(target, str) else (source, *target)
            )
        except (TypeError, ValueError, AttributeError):
            raise UserError(
                f"item {line} of the pairs: a pair is (source, target) or (source, [targets])"
            ) from None
        yield Pair(first, (second, *more), line)


def _generated(
    task: Task, options: dict[str, str | int], deal: Deal, keep: Keep | None
) -> tuple[dict[str, Stream], Drawn | None]:
    """A task's streams, and what keeps dev and test from repeating training where independent draws
    would.

    Dev and test may share a formula with each other: neither is learned from.
    """
    overlap = task.apart != "drawn" or yes_or_no(
        f"{task.name} overlap", options.pop("overlap", False)
    )
    counts = {
        part: whole_number(part, options.pop(part, getattr(task, part)))
        for part in ("train", "dev", "test")
    }
    counts["train"] = min(counts["train"], deal.limit or counts["train"])
    counts |= {
        part: count for part, count in (("dev", deal.dev), ("test", deal.test)) if count is not None
    }
    if counts["train"] < 1 or min(counts.values()) < 0:
        raise UserError(
            f"{task.name} train={counts['train']} dev={counts['dev']} test={counts['test']}: "
            f"nothing to train on"
        )
    counts["long"] = counts["test"]

    def stream(part: str, items: Callable[[], Items]) -> Stream:
        reading = partial(_numbered, items)
        share = partial(_share_of, counts[part])
        return Stream(keep(reading, share=share) if keep is not None else reading)

    drawing = partial(task.pairs, seed=deal.seed, options=options)
    parts = [part for part in task.splits if counts[part]]
    streams = {part: stream(part, partial(drawing, counts[part], split=part)) for part in parts}
    for part in parts:
        next(drawing(1, split=part), None)  # wrong options are told at once
    if overlap or task.space is None:
        return streams, None

    drawn = Drawn(task.name, streams["train"], task.space(**task.chosen(options)))
    for part in streams.keys() - {"train"}:
        streams[part] = stream(part, partial(_held_out, drawn, drawing, counts[part], part))
    return streams, drawn


def _held_out(drawn: Drawn, drawing: Callable[..., Pairs], count: int, split: str) -> Pairs:
    return drawn.held_out(drawing(None, split=split), count, split)


def _place(spec: str, source: str | None, target: str | None) -> Path | None:
    """The file or folder that `spec` names, here or below $REGARD_DATA. Aligned files go by what
    their names share.
    """
    home = os.environ.get("REGARD_DATA")
    for path in (Path(spec), Path(home or "", spec)):
        if os.path.exists(path) or (source and target and aligned(path, source, target)):
            return path
    return None


def _files(spec: str, source: str | None, target: str | None, notes: list[str]) -> dict[str, Path]:
    """The file of each split, or of training alone. Aligned files go by the one of the source."""
    path = _place(spec, source, target)
    if path is None:
        raise _not_there(spec)
    if not path.is_dir():
        return {"train": path}

    files = _parts(path, source, target, notes)
    if "train" not in files:
        wanted = "no train.tsv, nor train.en and train.de with data.source=en data.target=de"
        raise UserError(f"{path} holds {_listed(path)}: {wanted}")
    return files


def _not_there(spec: str) -> UserError:
    if os.sep in spec or Path(spec).suffix:
        return UserError(f"{spec}: no such file or folder")
    home = os.environ.get("REGARD_DATA")
    names = [*TASKS, *(path.name for path in sorted(Path(home).glob("*/")))] if home else [*TASKS]
    below = (
        "below $REGARD_DATA"
        if home
        else "(they are looked for below $REGARD_DATA, which is not set)"
    )
    return UserError(
        f"no data {spec!r}: no such task, file or folder, nor a named corpus "
        f"{below}{nearest(spec, names)}"
    )


def _parts(
    folder: Path, source: str | None, target: str | None, notes: list[str]
) -> dict[str, Path]:
    """The file of each split that a folder holds."""
    files: dict[str, Path] = {}
    for part, patterns in _NAMES.items():
        candidates = sorted(file for pattern in patterns for file in folder.glob(pattern))
        usable = [
            file
            for file in candidates
            if source and target and plain_name(file).endswith(f".{source}")
        ]
        usable = usable or [file for file in candidates if plain_name(file).endswith(SUFFIXES)]

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


def _listed(folder: Path) -> str:
    return ", ".join(sorted(file.name for file in folder.iterdir())[:8]) or "nothing"


def _dealt(splits: Splits, deal: Deal) -> Splits:
    """Split off from the training pairs what is missing, and keep `limit` of them."""
    if (
        deal.group not in ("source", "pair")
        or deal.limit == 0
        or min(deal.limit or 0, deal.dev or 0, deal.test or 0) < 0
    ):
        wish = (
            f"data.group={deal.group} data.limit={deal.limit} data.dev={deal.dev} "
            f"data.test={deal.test}"
        )
        raise UserError(
            f"{wish}: group is source or pair, limit at least 1, dev and test at least 0"
        )
    dev, test = 0 if splits.dev else deal.dev, 0 if splits.dev or splits.test else deal.test
    if dev == test == 0 and deal.limit is None:
        return splits
    keys = _groups(splits.train, deal.group, deal.seed or 0)
    if (dev or 0) + (test or 0) >= len(keys):
        raise UserError(
            f"{splits.name}: of {len(keys):,} pairs dev={dev or 0} and test={test or 0} leave "
            f"none for training"
        )
    codes = _deal(keys, dev, test)
    _thin(codes, deal.limit or len(codes), deal.seed or 0)
    parts = {code: Stream(splits.train.read, codes, code) for code in np.unique(codes)}
    splits.train, splits.dev, splits.test = (
        parts[_TRAIN],
        parts.get(_DEV, splits.dev),
        parts.get(_TEST, splits.test),
    )
    if splits.dev is None and dev != 0:
        splits.dev = splits.train
        splits.notes.append(
            f"{splits.name}: too few pairs to hold any out, dev is the training pairs themselves"
        )
    return splits


def _groups(pairs: Iterable[Pair], group: str, seed: int) -> npt.NDArray[np.uint32]:
    """A random number for each pair, equal for pairs that must stay together (and by chance for a
    few that need not).
    """
    if group == "pair":
        return _connected(pairs, seed)
    keys = array("I")
    stream = iter(pairs)
    while chunk := [pair.source for pair in islice(stream, _CHUNK)]:
        keys.frombytes((stable_hashes(chunk, seed) >> np.uint64(32)).astype(np.uint32).tobytes())
    return np.frombuffer(keys, np.uint32)


def _connected(pairs: Iterable[Pair], seed: int) -> npt.NDArray[np.uint32]:
    """The same, for pairs that share a source or a target, or a third pair with both."""
    sources = array("Q")
    parent: dict[int, int] = {}  # trees of hashed texts: one tree for all that must stay together

    def root(text: int) -> int:
        while (above := parent.get(text, text)) != text:
            parent[text] = text = parent.get(above, above)
        return text

    for pair in pairs:
        sources.append(stable_hash(pair.source, seed))
        for target in pair.targets:
            parent[root(stable_hash(target, seed + 1))] = root(sources[-1])
    return np.fromiter((root(text) >> 32 for text in sources), np.uint32, len(sources))


def _deal(keys: npt.NDArray[np.uint32], dev: int | None, test: int | None) -> Codes:
    """The split of each pair: the groups with the smallest keys are dev, the next test. Training is
    never empty.
    """
    n, first = len(keys), 0
    usual = min(2_000, max(1, n // 20)) if n > 2 else 0
    ordered, codes = np.sort(keys), np.full(n, _TRAIN, np.uint8)
    for code, count in (
        (_DEV, usual if dev is None else dev),
        (_TEST, usual if test is None else test),
    ):
        group = ordered[first]
        last = int(
            np.searchsorted(ordered, ordered[min(first + count, n - 1)])
        )  # whole groups only, never the last
        end = int(np.searchsorted(ordered, group, "right"))
        if count and last == first and end < n and end - first <= max(1, n // 4):
            # the first group alone is larger than what was asked for: take it, if most is left
            last = end
        codes[(keys >= group) & (keys < ordered[last])] = code
        first = last
    return codes


def _thin(codes: Codes, limit: int, seed: int) -> None:
    """Keep `limit` training pairs: one, by lot, from each of as many equal stretches of the
    file.
    """
    places = np.flatnonzero(codes == _TRAIN)
    if limit < len(places):
        codes[places] = _UNUSED
        codes[places[_evenly(len(places), limit, seed)]] = _TRAIN


def grouped(pairs: Iterable[Pair]) -> list[Pair]:
    """Each distinct source once, with all its different targets: what a model is judged by."""
    found: dict[str, tuple[int, dict[str, None]]] = {}
    for pair in pairs:
        found.setdefault(pair.source, (pair.line, {}))[1].update(dict.fromkeys(pair.targets))
    return [Pair(source, tuple(targets), line) for source, (line, targets) in found.items()]


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
        return self.setdefault(
            code, code if category(chr(code))[0] in "LMN" or chr(code).isspace() else None
        )


_LETTERS, _LETTER = _Letters(), re.compile(r"[^\W\d_]")
_PUNCTUATION = " .,;:!?…\"'"  # the most frequent, and spaces: what _plain takes away at both ends


def _plain(text: str) -> str:
    """What near-duplicates have in common; nothing without a letter, for 1+2 is not nearly 12."""
    return " ".join(text.casefold().translate(_LETTERS).split()) if _LETTER.search(text) else ""


class Overlap:
    """Counts what dev and test share with the training pairs it is shown, and what those repeat: 8
    bytes a training pair.
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
        """Some training pairs."""
        held = self._held
        for source, targets, _ in pairs:
            if source in held:
                self._exact.add(source)
            if self._may_be_near(source):
                plain = _plain(source)
                if plain in self._plain:
                    self._near.add(plain)
            for target in targets:
                self._pairs.append(hash((source, target)))

    def _may_be_near(self, text: str) -> bool:
        """Whether its first and last words are those of a held-out text, or not easily told:
        quicker than _plain.
        """
        words = text.strip(_PUNCTUATION).split(None, 1)
        if not words or not self._plain:
            return False
        first = words[0].casefold().translate(_LETTERS)
        last = words[-1].rsplit(None, 1)[-1].casefold().translate(_LETTERS)
        return not first or not last or (first, last) in self._ends

    def leaks(self) -> Leaks:
        hashes = np.asarray(self._pairs)
        hashes.sort()
        repeated = int(np.count_nonzero(hashes[1:] == hashes[:-1]))
        near_dev = sum(_plain(source) in self._near for source in self._dev - self._exact)
        near_test = sum(_plain(source) in self._near for source in self._test - self._exact)
        return Leaks(
            repeated,
            len(self._dev & self._exact),
            len(self._test & self._exact),
            near_dev,
            near_test,
        )


def leaks(splits: Splits) -> Leaks:
    """Count what dev and test share with training, and what training repeats: 8 bytes a training
    pair.
    """
    overlap = Overlap(splits.dev or (), splits.test or ())
    overlap.add(splits.train)
    return overlap.leaks()
