"""Which hypothesis to give, where the likeliest is not what is wanted.

A search cannot judge this, since it knows no text.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from regard.scoring.metrics import sacre
from regard.search import Hypothesis


def least_risk(samples: Sequence[Hypothesis], texts: Sequence[str]) -> list[Hypothesis]:
    """Samples by how well they agree with all samples (Freitag et al. 2022).

    That is their mean chrF with all of them, highest first. A text that was drawn twice counts
    twice. It is given once, with its mean chrF (0 to 100) as `agreement`; its score stays what it
    was.
    """
    metric = sacre("chrf")
    different = list(dict.fromkeys(texts))
    counts = np.array([texts.count(text) for text in different])  # (N,)

    chrf = np.empty((len(different), len(different)))  # (N, N)
    for i, text in enumerate(different):
        for j, other in enumerate(different):
            chrf[i, j] = metric.sentence_score(text, [other]).score

    agreements = (chrf @ counts) / counts.sum()  # (N,)
    firsts = [samples[texts.index(text)] for text in different]
    agreed = [
        replace(hypothesis, agreement=float(agreement))
        for hypothesis, agreement in zip(firsts, agreements)
    ]
    return sorted(agreed, key=lambda hypothesis: -(hypothesis.agreement or 0.0))


def covered(
    hypotheses: Sequence[Hypothesis],
    weights: Callable[[Hypothesis], npt.NDArray[np.float32]],
    beta: float,
) -> list[Hypothesis]:
    """Hypotheses with their coverage penalty, best sum of score and penalty first.

    The penalty is β Σ_j log min(Σ_t a_tj, 1) (Wu et al. 2016, eq. 14, as CTranslate2 adds it).
    weights: the attention (T, S) with which a hypothesis was written.
    """
    penalised = []
    for hypothesis in hypotheses:
        sums = np.minimum(weights(hypothesis).sum(0), 1.0)  # (S,)
        penalty = beta * float(np.log(sums[sums > 0]).sum())
        penalised.append(replace(hypothesis, coverage_penalty=penalty))

    def total(hypothesis: Hypothesis) -> float:
        return hypothesis.score + (hypothesis.coverage_penalty or 0.0)

    return sorted(penalised, key=lambda hypothesis: -total(hypothesis))
