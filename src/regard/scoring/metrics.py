"""Scores of outputs against references: `references[i]` lists the acceptable answers to
`hypotheses[i]`, one or more.
"""

import math
from collections import Counter
from collections.abc import Hashable, Sequence
from itertools import zip_longest
from typing import Any, NamedTuple

from regard.errors import UserError

Texts = Sequence[str]
References = Sequence[Texts]


class Corpus(NamedTuple):
    """A corpus score from 0 to 100, and the sacreBLEU signature that makes it comparable with other
    people's.
    """

    score: float
    signature: str


def bleu(hypotheses: Texts, references: References, tokenize: str = "13a") -> Corpus:
    """Papineni et al. 2002: 0 without four words in a row. `tokenize="none"`: the text is
    tokenised, and no remark about it.
    """
    return _corpus(sacre("bleu", tokenize=tokenize, force=True), hypotheses, references)


def chrf(hypotheses: Texts, references: References) -> Corpus:
    """Character n-gram F-score (Popović 2015): kinder than BLEU to rich word endings."""
    return _corpus(sacre("chrf"), hypotheses, references)


def ter(hypotheses: Texts, references: References) -> Corpus:
    """Translation edit rate (Snover et al. 2006): edits and moves per 100 reference words; lower is
    better.
    """
    return _corpus(sacre("ter"), hypotheses, references)


def sacre(name: str, **options: Any) -> Any:
    """sacreBLEU's metric of that name: bleu, chrf or ter. Imported when used, for it is slow to
    start.
    """
    from sacrebleu import metrics

    return getattr(metrics, name.upper())(**options)


def _corpus(metric: Any, hypotheses: Texts, references: References) -> Corpus:
    check(hypotheses, references)
    score = metric.corpus_score(list(hypotheses), columns(references)).score
    return Corpus(float(score), str(metric.get_signature()))


def columns(references: References) -> list[tuple[str | None, ...]]:
    """As sacreBLEU wants them: the first reference of every line, then the second, …, or None."""
    return list(zip_longest(*references))


def check(hypotheses: Texts, references: References, sources: Texts | None = None) -> None:
    """Refuse what cannot be scored, in words, before a library refuses it in a traceback."""
    counts = [len(side) for side in (hypotheses, references, sources) if side is not None]
    if 0 in counts or len(set(counts)) > 1:
        raise UserError(
            f"outputs, references and sources must pair up, and not be empty; their numbers are "
            f"{counts}"
        )
    for i, answers in enumerate(references):
        if isinstance(answers, str) or not answers:
            raise UserError(
                f"output {i + 1} needs a list of reference texts, at least one, not {answers!r:.40}"
            )


def exact_match(hypotheses: Texts, references: References) -> float:
    """Share of outputs, 0 to 1, that equal one of their references."""
    check(hypotheses, references)
    return sum(hypothesis in answers for hypothesis, answers in zip(hypotheses, references)) / len(
        hypotheses
    )


def wer(hypotheses: Texts, references: References) -> float:
    """Word error rate as pronunciation work counts it, 0 to 1: share of outputs that equal none of
    their references.
    """
    return 1.0 - exact_match(hypotheses, references)


def per(hypotheses: Texts, references: References) -> float:
    """Phoneme error rate: edits, in space-separated tokens, to the nearest reference, per token of
    that reference.
    """
    check(hypotheses, references)
    texts = [
        (text.split(), [answer.split() for answer in answers])
        for text, answers in zip(hypotheses, references)
    ]
    # Among equally near references the longest, so that their order does not matter.
    nearest = [
        min((edit_distance(text, answer), -len(answer)) for answer in answers)
        for text, answers in texts
    ]
    edits, length = (
        sum(distance for distance, _ in nearest),
        -sum(negative for _, negative in nearest),
    )
    return edits / length if length else float(edits > 0)


def edit_distance(a: Sequence[Hashable], b: Sequence[Hashable]) -> int:
    """Fewest insertions, deletions and substitutions that turn `a` into `b`: the textbook table,
    row by row.
    """
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        corner, row[0] = row[0], i
        for j, y in enumerate(b, 1):
            corner, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, corner + (x != y))
    return row[-1]


def sentence_bleu(hypothesis: Sequence[str], reference: Sequence[str], order: int = 4) -> float:
    """The course's BLEU of one sentence, 0 to 1: exp(min(0, 1 - |ref| / |hyp|)) · Π p_n^(1/2^n) for
    n = 1 … order.

    p_n is the share of the output's n-grams found in the reference, each found as often as it is
    there; orders longer than the output are left out, as in *Dive into Deep Learning*.
    """
    score = math.exp(min(0.0, 1 - len(reference) / len(hypothesis))) if hypothesis else 0.0
    for n in range(1, min(order, len(hypothesis)) + 1):
        ours, theirs = (
            Counter(zip(*(side[i:] for i in range(n)))) for side in (hypothesis, reference)
        )
        score *= ((ours & theirs).total() / ours.total()) ** (0.5**n)
    return score
