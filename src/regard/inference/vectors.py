"""Texts -> vectors: the mean of an encoder's states over the tokens of each text."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np
import numpy.typing as npt
import torch

from regard.data.batches import collate
from regard.errors import UserError
from regard.models import Encoder
from regard.text.tokenizer import Tokenizer
from regard.text.vocabulary import BOS, EOS

Vectors = npt.NDArray[np.float32]
WINDOW = 1024
"""Texts that are sorted by length together."""


def text_vectors(
    encoder: Encoder,
    tokenizer: Tokenizer,
    texts: Iterable[str],
    budget: int,
    device: torch.device,
) -> Iterator[Vectors]:
    """The vector (D,) of each text, in order and in constant memory.

    budget: tokens of a batch, padding included.
    """
    stream = iter(texts)
    while window := list(islice(stream, WINDOW)):
        rows = [[*ids, EOS] for ids in tokenizer.encode_batch(window)]
        order = sorted(range(len(rows)), key=lambda place: -len(rows[place]))
        found: dict[int, Vectors] = {}
        while order:
            count = max(1, budget // len(rows[order[0]]))
            places = order[:count]
            order = order[count:]
            found.update(zip(places, _means(encoder, [rows[place] for place in places], device)))
        for place in range(len(rows)):
            yield found[place]


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


@dataclass(frozen=True)
class Neighbor:
    """A text that is near another one."""

    text: str
    similarity: float
    """Cosine of the angle between their vectors: 1 for the same direction."""


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
