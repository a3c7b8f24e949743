"""How likely given targets are, for many pairs: sorted by length, in batches, in order."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import NamedTuple

import torch

from regard.data.batches import collate
from regard.models import Seq2Seq
from regard.nn.precision import at_least_single
from regard.records.likelihood import Likelihood
from regard.text.positions import positions_in
from regard.text.tokenizer import Tokenizer
from regard.text.vocabulary import BOS, EOS

WINDOW = 1024
"""Pairs that are sorted by length together."""

Row = tuple[list[int], ...]
"""Source ids with <eos>, target ids from <bos> to <eos>; the positions of the source, if any."""


class Prediction(NamedTuple):
    """What a model predicts at each place of one target, given the tokens before it."""

    logprobs: list[float]
    """Of the target's own tokens."""
    best: list[int]
    """The most likely ids."""
    best_logprobs: list[float]


def likelihoods(
    model: Seq2Seq,
    sides: tuple[Tokenizer, Tokenizer],
    pairs: Iterable[tuple[str, str]],
    budget: int,
) -> Iterator[Likelihood]:
    """The likelihood of each pair's target, in the order of the pairs.

    budget: tokens of a batch, padding included.
    """
    stream = iter(pairs)
    while window := list(islice(stream, WINDOW)):
        rows = _rows(window, sides)
        found: list[Likelihood | None] = [None] * len(window)
        for places in _batches(rows, budget):
            predictions = _predict(model, [rows[place] for place in places])
            for place, prediction in zip(places, predictions, strict=True):
                found[place] = _likelihood(sides[1], window[place], rows[place], prediction)
        yield from filter(None, found)


def _rows(pairs: Sequence[tuple[str, str]], sides: tuple[Tokenizer, Tokenizer]) -> list[Row]:
    source, target = sides
    sources = source.encode_batch([text for text, _ in pairs])
    targets = target.encode_batch([text for _, text in pairs])
    positions = [positions_in(source, text) for text, _ in pairs]
    rows: list[Row] = []
    for ids, answer, places in zip(sources, targets, positions, strict=True):
        row = ([*ids, EOS], [BOS, *answer, EOS])
        rows.append((*row, places) if places else row)
    return rows


def _batches(rows: Sequence[Row], budget: int) -> Iterator[list[int]]:
    """The places of the rows in batches of nearly equal length, longest first."""
    lengths = [max(map(len, row)) for row in rows]
    order = sorted(range(len(rows)), key=lambda place: -lengths[place])
    while order:
        count = max(1, budget // lengths[order[0]])
        yield order[:count]
        order = order[count:]


@torch.inference_mode()
def _predict(model: Seq2Seq, rows: list[Row]) -> list[Prediction]:
    """What the model predicts for the target of each row."""
    device = next(model.parameters()).device
    batch = collate(rows).to(device)
    logits = model.predict(batch)  # (B, T, V)
    logprobs = logits.to(at_least_single(logits.dtype)).log_softmax(-1)  # (B, T, V)
    chosen = logprobs.gather(-1, batch.target_out[..., None])[..., 0]  # (B, T)
    best = logits.argmax(-1)  # (B, T)
    best_logprobs = logprobs.gather(-1, best[..., None])[..., 0]  # (B, T)

    lists = (chosen.tolist(), best.tolist(), best_logprobs.tolist())
    lengths = batch.target_lengths.tolist()
    return [
        Prediction(own[:length], ids[:length], likeliest[:length])
        for own, ids, likeliest, length in zip(*lists, lengths, strict=True)
    ]


def _likelihood(
    tokenizer: Tokenizer, pair: tuple[str, str], row: Row, prediction: Prediction
) -> Likelihood:
    source, target = pair
    ids = row[1][1:]  # without <bos>
    return Likelihood(
        source,
        target,
        tokens=tokenizer.token_texts(ids),
        logprobs=prediction.logprobs,
        predicted=tokenizer.token_texts(prediction.best),
        predicted_logprobs=prediction.best_logprobs,
        correct=[id == best for id, best in zip(ids, prediction.best, strict=True)],
    )
