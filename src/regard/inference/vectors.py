"""Texts -> vectors: the mean of an encoder's states over the tokens of each text."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np
import numpy.typing as npt
import torch

from regard.bounds import Bounded, setting
from regard.data.batches import collate
from regard.data.documents import text_rows
from regard.errors import UserError
from regard.inference.decoding import check_texts
from regard.models import Encoder
from regard.text.tokenizer import Tokenizer
from regard.text.vocabulary import BOS, EOS

Vectors = npt.NDArray[np.float32]
WINDOW = 1024
"""Texts that are sorted by length together."""


@dataclass(frozen=True)
class Neighbor:
    """A text that is near another one."""

    text: str
    similarity: float
    """Cosine of the angle between their vectors: 1 for the same direction."""


@dataclass(frozen=True)
class _Counts(Bounded):
    """Whole numbers that `nearest` takes."""

    n: int = setting(5, "Texts to find.", least=1, most=10**6)


class TextVectors:
    """What a model with an encoder can do: give each text a vector."""

    def _text_vectors(self, texts: Iterable[str]) -> Iterator[Vectors]:
        """The vector (D,) of each text, in order and in constant memory."""
        raise NotImplementedError

    def embed(self, texts: Iterable[str]) -> Vectors:
        """A vector for each text (N, D): the mean of the encoder's states over its tokens."""
        check_texts(texts, "embed")
        rows = list(self._text_vectors(texts))
        if not rows:
            raise UserError("embed: there are no texts")
        return np.stack(rows)

    def nearest(self, text: str, texts: Sequence[str], n: int = 5) -> list[Neighbor]:
        """The `n` of the texts whose vectors are nearest to that of `text`, nearest first."""
        n = _Counts(n).n
        if not len(texts):
            raise UserError("nearest: there are no texts to choose from")
        vectors = self.embed([text, *texts])
        return nearest_texts(vectors[0], vectors[1:], texts, n)


def text_vectors(
    encoder: Encoder,
    tokenizer: Tokenizer,
    texts: Iterable[str],
    budget: int,
    device: torch.device,
    max_length: int = 0,
) -> Iterator[Vectors]:
    """The vector (D,) of each text, in order and in constant memory.

    budget: tokens of a batch, padding included. max_length: tokens that a row may have, as in
    training; the vector of a longer text is the mean over its rows, weighted by their tokens.
    """
    stream = iter(texts)
    while window := list(islice(stream, WINDOW)):
        rows: list[list[int]] = []
        counts = []  # of the rows of each text
        for ids in tokenizer.encode_batch(window):
            cut = text_rows(ids, max_length, is_causal=False)
            parts = [row[1:].tolist() for row in cut] or [[EOS]]
            rows += parts
            counts.append(len(parts))

        order = sorted(range(len(rows)), key=lambda place: -len(rows[place]))
        found: dict[int, Vectors] = {}
        while order:
            count = max(1, budget // len(rows[order[0]]))
            places = order[:count]
            order = order[count:]
            found.update(zip(places, _means(encoder, [rows[place] for place in places], device)))

        means = (found[place] for place in range(len(rows)))
        lengths = (len(row) - 1 for row in rows)  # without <eos>
        for count in counts:
            of_rows = np.stack(list(islice(means, count)))  # (R, D)
            weights = np.array(list(islice(lengths, count)), np.float32)  # (R,)
            yield of_rows[0] if count == 1 else np.average(of_rows, axis=0, weights=weights)


@torch.inference_mode()
def _means(encoder: Encoder, rows: Sequence[list[int]], device: torch.device) -> Vectors:
    """The mean state of each row (B, D); <eos> counts only where there is nothing else."""
    batch = collate([(row, [BOS, EOS]) for row in rows]).to(device)
    states = encoder(batch.source, batch.source_lengths).states.float()  # (B, S, D)
    words = (batch.source_lengths - 1).clamp(min=1)  # (B,)
    places = torch.arange(states.shape[1], device=device)  # (S,)
    real = (places < words[:, None])[..., None]  # (B, S, 1)
    sums = states.masked_fill(~real, 0.0).sum(1)  # (B, D)
    return np.asarray((sums / words[:, None]).cpu().numpy())


def nearest_texts(
    vector: Vectors, vectors: Vectors, texts: Sequence[str], n: int
) -> list[Neighbor]:
    """The `n` of the texts whose vectors (N, D) are nearest to a vector (D,), nearest first."""
    if len(vectors) != len(texts):
        raise UserError(f"{len(vectors):,} vectors for {len(texts):,} texts: pass one for each")
    norms = np.linalg.norm(vectors, axis=1) * np.linalg.norm(vector)  # (N,)
    similarities = vectors @ vector / np.maximum(norms, 1e-12)  # (N,)
    best = np.argsort(-similarities, kind="stable")[:n]
    return [Neighbor(texts[i], float(similarities[i])) for i in best.tolist()]
