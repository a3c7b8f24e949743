"""Scores of outputs against references, how sure they are, and the report of `regard evaluate`."""

from regard.scoring.contrasts import KindScore, kind_score, scores_by_kind
from regard.scoring.lengths import LengthScore, scores_by_length
from regard.scoring.metrics import (
    accuracy,
    bleu,
    bleu_applies,
    cer,
    chrf,
    exact_match,
    sentence_bleu,
    sentence_chrfs,
    sequence_error,
    ter,
    wer,
)
from regard.scoring.report import Report, TextReport, report, text_report
from regard.scoring.sentences import SentenceScore, sentence_scores

__all__ = [
    "KindScore",
    "LengthScore",
    "Report",
    "SentenceScore",
    "TextReport",
    "accuracy",
    "bleu",
    "bleu_applies",
    "cer",
    "chrf",
    "exact_match",
    "kind_score",
    "report",
    "scores_by_kind",
    "scores_by_length",
    "sentence_bleu",
    "sentence_chrfs",
    "sentence_scores",
    "sequence_error",
    "ter",
    "text_report",
    "wer",
]
