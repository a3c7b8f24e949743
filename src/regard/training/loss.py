"""The loss of a whole corpus, or of each of its rows."""

from typing import NamedTuple

import numpy as np
import torch

from regard.data.batches import Batches
from regard.data.corpus import Corpus
from regard.data.objectives import TRANSLATE, Objective
from regard.models import Learner


class RowLoss(NamedTuple):
    """The loss of one row, summed over its tokens."""

    nll: float
    correct: float
    tokens: float


@torch.no_grad()
def row_losses(
    model: Learner, corpus: Corpus, device: torch.device, objective: Objective = TRANSLATE
) -> list[RowLoss]:
    """Loss and right tokens of each row, in the order of the corpus: their sums make `mean_loss`.

    Slower than that, since every row is a batch.
    """
    batches = Batches(corpus, sentences=1, seed=0, objective=objective)
    rows = []
    for row in range(len(corpus)):
        sums = model.loss(batches.load(np.array([row])).to(device))
        rows.append(RowLoss(float(sums.nll), float(sums.correct), float(sums.tokens)))
    return rows


@torch.no_grad()
def mean_loss(
    model: Learner,
    corpus: Corpus,
    budget: int,
    device: torch.device,
    objective: Objective = TRANSLATE,
) -> dict[str, float]:
    """Loss and accuracy per predicted token, over the whole corpus.

    objective: what the model is asked of each row. What is random in it is the same in every call.
    """
    nll = 0.0
    correct = 0.0
    tokens = 0.0
    for batch in Batches(corpus, tokens=budget, seed=0, objective=objective).in_order():
        sums = model.loss(batch.to(device))
        nll += float(sums.nll)
        correct += float(sums.correct)
        tokens += sums.tokens
    return {"loss": nll / tokens, "accuracy": correct / tokens, "tokens": tokens}
