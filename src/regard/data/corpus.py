"""Pairs as ids on disk: written once in one stream, then mapped into memory, so that size does not matter."""

import json
import os
import shutil
from collections.abc import Iterable
from hashlib import sha256
from itertools import chain, islice
from pathlib import Path
from typing import Any, BinaryIO, Self

import numpy as np
import numpy.typing as npt

from ..errors import UserError
from ..text import BOS, EOS, Tokenizer
from .pairs import Pair, Skipped

FORMAT = 1
_CHUNK = 2_000  # pairs encoded at a time: enough for the tokenizers library to use its threads
_PARTS = {"offsets": "<i8", "source_lengths": "<i4", "target_lengths": "<i4"}

Ids = npt.NDArray[np.integer[Any]]


class Corpus:
    """Rows of ids. A source row ends with <eos> and is never empty; a target row is <bos> … <eos>.

    `target_lengths` counts what is predicted: the row without its <bos>.
    """

    def __init__(self, path: Path, about: dict[str, Any]) -> None:
        self.path = path
        self.digest: str = about["digest"]
        self.about = about
        self._ids = np.memmap(path / "ids.bin", about["dtype"], "r", shape=(about["ids"],))
        parts = {name: np.memmap(path / f"{name}.bin", kind, "r", shape=(len(self),)) for name, kind in _PARTS.items()}
        self._offsets = parts["offsets"]
        self.source_lengths: npt.NDArray[np.int32] = parts["source_lengths"]
        self.target_lengths: npt.NDArray[np.int32] = parts["target_lengths"]

    @classmethod
    def open(cls, path: str | Path) -> Self:
        path = Path(path)
        try:
            about = json.loads((path / "corpus.json").read_text(encoding="utf-8"))
            if about["format"] > FORMAT:
                raise UserError(f"{path}: written by a newer Regard (format {about['format']}); encode it again")
            return cls(path, about)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise UserError(f"{path}: no encoded corpus, or damaged ({error}); encode it again") from error

    def __len__(self) -> int:
        return int(self.about["pairs"])

    def source(self, i: int) -> Ids:
        start = int(self._offsets[i])
        return np.asarray(self._ids[start : start + int(self.source_lengths[i])])

    def target(self, i: int) -> Ids:
        start = int(self._offsets[i]) + int(self.source_lengths[i])
        return np.asarray(self._ids[start : start + int(self.target_lengths[i]) + 1])

    def __getitem__(self, i: int) -> tuple[Ids, Ids]:
        if not 0 <= i < len(self):
            raise IndexError(i)
        return self.source(i), self.target(i)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self).open, (self.path,)  # a worker process maps the files again instead of copying them


class _Writer:
    """The growing files of a corpus and the digest of what went into them."""

    def __init__(self, folder: Path, dtype: str) -> None:
        self.dtype = dtype
        self.pairs = self.ids = 0
        self.files: dict[str, BinaryIO] = {name: (folder / f"{name}.bin").open("wb") for name in ("ids", *_PARTS)}
        self.hashes = {name: sha256() for name in self.files}

    def write(self, rows: list[tuple[list[int], list[int]]]) -> None:
        sources = np.fromiter((len(source) for source, _ in rows), np.int64, len(rows))
        targets = np.fromiter((len(target) for _, target in rows), np.int64, len(rows))
        ends = np.cumsum(sources + targets) + self.ids
        flat = np.fromiter(chain.from_iterable(chain.from_iterable(rows)), self.dtype)
        self._append("ids", flat)
        self._append("offsets", (ends - sources - targets).astype(_PARTS["offsets"]))
        self._append("source_lengths", sources.astype(_PARTS["source_lengths"]))
        self._append("target_lengths", (targets - 1).astype(_PARTS["target_lengths"]))
        self.pairs += len(rows)
        self.ids += len(flat)

    def _append(self, name: str, values: Ids) -> None:
        data = values.tobytes()
        self.files[name].write(data)
        self.hashes[name].update(data)

    def close(self) -> None:
        for file in self.files.values():
            file.close()

    def about(self) -> dict[str, Any]:
        parts = (self.dtype, *(value.hexdigest() for value in self.hashes.values()))
        digest = sha256("\n".join(parts).encode()).hexdigest()
        return {"format": FORMAT, "pairs": self.pairs, "ids": self.ids, "dtype": self.dtype, "digest": digest}


def encode(
    pairs: Iterable[Pair],
    source: Tokenizer,
    target: Tokenizer,
    path: str | Path,
    *,
    max_length: int,
    skipped: Skipped,
) -> Corpus:
    """Write pairs as ids into the folder `path`, a row for each target, and open it.

    No side, its <eos> included, is longer than max_length: a pair that would be is skipped and counted, never cut.
    """
    path = Path(path)
    aside = path.with_name(f"{path.name}.tmp{os.getpid()}")
    aside.mkdir(parents=True, exist_ok=True)
    try:
        writer = _Writer(aside, "<u2" if max(source.size, target.size) <= 2**16 else "<i4")
        stream = iter(pairs)
        try:
            while chunk := list(islice(stream, _CHUNK)):
                writer.write(_rows(chunk, source, target, path.name, max_length, skipped))
        finally:
            writer.close()
        if not writer.pairs:
            raise UserError(f"{path.name}: no pair is left of at most {max_length} tokens a side; raise the longest length")
        (aside / "corpus.json").write_text(json.dumps(writer.about()), encoding="utf-8")
        shutil.rmtree(path, ignore_errors=True)
        aside.rename(path)
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return Corpus.open(path)


def _rows(
    chunk: list[Pair], source: Tokenizer, target: Tokenizer, name: str, max_length: int, skipped: Skipped
) -> list[tuple[list[int], list[int]]]:
    sources = source.encode_batch([pair.source for pair in chunk])
    targets = iter(target.encode_batch([text for pair in chunk for text in pair.targets]))
    rows = []
    for pair, ids in zip(chunk, sources):
        for answer in islice(targets, len(pair.targets)):
            if max(len(ids), len(answer)) < max_length:
                rows.append(([*ids, EOS], [BOS, *answer, EOS]))
            else:
                skipped.add(name, pair.line, f"more than {max_length} tokens")
    return rows
