"""Which hypothesis to give, where the likeliest is not what is wanted: what a search cannot judge,
since it knows no text.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from regard.scoring.metrics import sacre
from regard.search import Hypothesis

Weights = npt.NDArray[np.float32]


def least_risk(samples: Sequence[Hypothesis], texts: Sequence[str]) -> list[Hypothesis]:
    """Samples by how well they agree with all samples: the mean chrF, highest first (Freitag et al.
    2022).

    A text that was drawn twice counts twice. It is given once, with its mean chrF (0 to 100) as
    `agreement`; its score stays what it was.
    """
    metric = sacre("chrf")
    different = list(dict.fromkeys(texts))
    counts = np.array([texts.count(text) for text in different])  # (N,)

    chrf = np.empty((len(different), len(different)))
    for i, text in enumerate(different):
        for j, other in enumerate(different):
            chrf[i, j] = metric.sentence_score(text, [other]).score

    agreements = (chrf @ counts) / counts.sum()  # (N,)
    firsts = [samples[texts.index(text)] for text in different]
    agreed = [replace(one, agreement=float(value)) for one, value in zip(firsts, agreements)]
    return sorted(agreed, key=lambda one: -(one.agreement or 0.0))


def covered(
    hypotheses: Sequence[Hypothesis], weights: Callable[[Hypothesis], Weights], beta: float
) -> list[Hypothesis]:
    """Hypotheses with their coverage penalty, best sum of score and penalty first.

    The penalty is β Σ_j log min(Σ_t a_tj, 1) (Wu et al. 2016, eq. 14, as CTranslate2 adds it).
    weights: the attention (T, S) with which a hypothesis was written.
    """
    penalised = []
    for one in hypotheses:
        sums = np.minimum(weights(one).sum(0), 1.0)  # (S,)
        penalty = beta * float(np.log(sums[sums > 0]).sum())
        penalised.append(replace(one, coverage_penalty=penalty))

    return sorted(penalised, key=lambda one: -(one.score + (one.coverage_penalty or 0.0)))
