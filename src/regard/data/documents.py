"""Texts as rows of a corpus: nothing for a source, and as its target the text.

A text with more tokens than a row may have is cut into rows of nearly equal length. For a causal
model each of them but the first begins with the last token of the row before, in the place of
<bos>, and only the last one ends with <eos>: the model never learns that texts begin or end there.
"""

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path

import numpy as np

from regard.data.corpus import Corpus, IdArray, write_corpus
from regard.data.pairs import Pair
from regard.text.encoder import TextEncoder, encoder_for
from regard.text.tokenizer import Tokenizer
from regard.text.vocabulary import BOS, EOS


def encode_documents(
    pairs: Iterable[Pair],
    tokenizer: Tokenizer,
    path: str | Path,
    *,
    max_length: int,
    is_causal: bool,
    watch: Callable[[list[Pair]], None] | None = None,
) -> Corpus:
    """Write the sources of pairs as texts for a language model into the folder `path`, and open it.

    No row has more than max_length tokens, its <eos> included. `watch` is shown every pair that
    goes by, some thousand at a time.
    """
    encode_chunk = partial(
        _encode_chunk,
        encode_text=encoder_for(tokenizer),
        max_length=max_length,
        is_causal=is_causal,
    )
    return write_corpus(
        Path(path),
        pairs,
        encode_chunk,
        vocabulary=tokenizer.size,
        watch=watch,
        nothing_left="no text has a token",
    )


def _encode_chunk(
    chunk: list[Pair], *, encode_text: TextEncoder, max_length: int, is_causal: bool
) -> tuple[IdArray, IdArray, IdArray]:
    """The sources of some pairs as rows, and their lengths, as `Corpus` keeps them.

    Of each row, also that it was kept: no text is left out.
    """
    ids, lengths = encode_text([pair.source for pair in chunk])
    texts = np.split(ids, np.cumsum(lengths)[:-1])
    rows: list[IdArray] = []
    for text in texts:
        if len(text):
            rows += text_rows(text, max_length, is_causal=is_causal)

    nothing = np.array([EOS], np.int32)
    pieces = [piece for row in rows for piece in (nothing, row)]
    sizes = np.array([(1, len(row) - 1) for row in rows], np.int64).reshape(-1, 2)
    everything = np.concatenate(pieces) if pieces else np.zeros(0, np.int32)
    return everything, sizes, np.ones(len(rows), np.bool_)


def text_rows(ids: Sequence[int] | IdArray, max_length: int, *, is_causal: bool) -> list[IdArray]:
    """The ids of a text in rows of at most max_length tokens, <bos> or the token before in front.

    max_length=0: in one row. A causal model has one even for an empty text: it predicts the end.
    """
    cut = _linked_rows if is_causal else _whole_rows
    return list(cut(np.asarray(ids, np.int32), max_length or sys.maxsize))


def _linked_rows(text: IdArray, max_length: int) -> Iterator[IdArray]:
    """<bos> text <eos> in rows that predict at most max_length tokens, each read once."""
    whole = np.concatenate(([BOS], text, [EOS])).astype(np.int32)
    for start, end in _stretches(len(text) + 1, max_length):
        yield whole[start : end + 1]


def _whole_rows(text: IdArray, max_length: int) -> Iterator[IdArray]:
    """The text in rows of their own: <bos> … <eos> each."""
    for start, end in _stretches(len(text), max(1, max_length - 1)):
        yield np.concatenate(([BOS], text[start:end], [EOS])).astype(np.int32)


def _stretches(total: int, most: int) -> Iterator[tuple[int, int]]:
    """As few stretches as possible of at most `most`, and of nearly equal length."""
    count = -(-total // most)
    edges = np.linspace(0, total, count + 1).round().astype(int)
    return zip(edges[:-1].tolist(), edges[1:].tolist())
