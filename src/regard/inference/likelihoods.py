"""How likely given targets or texts are: sorted by length, in batches, in order."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import NamedTuple

import numpy as np
import torch

from regard.data.batches import Row, collate
from regard.data.documents import text_rows
from regard.data.objectives import TRANSLATE, Objective
from regard.models import Seq2Seq
from regard.nn.precision import at_least_single
from regard.records.likelihood import Likelihood
from regard.text.positions import positions_in
from regard.text.tokenizer import Tokenizer
from regard.text.vocabulary import BOS, EOS

WINDOW = 1024
"""Pairs that are sorted by length together."""
NOTHING = np.array([EOS])
"""The source of a row of a text."""


class Prediction(NamedTuple):
    """What a model predicts at each place of one target, given the tokens before it."""

    logprobs: list[float]
    """Of the target's own tokens."""
    best: list[int]
    """The most likely ids."""
    best_logprobs: list[float]


class Reading(NamedTuple):
    """A text that a model has read, and what it predicted."""

    text: str
    ids: list[int]
    """All that were predicted; each row of a text that is not causal ends with <eos>."""
    prediction: Prediction

    def likelihood(self, tokenizer: Tokenizer) -> Likelihood:
        """With the tokens as texts."""
        return _likelihood(tokenizer, ("", self.text), self.ids, self.prediction)


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
        for pair, row, prediction in zip(window, rows, _predict_all(model, rows, budget)):
            yield _likelihood(sides[1], pair, [*map(int, row[1][1:])], prediction)


def read_texts(
    model: Seq2Seq,
    tokenizer: Tokenizer,
    texts: Iterable[str],
    budget: int,
    *,
    max_length: int,
    is_causal: bool,
    objective: Objective = TRANSLATE,
) -> Iterator[Reading]:
    """What a model predicts for each text, in order and in the rows of `encode_documents`.

    budget: tokens of a batch, padding included. objective: what the model is asked of each row;
    what is random in it follows from the number of the row, as in an evaluation.
    """
    stream = iter(texts)
    number = 0
    while window := list(islice(stream, WINDOW)):
        rows: list[Row] = []
        counts = []  # of the rows of each text
        for ids in tokenizer.encode_batch(window):
            cut = text_rows(ids, max_length, is_causal=is_causal)
            rows += [objective.row((NOTHING, row), number + i) for i, row in enumerate(cut)]
            number += len(cut)
            counts.append(len(cut))

        read = zip(rows, _predict_all(model, rows, budget))
        for text, count in zip(window, counts):
            yield _joined(text, list(islice(read, count)))


def _joined(text: str, rows: Sequence[tuple[Row, Prediction]]) -> Reading:
    """A text from its rows."""
    ids: list[int] = []
    whole = Prediction([], [], [])
    for row, prediction in rows:
        ids += map(int, row[1][1:])
        whole.logprobs.extend(prediction.logprobs)
        whole.best.extend(prediction.best)
        whole.best_logprobs.extend(prediction.best_logprobs)
    return Reading(text, ids, whole)


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


def _predict_all(model: Seq2Seq, rows: Sequence[Row], budget: int) -> list[Prediction]:
    """What the model predicts for the target of each row, in the order of the rows."""
    found: dict[int, Prediction] = {}
    for places in _batches(rows, budget):
        found.update(zip(places, _predict(model, [rows[place] for place in places]), strict=True))
    return [found[place] for place in range(len(rows))]


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
    tokenizer: Tokenizer, pair: tuple[str, str], ids: Sequence[int], prediction: Prediction
) -> Likelihood:
    """ids: of the target, without <bos>."""
    source, target = pair
    return Likelihood(
        source,
        target,
        tokens=tokenizer.token_texts(ids),
        logprobs=prediction.logprobs,
        predicted=tokenizer.token_texts(prediction.best),
        predicted_logprobs=prediction.best_logprobs,
        correct=[id == best for id, best in zip(ids, prediction.best, strict=True)],
    )
