"""Pairs as ids on disk, written once in one stream.

The files are mapped into memory, so that a corpus may be larger than it.
"""

import json
import math
import os
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from functools import partial
from hashlib import sha256
from itertools import chain, islice
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from regard.data.pairs import Pair, Skipped
from regard.errors import UserError
from regard.files import create, new_folder, write_text
from regard.files.reading import open_regular, parse_json, read_bytes
from regard.text.encoder import TextEncoder, consecutive, encoder_for
from regard.text.positions import token_positions
from regard.text.tokenizer import Tokenizer
from regard.text.vocabulary import BOS, EOS

FORMAT = 1
DTYPES = ("<u2", "<i4")
POSITIONS = "positions.bin"  # a file that only some have
ABOUT = 1 << 16  # bytes of corpus.json
_AGAIN = "copy data/ from a sound copy of the run, or train again"
_CHUNK = 10_000  # pairs encoded at a time: the more, the fewer different words in them
_BLOCK = 64  # rows from one start that is kept in memory to the next

IdArray = npt.NDArray[Any]


class Corpus:
    """Rows of ids, a source and a target for each pair.

    A source row ends with <eos> and is never empty; a target row is <bos> … <eos>. Rows of texts
    alone (`regard.data.documents`) have no more than <eos> as their source.
    `target_lengths` counts what is predicted: the row without its <bos>. Memory holds the start of
    every 64th row; the rest is added up from the lengths. A corpus may also have the position of
    each source token.
    """

    def __init__(
        self, path: Path, *, pairs: int, dtype: str, digest: str, positions: bool = False
    ) -> None:
        self.path = path
        self.dtype = dtype
        self.digest = digest

        self._lengths = _mapped(path / "lengths.bin", "<i4", (pairs, 2))
        self.source_lengths, self.target_lengths = self._lengths.T
        if int(self._lengths.min()) < 1:
            raise ValueError("a pair has an empty side")

        # A pair takes its two lengths and one id more: the <bos>, which the lengths leave out.
        whole_blocks = self._lengths[: len(self) // _BLOCK * _BLOCK].reshape(-1, 2 * _BLOCK)
        block_sizes = whole_blocks.sum(1, np.int64) + _BLOCK
        self._starts = np.concatenate([[0], np.cumsum(block_sizes)])

        total = int(self._lengths.sum(dtype=np.int64)) + len(self)
        self._ids = _mapped(path / "ids.bin", dtype, (total,))

        self._positions = None
        if positions:
            ends = np.cumsum(self.source_lengths, dtype=np.int64)
            self._source_starts = np.concatenate([[0], ends])
            self._positions = _mapped(path / POSITIONS, "<i4", (int(ends[-1]),))

    @classmethod
    def open(cls, path: str | Path) -> Self:
        """Open a folder that `encode` wrote."""
        path = Path(path)
        try:
            about = parse_json(read_bytes(path / "corpus.json", ABOUT))
            if type(about["format"]) is int and about["format"] > FORMAT:
                raise UserError(
                    f"{path}: written by a newer Regard (format {about['format']}); encode it again"
                )
            pairs, dtype, digest = about["pairs"], about["dtype"], about["digest"]
            if type(pairs) is not int or pairs < 1:
                raise ValueError("no count of pairs")
            if dtype not in DTYPES or not isinstance(digest, str):
                raise ValueError("no type of ids, or no digest")
            positions = about.get("positions", False) is True
            return cls(path, pairs=pairs, dtype=dtype, digest=digest, positions=positions)
        except OSError as error:
            where = error.filename or path
            reason = error.strerror or error
            raise UserError(f"{where}: {reason}: not an encoded corpus; {_AGAIN}") from error
        except (ValueError, KeyError, TypeError) as error:
            raise UserError(
                f"{path}: not an encoded corpus, or damaged ({str(error)[:80]}); {_AGAIN}"
            ) from error

    def __len__(self) -> int:
        return len(self._lengths)

    def __getitem__(self, i: int) -> tuple[IdArray, IdArray]:
        if not 0 <= i < len(self):
            raise IndexError(i)
        block, place = divmod(i, _BLOCK)
        start = int(self._starts[block] + self._lengths[i - place : i].sum()) + place
        source_length, target_length = self._lengths[i].tolist()
        middle = start + source_length
        return self._ids[start:middle], self._ids[middle : middle + target_length + 1]

    @property
    def last_position(self) -> int:
        """The largest position of a source token, if the corpus has positions; 0: it has none."""
        return 0 if self._positions is None else int(self._positions.max())

    def row(self, i: int) -> tuple[IdArray, ...]:
        """A pair as `collate` takes it: with the positions of the source, if there are any."""
        source, target = self[i]
        if self._positions is None:
            return source, target
        start, end = self._source_starts[i : i + 2].tolist()
        return source, target, self._positions[start:end]

    def check_ids(self, source_size: int, target_size: int) -> None:
        """Refuse ids that vocabularies of these sizes do not have."""
        for first in range(0, len(self), _CHUNK):
            lengths = self._lengths[first : first + _CHUNK] + np.array([0, 1], np.int32)
            start = int(self._starts[first // _BLOCK])
            start += int(self._lengths[first // _BLOCK * _BLOCK : first].sum()) + first % _BLOCK
            ends = np.cumsum(lengths.reshape(-1), dtype=np.int64)
            ids = self._ids[start : start + int(ends[-1])]
            starts = np.concatenate([[0], ends[:-1]])
            largest = np.maximum.reduceat(ids, starts).reshape(-1, 2)
            if int(ids.min()) < 0 or (largest >= (source_size, target_size)).any():
                raise UserError(f"{self.path}: an id that the vocabulary does not have; {_AGAIN}")

    def __reduce__(self) -> tuple[Any, ...]:
        # A worker process maps the files again instead of copying them.
        return type(self).open, (self.path,)


def _mapped(path: Path, dtype: str, shape: tuple[int, ...]) -> IdArray:
    """Map a file into memory as a plain array, which is ten times as fast to index as a memmap.

    Raises ValueError if it is not exactly as large as its shape says.
    """
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
    expected = math.prod(shape) * np.dtype(dtype).itemsize
    if size != expected:
        raise ValueError(f"{path.name} has {size:,} bytes, not {expected:,}")
    return np.asarray(np.memmap(path, dtype, "r", shape=shape))


def digest_of(path: Path, dtype: str) -> str:
    """The checksum of a corpus' files."""
    digest = sha256(dtype.encode())
    names = ["ids.bin", "lengths.bin"]
    if (path / POSITIONS).exists():
        names.append(POSITIONS)
    for name in names:
        with open_regular(path / name) as file:
            while block := file.read(1 << 20):
                digest.update(block)
    return digest.hexdigest()


def encode(
    pairs: Iterable[Pair],
    source: Tokenizer,
    target: Tokenizer,
    path: str | Path,
    *,
    max_length: int,
    skipped: Skipped,
    watch: Callable[[list[Pair]], None] | None = None,
    positions: bool = False,
    name: str = "",
) -> Corpus:
    """Write pairs as ids into the folder `path`, a row for each target, and open it.

    No side, its <eos> included, is longer than max_length: a pair that would be is skipped and
    counted, never cut. `watch` is shown every pair that goes by, some thousand at a time.
    positions: whether to write those of the source, too. name: what errors call the data.
    """
    path = Path(path)
    encode_source = encoder_for(source)
    encode_chunk = partial(
        _encode_chunk,
        encode_source=encode_source,
        encode_target=encode_source if target is source else encoder_for(target),
        max_length=max_length,
        too_long=lambda line: skipped.add(path.name, line, f"more than {max_length} tokens"),
    )

    locate = partial(_chunk_positions, source=source, name=name) if positions else None
    no_pairs = f"every pair has more than {max_length} tokens on a side; raise data.max_length"
    vocabulary = max(source.size, target.size)
    return write_corpus(
        path,
        pairs,
        encode_chunk,
        vocabulary=vocabulary,
        watch=watch,
        locate=locate,
        nothing_left=no_pairs,
    )


def write_corpus(
    path: Path,
    pairs: Iterable[Pair],
    encode_chunk: Callable[[list[Pair]], tuple[IdArray, IdArray, IdArray]],
    *,
    vocabulary: int,
    watch: Callable[[list[Pair]], None] | None = None,
    locate: Callable[[list[Pair], IdArray], IdArray] | None = None,
    nothing_left: str,
) -> Corpus:
    """Write the rows of pairs into a folder, and open it.

    encode_chunk: gives the rows of some pairs, their two lengths, and which were kept. vocabulary:
    its size. nothing_left: the error if there is no row.
    """
    dtype = "<u2" if vocabulary <= 2**16 else "<i4"
    with new_folder(path) as aside:
        count = _write(pairs, encode_chunk, aside, dtype, watch, locate)
        if not count:
            raise UserError(f"{path.name}: {nothing_left}")
        digest = digest_of(aside, dtype)
        about = {"format": FORMAT, "pairs": count, "dtype": dtype, "digest": digest}
        if locate is not None:
            about["positions"] = True
        write_text(aside / "corpus.json", json.dumps(about))
    return Corpus.open(path)


def _write(
    pairs: Iterable[Pair],
    encode_chunk: Callable[[list[Pair]], tuple[IdArray, IdArray, IdArray]],
    folder: Path,
    dtype: str,
    watch: Callable[[list[Pair]], None] | None,
    locate: Callable[[list[Pair], IdArray], IdArray] | None,
) -> int:
    """Write the ids and lengths of pairs into a folder, and count the rows.

    locate: gives the positions of a chunk's sources, which are written too.
    """
    count = 0
    stream = iter(pairs)
    with ExitStack() as files:
        ids = files.enter_context(create(folder / "ids.bin"))
        lengths = files.enter_context(create(folder / "lengths.bin"))
        positions = files.enter_context(create(folder / POSITIONS)) if locate else None
        while chunk := list(islice(stream, _CHUNK)):
            rows, sizes, fits = encode_chunk(chunk)
            ids.write(rows.astype(dtype).tobytes())
            lengths.write(sizes.astype("<i4").tobytes())
            if locate is not None and positions is not None:
                positions.write(locate(chunk, fits).astype("<i4").tobytes())
            count += len(sizes)
            if watch is not None:
                watch(chunk)
    return count


def _encode_chunk(
    chunk: list[Pair],
    *,
    encode_source: TextEncoder,
    encode_target: TextEncoder,
    max_length: int,
    too_long: Callable[[int], None],
) -> tuple[IdArray, IdArray, IdArray]:
    """Encode some pairs and arrange them as `_rows` does; of each target, whether it was kept.

    Pairs that are too long are left out; `too_long` is told the line of each.
    """
    sources, source_lengths = encode_source([pair.source for pair in chunk for _ in pair.targets])
    targets, target_lengths = encode_target([text for pair in chunk for text in pair.targets])

    fits = np.maximum(source_lengths, target_lengths) < max_length
    if not fits.all():
        lines = np.array([pair.line for pair in chunk for _ in pair.targets])
        for line in lines[~fits].tolist():
            too_long(line)
        sources, source_lengths = _only(fits, sources, source_lengths)
        targets, target_lengths = _only(fits, targets, target_lengths)
    return *_rows(sources, source_lengths, targets, target_lengths), fits


def _chunk_positions(chunk: list[Pair], fits: IdArray, *, source: Tokenizer, name: str) -> IdArray:
    """The positions of all source tokens of a chunk, in one array.

    fits: of each target of each pair, whether it is kept.
    """
    rows: list[list[int]] = []
    kept = iter(fits.tolist())
    for pair in chunk:
        where = f"{name} line {pair.line}"
        positions = token_positions(source, pair.source, pair.positions, where)
        rows += [positions for _ in pair.targets if next(kept)]
    return np.fromiter(chain.from_iterable(rows), np.int32)


def _only(wanted: IdArray, ids: IdArray, lengths: IdArray) -> tuple[IdArray, IdArray]:
    """The ids and lengths of the wanted texts."""
    return ids[np.repeat(wanted, lengths)], lengths[wanted]


def _rows(
    sources: IdArray, source_lengths: IdArray, targets: IdArray, target_lengths: IdArray
) -> tuple[IdArray, IdArray]:
    """Arrange source <eos> <bos> target <eos> for each pair, in one array.

    Also returns the two lengths that a corpus keeps of each pair: with <eos>, without <bos>.
    """
    sizes = np.stack([source_lengths + 1, target_lengths + 1], 1)  # (pairs, 2)
    ends = np.cumsum(sizes.sum(1) + 1)
    rows = np.full(int(ends[-1]) if len(ends) else 0, EOS, np.int32)

    first_target = ends - target_lengths - 1
    rows[first_target - 1] = BOS
    rows[consecutive(first_target, target_lengths)] = targets
    first_source = first_target - 2 - source_lengths
    rows[consecutive(first_source, source_lengths)] = sources
    return rows, sizes
