"""Scores of single sentences."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from regard.scoring import metrics


@dataclass(frozen=True)
class SentenceScore:
    """One answer beside the reference that it is most like."""

    source: str
    answer: str
    reference: str
    bleu: float
    """From 0 to 1, as in *Dive into Deep Learning*: see `sentence_bleu`."""
    correct: bool
    """Whether the answer equals the reference."""

    def as_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return asdict(self)


def sentence_scores(
    sources: metrics.Texts, answers: metrics.Texts, references: metrics.References, order: int = 2
) -> list[SentenceScore]:
    """BLEU of each answer by words, with n-grams of up to `order` words."""
    metrics.check(answers, references, sources)
    return [
        _score(source, answer, theirs, order)
        for source, answer, theirs in zip(sources, answers, references)
    ]


def _score(source: str, answer: str, references: Sequence[str], order: int) -> SentenceScore:
    """The score of an answer by the reference that it equals, or else is most like."""
    words = answer.split()
    scores = [
        (answer == text, metrics.sentence_bleu(words, text.split(), order)) for text in references
    ]
    correct, bleu = max(scores)
    reference = references[scores.index((correct, bleu))]
    return SentenceScore(source, answer, reference, bleu, correct)
