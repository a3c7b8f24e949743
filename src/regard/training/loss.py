"""The loss of a whole corpus."""

import torch

from regard.data.batches import Batches
from regard.data.corpus import Corpus
from regard.data.objectives import TRANSLATE, Objective
from regard.models import Learner


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
