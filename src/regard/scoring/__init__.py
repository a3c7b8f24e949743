"""Scores of outputs against references, how sure they are, and the report of `regard evaluate`."""

from regard.scoring.metrics import bleu, chrf, exact_match, per, sentence_bleu, ter, wer
from regard.scoring.report import Report, report

__all__ = ["Report", "bleu", "chrf", "exact_match", "per", "report", "sentence_bleu", "ter", "wer"]
