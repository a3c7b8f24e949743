"""Pairs as ids on disk: written once in one stream, then mapped into memory, so that size does not matter."""

import json
import os
import shutil
from collections.abc import Iterable
from hashlib import sha256
from itertools import chain, islice
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from regard.data.pairs import Pair, Skipped
from regard.errors import UserError
from regard.text.tokenizer import Tokenizer
from regard.text.vocabulary import BOS, EOS

FORMAT = 1
_CHUNK = 2_000  # pairs encoded at a time: enough for the tokenizers library to use its threads
_BLOCK = 64

Ids = npt.NDArray[np.integer[Any]]


class Corpus:
    """Rows of ids. A source row ends with <eos> and is never empty; a target row is <bos> … <eos>.

    `target_lengths` counts what is predicted: the row without its <bos>. Memory holds the start of every 64th row; the rest is
    added up from the lengths.
    """

    def __init__(self, path: Path, about: dict[str, Any]) -> None:
        self.path, self.about, self.digest = path, about, str(about["digest"])
        self._lengths = _mapped(path / "lengths.bin", "<i4", (about["pairs"], 2))
        self.source_lengths, self.target_lengths = self._lengths.T
        blocks = self._lengths[: len(self) // _BLOCK * _BLOCK].reshape(-1, 2 * _BLOCK).sum(1, np.int64) + _BLOCK
        self._starts = np.concatenate([[0], np.cumsum(blocks)])
        self._ids = _mapped(path / "ids.bin", about["dtype"], (int(self._lengths.sum(dtype=np.int64)) + len(self),))

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
        return len(self._lengths)

    def __getitem__(self, i: int) -> tuple[Ids, Ids]:
        if not 0 <= i < len(self):
            raise IndexError(i)
        block, place = divmod(i, _BLOCK)
        start = int(self._starts[block] + self._lengths[i - place : i].sum()) + place
        source, target = self._lengths[i].tolist()
        return self._ids[start : start + source], self._ids[start + source : start + source + target + 1]

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self).open, (self.path,)  # a worker process maps the files again instead of copying them


def _mapped(path: Path, dtype: str, shape: tuple[int, ...]) -> Ids:
    """A file as a plain array, which is ten times as fast to index as a memmap."""
    return np.asarray(np.memmap(path, dtype, "r", shape=shape))


def digest_of(path: Path, dtype: str) -> str:
    """The sum of a corpus' files."""
    digest = sha256(dtype.encode())
    for name in ("ids.bin", "lengths.bin"):
        with (path / name).open("rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
    return digest.hexdigest()


def encode(
    pairs: Iterable[Pair], source: Tokenizer, target: Tokenizer, path: str | Path, *, max_length: int, skipped: Skipped
) -> Corpus:
    """Write pairs as ids into the folder `path`, a row for each target, and open it.

    No side, its <eos> included, is longer than max_length: a pair that would be is skipped and counted, never cut.
    """
    path, count = Path(path), 0
    examples = ((pair, text) for pair in pairs for text in pair.targets)
    dtype = "<u2" if max(source.size, target.size) <= 2**16 else "<i4"
    aside = path.with_name(f"{path.name}.tmp{os.getpid()}")
    aside.mkdir(parents=True, exist_ok=True)
    try:
        with (aside / "ids.bin").open("wb") as ids, (aside / "lengths.bin").open("wb") as lengths:
            while chunk := list(islice(examples, _CHUNK)):
                sources = source.encode_batch([pair.source for pair, _ in chunk])
                targets = target.encode_batch([text for _, text in chunk])
                rows = []
                for (pair, _), row, answer in zip(chunk, sources, targets):
                    if max(len(row), len(answer)) < max_length:
                        rows.append(([*row, EOS], [BOS, *answer, EOS]))
                    else:
                        skipped.add(path.name, pair.line, f"more than {max_length} tokens")
                flat = np.fromiter(chain.from_iterable(chain.from_iterable(rows)), dtype)
                sizes = np.array([(len(row), len(answer) - 1) for row, answer in rows], "<i4")
                ids.write(flat.tobytes())
                lengths.write(sizes.tobytes())
                count += len(rows)
        if not count:
            raise UserError(f"{path.name}: no pair is left of at most {max_length} tokens a side; raise the longest length")
        about = {"format": FORMAT, "pairs": count, "dtype": dtype, "digest": digest_of(aside, dtype)}
        (aside / "corpus.json").write_text(json.dumps(about), encoding="utf-8")
        shutil.rmtree(path, ignore_errors=True)
        aside.rename(path)
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return Corpus.open(path)
