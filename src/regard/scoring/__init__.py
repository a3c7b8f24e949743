"""Scores of outputs against references, how sure they are, and the report of `regard evaluate`."""

from regard.scoring.metrics import (
    accuracy,
    bleu,
    bleu_applies,
    cer,
    chrf,
    exact_match,
    sentence_bleu,
    sequence_error,
    ter,
    wer,
)
from regard.scoring.report import Report, report

__all__ = [
    "Report",
    "accuracy",
    "bleu",
    "bleu_applies",
    "cer",
    "chrf",
    "exact_match",
    "report",
    "sentence_bleu",
    "sequence_error",
    "ter",
    "wer",
]
